"""Measures delayed messages beside Apache RocketMQ 4.9.7: how late they are, how fast many come that are due at once.

    python benchmarks/delay.py late  [--rounds 3] [--waiting 200000] [--rate 1000] [--seconds 20] [--system cometmq]
    python benchmarks/delay.py burst [--rounds 3] [--messages 100000] [--system cometmq]

`late`: so many messages wait for an hour while others fall due, `rate` a second; how much later than asked each is
stored in its topic, by the clocks of producer and broker (the way of the send is part of it). `burst`: messages fall
due while their broker is stopped; from the first to the last one that it stores in their topic after its start.
Both systems run in turn, each alone; medians of the rounds. A machine that is busy gives noise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop import systems  # noqa: E402
from tests.interop.systems import BOTH, Deployment, System  # noqa: E402

from cometmq.client import Admin, Message, MessageExt, Producer, PullConsumer  # noqa: E402

TOPIC = "DelayBenchmark"
WAITING_TOPIC = "WaitingBenchmark"
LEVELS = "5s 60s 1h"
DELAY_S = 5
LATE, BURST, HOUR = 1, 2, 3
BODY = b"x" * 128


async def stored(address: str, expected: int) -> list[MessageExt]:
    """All messages of the topic, once they are there."""
    found: list[MessageExt] = []
    async with Admin(address) as admin, PullConsumer("benchmark", instance=admin.instance) as consumer:
        while True:
            stats = await admin.topic_stats(TOPIC)
            if sum(row.max_offset for row in stats.offset_table.values()) >= expected:
                break
            await asyncio.sleep(0.2)
        for queue in await consumer.queues(TOPIC):
            at, end = 0, await consumer.offsets.max(queue)
            while at < end:
                result = await consumer.pull(queue, at, 1024)
                found += result.messages
                at = result.next_offset
    return found


async def late(deployment: Deployment, options: argparse.Namespace) -> dict[str, float]:
    """The percentiles of how late messages are, in ms."""
    async with Producer("benchmark", deployment.address) as producer, Admin(deployment.address) as admin:
        for topic in (TOPIC, WAITING_TOPIC):
            await admin.create_topic(topic, queues=4)
        await producer.send_many([Message(WAITING_TOPIC, BODY, delay_level=HOUR)] * options.waiting)
        began = time.monotonic()
        sends = []
        for number in range(options.rate * options.seconds):
            await asyncio.sleep(max(0.0, began + number / options.rate - time.monotonic()))
            sends.append(asyncio.ensure_future(producer.send(Message(TOPIC, BODY, delay_level=LATE))))
        await asyncio.gather(*sends)
    lateness = sorted(
        message.store_timestamp - message.born_timestamp - DELAY_S * 1000
        for message in await stored(deployment.address, options.rate * options.seconds)
    )
    return {
        "p50_ms": lateness[len(lateness) // 2],
        "p99_ms": lateness[len(lateness) * 99 // 100],
        "max_ms": lateness[-1],
    }


async def burst(deployment: Deployment, options: argparse.Namespace) -> dict[str, float]:
    """Seconds from the first to the last delivery."""
    async with Producer("benchmark", deployment.address) as producer, Admin(deployment.address) as admin:
        await admin.create_topic(TOPIC, queues=4)
        await producer.send_many([Message(TOPIC, BODY, delay_level=BURST)] * options.messages)
    deployment.broker.stop()
    await asyncio.sleep(61)
    deployment.start_again(deployment.broker.system)
    times = [message.store_timestamp for message in await stored(deployment.address, options.messages)]
    return {"seconds": (max(times) - min(times)) / 1000}


MEASURES: dict[str, Callable[[Deployment, argparse.Namespace], Coroutine[Any, Any, dict[str, float]]]] = {
    "late": late,
    "burst": burst,
}


def main() -> None:
    """Measure and print one line for each round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--system", choices=[system.value for system in BOTH], action="append")
    options = parser.parse_args()
    for name in options.system or [system.value for system in BOTH]:
        figures: list[dict[str, float]] = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="cometmq-delay-") as directory:
                deployment = systems.deploy(System(name), Path(directory), messageDelayLevel=LEVELS)
                try:
                    figures.append(asyncio.run(MEASURES[options.measure](deployment, options)))
                finally:
                    deployment.close()
            print(json.dumps({"system": name, **figures[-1]}), flush=True)
        medians = {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}
        print(f"{name}: {medians}", flush=True)


if __name__ == "__main__":
    main()
