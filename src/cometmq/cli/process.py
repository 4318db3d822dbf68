"""What every server command does around its services: event loop, signals, garbage collector, ready line."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from cometmq import descriptors
from cometmq.cli.failures import INTERRUPTED
from cometmq.cli.visible import visible
from cometmq.loop import fastest_loop

GC_YOUNG_OBJECTS: Final = 50_000
"""Allocations between two collections of the youngest generation: about a second of full load, since
the hot path makes no cycles and what it allocates dies by reference counting."""
GC_MIDDLE_RUNS: Final = 20
GC_OLD_RUNS: Final = 50

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Set by the first SIGINT or SIGTERM; the second one ends the process on the spot."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason = ""

    def install(self) -> None:
        """Listen for the signals on the running loop."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def request(self, reason: str) -> None:
        """Ask the process to stop, as a signal would."""
        self.reason = self.reason or reason
        self._event.set()

    async def wait(self) -> None:
        """Wait until the process is asked to stop."""
        await self._event.wait()

    @property
    def requested(self) -> bool:
        """Whether the process has been asked to stop."""
        return self._event.is_set()

    def _on_signal(self, number: int) -> None:
        if self._event.is_set():
            os._exit(INTERRUPTED)
        self.request(signal.Signals(number).name)


def run_server(main: Callable[[Stopping], Awaitable[None]]) -> None:
    """Run `main` on uvloop where it is installed, otherwise on asyncio's loop."""
    log_to_stderr()
    descriptors.raise_limit()

    async def guarded_main() -> None:
        stopping = Stopping()
        stopping.install()
        await main(stopping)

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(guarded_main())


def settle_garbage_collector() -> None:
    """Take what start-up made out of the collector's sight, and let it run rarely from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_MIDDLE_RUNS, GC_OLD_RUNS)


def log_to_stderr() -> None:
    """Let the services' warnings, such as what recovery found in a store, reach stderr; each is one line."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class LogLine(logging.Formatter):
    """A line of a log, in which names from outside forge no other line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line itself."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """The traceback below it."""
        return visible(super().formatException(ei), lines=True)


def announce(line: str) -> None:
    """Print the one line that says a server is ready; supervisors and scripts wait for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Print a warning that does not keep a server from starting."""
    say(f"cometmq: warning: {visible(line)}\n")


def say(text: str) -> None:
    """Write to stderr; a full disk or a reader that is gone stops no server."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
