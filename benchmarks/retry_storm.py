"""Measures what a storm of failing messages does to another consumer; one JSON line a system and state.

    python benchmarks/retry_storm.py [--systems cometmq,apache] [--rounds 3] [--messages 50000] [--rate 200] [--busy 2]

First the other consumer alone (as ``benchmarks/latency.py`` measures it), then while a group of a process of its own
fails on every one of 50,000 messages: each is handed back to the broker (36), waits, and comes again to fail again.
Levels of one second keep the storm going. Our client on both sides; broker, storm and the measured consumer share
the machine's cores, so some of what the second line shows is the scheduler's. How much tells ``--busy 2``: beside so
many processes that only count, and ask nothing of the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.latency import listeners, percentiles, send_steadily  # noqa: E402
from tests.interop.systems import System, deploy  # noqa: E402

from cometmq.client import (  # noqa: E402
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)

LEVELS = " ".join(["1s"] * 18)
STORM_TOPIC = "storm"


async def storm(namesrv: str, messages: int) -> None:
    """Send messages and fail on every one, again and again; tells on stdout when it begins to fail."""
    failed = 0
    began, all_failed = asyncio.Event(), asyncio.Event()

    async def fail(batch: Sequence[MessageExt]) -> ConsumeResult:
        nonlocal failed
        failed += len(batch)
        began.set()
        if failed >= messages:
            all_failed.set()
        return ConsumeResult.RECONSUME_LATER

    async with Producer("storm", namesrv) as producer:
        for _ in range(messages // 1000):
            await producer.send_batch([Message(STORM_TOPIC, bytes(128)) for _ in range(1000)])
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("storm", fail, namesrv, config=config)
    await consumer.subscribe(STORM_TOPIC)
    async with consumer:
        await began.wait()
        print("failing", flush=True)
        first = time.perf_counter()
        await all_failed.wait()
        seconds = time.perf_counter() - first
        print(json.dumps({"failed_once": failed, "seconds": round(seconds, 1)}), flush=True)
        await asyncio.sleep(3600)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that use a core each, as far as there is one."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def measure(namesrv: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The other consumer: alone, then in the storm."""
    async with Admin(namesrv) as admin:
        for topic in ("calm", STORM_TOPIC):
            await admin.create_topic(topic, queues=4)
    arrived: list[float] = []
    consumer = PushConsumer("calm", listeners(arrived)["async"], namesrv)
    await consumer.subscribe("calm")
    lines: list[dict[str, Any]] = []
    async with Producer("calm", namesrv) as producer, consumer:
        await send_steadily(producer, "calm", 1000, 5)
        await asyncio.sleep(1)
        arrived.clear()
        await send_steadily(producer, "calm", arguments.rate, arguments.seconds)
        lines.append({"state": "alone", **percentiles("delivered", arrived)})
        if arguments.busy:
            with busy(arguments.busy):
                arrived.clear()
                await send_steadily(producer, "calm", arguments.rate, arguments.seconds)
            lines.append({"state": f"beside {arguments.busy} busy processes", **percentiles("delivered", arrived)})
        command = [sys.executable, __file__, "--storm", namesrv, "--messages", str(arguments.messages)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            assert (await process.stdout.readline()) == b"failing\n"
            arrived.clear()
            await send_steadily(producer, "calm", arguments.rate, arguments.seconds)
            lines.append({"state": "in the storm", **percentiles("delivered", arrived)})
            lines[-1] |= json.loads(await process.stdout.readline())
        finally:
            process.kill()
            await process.wait()
    return lines


def main() -> None:
    """Run the rounds, the systems in turn; or, as a process of its own, the storm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="cometmq,apache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES", help="measure also beside so many")
    parser.add_argument("--storm", metavar="NAMESRV", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.storm:
        asyncio.run(storm(arguments.storm, arguments.messages))
        return
    for number in range(arguments.rounds):
        for system in map(System, arguments.systems.split(",")):
            with tempfile.TemporaryDirectory() as directory:
                running = deploy(system, Path(directory), messageDelayLevel=LEVELS)
                try:
                    for line in asyncio.run(measure(running.address, arguments)):
                        print(json.dumps({"system": system.value, "round": number} | line), flush=True)
                finally:
                    running.close()


if __name__ == "__main__":
    main()
