"""Background tasks of a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from cometmq.clock import Clock

log = logging.getLogger(__name__)


class Spawn(Protocol):
    """Runs background work in a task that ends when its client ends."""

    def __call__(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Run work until it finishes or the client ends; log any failure."""


class Background:
    """The background tasks of one client, which end with the client.

    :param owner: the client's name in logged failures.
    """

    def __init__(self, owner: str, clock: Clock) -> None:
        self._owner = owner
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        """Run work in a task and log any failure. After :meth:`stop`, the task is cancelled before it starts."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if self._is_over:
            task.cancel()
        return task

    def every(
        self, seconds: float, work: Callable[[], Awaitable[None]], what: str, *, first_s: float | None = None
    ) -> asyncio.Task[None]:
        """Run ``work`` repeatedly in its own task, so that it delays no other work.

        :param seconds: the pause before each run.
        :param what: the work's name in logged failures; a failure does not stop the next run.
        :param first_s: the pause before the first run; by default the same pause.
        """
        first_s = seconds if first_s is None else first_s
        return self.spawn(self._repeat(seconds, work, what, first_s), name=what)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]], what: str, pause_s: float) -> None:
        while True:
            await self._clock.sleep(pause_s)
            pause_s = seconds
            try:
                await work()
            except Exception:
                log.exception("%s of %s failed; the next run is in %g s", what, self._owner, seconds)

    async def stop(self) -> None:
        """Cancel all tasks except the calling one, and wait until they have ended."""
        self._is_over = True
        while tasks := self._tasks - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # lets the callbacks run that remove the tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work of %s failed", self._owner, exc_info=error)
