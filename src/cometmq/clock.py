"""The only source of time: real by default, movable in tests.

Services never ask the operating system or the event loop for time themselves; they take a
:class:`Clock`. A test hands in a :class:`VirtualClock` and moves hours in microseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Final, Protocol


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

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``."""


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

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of real time."""
        await asyncio.sleep(seconds)


class _VirtualTimer:
    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """Time that stands still until it is moved.

    ``advance`` fires due timers in the order of their due times; a timer that one of them sets is
    fired too when it falls due within the same move. ``run_for`` does the same in steps and lets
    the event loop work between them, so that tasks which sleep again keep pace.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed = 0.0
        self._timers: list[tuple[float, int, _VirtualTimer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as moved so far."""
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        """Seconds moved since the start."""
        return self._elapsed

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Fire once time has been moved ``delay_s`` seconds on."""
        timer = _VirtualTimer(callback, args)
        heapq.heappush(self._timers, (self._elapsed + max(0.0, delay_s), next(self._order), timer))
        return timer

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

    def advance(self, seconds: float) -> None:
        """Move time on and fire what falls due, in order."""
        target = self._elapsed + seconds
        while self._timers and self._timers[0][0] <= target:
            due, _, timer = heapq.heappop(self._timers)
            self._elapsed = max(self._elapsed, due)
            if not timer.cancelled:
                timer.callback(*timer.args)
        self._elapsed = target

    async def run_for(self, seconds: float, *, turns: int = 5) -> None:
        """Move time on from one due timer to the next, giving the loop ``turns`` turns at each."""
        target = self._elapsed + seconds
        while True:
            for _ in range(turns):
                await asyncio.sleep(0)
            if not self._timers or self._timers[0][0] > target:
                break
            self.advance(max(0.0, self._timers[0][0] - self._elapsed))
        self.advance(target - self._elapsed)
        for _ in range(turns):
            await asyncio.sleep(0)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
"""The real clock; what every service uses unless told otherwise."""
