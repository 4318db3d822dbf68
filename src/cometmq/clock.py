"""The only source of time: real by default, movable in tests.

Services never ask the operating system or the event loop for time themselves; they take a
:class:`Clock`. A test hands in a :class:`VirtualClock` and moves hours in microseconds.

Two kinds of waiting are kept apart, because a month of delay must not cost a month of heartbeats:

* :meth:`Clock.call_later` and :meth:`Clock.sleep` go by monotonic time: time-outs, pauses, leases,
  heartbeats, periods of housekeeping. They stand still while a machine is suspended.
* :meth:`Clock.call_at` is an *alarm* on the date: the moment at which a delayed message is due, a
  half message is checked, a retry is delivered. Whatever a person waits for is an alarm;
  :meth:`VirtualClock.skip` goes from one to the next and leaves the time between out.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from cometmq.idle import is_idle, settle

T = TypeVar("T")

ALARM_LOOK_SECONDS: Final = 60.0
"""How often an alarm looks at the date, and so how late it may notice that the date was set."""


class TimerHandle(Protocol):
    """Something scheduled that can still be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it already ran."""


class Clock(Protocol):
    """Wall time in milliseconds, monotonic time in seconds, and timers on both."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` on the running loop after ``delay_s`` seconds."""

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` on the running loop once :meth:`now_ms` is ``when_ms`` or more."""

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""


class _SystemAlarm:
    """Waits for a moment of the system's date in steps, because the date may be set meanwhile."""

    __slots__ = ("_args", "_callback", "_clock", "_handle", "_when_ms")

    def __init__(
        self, clock: SystemClock, when_ms: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self._clock = clock
        self._when_ms = when_ms
        self._callback = callback
        self._args = args
        self._wait()

    def cancel(self) -> None:
        self._handle.cancel()

    def _wait(self) -> None:
        left_s = (self._when_ms - self._clock.now_ms()) / 1000
        self._handle = self._clock.call_later(min(max(0.0, left_s), ALARM_LOOK_SECONDS), self._look)

    def _look(self) -> None:
        if self._clock.now_ms() >= self._when_ms:
            self._callback(*self._args)
        else:
            self._wait()


class SystemClock:
    """Real time and the running event loop's timers."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Schedule on the running event loop."""
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Schedule on the running event loop; a date that is set is followed within a minute."""
        return _SystemAlarm(self, when_ms, callback, args)

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of real time."""
        await asyncio.sleep(seconds)


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
"""By how much an alarm comes before its millisecond, so that no rounding lets the date be reached without it."""
_LOOP_LOOK_TIMERS: Final = 256
"""Timers fired in a row before the event loop gets a turn although it has nothing to do: its own timers may be due."""


class VirtualClock:
    """Time that stands still until it is moved.

    * ``advance`` (no ``await``) fires what falls due, in order, without letting the event loop work
      between.
    * ``run_for`` goes from one due timer to the next and lets everything on the loop come to rest at
      each: as if the time had really passed.
    * ``skip`` moves the date from alarm to alarm, monotonic time stands: as if the machine had been
      suspended. A month costs as much as the alarms in it.

    ``run_for`` and ``skip`` need one of asyncio's own event loops (not uvloop's), see
    :mod:`cometmq.idle`.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed = 0.0
        self._skipped = 0.0
        """Seconds by which the date has gone further than monotonic time."""
        self._timers: _Heap = []
        self._alarms: _Heap = []
        """By seconds of the date since the start."""
        self._order = itertools.count()
        self._at_rest = 0
        """Timers fired in a row that gave the event loop nothing to do."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as moved so far."""
        return self._start_ms + round((self._elapsed + self._skipped) * 1000)

    def monotonic(self) -> float:
        """Seconds moved since the start, skipped ones left out."""
        return self._elapsed

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Fire once time has been moved ``delay_s`` seconds on; skipped ones do not count."""
        timer = _VirtualTimer(delay_s, callback, args)
        return self._put(self._timers, self._elapsed + max(0.0, delay_s), timer)

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Fire once time has been moved or skipped to ``when_ms``; at the next move when that is past."""
        timer = _VirtualTimer((when_ms - self.now_ms()) / 1000, callback, args)
        return self._put(self._alarms, (when_ms - self._start_ms - _ROUNDING_MS) / 1000, timer)

    async def sleep(self, seconds: float) -> None:
        """Wait until time has been moved ``seconds`` on."""
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
        """Move time on and fire what falls due, in order; also what is set meanwhile and falls due."""
        target = self._elapsed + seconds
        while self.next_in() <= target - self._elapsed:
            self._fire_next()
        self._elapsed = target

    async def run_for(self, seconds: float) -> None:
        """Let time pass: fire one due timer after the other, and let the event loop come to rest after each.

        :raises NeverIdleError: it does not come to rest.
        """
        target = self._elapsed + seconds
        await settle()
        while await self.step(target - self._elapsed):
            pass
        self._elapsed = max(self._elapsed, target)

    async def run_until(self, work: Awaitable[T], within_s: float) -> T:
        """Let time pass until ``work`` is done and return its result; it is cancelled after ``within_s`` seconds.

        :raises TimeoutError: it took longer.
        :raises NeverIdleError: the event loop does not come to rest.
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
        raise TimeoutError(f"it took longer than {within_s:g} s of the virtual clock")

    async def step(self, within_s: float) -> bool:
        """Move to the next timer or alarm, at most ``within_s`` seconds on; return whether there was one.

        The event loop is at rest when this returns, as it must be before.
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
        """Move the date on from alarm to alarm; the event loop comes to rest after each.

        Monotonic time stands still meanwhile: connections, leases and calls under way do not notice.

        :raises NeverIdleError: it does not come to rest.
        """
        target = self._elapsed + self._skipped + seconds
        await settle()
        while self._alarms and self._alarms[0][0] <= target:
            self._skipped = max(self._skipped, self._alarms[0][0] - self._elapsed)
            self._fire_next()
            await settle()
        self._skipped = max(self._skipped, target - self._elapsed)

    # --- what waits ---------------------------------------------------------------------------
    def next_in(self) -> float:
        """Seconds until the next timer or alarm; ``inf`` when there is none."""
        self._forget_cancelled()
        due = self._timers[0][0] if self._timers else math.inf
        if self._alarms:
            due = min(due, self._alarms[0][0] - self._skipped)
        return max(0.0, due - self._elapsed)

    def next_alarm_in(self) -> float:
        """Seconds of the date until the next alarm; ``inf`` when there is none."""
        self._forget_cancelled()
        return max(0.0, self._alarms[0][0] - self._skipped - self._elapsed) if self._alarms else math.inf

    def has_timer_over(self, seconds: float) -> bool:
        """Whether a timer (no alarm) waits that was set for longer than so many seconds."""
        return any(timer.delay_s > seconds and not timer.cancelled for _, _, timer in self._timers)

    def _put(self, heap: _Heap, due: float, timer: _VirtualTimer) -> TimerHandle:
        heapq.heappush(heap, (due, next(self._order), timer))
        return timer

    def _fire_next(self) -> None:
        """Move to the earliest timer or alarm and fire it; of two at one moment the one that was set first."""
        heap = self._timers
        if self._alarms:
            due, order, _ = self._alarms[0]
            if not heap or (due - self._skipped, order) < heap[0][:2]:
                heap = self._alarms
        due, _, timer = heapq.heappop(heap)
        self._elapsed = max(self._elapsed, due - self._skipped if heap is self._alarms else due)
        timer.callback(*timer.args)

    def _forget_cancelled(self) -> None:
        for heap in (self._timers, self._alarms):
            while heap and heap[0][2].cancelled:
                heapq.heappop(heap)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
"""The real clock; what every service uses unless told otherwise."""
