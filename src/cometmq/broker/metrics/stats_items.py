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
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cometmq.broker.limits import STATS_ITEMS_PER_SLICE
from cometmq.index import Index
from cometmq.remoting.admin_bodies import BrokerStatsItem

PERIODS_S: Final = (10, 600, 3600)
"""Seconds between two snapshots of the minute, hour and day windows."""
_KEPT: Final = (7, 7, 25)
_SEPARATOR: Final = "@"
_DAY: Final = len(PERIODS_S) - 1


class StatsItem:
    """One counter: a value, the number of its calls, and snapshots of both."""

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
        """Tell whether a whole day passed without a count."""
        day = self._windows[2]
        return len(day) == _KEPT[2] and day[0][2] == self.times


class StatsItems:
    """The items; sampled over turns and forgotten without a search.

    With 200,000 pairs of topic and group there are 400,000: a look at each of them takes a quarter of a second.

    :param permanent: names whose items are never forgotten; the keys of others are a topic or ``topic@group``.
    :param forgotten: called with name and key of each item that goes.
    """

    def __init__(self, permanent: Iterable[str], forgotten: Callable[[str, str], None]) -> None:
        self._permanent = frozenset(permanent)
        self._forgotten = forgotten
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
            found = items[key] = StatsItem()
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

    def sample(self, windows: Iterable[int], now_ms: int) -> Iterator[None]:
        """Take a snapshot of each item for these windows, and stop after each slice.

        An item that was idle for a day is dropped when the window of the day is among them.
        """
        looked = 0
        for name, items in list(self._items.items()):
            may_go = name not in self._permanent and _DAY in windows
            for key in list(items):
                item = items.get(key)
                if item is None:
                    continue
                for window in windows:
                    item.sample(window, now_ms)
                if may_go and item.idle_for_a_day:
                    self._drop(name, key)
                looked += 1
                if looked == STATS_ITEMS_PER_SLICE:
                    looked = 0
                    yield
