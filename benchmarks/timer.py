"""Measures any delay beside Apache RocketMQ 5.1.4: how late messages are, and what many that wait cost.

    python benchmarks/timer.py late  [--rounds 3] [--waiting 200000] [--rate 1000] [--seconds 20] [--systems cometmq]
    python benchmarks/timer.py burst [--rounds 3] [--messages 100000] [--systems apache5,cometmq]
    python benchmarks/timer.py far   [--rounds 1] [--messages 1000000] [--systems apache5,cometmq]

`late`: so many messages wait for an hour while others fall due, `rate` a second. `burst`: so many are due in one
moment: from it to the last delivery, and how late others are that fall due in the second after it. `far`: what so many
messages that wait for two days cost in memory, and until a broker with them answers again after a stop.

Lateness is the store timestamp of the delivered message less TIMER_DELIVER_MS, both of one machine's clock, so that
neither the way of the send nor of the pull is part of it. Apache 5 rounds due times down to whole seconds. Both
systems run in turn, each alone, the JVM with 1 GB heap; medians of the rounds. A machine that is busy gives noise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop import systems  # noqa: E402
from tests.interop.systems import Deployment, System  # noqa: E402

from cometmq.client import Admin, Message, MessageExt, Producer, ProducerConfig, PullConsumer  # noqa: E402

BODY = b"x" * 100
HOUR_MS = 3_600_000
LEAD_S = 5
"""From the last send to the first moment that something is due."""
IN_FLIGHT = 256
SEND_PER_S = 3_000
"""So many sends a second are reckoned with, to place due times behind the last of them."""
PATIENCE_S = 600.0
JAVA = ("-Xms1g", "-Xmx1g")

Figures = dict[str, float]


async def send(producer: Producer, topic: str, due_ms: Iterable[int]) -> None:
    """Send one message for each due time."""
    moments = (datetime.fromtimestamp(due / 1000, UTC) for due in due_ms)
    await producer.send_many([Message(topic, BODY, deliver_at=moment) for moment in moments])


def sent_before(begin_ms: int) -> None:
    """Fail when sending went on until something was due: lateness would be that of the sends."""
    if time.time() * 1000 > begin_ms:
        raise RuntimeError(f"the producer sent fewer than {SEND_PER_S} a second: measure when the machine is idle")


async def delivered(admin: Admin, topic: str, count: int) -> list[MessageExt]:
    """All messages of the topic, once they are there."""
    found: list[MessageExt] = []
    async with asyncio.timeout(PATIENCE_S), PullConsumer("benchmark", instance=admin.instance) as consumer:
        while True:
            stats = await admin.topic_stats(topic)
            if sum(row.max_offset for row in stats.offset_table.values()) >= count:
                break
            await asyncio.sleep(0.5)
        for queue in await consumer.queues(topic):
            at, end = 0, await consumer.offsets.max(queue)
            while at < end:
                result = await consumer.pull(queue, at, 1024)
                found += result.messages
                at = result.next_offset
    return found


def lateness(messages: Iterable[MessageExt]) -> list[int]:
    """Of each message in ms, sorted."""
    return sorted(message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"]) for message in messages)


def percentiles(late_ms: list[int]) -> Figures:
    """Half, 99 of 100, and all of them are that late at most."""
    count = len(late_ms)
    return {"p50_ms": late_ms[count // 2], "p99_ms": late_ms[count * 99 // 100], "max_ms": late_ms[-1]}


def start_ms(messages: int) -> int:
    """A whole second by which so many messages are sent for certain."""
    return (int(time.time()) + LEAD_S + messages // SEND_PER_S + 1) * 1000


async def late(deployment: Deployment, options: argparse.Namespace) -> Figures:
    """A steady stream among many that wait."""
    count = options.rate * options.seconds
    async with open_clients(deployment) as (admin, producer):
        await admin.create_topic("Far", queues=4)
        await admin.create_topic("Steady", queues=4)
        far_ms = int(time.time() * 1000) + HOUR_MS
        await send(producer, "Far", (far_ms + number for number in range(options.waiting)))
        begin_ms = start_ms(count)
        await send(producer, "Steady", (begin_ms + number * 1000 // options.rate for number in range(count)))
        sent_before(begin_ms)
        return percentiles(lateness(await delivered(admin, "Steady", count)))


async def burst(deployment: Deployment, options: argparse.Namespace) -> Figures:
    """Many at once, and 1,000 others in the second after it."""
    async with open_clients(deployment) as (admin, producer):
        await admin.create_topic("Burst", queues=4)
        await admin.create_topic("Beside", queues=4)
        begin_ms = start_ms(options.messages + 1_000)
        await send(producer, "Burst", [begin_ms] * options.messages)
        await send(producer, "Beside", (begin_ms + number for number in range(1, 1_001)))
        sent_before(begin_ms)
        last_ms = lateness(await delivered(admin, "Burst", options.messages))[-1]
        beside = percentiles(lateness(await delivered(admin, "Beside", 1_000)))
    return {"seconds": last_ms / 1000, **{f"beside_{name}": figure for name, figure in beside.items()}}


async def far(deployment: Deployment, options: argparse.Namespace) -> Figures:
    """Memory and start with many that wait for two days."""
    async with open_clients(deployment) as (admin, producer):
        await admin.create_topic("Far", queues=4)
        far_ms = int(time.time() * 1000) + 47 * HOUR_MS
        await send(producer, "Far", (far_ms + number for number in range(options.messages)))
        await counted(admin, deployment.broker.address, options.messages)
        filled = memory_mb(deployment.broker.pid)
    await asyncio.to_thread(deployment.broker.stop)
    began = time.monotonic()
    stopped = deployment.broker
    deployment.broker = await asyncio.to_thread(
        systems.start_broker, stopped.system, stopped.directory, deployment.address, {}, stopped.port, JAVA
    )
    seconds = time.monotonic() - began
    again = memory_mb(deployment.broker.pid)
    return {**filled, "start_s": seconds, **{f"started_{name}": figure for name, figure in again.items()}}


async def counted(admin: Admin, broker: str, messages: int) -> None:
    """Wait until the broker has entered so many messages: it answers sends before that."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            metrics = await admin.waiting(broker)
            if "Far" in metrics and metrics["Far"].count >= messages:
                return
            await asyncio.sleep(1)


