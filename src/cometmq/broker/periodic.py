"""Work that is done again and again on the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cometmq.clock import Clock, TimerHandle

_log = logging.getLogger(__name__)


class Periodic:
    """Calls a function every ``seconds``; one that returns an awaitable is waited for before the next pause.

    A failure is logged, and the next call comes all the same.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], Awaitable[None] | None], *, clock: Clock) -> None:
        self._name = name
        self._seconds = seconds
        self._work = work
        self._clock = clock
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call it for the first time after ``seconds``."""
        self._timer = self._clock.call_later(self._seconds, self._run)

    async def stop(self) -> None:
        """Call it no more; a call under way is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task

    def _run(self) -> None:
        try:
            waited_for = self._work()
        except Exception:
            _log.exception("%s failed", self._name)
            waited_for = None
        if waited_for is None:
            self.start()
        else:
            self._task = asyncio.get_running_loop().create_task(self._finish(waited_for), name=self._name)

    async def _finish(self, waited_for: Awaitable[None]) -> None:
        try:
            await waited_for
        except Exception:
            _log.exception("%s failed", self._name)
        finally:
            self._task = None
        if self._timer is not None:
            self.start()
