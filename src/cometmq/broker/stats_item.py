"""One number of a broker, seen over the last minute, hour and day (``StatsItem``).

========== ================ ================
window     sampled every    snapshots kept
========== ================ ================
minute     10 s             7
hour       10 min           7
day        1 h              25
========== ================ ================
"""

from __future__ import annotations

from collections import deque
from typing import Final

from cometmq.remoting.bodies import BrokerStatsItem

PERIODS_S: Final = (10, 600, 3600)
"""Seconds between two snapshots of the minute, hour and day windows."""
_KEPT: Final = (7, 7, 25)


class StatsItem:
    """One counter: a value, how many calls made it, and snapshots of both."""

    __slots__ = ("_windows", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._windows = tuple(deque[tuple[int, int, int]](maxlen=kept) for kept in _KEPT)

    def add(self, value: int) -> None:
        """Count ``value`` more, by one call."""
        self.value += value
        self.times += 1

    def sample(self, window: int, now_ms: int) -> None:
        """Take a snapshot for the minute (0), hour (1) or day (2)."""
        snapshots = self._windows[window]
        if not snapshots:
            snapshots.append((now_ms - PERIODS_S[window] * 1000, 0, 0))
        snapshots.append((now_ms, self.value, self.times))

    def seen(self, window: int) -> BrokerStatsItem:
        """Return sum, per second and per call over the window so far."""
        snapshots = self._windows[window]
        if not snapshots:
            return BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)
        first_ms, first_value, first_times = snapshots[0]
        last_ms, last_value, last_times = snapshots[-1]
        total = last_value - first_value
        calls = last_times - first_times
        return BrokerStatsItem(
            sum=total,
            tps=total * 1000 / (last_ms - first_ms) if last_ms > first_ms else 0.0,
            avgpt=total / calls if calls > 0 else 0.0,
        )

    @property
    def idle_for_a_day(self) -> bool:
        """Whether a whole day passed without a count."""
        day = self._windows[2]
        return len(day) == _KEPT[2] and day[0][2] == self.times
