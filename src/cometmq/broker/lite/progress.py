"""LiteProgress: what each group has read of each lite topic, as recorded in the POP log.

For each lite topic a group has an offset, before which all messages are acknowledged. While messages are handed out,
it also has a *flight*: the messages, their times and attempts (:class:`~cometmq.broker.pop.order.OrderedMessages`). A
state is never changed in place, so that an entry whose turn is not stored is reverted by putting the state before it
back.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np

from cometmq.broker.lite.index import NO_ENTRY, LiteIndex
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.pop.entries import Acked, AnyEntry, Changed, Forgotten, OffsetSet, PoppedInOrder, Revived
from cometmq.broker.pop.order import NO_FOLLOWER, OrderedMessages
from cometmq.broker.pop.state import Undo
from cometmq.message.lite_names import split_lmq

UNKNOWN: Final = -1


class GroupProgress:
    """A group's progress in the lite topics of one parent topic, by their numbers."""

    __slots__ = ("flights", "floor_ms", "group", "index", "looks", "nears", "offsets")

    def __init__(self, index: LiteIndex, group: str) -> None:
        self.index = index
        self.group = group
        self.offsets = array("q")
        """Offset before which all messages are acknowledged, or ``UNKNOWN``."""
        self.nears = array("q")
        """Entry of the message before this offset, if it is known; the way to the next one is short from there."""
        self.flights: dict[int, OrderedMessages] = {}
        """Messages that are handed out, of the lite topics that have any."""
        self.looks: dict[int, int] = {}
        """Time at which the messages of a lite topic are checked next, in milliseconds since 1970."""
        self.floor_ms = 0
        """All later pop times must be above this one, so that no old handle matches a message that is popped again."""

    def offset(self, number: int) -> int:
        """Return the offset before which all messages of a lite topic are acknowledged."""
        found = self.offsets[number] if number < len(self.offsets) else UNKNOWN
        return max(found, self.index.extent(number)[0])

    def is_known(self, number: int) -> bool:
        """Return whether the group has read a lite topic."""
        return number < len(self.offsets) and self.offsets[number] != UNKNOWN

    @property
    def known_count(self) -> int:
        """Return the number of lite topics that the group has read."""
        return int(np.count_nonzero(np.frombuffer(self.offsets, np.int64) != UNKNOWN)) if self.offsets else 0

    def next_offset(self, number: int) -> int:
        """Return the offset of the next message that was never handed out."""
        flight = self.flights.get(number)
        return self.offset(number) if flight is None else max(flight.next_offset, self.index.extent(number)[0])

    def has_more(self, number: int) -> bool:
        """Return whether a lite topic has messages that were not acknowledged."""
        return self.offset(number) < self.index.next_offset(number)

    def ordered(self, number: int) -> OrderedMessages:
        """Return a lite topic's flight, or a new one without messages."""
        flight = self.flights.get(number)
        return OrderedMessages(self.offset(number)) if flight is None else flight

    def set(self, number: int, offset: int, flight: OrderedMessages | None) -> None:
        """Set the progress in a lite topic."""
        missing = number + 1 - len(self.offsets)
        if missing > 0:
            self.offsets.extend([UNKNOWN] * missing)
            self.nears.extend([NO_ENTRY] * missing)
        if self.offsets[number] != offset:
            self.offsets[number] = offset
            self.nears[number] = NO_ENTRY
        if flight is None or not flight.messages:
            self.flights.pop(number, None)
        else:
            self.flights[number] = flight

    def entry(self, number: int, offset: int) -> int:
        """Return the entry of a message, or ``NO_ENTRY``."""
        if number < len(self.offsets):
            return self.index.entry(number, offset, self.nears[number], self.offsets[number] - 1)
        return self.index.entry(number, offset)


