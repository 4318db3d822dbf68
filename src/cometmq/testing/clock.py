"""Test clocks: a clock that only the test moves, and a clock that can be stopped for a single process."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from cometmq.clock import Clock, TimerHandle
from cometmq.testing.idle import is_idle, settle

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.005
"""Real seconds between two checks of a condition."""
SIMULATED_SECONDS: Final = 150.0
"""Seconds that pass on a virtual clock before it skips to the next alarm; this exceeds all leases and timeouts."""
AFTER_ALARM_SECONDS: Final = 10.0
"""Seconds that pass after an alarm before the clock skips again; this exceeds the pauses between a client's retries."""
LONG_SLEEP_SECONDS: Final = 1800.0
"""Seconds above which a timer belongs to a waiting caller; housekeeping timers last at most 15 minutes."""


class _VirtualTimer:
    __slots__ = ("args", "callback", "cancelled", "delay_s")

    def __init__(self, delay_s: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


_Heap = list[tuple[float, int, _VirtualTimer]]

_ROUNDING_MS: Final = 0.25
"""Tolerance in milliseconds when comparing dates, because sums of rounded seconds may fall slightly short."""
_FLOAT_MS: Final = 1e-4
"""Milliseconds by which the date is ahead of its alarms, which must exceed the rounding error of sums."""
_LOOP_LOOK_TIMERS: Final = 256
"""Maximum number of timers to fire in a row; then the event loop runs once, because its own timers may be due."""


class VirtualClock:
    """A clock that stands still until the test moves it.

    * ``advance`` (no ``await``) fires the timers that fall due, in order; the event loop does not run in between.
    * ``run_for`` moves from timer to timer and waits after each until the event loop is idle, as if the time had really
      passed.
    * ``skip`` moves the date from alarm to alarm while monotonic time stands still, as if the machine had been
      suspended. Skipping a month costs only as much as the alarms in it.

    ``run_for`` and ``skip`` need asyncio's own event loop, not uvloop's (:mod:`cometmq.testing.idle`).
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed = 0.0
        self._skipped = 0.0
        """Seconds by which the date is ahead of monotonic time because of skipped time."""
        self._timers: _Heap = []
        self._alarms: _Heap = []
        """Pending alarms, ordered by time."""
        self._order = itertools.count()
        self._at_rest = 0
        """Number of consecutive timers that left the event loop idle."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970-01-01 UTC."""
        return self._start_ms + math.floor((self._elapsed + self._skipped) * 1000 + _ROUNDING_MS + _FLOAT_MS)

    def monotonic(self) -> float:
        """Return the seconds since the start, excluding skipped seconds."""
        return self._elapsed

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` after ``delay_s`` seconds, not counting skipped seconds."""
        timer = _VirtualTimer(delay_s, callback, args)
        return self._add_timer(self._timers, self._elapsed + max(0.0, delay_s), timer)

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` when the date reaches ``when_ms``, or at the next move if that date has passed."""
        timer = _VirtualTimer((when_ms - self.now_ms()) / 1000, callback, args)
        return self._add_timer(self._alarms, (when_ms - self._start_ms - _ROUNDING_MS) / 1000, timer)

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` seconds, not counting skipped seconds."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    # --- moving -------------------------------------------------------------------------------
    def advance(self, seconds: float) -> None:
        """Advance the time and fire all timers that fall due, in order, including timers set by these timers."""
        target = self._elapsed + seconds
        while self.next_in() <= target - self._elapsed:
            self._fire_next()
        self._elapsed = target

    async def run_for(self, seconds: float) -> None:
        """Let time pass: fire due timers one by one, and wait after each until the event loop is idle.

        :raises NeverIdleError: the event loop does not become idle.
        """
        target = self._elapsed + seconds
        await settle()
        while await self.step(target - self._elapsed):
            pass
        self._elapsed = max(self._elapsed, target)

    async def run_until(self, work: Awaitable[T], within_s: float) -> T:
        """Let time pass until ``work`` is done and return its result; cancel it after ``within_s`` seconds.

        :raises TimeoutError: the work took longer.
        :raises NeverIdleError: the event loop does not become idle.
        """
        task = asyncio.ensure_future(work)
        target = self._elapsed + within_s
        try:
            await settle()
            while not task.done() and await self.step(target - self._elapsed):
                pass
            if task.done():
                return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])
        self._elapsed = max(self._elapsed, target)
        raise TimeoutError(f"the work took longer than {within_s:g} s on the virtual clock")

    async def step(self, within_s: float) -> bool:
        """Move to the next timer or alarm within ``within_s`` seconds; return False if none is due in that time.

        The event loop must be idle before the call, and is idle after it.
        """
        if self.next_in() > within_s:
            return False
        self._fire_next()
        self._at_rest = self._at_rest + 1 if is_idle() else 0
        if not self._at_rest:
            await settle()
        elif self._at_rest % _LOOP_LOOK_TIMERS == 0:
            await asyncio.sleep(0)
        return True

    async def skip(self, seconds: float) -> None:
        """Advance the date from alarm to alarm, and wait after each until the event loop is idle.

        Monotonic time stands still, so connections, leases and running calls notice nothing.

        :raises NeverIdleError: the event loop does not become idle.
        """
        target = self._elapsed + self._skipped + seconds
        await settle()
        while self._next_alarm() <= target:
            self._skipped = max(self._skipped, self._alarms[0][0] - self._elapsed)
            self._fire_next()
            await settle()
        self._skipped = max(self._skipped, target - self._elapsed)

    def _next_alarm(self) -> float:
        self._drop_cancelled()
        return self._alarms[0][0] if self._alarms else math.inf

    # --- timers -------------------------------------------------------------------------------
    def next_in(self) -> float:
        """Return the number of seconds until the next timer or alarm, or ``inf`` if there is none."""
        self._drop_cancelled()
        due = self._timers[0][0] if self._timers else math.inf
        if self._alarms:
            due = min(due, self._alarms[0][0] - self._skipped)
        return max(0.0, due - self._elapsed)

    def next_alarm_in(self) -> float:
        """Return the number of seconds until the date of the next alarm, or ``inf`` if there is none."""
        self._drop_cancelled()
        return max(0.0, self._alarms[0][0] - self._skipped - self._elapsed) if self._alarms else math.inf

    def has_timer_over(self, seconds: float) -> bool:
        """Return whether any timer (not an alarm) was set for longer than ``seconds``."""
        return any(timer.delay_s > seconds and not timer.cancelled for _, _, timer in self._timers)

    def _add_timer(self, heap: _Heap, due: float, timer: _VirtualTimer) -> TimerHandle:
        heapq.heappush(heap, (due, next(self._order), timer))
        return timer

    def _fire_next(self) -> None:
        """Move to the earliest timer or alarm and fire it; ties fire in the order in which they were set."""
        heap = self._timers
        if self._alarms:
            due, order, _ = self._alarms[0]
            if not heap or (due - self._skipped, order) < heap[0][:2]:
                heap = self._alarms
        due, _, timer = heapq.heappop(heap)
        self._elapsed = max(self._elapsed, due - self._skipped if heap is self._alarms else due)
        timer.callback(*timer.args)

    def _drop_cancelled(self) -> None:
        for heap in (self._timers, self._alarms):
            while heap and heap[0][2].cancelled:
                heapq.heappop(heap)


class _StoppableTimer:
    __slots__ = ("_args", "_callback", "_clock", "cancelled", "inner")

    def __init__(self, clock: StoppableClock, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._clock = clock
        self._callback = callback
        self._args = args
        self.cancelled = False
        self.inner: TimerHandle | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.inner is not None:
            self.inner.cancel()

    def fire(self) -> None:
        if self._clock.stopped:
            self._clock.overdue.append(self)
        elif not self.cancelled:
            self._callback(*self._args)


class StoppableClock:
    """The clock of one process, which can be stopped while time continues for other processes (SIGSTOP, SIGCONT).

    While the clock is stopped, no timer fires. When it continues, the timers that have become due fire in order.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stopped = False
        self.overdue: list[_StoppableTimer] = []

    def stop(self) -> None:
        """Stop the clock: timers do not fire until :meth:`go_on` is called."""
        self.stopped = True

    def go_on(self) -> None:
        """Continue the clock, and fire the timers that became due while it was stopped."""
        self.stopped = False
        overdue, self.overdue = self.overdue, []
        for timer in overdue:
            timer.fire()

    def now_ms(self) -> int:
        """Return the milliseconds since 1970-01-01 UTC."""
        return self._clock.now_ms()

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start, including the time while the clock was stopped."""
        return self._clock.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` after ``delay_s`` seconds, or when the clock continues if it is stopped at that
        time.
        """
        timer = _StoppableTimer(self, callback, args)
        timer.inner = self._clock.call_later(delay_s, timer.fire)
        return timer

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` at a date, or when the clock continues if it is stopped at that time."""
        timer = _StoppableTimer(self, callback, args)
        timer.inner = self._clock.call_at(when_ms, timer.fire)
        return timer

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` seconds, and longer if the clock is stopped at the end."""
        woken = asyncio.Event()
        timer = self.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()


async def wait_until(clock: Clock, holds: Callable[[], object], within: float | timedelta) -> bool:
    """Wait until ``holds()`` is true and return True, or return False after ``within`` seconds on ``clock``.

    A :class:`VirtualClock` is moved: time passes for :data:`SIMULATED_SECONDS`; then the date skips to the next alarm
    or to the end, whichever is earlier. After an alarm, time passes again for :data:`AFTER_ALARM_SECONDS`. While
    something sleeps for longer than :data:`LONG_SLEEP_SECONDS`, nothing is skipped. Real time passes only until the
    event loop is idle.

    :raises NeverIdleError: the event loop does not become idle.
    """
    seconds = within.total_seconds() if isinstance(within, timedelta) else within
    if isinstance(clock, VirtualClock):
        return await _move_until(clock, holds, seconds)
    end = clock.monotonic() + seconds
    while not holds():
        left = end - clock.monotonic()
        if left <= 0:
            return False
        await clock.sleep(min(_LOOK_SECONDS, left))
    return True


async def _move_until(clock: VirtualClock, holds: Callable[[], object], seconds: float) -> bool:
    end_ms = clock.now_ms() + round(seconds * 1000)
    skips_at = clock.monotonic() + SIMULATED_SECONDS
    await settle()
    while not holds():
        left = (end_ms - clock.now_ms()) / 1000
        if clock.monotonic() > skips_at and not clock.has_timer_over(LONG_SLEEP_SECONDS):
            alarm = clock.next_alarm_in()
            await clock.skip(min(alarm, left))
            skips_at = clock.monotonic() + AFTER_ALARM_SECONDS
            if alarm > left:
                return bool(holds())
        elif not await clock.step(left):
            await clock.run_for(left)
            return bool(holds())
    return True
