"""A program that measures the cases of one client at a running broker; it needs nothing but Python."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

QUEUES = 8
LIST = 5_000
BATCH = 32
POLLED = 1_024
TASKS = 64


@dataclass(frozen=True)
class Setting:
    """The options of the command line."""

    address: str
    seconds: float
    body: bytes
    fill: int
    """Messages that the consuming cases drain, in thousands."""


@dataclass(frozen=True)
class Measured:
    """A case that has run."""

    messages: int
    seconds: float
    processor_seconds: float


class Watch:
    """The time since it was made, of the clock and of this process."""

    def __init__(self) -> None:
        self._processor = time.process_time()
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of the clock."""
        return time.perf_counter() - self._begun

    def measured(self, messages: int) -> Measured:
        """The case is over after so many messages."""
        return Measured(messages, self.seconds, time.process_time() - self._processor)


async def repeat(setting: Setting, send: Callable[[], Awaitable[int]], tasks: int = 1) -> Measured:
    """Send again and again until the time is over, in so many tasks.

    :param send: sends some messages; how many.
    """
    count, watch = 0, Watch()

    async def work() -> None:
        nonlocal count
        while watch.seconds < setting.seconds:
            sent = await send()  # other tasks count meanwhile
            count += sent

    await asyncio.gather(*(work() for _ in range(tasks)))
    return watch.measured(count)


def measure(*cases: Callable[[Setting], Awaitable[Measured]]) -> None:
    """Run the cases asked for, or all; print a line for each."""
    named = {case.__name__.replace("_", "-"): case for case in cases}
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:9876", help="of the nameserver, or of Kafka's broker")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each sending case")
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--fill", type=int, default=300_000, help="messages that the consuming cases drain")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(named))
    options = parser.parse_args()
    if unknown := set(options.cases) - set(named):
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(named)}")
    setting = Setting(options.address, options.seconds, b"x" * options.body_bytes, options.fill // LIST * LIST)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_measure({name: named[name] for name in options.cases or named}, setting))


async def _measure(cases: dict[str, Callable[[Setting], Awaitable[Measured]]], setting: Setting) -> None:
    for name, case in cases.items():
        found = await case(setting)
        line = {
            "case": name,
            "messages": found.messages,
            "seconds": round(found.seconds, 3),
            "per_second": round(found.messages / found.seconds),
            "processor_us_per_message": round(found.processor_seconds / found.messages * 1e6, 2),
        }
        print(json.dumps(line), flush=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of loops where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
