"""Numbers of a broker by name and key, each seen over the last minute, hour and day (``StatsItem``, ``StatsItemSet``).

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
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from cometmq.broker.limits import STATS_ITEMS_PER_SLICE
from cometmq.index import Index
from cometmq.remoting.admin_bodies import BrokerStatsItem

PERIODS_S: Final = (10, 600, 3600)
"""Seconds between two snapshots of the minute, hour and day windows."""
_KEPT: Final = (7, 7, 25)
_SEPARATOR: Final = "@"
_DAY: Final = len(PERIODS_S) - 1
NOTHING: Final = BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)


class Windows:
    """The times of the snapshots that are kept: all items are sampled together, so they share them."""

    def __init__(self) -> None:
        self.taken = [0] * len(PERIODS_S)
        """The number of samples so far, of each window."""
        self._times_ms = [deque[int](maxlen=kept) for kept in _KEPT]

    def begin(self, window: int, now_ms: int) -> None:
        """Begin a sample of all items."""
        times = self._times_ms[window]
        if not times:
            times.append(now_ms - PERIODS_S[window] * 1000)
        times.append(now_ms)
        self.taken[window] += 1

    def oldest(self, window: int) -> int:
        """The number of the oldest sample that is kept; 0 stands for what was before the first one."""
        return self.taken[window] + 1 - len(self._times_ms[window])

    def span_ms(self, window: int, number: int) -> int:
        """Milliseconds from a sample to the last one."""
        times = self._times_ms[window]
        return times[-1] - times[number - self.oldest(window)]


class StatsItem:
    """One counter: a value, the number of its calls, and snapshots of both.

    A snapshot is a sample's number, value and calls. One that is equal to the one before it is left out, so that an
    item that nobody counts costs next to nothing.
    """

    __slots__ = ("_snapshots", "_windows", "times", "value")

    def __init__(self, windows: Windows) -> None:
        self.value = 0
        self.times = 0
        self._windows = windows
        self._snapshots: list[list[tuple[int, int, int]] | None] = _UNSAMPLED

    def add(self, value: int) -> None:
        """Count ``value`` more, by one call."""
        self.value += value
        self.times += 1

    def sample(self, window: int) -> None:
        """Take a snapshot for the minute (0), hour (1) or day (2), whose sample has begun."""
        windows = self._windows
        snapshots = self._snapshots[window]
        if snapshots is None:
            if self._snapshots is _UNSAMPLED:
                self._snapshots = list(_UNSAMPLED)
            number = windows.taken[window]
            self._snapshots[window] = [(number - 1, 0, 0), (number, self.value, self.times)]
            return
        if snapshots[-1][2] != self.times or snapshots[-1][1] != self.value:
            snapshots.append((windows.taken[window], self.value, self.times))
        if len(snapshots) > 1:
            oldest = windows.oldest(window)
            while len(snapshots) > 1 and snapshots[1][0] <= oldest:
                del snapshots[0]

    def seen(self, window: int) -> BrokerStatsItem:
        """Return sum, per second and per call over the window so far."""
        snapshots = self._snapshots[window]
        if snapshots is None:
            return NOTHING
        first, first_value, first_times = snapshots[0]
        _, last_value, last_times = snapshots[-1]
        total = last_value - first_value
        calls = last_times - first_times
        span_ms = self._windows.span_ms(window, max(first, self._windows.oldest(window)))
        return BrokerStatsItem(
            sum=total,
            tps=total * 1000 / span_ms if span_ms > 0 else 0.0,
            avgpt=total / calls if calls > 0 else 0.0,
        )

    @property
    def idle_for_a_day(self) -> bool:
        """Tell whether a whole day passed without a count."""
        day = self._snapshots[_DAY]
        if day is None or len(day) > 1:
            return False
        return day[0][2] == self.times and self._windows.oldest(_DAY) >= day[0][0]


_UNSAMPLED: Final[list[list[tuple[int, int, int]] | None]] = [None] * len(PERIODS_S)
"""Of an item that was never sampled; nothing is put into it."""


class StatsItems:
    """The items; sampled over turns and forgotten without a search.

    With 200,000 pairs of topic and group there are 400,000: a look at each of them takes a quarter of a second.

    :param permanent: names whose items are never forgotten; the keys of others are a topic or ``topic@group``.
    :param forgotten: called with name and key of each item that goes.
    """

    def __init__(self, permanent: Iterable[str], forgotten: Callable[[str, str], None]) -> None:
        self._permanent = frozenset(permanent)
        self._forgotten = forgotten
        self._windows = Windows()
        self._items: dict[str, dict[str, StatsItem]] = {}
        self._of_topic: Index[str, tuple[str, str]] = Index()
        self._of_group: Index[str, tuple[str, str]] = Index()
        """Names and keys by the topic and by the group that the key has."""

    def get(self, name: str, key: str) -> StatsItem | None:
        """The item of this name and key, if there is one."""
        return self._items.get(name, {}).get(key)

    def item(self, name: str, key: str) -> StatsItem:
        """The item of this name and key, a new one at first."""
        items = self._items.setdefault(name, {})
        found = items.get(key)
        if found is None:
            found = items[key] = StatsItem(self._windows)
            if name not in self._permanent:
                topic, separator, group = key.partition(_SEPARATOR)
                self._of_topic.add(topic, (name, key))
                if separator:
                    self._of_group.add(group, (name, key))
        return found

    def forget_topic(self, topic: str) -> None:
        """Drop the items of a topic."""
        for name, key in self._of_topic.of(topic):
            self._drop(name, key)

    def forget_group(self, group: str) -> None:
        """Drop the items of a group."""
        for name, key in self._of_group.of(group):
            self._drop(name, key)

    def _drop(self, name: str, key: str) -> None:
        del self._items[name][key]
        topic, separator, group = key.partition(_SEPARATOR)
        self._of_topic.remove(topic, (name, key))
        if separator:
            self._of_group.remove(group, (name, key))
        self._forgotten(name, key)

    def sample(self, windows: Collection[int], now_ms: int) -> Iterator[None]:
        """Take a snapshot of each item for these windows, and stop after each slice.

        An item that was idle for a day is dropped when the window of the day is among them.
        """
        for window in windows:
            self._windows.begin(window, now_ms)
        looked = 0
        for name, items in list(self._items.items()):
            may_go = name not in self._permanent and _DAY in windows
            for key in list(items):
                item = items.get(key)
                if item is None:
                    continue
                for window in windows:
                    item.sample(window)
                if may_go and item.idle_for_a_day:
                    self._drop(name, key)
                looked += 1
                if looked == STATS_ITEMS_PER_SLICE:
                    looked = 0
                    yield
