"""Measures the time of a message from `send` to the listener with our client, quiet or in a storm of failing messages.

    python -m benchmarks.latency [--systems cometmq,apache] [--rounds 3] [--seconds 10] [--rate 200] [--listener thread]
    python -m benchmarks.latency --storm 50000 [--busy 2]

Producer and consumer share one process and one event loop, the broker has its own. Messages of 128 bytes go out at a
steady rate, each waited for; the clock runs from the call of `send` to the first line of the listener. Both systems
run alone and in turn; the machine must be idle, or the scheduler is measured. Brokers are warmed first.

With `--storm` the same is measured once more while a group of a process of its own fails on every one of so many
messages: each is handed back to the broker (36), waits for a second, and comes again to fail again. Broker, storm and
the measured consumer share the machine's cores, so some of what is added is the scheduler's. How much tells `--busy`:
beside so many processes that only count, and ask nothing of the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from benchmarks.rounds import columns, in_turn, percentiles, say
from benchmarks.servers import running
from tests.interop.systems import System

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.consumer.listener import Listener

WARM_S: Final = {System.APACHE: 20.0, System.COMETMQ: 2.0}
WARM_RATE: Final = 2_000
BODY: Final = bytes(128)
TOPIC, STORM_TOPIC = "latency", "storm"
LEVELS: Final = {"messageDelayLevel": " ".join(["1s"] * 18)}
"""Of one second, so that the storm goes on."""


async def send_steadily(producer: Producer, rate: int, seconds: float) -> None:
    """Send at a rate, each message with the moment of its send."""
    begin = time.perf_counter()
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        await producer.send(Message(TOPIC, BODY, properties={"sent": repr(time.perf_counter())}))


def listener(kind: str, arrived_ms: list[float]) -> Listener:
    """A listener that runs on the loop (``async``), or one that runs in threads."""

    def note(messages: Sequence[MessageExt]) -> None:
        now = time.perf_counter()
        arrived_ms.extend((now - float(message.properties["sent"])) * 1000 for message in messages)

    async def note_async(messages: Sequence[MessageExt]) -> None:
        note(messages)

    return note_async if kind == "async" else note


async def fail_on_all(namesrv: str, messages: int) -> None:
    """Send messages and fail on every one, again and again; say when it begins, and when all have failed once."""
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
            await producer.send_batch([Message(STORM_TOPIC, BODY) for _ in range(1000)])
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("storm", fail, namesrv, config=config)
    await consumer.subscribe(STORM_TOPIC)
    async with consumer:
        await began.wait()
        say(failing=True)
        first = time.perf_counter()
        await all_failed.wait()
        say(failed_once=failed, seconds=time.perf_counter() - first)
        await asyncio.sleep(3600)


class Companions:
    """Processes beside the measured client, until they are ended."""

    def __init__(self, *commands: Sequence[str]) -> None:
        self.processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]

    async def line(self) -> str:
        """The next line of the first of them."""
        output = self.processes[0].stdout
        assert output is not None
        return await asyncio.to_thread(output.readline)

    def __enter__(self) -> Companions:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


async def measure(namesrv: str, system: System, options: argparse.Namespace) -> dict[str, list[float]]:
    """The milliseconds of each message: alone, beside busy processes, in the storm."""
    async with Admin(namesrv) as admin:
        for topic in (TOPIC, STORM_TOPIC):
            await admin.create_topic(topic, queues=4)
    arrived: list[float] = []
    found: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer("latency", namesrv))
        consumer = PushConsumer("latency", listener(options.listener, arrived), namesrv)
        await consumer.subscribe(TOPIC)
        await stack.enter_async_context(consumer)

        async def take(state: str) -> None:
            arrived.clear()
            await send_steadily(producer, options.rate, options.seconds)
            await asyncio.sleep(1)
            found[state] = list(arrived)

        await send_steadily(producer, WARM_RATE, WARM_S[system])
        await asyncio.sleep(1)
        await take("alone")
        if options.busy:
            with Companions(*[[sys.executable, "-c", "while True: pass"]] * options.busy):
                await take(f"beside {options.busy} busy processes")
        if options.storm:
            command = [sys.executable, "-m", "benchmarks.latency", "--fail", namesrv, "--storm", str(options.storm)]
            with Companions(command) as storm:
                await storm.line()
                await take("in the storm")
                print(await storm.line(), end="", flush=True)
    return found


def main() -> None:
    """Run the rounds, the systems in turn; or, as a process of its own, the storm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="cometmq,apache")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--listener", choices=("async", "thread"), default="async")
    parser.add_argument("--storm", type=int, default=0, metavar="MESSAGES", help="measure also while so many fail")
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES", help="measure also beside so many")
    parser.add_argument("--fail", metavar="NAMESRV", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fail:
        asyncio.run(fail_on_all(options.fail, options.storm))
        return
    rounds: dict[str, list[dict[str, float]]] = {}
    for number, system in in_turn([System(name) for name in options.systems.split(",")], options.rounds):
        with running(system, LEVELS if options.storm else {}) as deployment:
            found = asyncio.run(measure(deployment.address, system, options))
        for state, taken in found.items():
            side = f"{system.value}, {state}"
            rounds.setdefault(side, []).append(percentiles(taken))
            say(round=number, system=system.value, state=state, messages=len(taken), **rounds[side][-1])
    print(f"\n{columns(rounds)}")


if __name__ == "__main__":
    main()
