"""OffsetTable: the consumer offsets of all pairs of topic and group, in maps that grow in short steps.

The pairs of each group are in a map of their own: one map of a million pairs would hold the event loop for 80 ms
whenever it grows. The names of topics and groups are bounded
(:data:`~cometmq.broker.limits.MAX_CONSUMER_OFFSET_NAMES`), so no map has more entries than there may be names.

All pairs of a group or a topic are removed at once. The rest of the work follows in slices (:meth:`OffsetTable.tidy`).
Until then, their offsets and names count towards the limits. A full table runs a slice for each new pair. The map of a
removed group is taken out; the cells of a removed topic stay in the maps of its groups and are *stale*: nobody finds
them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from itertools import chain
from sys import intern
from typing import Final, NamedTuple

from cometmq.broker.limits import (
    MAX_CONSUMER_OFFSET_NAMES,
    MAX_CONSUMER_OFFSET_TABLES,
    MAX_CONSUMER_OFFSETS,
    TABLE_ROWS_PER_SLICE,
)
from cometmq.broker.slices import Slice
from cometmq.broker.tables.queue_offsets import NO_OFFSET, Cells, QueueOffsets, offset_in, offsets_in, with_offset
from cometmq.checksum import crc32
from cometmq.multimap import MultiMap

SEPARATOR: Final = "@"


class Part(NamedTuple):
    """A part of a table: the pairs of the groups whose name has a certain checksum."""

    number: int = 0
    parts: int = 1

    def has(self, group: str) -> bool:
        """Return whether the pairs of a group are in this part."""
        return self.parts == 1 or crc32(group.encode()) % self.parts == self.number


WHOLE: Final = Part()


class OffsetTable(Mapping[str, QueueOffsets]):
    """The offsets of each ``topic@group``.

    The table may change while it is iterated over: pairs that are added or removed in the meantime may be missing.
    """

    def __init__(self) -> None:
        self._of_group: dict[str, dict[str, Cells]] = {}
        self._groups_of: MultiMap[str, str] = MultiMap()
        self._pairs = 0
        self.offsets = 0
        """Number of offsets in all pairs."""
        self._removed: list[tuple[str, dict[str, Cells]]] = []
        """Removed groups whose pairs still count, with their cells by topic."""
        self._stale: dict[str, dict[str, None]] = {}
        """The groups that still have cells of a removed topic, by topic."""

    def __getitem__(self, key: str) -> QueueOffsets:
        topic, _, group = key.partition(SEPARATOR)
        cells = self.cells(group, topic)
        if cells is None:
            raise KeyError(key)
        return QueueOffsets(cells=cells)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.slices())

    def __len__(self) -> int:
        return self._pairs

    def slices(self, part: Part = WHOLE) -> Iterator[list[str]]:
        """Yield the pairs of a part in lists, after each of which other work may run; a list may be empty."""
        some: list[str] = []
        groups = Slice(TABLE_ROWS_PER_SLICE)
        for group in list(self._of_group):
            for topic in self.topics_of(group) if part.has(group) else ():
                some.append(f"{topic}{SEPARATOR}{group}")
                if len(some) >= TABLE_ROWS_PER_SLICE:
                    yield some
                    some = []
            if groups.ends_after():
                yield some
                some = []
        yield some

    def cells(self, group: str, topic: str) -> Cells | None:
        """Return the cells of a pair, or ``None``; callers must not change them."""
        of_group = self._of_group.get(group)
        if of_group is None or (self._stale and self._is_stale(group, topic)):
            return None
        return of_group.get(topic)

    def of(self, group: str, topic: str) -> QueueOffsets | None:
        """Return the offsets of a pair, or ``None``; callers must not change them."""
        cells = self.cells(group, topic)
        return None if cells is None else QueueOffsets(cells=cells)

    def offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of a queue, or ``NO_OFFSET``."""
        cells = self.cells(group, topic)
        return NO_OFFSET if cells is None else offset_in(cells, queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets."""
        topics = self._of_group.get(group, {})
        return [topic for topic in topics if not self._is_stale(group, topic)] if self._stale else list(topics)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups with offsets in a topic."""
        groups = self._groups_of.of(topic)
        return [group for group in groups if self.cells(group, topic) is not None] if self._removed else groups

    def has_group(self, group: str) -> bool:
        """Return whether a group has offsets."""
        topics = self._of_group.get(group, {})
        return any(not self._is_stale(group, topic) for topic in topics) if self._stale else bool(topics)

    def _is_stale(self, group: str, topic: str) -> bool:
        return group in self._stale.get(topic, ())

    def has_room(self, group: str, topic: str, offsets: int) -> bool:
        """Return whether the limits allow so many more offsets in a pair, which may be new."""
        if (self._removed or self._stale) and not self._has_room(group, topic, offsets):
            next(self.tidy(), None)
        return self._has_room(group, topic, offsets)

    def _has_room(self, group: str, topic: str, offsets: int) -> bool:
        if self.offsets + offsets > MAX_CONSUMER_OFFSETS:
            return False
        if self.cells(group, topic) is not None:
            return True
        return (
            self._pairs < MAX_CONSUMER_OFFSET_TABLES
            and (group in self._of_group or len(self._of_group) < MAX_CONSUMER_OFFSET_NAMES)
            and (topic in self._groups_of or len(self._groups_of) < MAX_CONSUMER_OFFSET_NAMES)
        )

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of a queue, in a pair that may be new."""
        cells = self.cells(group, topic)
        self.offsets += cells is None or offset_in(cells, queue_id) < 0
        if cells is None:
            self._add(group, topic, with_offset(bytearray(), queue_id, offset))
        else:
            fresh = with_offset(cells, queue_id, offset)
            if fresh is not cells:
                self._of_group[group][topic] = fresh

    def replace(self, group: str, topic: str, queues: QueueOffsets) -> None:
        """Set all offsets of a pair, which may be new."""
        cells = self.cells(group, topic)
        self.offsets += len(queues) - (0 if cells is None else offsets_in(cells))
        if cells is None:
            self._add(group, topic, queues.cells)
        else:
            self._of_group[group][topic] = queues.cells

    def _add(self, group: str, topic: str, cells: Cells) -> None:
        if self._is_stale(group, topic):
            self._take_stale(group, topic)
        of_group = self._of_group.get(group)
        topic, group = intern(topic), intern(group)  # each name is part of many pairs
        if of_group is None:
            of_group = self._of_group[group] = {}
        of_group[topic] = cells
        self._groups_of.add(topic, group)
        self._pairs += 1

    def drop(self, group: str, topic: str) -> bool:
        """Remove a pair; return whether it was there."""
        if self.cells(group, topic) is None:
            return False
        self._take_cells(group, topic)
        self._groups_of.remove(topic, group)
        self._pairs -= 1
        return True

    def _take_cells(self, group: str, topic: str) -> None:
        of_group = self._of_group[group]
        self.offsets -= offsets_in(of_group.pop(topic))
        if not of_group:
            del self._of_group[group]

    def _take_stale(self, group: str, topic: str) -> None:
        """Forget the stale cells of a pair."""
        groups = self._stale[topic]
        del groups[group]
        if not groups:
            del self._stale[topic]
        self._take_cells(group, topic)

    def remove_group(self, group: str) -> list[str]:
        """Remove all pairs of a group at once; return their topics. :meth:`tidy` must follow."""
        for topic in [topic for topic, groups in self._stale.items() if group in groups]:
            self._take_stale(group, topic)
        pairs = self._of_group.pop(group, None)
        if pairs is None:
            return []
        self._removed.append((group, pairs))
        self._pairs -= len(pairs)
        return list(pairs)

    def remove_topic(self, topic: str) -> list[str]:
        """Remove all pairs of a topic at once; return their groups. :meth:`tidy` must follow."""
        groups = self._groups_of.pop(topic, {})
        for group, _ in self._removed:  # their pairs have left with the group
            if group in groups and self.cells(group, topic) is None:
                del groups[group]
        self._pairs -= len(groups)
        removed = list(groups)
        if groups:
            stale = self._stale.pop(topic, {})
            more, fewer = (groups, stale) if len(groups) > len(stale) else (stale, groups)
            more.update(fewer)
            self._stale[topic] = more
        return removed

    def tidy(self) -> Generator[None, None, None]:
        """Forget, in slices, what the table still knows of the groups and topics that were removed."""
        size = 0
        while self._removed or self._stale:
            if self._removed:
                size = self._tidy_group(*self._removed.pop(), size)
            else:
                size = self._tidy_topic(*self._stale.popitem(), size)
            if size >= TABLE_ROWS_PER_SLICE:
                size = 0
                yield

    def _tidy_group(self, group: str, pairs: dict[str, Cells], size: int) -> int:
        """Forget pairs of a removed group; return the size of the slice, which had ``size`` before."""
        while pairs and size < TABLE_ROWS_PER_SLICE:
            topic, cells = pairs.popitem()
            self.offsets -= offsets_in(cells)
            self._forget_topic(group, topic)
            size += 1
        if pairs:
            self._removed.append((group, pairs))
        return size

    def _tidy_topic(self, topic: str, groups: dict[str, None], size: int) -> int:
        """Forget stale cells of a topic; return the size of the slice, which had ``size`` before."""
        while groups and size < TABLE_ROWS_PER_SLICE:
            self._take_cells(groups.popitem()[0], topic)
            size += 1
        if groups:
            self._stale[topic] = groups
        return size

    def _forget_topic(self, group: str, topic: str) -> None:
        """Forget that a group had offsets in a topic, unless it has some again."""
        if self.cells(group, topic) is None and group in self._groups_of.get(topic, ()):
            self._groups_of.remove(topic, group)
