"""The tasks of one client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Spawn(Protocol):
    """Runs work in a task that ends with its client."""

    def __call__(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Run work until it ends or the client does; log its failure."""


class Background:
    """Tasks that run until they end or the client does; none runs after that.

    :param owner: the client, as failures in the log name it.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Run work in a task, and log its failure; after :meth:`stop` the task is cancelled before it begins."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if self._is_over:
            task.cancel()
        return task

    async def stop(self) -> None:
        """Cancel all tasks but the calling one, and wait until they have ended."""
        self._is_over = True
        while tasks := self._tasks - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # lets the callbacks run that count them out

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work of %s failed", self._owner, exc_info=error)
