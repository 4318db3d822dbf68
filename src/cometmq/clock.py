"""The only source of time. The clock is real by default, and can be moved in tests.

Services receive a :class:`Clock` and never ask the operating system or the event loop for the time. A test passes a
:class:`~cometmq.testing.VirtualClock` and advances it by hours in microseconds.

A clock has two kinds of timers, so that a test that moves the date by a month need not run a month of heartbeats:

* :meth:`Clock.call_later` and :meth:`Clock.sleep` use monotonic time, for timeouts, pauses, leases, heartbeats and
  housekeeping. They pause while the machine is suspended.
* :meth:`Clock.call_at` is an *alarm* on wall time, for example the due time of a delayed message, the check of a half
  message, or the delivery of a retry. Anything for which users wait is an alarm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

ALARM_LOOK_SECONDS: Final = 60.0
"""Interval at which an alarm reads the wall time, so that it notices a changed date."""


class TimerHandle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the timer; do nothing if it has already fired."""


class Clock(Protocol):
    """Provides wall time in milliseconds, monotonic time in seconds, and timers on both."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return the number of seconds since an arbitrary start; it never decreases."""

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` on the running loop after ``delay_s`` seconds."""

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` on the running loop once :meth:`now_ms` returns ``when_ms`` or more."""

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds`` of this clock's time."""


class _SystemAlarm:
    """An alarm that waits for a wall time in steps, because the date may change while it waits."""

    __slots__ = ("_args", "_callback", "_clock", "_handle", "_when_ms")

    def __init__(
        self, clock: SystemClock, when_ms: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._clock = clock
        self._when_ms = when_ms
        self._callback = callback
        self._args = args
        self._handle: TimerHandle | None = None
        self._wait()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _wait(self) -> None:
        left_s = (self._when_ms - self._clock.now_ms()) / 1000
        self._handle = self._clock.call_later(min(max(0.0, left_s), ALARM_LOOK_SECONDS), self._look)

    def _look(self) -> None:
        if self._clock.now_ms() >= self._when_ms:
            self._handle = None  # it refers to this alarm, and would be garbage that only the collector frees
            self._callback(*self._args)
        else:
            self._wait()


class SystemClock:
    """A clock with real time and the timers of the running event loop."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """The system's monotonic clock in seconds. It is not wrapped in a method, since each turn of a server calls it
    twice."""

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Schedule a callback on the running event loop."""
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Schedule a callback on the running event loop; a changed date takes effect within a minute."""
        return _SystemAlarm(self, when_ms, callback, args)

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds`` of real time."""
        await asyncio.sleep(seconds)


ARRIVAL_ROUNDS: Final = 4
"""Number of rounds of the event loop until arrived data reaches the task that waits for it. After a busy period, the
loop sees a response and the timeout in the same round."""

_EXPIRED: Final = "the time given has passed"


class _Expiry:
    """Cancels work that has timed out if its outcome has not arrived."""

    def __init__(self, work: asyncio.Future[Any]) -> None:
        self._work = work
        self._left = ARRIVAL_ROUNDS
        self.is_over = False

    def __call__(self) -> None:
        if self.is_over or self._work.done():
            return
        if self._left:
            self._left -= 1
            asyncio.get_running_loop().call_soon(self)
        else:
            self._work.cancel(_EXPIRED)


async def wait_for(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Return the result of ``work``; cancel it if it takes longer than ``seconds`` on the clock.

    An outcome that arrived in time counts, even if the event loop was too busy to handle it. A cancellation of the
    caller always counts, even in the round in which the time ends.

    :raises TimeoutError: the work took longer.
    """
    task = asyncio.current_task()
    cancellations = 0 if task is None else task.cancelling()
    future = asyncio.ensure_future(work)
    expiry = _Expiry(future)
    timer = clock.call_later(max(0.0, seconds), expiry)
    try:
        return await future
    except asyncio.CancelledError as cancelled:
        is_cancelled = task is not None and task.cancelling() > cancellations
        if cancelled.args == (_EXPIRED,) and not is_cancelled:
            raise TimeoutError(f"took longer than {seconds:g} s") from None
        raise
    finally:
        expiry.is_over = True
        timer.cancel()


SYSTEM_CLOCK: Final[Clock] = SystemClock()
"""The real clock, which every service uses by default."""
