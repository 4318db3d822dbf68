"""Work on the event loop at a set time, once or periodically."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cometmq.clock import Clock, TimerHandle

_log = logging.getLogger(__name__)


Work = Callable[[], Awaitable[None] | None]
"""The result of the work: ``None``, or an awaitable."""


class Alarm:
    """Calls a function once at a set time. It may be set again; after ``close`` the function is never called."""

    def __init__(self, work: Callable[[], None], *, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._timer: TimerHandle | None = None
        self._closed = False

    @property
    def is_set(self) -> bool:
        """True until the function is called."""
        return self._timer is not None

    def at(self, when_ms: int) -> None:
        """Call the function at ``when_ms`` (since 1970); this replaces an earlier setting."""
        self.cancel()
        if not self._closed:
            self._timer = self._clock.call_at(when_ms, self._ring)

    def after(self, seconds: float) -> None:
        """Call the function after ``seconds``; this replaces an earlier setting."""
        self.cancel()
        if not self._closed:
            self._timer = self._clock.call_later(seconds, self._ring)

    def cancel(self) -> None:
        """Do not call the function, unless it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Never call the function again."""
        self._closed = True
        self.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._work()


class Periodic:
    """Calls a function every ``seconds``; an awaitable that it returns is awaited before the next pause.

    A failure is logged, and the next call is made anyway.
    """

    def __init__(self, name: str, seconds: float, work: Work, *, clock: Clock) -> None:
        self._name = name
        self._seconds = seconds
        self._work = work
        self._clock = clock
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call the function for the first time after ``seconds``."""
        self._timer = self._clock.call_later(self._seconds, self._run)

    async def stop(self) -> None:
        """Stop calling the function; wait until a call in progress has ended."""
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
