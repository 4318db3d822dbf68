"""The clock of one process that can be stopped, while time goes on for the others (SIGSTOP, SIGCONT)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cometmq.clock import Clock, TimerHandle


class _Timer:
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
    """Another clock's time; while stopped no timer fires, and those that fell due fire late, in order, afterwards."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stopped = False
        self.overdue: list[_Timer] = []

    def stop(self) -> None:
        """Fire nothing until :meth:`go_on`."""
        self.stopped = True

    def go_on(self) -> None:
        """Fire what fell due meanwhile."""
        self.stopped = False
        overdue, self.overdue = self.overdue, []
        for timer in overdue:
            timer.fire()

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return self._clock.now_ms()

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, those of a stop included."""
        return self._clock.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` after ``delay_s`` seconds, or when the stop ends that they fall into."""
        timer = _Timer(self, callback, args)
        timer.inner = self._clock.call_later(delay_s, timer.fire)
        return timer

    def call_at(self, when_ms: int, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call ``callback(*args)`` at a date, or when the stop ends that it falls into."""
        timer = _Timer(self, callback, args)
        timer.inner = self._clock.call_at(when_ms, timer.fire)
        return timer

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``, or until the stop ends that they fall into."""
        woken = asyncio.Event()
        timer = self.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()