def memory_mb(pid: int) -> Figures:
    """Anonymous memory, and all that is resident."""
    rows = dict(row.split(":") for row in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.lower() + "_mb": int(rows[name].split()[0]) / 1024 for name in ("Anonymous", "Rss")}


@contextmanager
def running(system: System) -> Iterator[Deployment]:
    """A nameserver and a broker on a fresh store, gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-timer-") as directory,
        systems.start_namesrv(system, Path(directory) / "namesrv") as names,
    ):
        broker = systems.start_broker(system, Path(directory) / "broker", names.address, {}, java_options=JAVA)
        deployment = Deployment(names, broker, {})
        try:
            yield deployment
        finally:
            deployment.broker.close()


@asynccontextmanager
async def open_clients(deployment: Deployment) -> AsyncIterator[tuple[Admin, Producer]]:
    """Those of one measurement."""
    config = ProducerConfig(max_in_flight=IN_FLIGHT)
    async with Admin(deployment.address) as admin, Producer("bench", deployment.address, config=config) as producer:
        yield admin, producer


MEASURES: dict[str, Callable[[Deployment, argparse.Namespace], Coroutine[Any, Any, Figures]]] = {
    "late": late,
    "burst": burst,
    "far": far,
}
DEFAULT_MESSAGES = {"late": 0, "burst": 100_000, "far": 1_000_000}


def main() -> None:
    """Measure; one JSON line for each round, then the table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--systems", default=f"{System.APACHE5.value},{System.COMETMQ.value}")
    options = parser.parse_args()
    options.messages = options.messages or DEFAULT_MESSAGES[options.measure]
    wanted = [System(name) for name in options.systems.split(",")]
    figures: dict[System, list[Figures]] = {system: [] for system in wanted}
    for number in range(options.rounds):
        for system in wanted:
            with running(system) as deployment:
                result = asyncio.run(MEASURES[options.measure](deployment, options))
            figures[system].append(result)
            print(json.dumps({"round": number + 1, "system": system.value, **result}), flush=True)
    print("\n| | " + " | ".join(system.value for system in wanted) + " |\n|---|" + "---|" * len(wanted))
    for name in figures[wanted[0]][0]:
        medians = (statistics.median(result[name] for result in figures[system]) for system in wanted)
        print(f"| {name} | " + " | ".join(f"{median:,.1f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
