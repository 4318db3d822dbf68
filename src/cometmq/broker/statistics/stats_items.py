"""Statistics by name and key, each over the last minute, hour and day (``StatsItem``, ``StatsItemSet``).

========== ================ ============
window     sampled every    samples kept
========== ================ ============
minute     10 s             7
hour       10 min           7
day        1 h              25
========== ================ ============

A sample consists of a number and a time, which are the same for all items. When an item is counted for the first time
after a sample, it records its value at that sample, so an unused item costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Final

from cometmq.broker.limits import STATS_ITEMS_PER_SLICE
from cometmq.multimap import MultiMap
from cometmq.remoting.admin_bodies import BrokerStatsItem

SAMPLE_SECONDS: Final = 10
_EVERY: Final = (1, 60, 360)
"""Number of minute samples between two samples of each window."""
_KEPT: Final = (7, 7, 25)
_DAY: Final = len(_EVERY) - 1
_LOOKS_PER_REMOVAL: Final = 5
"""Number of items that can be looked at in the time in which one is removed."""
_SEPARATOR: Final = "@"
NOTHING: Final = BrokerStatsItem(sum=0, tps=0.0, avgpt=0.0)


class Windows:
    """The samples of all items; ``number`` is the number of minute samples."""

    def __init__(self) -> None:
        self.number = 0
        self._times_ms = [deque[int](maxlen=kept) for kept in _KEPT]

    def sample(self, now_ms: int) -> bool:
        """Take a sample for each window that is due; return whether the day window was one of them."""
        self.number += 1
        for every, times in zip(_EVERY, self._times_ms, strict=True):
            if self.number % every == 0:
                if not times:
                    times.append(now_ms - every * SAMPLE_SECONDS * 1000)
                times.append(now_ms)
        return self.number % _EVERY[_DAY] == 0

    def oldest(self, window: int) -> int:
        """Return the number of the oldest sample kept in a window; 0 means the time before the first sample."""
        return self.number // _EVERY[window] + 1 - len(self._times_ms[window])

    def span_ms(self, window: int, number: int) -> int:
        """Return the milliseconds between a sample in a window and the last one."""
        times = self._times_ms[window]
        return times[-1] - times[number - self.oldest(window)]


class StatsItem:
    """A counter: value, bytes, number of calls, and their values at the kept samples."""

    __slots__ = ("_born", "_counted_after", "_stood", "_windows", "size", "times", "value")

    def __init__(self, windows: Windows) -> None:
        self.value = 0
        self.size = 0
        self.times = 0
        self._windows = windows
        self._born = self._counted_after = windows.number
        """The numbers of the last sample before the item was first counted, and before it was last counted."""
        self._stood: list[list[tuple[int, int, int, int]]] | None = None
        """For each window, the value, bytes and calls at the kept samples."""

    def add(self, value: int, size: int = 0) -> None:
        """Add a value and bytes from one call."""
        if self._counted_after != self._windows.number:
            self._record_windows()
        self.value += value
        self.size += size
        self.times += 1

    def _record_windows(self) -> None:
        windows = self._windows
        if self._stood is None:
            self._stood = [[] for _ in _EVERY]
        for window, (every, stood) in enumerate(zip(_EVERY, self._stood, strict=True)):
            first = self._counted_after // every + 1
            if first <= windows.number // every:
                stood.append((first, self.value, self.size, self.times))
                oldest = windows.oldest(window)
                while len(stood) > 1 and stood[1][0] <= oldest:
                    del stood[0]
        self._counted_after = windows.number

    def _entry_at(self, window: int, number: int) -> tuple[int, int, int, int]:
        """Return the item's value, bytes and calls at a sample of a window."""
        if number > self._counted_after // _EVERY[window]:
            return number, self.value, self.size, self.times
        stood = () if self._stood is None else self._stood[window]
        return next((entry for entry in reversed(stood) if entry[0] <= number), (number, 0, 0, 0))

    def seen(self, window: int, *, in_bytes: bool = False) -> BrokerStatsItem:
        """Return the sum, rate per second and average per call over a window: minute (0), hour (1) or day (2)."""
        windows = self._windows
        every = _EVERY[window]
        first, last = max(self._born // every, windows.oldest(window)), windows.number // every
        if last <= first:
            return NOTHING
        before, after = self._entry_at(window, first), self._entry_at(window, last)
        column = 2 if in_bytes else 1
        total = after[column] - before[column]
        calls = after[3] - before[3]
        span_ms = windows.span_ms(window, first)
        return BrokerStatsItem(
            sum=total,
            tps=total * 1000 / span_ms if span_ms > 0 else 0.0,
            avgpt=total / calls if calls > 0 else 0.0,
        )

    @property
    def is_idle_for_a_day(self) -> bool:
        """Return whether the item has not been counted for a day."""
        return self._counted_after // _EVERY[_DAY] < self._windows.oldest(_DAY)


class StatsItems:
    """The statistics items by name and key.

    :param permanent: names whose items are never dropped; the keys of other items are a topic or ``topic@group``.
    :param forgotten: called with name and key of each dropped item.
    """

    def __init__(self, permanent: Iterable[str], forgotten: Callable[[str, str], None]) -> None:
        self._permanent = frozenset(permanent)
        self._forgotten = forgotten
        self._windows = Windows()
        self._items: dict[str, dict[str, StatsItem]] = {}
        self._of_topic: MultiMap[str, tuple[str, str]] = MultiMap()
        self._of_group: MultiMap[str, tuple[str, str]] = MultiMap()
        """Names and keys by topic and by group, for keys that contain both."""

    def get(self, name: str, key: str) -> StatsItem | None:
        """Return the item for a name and key, or ``None`` if it does not exist."""
        return self._items.get(name, {}).get(key)

    def item(self, name: str, key: str) -> StatsItem:
        """Return the item for a name and key; create it if necessary."""
        items = self._items.setdefault(name, {})
        found = items.get(key)
        if found is None:
            found = items[key] = StatsItem(self._windows)
            topic, separator, group = key.partition(_SEPARATOR)
            if separator and name not in self._permanent:
                self._of_topic.add(topic, (name, key))
                self._of_group.add(group, (name, key))
        return found

    def forget_topic(self, topic: str) -> Generator[None, None, None]:
        """Drop the items of a topic, and return the work that drops those of its groups in slices.

        What is counted for these before they are dropped is lost.
        """
        for name, items in self._items.items():
            if topic in items and name not in self._permanent:
                self._remove_item(name, topic)
        return self._remove_items(self._of_topic.of(topic))

    def forget_group(self, group: str) -> Generator[None, None, None]:
        """Return the work that drops the items of a group in slices."""
        return self._remove_items(self._of_group.of(group))

    def _remove_items(self, places: list[tuple[str, str]]) -> Generator[None, None, None]:
        """Drop those of some items that still exist."""
        for number, (name, key) in enumerate(places, 1):
            if key in self._items[name]:
                self._remove_item(name, key)
            if number % (STATS_ITEMS_PER_SLICE // _LOOKS_PER_REMOVAL) == 0:
                yield

    def _remove_item(self, name: str, key: str) -> None:
        del self._items[name][key]
        topic, separator, group = key.partition(_SEPARATOR)
        if separator:
            self._of_topic.remove(topic, (name, key))
            self._of_group.remove(group, (name, key))
        self._forgotten(name, key)

    def sample(self, now_ms: int) -> bool:
        """Take a sample; return whether it is time to drop idle items."""
        return self._windows.sample(now_ms)

    def drop_idle(self) -> Generator[None, None, None]:
        """Drop items that have been idle for a day; pause after each slice."""
        looked = 0
        for name, items in list(self._items.items()):
            if name in self._permanent:
                continue
            for key in list(items):
                item = items.get(key)
                if item is not None and item.is_idle_for_a_day:
                    self._remove_item(name, key)
                looked += 1
                if looked == STATS_ITEMS_PER_SLICE:
                    looked = 0
                    yield