class LiteProgress:
    """The progress of all groups; it applies the entries of the POP log about lite topics."""

    def __init__(self, indexes: LiteIndexes) -> None:
        self._indexes = indexes
        self._groups: dict[tuple[str, str], GroupProgress] = {}
        self.on_due: Callable[[GroupProgress, int, int], None] | None = None
        """Called with a group's progress, a lite topic, and the time in milliseconds at which its messages are due."""
        self.on_change: Callable[[GroupProgress, int], None] | None = None
        """Called when a group may read a lite topic further."""
        self.unsaved = 0

    def __iter__(self) -> Iterator[GroupProgress]:
        return iter(list(self._groups.values()))

    @property
    def group_count(self) -> int:
        """Return the number of pairs of a group and a parent topic that it has read."""
        return len(self._groups)

    def find(self, parent: str, group: str) -> GroupProgress | None:
        """Return a group's progress, or ``None`` if the group has never read the parent topic."""
        return self._groups.get((parent, group))

    def of(self, parent: str, group: str) -> GroupProgress:
        """Return a group's progress; create it if it is missing."""
        found = self._groups.get((parent, group))
        if found is None:
            found = self._groups[parent, group] = GroupProgress(self._indexes.of(parent), group)
        return found

    def of_parent(self, parent: str) -> list[GroupProgress]:
        """Return the progress of all groups in a parent topic."""
        return [progress for (of, _), progress in self._groups.items() if of == parent]

    # --- entries ----------------------------------------------------------------------------------
    def apply(self, entry: AnyEntry) -> Undo:
        """Apply an entry about a lite topic; return the function that reverts it."""
        self.unsaved += 1
        parts = split_lmq(entry.topic)
        index = None if parts is None else self._indexes.by_parent.get(parts[0])
        number = NO_NAME if parts is None or index is None else index.find(parts[1])
        if index is None or number == NO_NAME:
            return _do_nothing
        if isinstance(entry, Forgotten):
            return self._remove(index, number, entry.position)
        progress = self.of(index.parent, entry.group)
        before = progress.offsets[number] if progress.is_known(number) else UNKNOWN
        flight = progress.flights.get(number)
        if isinstance(entry, PoppedInOrder):
            self._popped(progress, number, entry)
        elif isinstance(entry, OffsetSet):
            if flight is not None:
                progress.floor_ms = max(progress.floor_ms, flight.latest)
            progress.set(number, entry.next_offset, None)
            self._may_go_on(progress, number)
        elif flight is None:
            return _do_nothing
        elif isinstance(entry, Acked):
            self._end(progress, number, flight, entry.offsets, entry.pop_time)
        elif isinstance(entry, Revived):
            self._end(progress, number, flight, [entry.offset], entry.pop_time, entry.follower)
        elif isinstance(entry, Changed):
            self._change(progress, number, flight, entry)
            self._may_go_on(progress, number)
        return partial(progress.set, number, before, flight)

    def replay(self, entry: AnyEntry) -> None:
        """Apply an entry found in the log at a start.

        The messages of a lite topic may have been deleted by retention while an entry about them is left. Then the
        lite topic is added, and its next message comes after all that the entry counts.
        """
        parts = split_lmq(entry.topic)
        index = None if parts is None else self._indexes.by_parent.get(parts[0])
        if parts is not None and index is not None and isinstance(entry, PoppedInOrder | OffsetSet):
            number = index.find(parts[1])
            if number == NO_NAME:
                index.add(parts[1], entry.next_offset)
            elif index.first(number) == NO_ENTRY and index.next_offset(number) < entry.next_offset:
                index.restart(number, entry.next_offset)
        self.apply(entry)

    def _popped(self, progress: GroupProgress, number: int, entry: PoppedInOrder) -> None:
        flight = progress.ordered(number).popped(entry)
        progress.set(number, flight.committed, flight)
        if self.on_due is not None:
            self.on_due(progress, number, entry.pop_time + entry.invisible_ms)

    def _end(
        self,
        progress: GroupProgress,
        number: int,
        flight: OrderedMessages,
        offsets: list[int],
        pop_time: int,
        follower: int = NO_FOLLOWER,
    ) -> None:
        left = flight.copy()
        last = NO_ENTRY
        for offset in offsets:
            if left.held(offset, pop_time) is not None:
                left.remove(offset)
                left.discount(follower)
        if not left.messages:
            progress.floor_ms = max(progress.floor_ms, flight.latest)
        if left.committed > flight.committed:
            last = progress.entry(number, left.committed - 1)
        progress.set(number, left.committed, left)
        if last != NO_ENTRY:
            progress.nears[number] = last
        self._may_go_on(progress, number)

    def _change(self, progress: GroupProgress, number: int, flight: OrderedMessages, entry: Changed) -> None:
        handed = flight.held(entry.offset, entry.pop_time)
        if handed is None:
            return
        changed = flight.copy()
        due = entry.new_pop_time + entry.invisible_ms
        changed.messages[entry.offset] = handed._replace(due=due)
        if entry.is_suspended:  # as in Apache's broker, the first delivery counts in any case
            changed.messages |= {
                offset: one._replace(due=due, times=one.times - (offset == flight.committed and one.times > 0))
                for offset, one in changed.messages.items()
                if one.pop_time == entry.pop_time
            }
        progress.set(number, changed.committed, changed)
        if self.on_due is not None:
            self.on_due(progress, number, due)

    def _may_go_on(self, progress: GroupProgress, number: int) -> None:
        if self.on_change is not None and progress.has_more(number):
            self.on_change(progress, number)

    def _remove(self, index: LiteIndex, number: int, position: int) -> Undo:
        """Remove a lite topic and the progress of all groups in it.

        :param position: end of the log at that time; a lite topic whose messages are after it was made again.
        """
        before = [
            (progress, progress.offsets[number], progress.flights.get(number))
            for progress in self.of_parent(index.parent)
            if number < len(progress.offsets)
        ]
        for progress, _, _ in before:
            progress.set(number, UNKNOWN, None)
        first = index.first(number)
        if first != NO_ENTRY and index.log_offset(first) >= position:
            return _do_nothing
        removed = index.remove(number)

        def undo() -> None:
            restored = index.put_back(removed)
            for progress, offset, flight in before:
                progress.set(restored, offset, flight)

        return undo

    def forget(self, topic: str, group: str) -> None:
        """Remove the progress in a deleted parent topic or of a deleted group, and the lite topics of the topic."""
        self.forget_offsets(topic, group)
        if topic and not group and self._indexes.forget(topic):
            self.unsaved += 1

    def forget_offsets(self, topic: str, group: str) -> None:
        """Remove the progress in a deleted parent topic or of a deleted group; an empty name means all."""
        for parent, name in list(self._groups):
            if topic in ("", parent) and group in ("", name):
                del self._groups[parent, name]
                self.unsaved += 1


def _do_nothing() -> None:
    pass
