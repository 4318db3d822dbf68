"""The processes of the demo: servers, producers, consumers and Spark, and the lines in which workers report."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError

ROOT: Final = Path(__file__).parents[2]
"""The checkout, in which Python finds the modules of the demo."""
REPORT_SECONDS: Final = 0.2
"""A worker reports its progress this often."""

LAST_LINES: Final = 20
"""Lines of the log of a process that failed that are shown."""
_ERROR: Final = re.compile(r"^cometmq: |^[\w.]+(Error|Exception)\b| ERROR | CRITICAL ")


class Sent(msgspec.Struct):
    """The acknowledged events of one queue."""

    events: int = 0
    number_sum: int = 0
    """Sum of the events' numbers: with the count it shows that none is lost and replaced by another."""


class Progress(msgspec.Struct):
    """A line that a worker prints: its progress so far."""

    done: int = 0
    """Events acknowledged to a producer, or messages delivered to a consumer."""
    retries: int = 0
    """Batches that a producer sent again."""
    queues: dict[int, Sent] = {}
    """A producer's last line: its events by queue id."""
    act: str = ""
    """The current step of Spark."""
    archived: int = 0
    replayed: int = 0


class Reporter:
    """Prints the progress of a worker, but not too often."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def report(self, progress: Progress, *, now: bool = False) -> None:
        """Print a line if :data:`REPORT_SECONDS` have passed, or ``now``."""
        moment = SYSTEM_CLOCK.monotonic()
        if now or moment >= self._next_at:
            self._next_at = moment + REPORT_SECONDS
            sys.stdout.buffer.write(msgspec.json.encode(progress) + b"\n")
            sys.stdout.buffer.flush()


class Process:
    """A Python process whose lines are read; its stderr goes to a log file."""

    def __init__(self, name: str, module: str, arguments: tuple[str, ...], log: Path) -> None:
        self.name = name
        self.has_reported = False
        """True once a line has come."""
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._log = log

    async def start(self) -> None:
        """Start the process and read its lines."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        self._reader = asyncio.create_task(self._read(self._process))

    async def finished(self) -> None:
        """Wait until the process has ended.

        :raises CometMQError: it ended with an error.
        """
        assert self._process is not None
        assert self._reader is not None
        await self._reader
        if await self._process.wait() != 0:
            raise self.failure()

    def check(self) -> None:
        """Check that the process has not failed.

        :raises CometMQError: it has.
        """
        if self._process is not None and self._process.returncode not in (None, 0):
            raise self.failure()

    def failure(self) -> CometMQError:
        """Return an error with the last lines of its log, and with its last error if that stands before them."""
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"]
        shown = lines[-LAST_LINES:]
        if not any(map(_ERROR.search, shown)):
            shown = [*filter(_ERROR.search, lines)][-1:] + shown
        reason = f" {shown[0].removeprefix('cometmq: ')}" if len(shown) == 1 else "\n  ".join(["", *shown, ""])
        return CometMQError(f"{self.name} failed:{reason}", next_step=f"{self._log} has all that it wrote")

    def stop(self) -> None:
        """Ask the process to stop."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def kill(self) -> None:
        """End the process as a crash does, if it still runs, and wait until it is gone."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._take(line)
            self.has_reported = True

    def _take(self, line: bytes) -> None:
        """Handle one line of its stdout."""


class Server(Process):
    """A nameserver or broker; its ready line is its only one."""

    def __init__(self, name: str, arguments: tuple[str, ...], log: Path) -> None:
        super().__init__(name, "cometmq", arguments, log)

    async def start(self) -> None:
        """Start the server and wait until it is ready.

        :raises CometMQError: it ended before.
        """
        self.has_reported = False
        await super().start()
        assert self._reader is not None
        while not self.has_reported:
            if self._reader.done():
                raise self.failure()
            await SYSTEM_CLOCK.sleep(REPORT_SECONDS / 10)


class Worker(Process):
    """A producer, a consumer or Spark; its argument is its task as JSON."""

    def __init__(self, name: str, module: str, task: msgspec.Struct, log: Path) -> None:
        super().__init__(name, module, (msgspec.json.encode(task).decode(),), log)
        self.progress = Progress()

    def _take(self, line: bytes) -> None:
        self.progress = msgspec.json.decode(line, type=Progress)
