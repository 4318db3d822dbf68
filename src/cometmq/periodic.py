"""Runs work on the event loop at a given time, once or periodically."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cometmq.clock import Clock, TimerHandle

_log = logging.getLogger(__name__)

_FEW_CANCELLED: Final = 64
"""Number of cancelled deadlines that stay in memory until their time."""
_CALLS_AT_ONCE: Final = 64
"""Maximum number of calls in one round of the loop."""

Work = Callable[[], Awaitable[None] | None]
"""A function that returns ``None``, or an awaitable that must be awaited."""


class Alarm:
    """Calls a function once at the time to which it is set. It may be set again; after ``close`` the function is never
    called."""

    __slots__ = ("_clock", "_closed", "_timer", "_work")

    def __init__(self, work: Callable[[], None], *, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._timer: TimerHandle | None = None
        self._closed = False

    @property
    def is_set(self) -> bool:
        """True while a call of the function is pending."""
        return self._timer is not None

    def at(self, when_ms: int) -> None:
        """Call the function at ``when_ms`` (since 1970); this replaces any earlier time."""
        self.cancel()
        if not self._closed:
            self._timer = self._clock.call_at(when_ms, self._call_work)

    def after(self, seconds: float) -> None:
        """Call the function after ``seconds``; this replaces any earlier time."""
        self.cancel()
        if not self._closed:
            self._timer = self._clock.call_later(seconds, self._call_work)

    def cancel(self) -> None:
        """Cancel the call of the function, unless a new time is set."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Cancel the call of the function permanently."""
        self._closed = True
        self.cancel()

    def _call_work(self) -> None:
        self._timer = None
        self._work()


class Deadline:
    """A call at the end of a time; see :class:`Deadlines`."""

    __slots__ = ("_owner", "work")

    def __init__(self, owner: Deadlines, work: tuple[Callable[..., object], tuple[Any, ...]]) -> None:
        self._owner = owner
        self.work: tuple[Callable[..., object], tuple[Any, ...]] | None = work

    def cancel(self) -> None:
        """Do not make the call; do nothing if it has been made."""
        if self.work is not None:
            self.work = None
            self._owner.cancelled()


class Deadlines:
    """Makes calls at the end of their times. Thousands of times share one timer of the clock.

    :param early_s: calls that are due within this number of seconds are made together with the call before them.
    """

    def __init__(self, *, clock: Clock, early_s: float = 0.0) -> None:
        self._clock = clock
        self._early_s = early_s
        self._due: list[tuple[float, int, Deadline]] = []
        """A heap by time; cancelled ones are removed when there are many."""
        self._order = itertools.count()
        self._cancelled = 0
        self._alarm = Alarm(self._make_calls, clock=clock)
        self._alarm_at = 0.0

    def after(self, seconds: float, work: Callable[..., object], *args: Any) -> Deadline:
        """Call ``work(*args)`` after ``seconds``."""
        deadline = Deadline(self, (work, args))
        due = self._clock.monotonic() + seconds
        heapq.heappush(self._due, (due, next(self._order), deadline))
        if not self._alarm.is_set or due < self._alarm_at:
            self._set_alarm(due, seconds)
        return deadline

    def cancelled(self) -> None:
        """Count a cancelled deadline."""
        self._cancelled += 1
        if self._cancelled > max(_FEW_CANCELLED, len(self._due) // 2):
            self._due = [entry for entry in self._due if entry[2].work is not None]
            heapq.heapify(self._due)
            self._cancelled = 0

    def _set_alarm(self, due: float, seconds: float) -> None:
        self._alarm_at = due
        self._alarm.after(seconds)

    def _make_calls(self) -> None:
        now = max(self._clock.monotonic(), self._alarm_at)
        left = _CALLS_AT_ONCE
        while left and self._due and (self._due[0][0] <= now + self._early_s or self._due[0][2].work is None):
            deadline = heapq.heappop(self._due)[2]
            work, deadline.work = deadline.work, None
            if work is None:
                self._cancelled -= 1
                continue
            left -= 1
            try:
                work[0](*work[1])
            except Exception:
                _log.exception("a call at the end of its time failed")
        if self._due:
            due = self._due[0][0]
            self._set_alarm(due, max(due - now, 0.0))


class Periodic:
    """Calls a function every ``seconds``; an awaitable that it returns is awaited before the next pause.

    A failure is logged, and the next call is made anyway.

    :param first_s: the pause before the first call; by default ``seconds``.
    """

    def __init__(self, name: str, seconds: float, work: Work, *, clock: Clock, first_s: float | None = None) -> None:
        self._name = name
        self._seconds = seconds
        self._first_s = seconds if first_s is None else first_s
        self._work = work
        self._next = Alarm(self._run, clock=clock)
        self._is_started = False
        self._call: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start the calls, or start again with the pause before the first call."""
        self._is_started = True
        self._next.after(self._first_s)

    def close(self) -> None:
        """Make no further calls."""
        self._is_started = False
        self._next.cancel()

    async def stop(self, *, cancels: bool = False) -> None:
        """Make no further calls, and wait until a call in progress has ended.

        :param cancels: if true, cancel the call in progress first.
        """
        self.close()
        if self._call is not None and self._call is not asyncio.current_task():
            if cancels:
                self._call.cancel()
            await asyncio.gather(self._call, return_exceptions=True)

    def _run(self) -> None:
        if self._call is not None:  # the next pause begins after it
            return
        try:
            awaitable = self._work()
        except Exception:
            _log.exception("%s failed", self._name)
            awaitable = None
        if awaitable is None:
            self._pause()
        else:
            self._call = asyncio.ensure_future(awaitable)
            self._call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Future[None]) -> None:
        self._call = None
        if not call.cancelled() and (error := call.exception()) is not None:
            _log.error("%s failed", self._name, exc_info=error)
        self._pause()

    def _pause(self) -> None:
        if self._is_started:
            self._next.after(self._seconds)
