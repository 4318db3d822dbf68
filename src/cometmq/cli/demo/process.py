"""A worker process of the demo as the stage sees it: started, listened to, stopped; and why it failed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from cometmq.cli.demo.worker import Told
from cometmq.errors import CometMQError


class Worker:
    """One process: a producer, a consumer, or Spark."""

    def __init__(self, name: str, module: str, task: msgspec.Struct, ledger: Path) -> None:
        self.name = name
        self.ledger = ledger
        self.told = Told()
        self.is_at_work = False
        """Whether it has told anything."""
        self._module = module
        self._task = task
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._errors = ledger.with_suffix(".log")

    async def start(self) -> None:
        """Start the process and listen to what it tells."""
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                msgspec.json.encode(self._task).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        self._reader = asyncio.create_task(self._read(self._process))

    async def finished(self) -> None:
        """Wait until it has ended.

        :raises CometMQError: it ended with an error, or without its ledger.
        """
        assert self._process is not None
        assert self._reader is not None
        await self._reader
        if await self._process.wait() != 0 or not self.ledger.exists():
            raise self._failure()

    def demand_alive(self) -> None:
        """Demand that it has not failed.

        :raises CometMQError: it has.
        """
        if self._process is not None and self._process.returncode not in (None, 0):
            raise self._failure()

    def _failure(self) -> CometMQError:
        said = self._errors.read_text(errors="replace").strip().splitlines()
        words = said[-1].removeprefix("cometmq: ") if said else "it said nothing"
        return CometMQError(f"{self.name} failed: {words}", next_step=f"{self._errors} has all it said")

    def stop(self) -> None:
        """Ask it to stop."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def gone(self) -> None:
        """Wait until a killed process is gone and everything about it is closed."""
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.told = msgspec.json.decode(line, type=Told)
            self.is_at_work = True
