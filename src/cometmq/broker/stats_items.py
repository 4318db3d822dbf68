"""The items of a broker's statistics by name and key; they are sampled over turns, and forgotten without a search.

With 200,000 pairs of topic and group there are 400,000: a look at each of them takes a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cometmq.broker.stats_item import PERIODS_S, StatsItem
from cometmq.limits import STATS_ITEMS_PER_SLICE

_SEPARATOR: Final = "@"
_DAY: Final = len(PERIODS_S) - 1


class StatsItems:
    """The items.

    :param kept: names whose items are never forgotten; the keys of others are a topic or ``topic@group``.
    :param forgotten: called with name and key of each item that goes.
    """

    def __init__(self, kept: Iterable[str], forgotten: Callable[[str, str], None]) -> None:
        self._kept = frozenset(kept)
        self._forgotten = forgotten
        self._items: dict[str, dict[str, StatsItem]] = {}
        self._of_topic: dict[str, dict[tuple[str, str], None]] = {}
        self._of_group: dict[str, dict[tuple[str, str], None]] = {}
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
            if name not in self._kept:
                topic, separator, group = key.partition(_SEPARATOR)
                self._of_topic.setdefault(topic, {})[name, key] = None
                if separator:
                    self._of_group.setdefault(group, {})[name, key] = None
        return found

    def forget_topic(self, topic: str) -> None:
        """Drop the items of a topic."""
        for name, key in list(self._of_topic.get(topic, ())):
            self._drop(name, key)

    def forget_group(self, group: str) -> None:
        """Drop the items of a group."""
        for name, key in list(self._of_group.get(group, ())):
            self._drop(name, key)

    def _drop(self, name: str, key: str) -> None:
        del self._items[name][key]
        topic, separator, group = key.partition(_SEPARATOR)
        _remove(self._of_topic, topic, (name, key))
        if separator:
            _remove(self._of_group, group, (name, key))
        self._forgotten(name, key)

    def sample(self, windows: Iterable[int], now_ms: int) -> Iterator[None]:
        """Take a snapshot of each item for these windows, and stop after each slice.

        What was idle for a day goes when the window of the day is among them.
        """
        looked = 0
        for name, items in list(self._items.items()):
            may_go = name not in self._kept and _DAY in windows
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


def _remove(names: dict[str, dict[tuple[str, str], None]], of: str, item: tuple[str, str]) -> None:
    rest = names[of]
    del rest[item]
    if not rest:
        del names[of]
