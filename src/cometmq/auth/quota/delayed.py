"""Work delayed by quotas: requests to be handled and denials to be sent."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from cometmq.auth.limits import MAX_DELAYED_BYTES, MAX_DELAYED_REQUESTS
from cometmq.clock import Clock
from cometmq.periodic import Alarm


class Delayed:
    """A time-ordered queue of delayed work, limited in length and total size."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, int, int, Callable[[], None]]] = []
        self._bytes = 0
        self._numbers = itertools.count()
        self._alarm = Alarm(self._ring, clock=clock)

    def has_room(self, size: int) -> bool:
        """Return whether there is room for another work item of this size."""
        return len(self._waiting) < MAX_DELAYED_REQUESTS and self._bytes + size <= MAX_DELAYED_BYTES

    def after(self, delay_s: float, size: int, work: Callable[[], None]) -> None:
        """Run work after a delay. Items due at the same time run in the order in which they were added."""
        due = self._clock.monotonic() + delay_s
        heapq.heappush(self._waiting, (due, next(self._numbers), size, work))
        self._bytes += size
        if self._waiting[0][0] == due:
            self._wait()

    def stop(self) -> None:
        """Run all delayed work immediately."""
        self._alarm.cancel()
        while self._waiting:
            self._do_first()

    def _wait(self) -> None:
        self._alarm.after(max(self._waiting[0][0] - self._clock.monotonic(), 0.0))

    def _ring(self) -> None:
        now = self._clock.monotonic()
        for _ in range(len(self._waiting)):
            if self._waiting[0][0] > now:
                break
            self._do_first()
        if self._waiting:
            self._wait()

    def _do_first(self) -> None:
        _, _, size, work = heapq.heappop(self._waiting)
        self._bytes -= size
        work()
