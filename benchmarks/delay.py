"""Measures delayed messages beside Apache RocketMQ: how late they are, and how fast many come that are due at once.

    python -m benchmarks.delay levels late  [--rounds 3] [--waiting 200000] [--rate 1000] [--seconds 20]
    python -m benchmarks.delay levels burst [--rounds 3] [--messages 100000]
    python -m benchmarks.delay any late
    python -m benchmarks.delay any burst

`levels` are delay levels beside 4.9.7, `any` is any delay beside 5.1.4, which rounds due times down to whole seconds.
`late`: so many messages wait for an hour while others, `rate` a second, are due five seconds after their send. `burst`
of levels: messages become due while their broker is stopped; seconds from the first to the last delivery after its
start. `burst` of any delay: so many are due in one moment; seconds from it to the last delivery, and how late 1,000
others are that are due in the second after it.

A message of a level is late from its born timestamp on, one of any delay from TIMER_DELIVER_MS on. Both systems run
in turn, each alone, the JVM with a heap of 1 GB; medians of the rounds. A machine that is busy gives noise.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from benchmarks.rounds import Figures, columns, in_turn, percentiles, say
from benchmarks.servers import running
from tests.interop.systems import Deployment, System

from cometmq.client import Admin, Message, MessageExt, Producer, ProducerConfig, PullConsumer

PEERS: Final = {"levels": System.APACHE, "any": System.APACHE5}
LEVELS: Final = {"messageDelayLevel": "5s 60s 1h"}
DELAY_S: Final = 5
OFFLINE_S: Final = 61
HOUR_S: Final = 3_600
LEVEL_OF: Final = {DELAY_S: 1, 60: 2, HOUR_S: 3}
BODY: Final = bytes(100)
BESIDE: Final = 1_000
SEND_PER_S: Final = 3_000
"""So many sends a second are reckoned with, to place due times behind the last of them."""
IN_FLIGHT: Final = 256
PATIENCE_S: Final = 600.0


def waiting(kind: str, topic: str, seconds: int) -> Message:
    """A message that waits for so long from now on."""
    if kind == "levels":
        return Message(topic, BODY, delay_level=LEVEL_OF[seconds])
    return due_at(topic, time.time() + seconds)


def due_at(topic: str, moment: float) -> Message:
    """A message of any delay that is due at a moment."""
    return Message(topic, BODY, deliver_at=datetime.fromtimestamp(moment, UTC))


def lateness(messages: Iterable[MessageExt]) -> list[int]:
    """Of each message in ms."""
    return [
        one.store_timestamp - int(one.properties.get("TIMER_DELIVER_MS") or one.born_timestamp + DELAY_S * 1000)
        for one in messages
    ]


async def delivered(admin: Admin, topic: str, count: int) -> list[MessageExt]:
    """All messages of a topic, once they are there."""
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


async def late(deployment: Deployment, options: argparse.Namespace) -> Figures:
    """A steady stream among many that wait."""
    count = options.rate * options.seconds
    async with clients(deployment, "Far", "Steady") as (admin, producer):
        await producer.send_many([waiting(options.kind, "Far", HOUR_S) for _ in range(options.waiting)])
        began = time.monotonic()
        async with asyncio.TaskGroup() as sends:
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / options.rate - time.monotonic()))
                sends.create_task(producer.send(waiting(options.kind, "Steady", DELAY_S)))
        return percentiles(lateness(await delivered(admin, "Steady", count)))


async def burst(deployment: Deployment, options: argparse.Namespace) -> Figures:
    """Many that are due at once."""
    if options.kind == "levels":
        return await _burst_after_a_stop(deployment, options.messages)
    async with clients(deployment, "Burst", "Beside") as (admin, producer):
        begin = int(time.time()) + DELAY_S + options.messages // SEND_PER_S + 1
        await producer.send_many([due_at("Burst", begin) for _ in range(options.messages)])
        await producer.send_many([due_at("Beside", begin + number / BESIDE) for number in range(1, BESIDE + 1)])
        if time.time() > begin:
            raise RuntimeError(f"the producer sent fewer than {SEND_PER_S} a second: measure when the machine is idle")
        seconds = max(lateness(await delivered(admin, "Burst", options.messages))) / 1000
        beside = percentiles(lateness(await delivered(admin, "Beside", BESIDE)))
    return {"seconds": seconds, **{f"beside_{name}": figure for name, figure in beside.items()}}


async def _burst_after_a_stop(deployment: Deployment, messages: int) -> Figures:
    async with clients(deployment, "Burst") as (_, producer):
        await producer.send_many([waiting("levels", "Burst", 60)] * messages)
    deployment.broker.stop()
    await asyncio.sleep(OFFLINE_S)
    deployment.start_again(deployment.broker.system)
    async with Admin(deployment.address) as admin:
        times = [message.store_timestamp for message in await delivered(admin, "Burst", messages)]
    return {"seconds": (max(times) - min(times)) / 1000}


@asynccontextmanager
async def clients(deployment: Deployment, *topics: str) -> AsyncIterator[tuple[Admin, Producer]]:
    """Those of one measurement, and its topics."""
    config = ProducerConfig(max_in_flight=IN_FLIGHT)
    async with Admin(deployment.address) as admin, Producer("bench", deployment.address, config=config) as producer:
        for topic in topics:
            await admin.create_topic(topic, queues=4)
        yield admin, producer


MEASURES: Final[dict[str, Callable[[Deployment, argparse.Namespace], Coroutine[Any, Any, Figures]]]] = {
    "late": late,
    "burst": burst,
}


def main() -> None:
    """Measure; one JSON line for each round, then the table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=PEERS)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    sides: Sequence[System] = (PEERS[options.kind], System.COMETMQ)
    found: dict[str, list[Figures]] = {system.value: [] for system in sides}
    for number, system in in_turn(sides, options.rounds):
        with running(system, LEVELS if options.kind == "levels" else {}) as deployment:
            found[system.value].append(asyncio.run(MEASURES[options.measure](deployment, options)))
        say(round=number, system=system.value, **found[system.value][-1])
    print(f"\n{columns(found)}")


if __name__ == "__main__":
    main()
