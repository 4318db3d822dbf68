"""Supervises the processes of `serve`: starts them, restarts them if they die, and stops them together."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cometmq.cli.failures import explain_os_error
from cometmq.cli.output import say
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.visible import visible

_log = logging.getLogger(__name__)

READY_MARK: Final = " ready: "
"""Text in the ready line of a server."""
STOP_SECONDS: Final = 15.0
"""Seconds after which a child that does not stop is killed. Flushing several hundred MB to a slow disk takes less
time.
"""
STEADY_SECONDS: Final = 60.0
"""Minimum number of seconds that a child must have run to be restarted immediately. Otherwise, the pause grows with
each restart.
"""
LONGEST_PAUSE_SECONDS: Final = 30.0


class ChildFailedError(CometMQError):
    """A child process ended before it was ready. Its stderr is already on the terminal."""


class Child:
    """A supervised process. It ends when its stdin is closed, so it never outlives its parent.

    :param at_first: additional arguments for the first start, which are left out on restarts.
    :param descriptors: open file descriptors that the child inherits under the same numbers.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        at_first: Sequence[str] = (),
        descriptors: Sequence[int] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.ready_line = ""
        self._command = (sys.executable, "-m", "cometmq", *arguments)
        self._at_first = tuple(at_first)
        self._descriptors = tuple(descriptors)
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Restart it whenever it dies later.

        :raises ChildFailedError: the process ended before it was ready.
        """
        await self._launch(self._at_first)
        self._watcher = asyncio.create_task(self._watch(), name=f"supervise {self.name}")

    async def stop(self) -> None:
        """Stop the process cleanly. Kill it if it is still running after :data:`STOP_SECONDS`."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        killer = self._clock.call_later(STOP_SECONDS, _kill, process)
        await _wait_for_exit(process)
        killer.cancel()

    async def _launch(self, more: Sequence[str] = ()) -> None:
        """Start the process and wait for its ready line. If that fails, kill it."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *more,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=self._descriptors,
            start_new_session=True,
        )
        self._process = process
        try:
            while (line := await _read_line(process)) is not None:
                if READY_MARK in line:
                    self.ready_line = line
                    return
            code = await process.wait()
        except Exception:
            _kill(process)
            await process.wait()
            raise
        raise ChildFailedError(f"{self.name} ended with exit code {code} before it was ready")

    async def _watch(self) -> None:
        """Restart the process whenever it dies, immediately or after a pause, until this task is cancelled.

        Failed starts, for example because memory or descriptors are exhausted, are also retried.
        """
        pause = 0.0
        while True:
            assert self._process is not None
            started = self._clock.monotonic()
            code = await _wait_for_exit(self._process)
            pause = 0.0 if self._clock.monotonic() - started > STEADY_SECONDS else pause
            in_seconds = f" in {pause:.0f} s" if pause else ""
            _log.warning("%s ended with exit code %d; restarting it%s", self.name, code, in_seconds)
            while True:
                await self._clock.sleep(pause)
                pause = min(LONGEST_PAUSE_SECONDS, pause * 2 + 1)
                try:
                    await self._launch()
                    break
                except ChildFailedError as error:
                    _log.warning("%s; trying again in %.0f s", error, pause)
                except Exception as error:
                    _log.warning("%s cannot be started: %s; trying again in %.0f s", self.name, _reason(error), pause)


def _reason(error: Exception) -> str:
    """Return the reason why a process could not be started."""
    return explain_os_error(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def _wait_for_exit(process: asyncio.subprocess.Process) -> int:
    """Wait for a process to exit and return its exit code. Its output is copied to stderr, so that its pipe does not
    fill up.
    """
    reading = asyncio.create_task(_pass_on(process))
    try:
        return await process.wait()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _pass_on(process: asyncio.subprocess.Process) -> None:
    while (line := await _read_line(process)) is not None:
        say(f"{visible(line)}\n")


async def _read_line(process: asyncio.subprocess.Process) -> str | None:
    """Return the next line that a process prints, or None if its stdout is closed."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:  # skip a line that is longer than the reader's buffer
            continue
        return line.decode(errors="replace").strip() if line else None
