"""Measures how long a message takes from `send` to the listener, with our client; one JSON line a system and round.

    python benchmarks/latency.py [--systems cometmq,apache] [--rounds 3] [--seconds 10] [--rate 200]

Producer and consumer share one process and one event loop, the broker has its own. Messages of 128 bytes go out at a
steady rate, each waited for; the clock runs from the call of `send` to the first line of the listener. Both systems
run alone and in turn; the machine must be idle, or the scheduler is measured. Apache's JVM is warmed first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.systems import Deployment, System, deploy  # noqa: E402

from cometmq.client import Admin, Message, MessageExt, Producer, PushConsumer  # noqa: E402
from cometmq.client.consumer.listener import Listener  # noqa: E402

WARM_SECONDS = {System.APACHE: 20.0, System.COMETMQ: 2.0}
BODY = bytes(128)


async def send_steadily(producer: Producer, topic: str, rate: int, seconds: float) -> list[float]:
    """Send at ``rate`` and return what each send took until it was acknowledged, in seconds."""
    took = []
    begin = time.perf_counter()
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        sent = time.perf_counter()
        await producer.send(Message(topic, BODY, properties={"sent": repr(sent)}))
        took.append(time.perf_counter() - sent)
    return took


def listeners(arrived: list[float]) -> dict[str, Listener]:
    """A listener that runs on the loop and one that runs in threads."""

    def note(messages: Sequence[MessageExt]) -> None:
        now = time.perf_counter()
        arrived.extend(now - float(message.properties["sent"]) for message in messages)

    async def note_async(messages: Sequence[MessageExt]) -> None:
        note(messages)

    return {"async": note_async, "thread": note}


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """p50, p99 and the worst, in milliseconds."""
    ranked = sorted(seconds)
    return {
        f"{name}_p50_ms": round(ranked[len(ranked) // 2] * 1000, 3),
        f"{name}_p99_ms": round(ranked[len(ranked) * 99 // 100] * 1000, 3),
        f"{name}_max_ms": round(ranked[-1] * 1000, 3),
    }


async def measure(running: Deployment, system: System, arguments: argparse.Namespace) -> dict[str, float]:
    """One round on one system."""
    topic = "latency"
    async with Admin(running.address) as admin:
        await admin.create_topic(topic, queues=4)
    arrived: list[float] = []
    listener = listeners(arrived)[arguments.listener]
    consumer = PushConsumer("latency", listener, running.address)
    await consumer.subscribe(topic)
    async with Producer("latency", running.address) as producer, consumer:
        await send_steadily(producer, topic, 2000, WARM_SECONDS[system])
        await asyncio.sleep(1)
        arrived.clear()
        acknowledged = await send_steadily(producer, topic, arguments.rate, arguments.seconds)
        await asyncio.sleep(1)
    return {"messages": len(arrived), **percentiles("delivered", arrived), **percentiles("acknowledged", acknowledged)}


def main() -> None:
    """Run the rounds, the systems in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="cometmq,apache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--listener", choices=("async", "thread"), default="async")
    arguments = parser.parse_args()
    for number in range(arguments.rounds):
        for system in map(System, arguments.systems.split(",")):
            with tempfile.TemporaryDirectory() as directory:
                running = deploy(system, Path(directory))
                try:
                    figures = asyncio.run(measure(running, system, arguments))
                finally:
                    running.close()
            print(json.dumps({"system": system.value, "round": number} | figures), flush=True)


if __name__ == "__main__":
    main()
