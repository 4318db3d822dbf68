"""Writes the KV configuration beside the event loop: all changes of a moment together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.limits import MAX_WAITING_KV_CHANGES
from cometmq.namesrv.kv import KvConfig, KvError

Told = Callable[[KvError | None], None]
"""Called once a change is on disk, or with why it is not."""


class KvWriter:
    """Who waits for the file, and the one task that writes it."""

    def __init__(self, kv: KvConfig) -> None:
        self._kv: Final = kv
        self._waiting: list[Told] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether no more changes may wait."""
        return len(self._waiting) >= MAX_WAITING_KV_CHANGES

    def write(self, told: Told) -> None:
        """Write what is staged."""
        self._waiting.append(told)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write what waits."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            while self._waiting:
                told, self._waiting = self._waiting, []
                tables = self._kv.staged
                failure: KvError | None = None
                try:
                    await asyncio.to_thread(self._kv.save, tables)
                except KvError as error:
                    # What was staged meanwhile was staged upon what is not there.
                    failure = error
                    self._kv.give_up()
                    told += self._waiting
                    self._waiting = []
                else:
                    self._kv.saved(tables)
                for tell in told:
                    tell(failure)
        finally:
            self._task = None
