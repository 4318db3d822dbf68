"""PopState: a broker's popped messages by topic, group and queue, as recorded in the POP log.

The log is authoritative. An entry is applied to the state when it is added to a turn, so that the next request sees it;
if the turn is not stored, the function returned by :meth:`PopState.apply` reverts it. When a broker starts, it loads a
snapshot and applies the later entries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, Protocol

from cometmq.broker.pop.entries import (
    Acked,
    AnyEntry,
    Changed,
    Forgotten,
    OffsetSet,
    Popped,
    PoppedInOrder,
    Revived,
)
from cometmq.broker.pop.invisible import NEVER, InvisibleMessages
from cometmq.broker.pop.order import HandedOut, OrderedMessages
from cometmq.message.lite_names import LMQ_PREFIX
from cometmq.multimap import MultiMap

NO_OFFSET: Final = -1

Undo = Callable[[], None]
"""Reverts an entry that was not stored; the latest entry must be reverted first."""


class LiteEntries(Protocol):
    """Applies the entries about lite topics, whose topics are names of their queues."""

    def apply(self, entry: AnyEntry) -> Undo:
        """Apply an entry; return the function that reverts it."""

    def forget(self, topic: str, group: str) -> None:
        """Remove what belongs to a deleted parent topic or group; an empty name means all."""


class PopQueue:
    """The state of a group in one queue of a topic."""

    __slots__ = (
        "floor_ms",
        "group",
        "invisible",
        "is_reset",
        "look_from",
        "next_offset",
        "ordered",
        "queue_id",
        "topic",
    )

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.next_offset = NO_OFFSET
        """The offset after the group's last pop, or ``NO_OFFSET`` before the first pop."""
        self.is_reset = False
        """True if the group's offset was moved back after the loaded snapshot was written."""
        self.floor_ms = 0
        """All later pop times must be above this one, so that no old handle matches a message that is popped again."""
        self.invisible = InvisibleMessages()
        self.ordered: OrderedMessages | None = None
        self.look_from = NEVER
        """Time of the next check by :class:`~cometmq.broker.pop.revive.PopReviveService`."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Return the topic, group and queue ID."""
        return self.topic, self.group, self.queue_id

    @property
    def in_flight(self) -> int:
        """Return the number of messages that are handed out and not acknowledged."""
        return self.invisible.count + (0 if self.ordered is None else self.ordered.in_flight)

    @property
    def visible_again(self) -> int:
        """Return the earliest time at which a message in flight can become visible again, or 0 if there are none."""
        invisible = self.invisible.first_due if self.invisible.count else NEVER
        first = min(invisible, NEVER if self.ordered is None else self.ordered.next_due(0))
        return 0 if first == NEVER else first


class PopState:
    """All queues from which groups have popped."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], dict[int, PopQueue]] = {}
        self._of_topic: MultiMap[str, tuple[str, str]] = MultiMap()
        self._of_group: MultiMap[str, tuple[str, str]] = MultiMap()
        self.lite: LiteEntries | None = None
        """Applies the entries about lite topics."""
        self.on_due: Final[list[Callable[[PopQueue, int], None]]] = []
        """Called with a queue and the time in milliseconds at which one of its messages becomes visible again."""

    def queue(self, topic: str, group: str, queue_id: int) -> PopQueue:
        """Return the state of a queue; create it if necessary."""
        queues = self._queues_of(topic, group)
        found = queues.get(queue_id)
        if found is None:
            found = queues[queue_id] = PopQueue(topic, group, queue_id)
        return found

    def _queues_of(self, topic: str, group: str) -> dict[int, PopQueue]:
        queues = self._queues.get((topic, group))
        if queues is None:
            queues = self._queues[topic, group] = {}
            self._of_topic.add(topic, (topic, group))
            self._of_group.add(group, (topic, group))
        return queues

    def find(self, topic: str, group: str, queue_id: int) -> PopQueue | None:
        """Return the group's state in a queue, or ``None`` if the group has never popped from the queue."""
        queues = self._queues.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, topic: str, group: str) -> list[PopQueue]:
        """Return all queues of a topic from which a group has popped."""
        return list(self._queues.get((topic, group), {}).values())

    def __iter__(self) -> Iterator[PopQueue]:
        for queues in list(self._queues.values()):
            yield from list(queues.values())

    def in_flight(self, topic: str, group: str) -> int:
        """Return the number of a topic's messages that are handed out and not acknowledged."""
        return sum(queue.in_flight for queue in self._queues.get((topic, group), {}).values())

    # --- entries --------------------------------------------------------------------------------
    def apply(self, entry: AnyEntry) -> Undo:
        """Apply an entry; return the function that reverts it."""
        if entry.topic.startswith(LMQ_PREFIX):
            return _do_nothing if self.lite is None else self.lite.apply(entry)
        if isinstance(entry, Forgotten):
            if self.lite is not None:
                self.lite.forget(entry.topic, entry.group)
            return self._delete(entry)
        queue = self.queue(entry.topic, entry.group, entry.queue_id)
        if isinstance(entry, Popped):
            return self._popped(queue, entry)
        if isinstance(entry, Acked):
            removed = [(offset, self._remove(queue, offset, entry.pop_time)) for offset in entry.offsets]
            return partial(self._restore, queue, entry.pop_time, removed)
        if isinstance(entry, Changed):
            return self._changed(queue, entry)
        if isinstance(entry, Revived):
            return self._revived(queue, entry)
        if isinstance(entry, PoppedInOrder):
            return self._popped_in_order(queue, entry)
        return self._reset_offset(queue, entry)

    def _popped(self, queue: PopQueue, entry: Popped) -> Undo:
        before = queue.next_offset
        queue.next_offset = entry.next_offset
        due = entry.pop_time + entry.invisible_ms
        queue.invisible.add(offsets_of(entry), entry.pop_time, due)
        self._notify_due(queue, due)

        def undo() -> None:
            queue.next_offset = before
            for offset in offsets_of(entry):
                queue.invisible.remove(offset, entry.pop_time)

        return undo

    def _remove(self, queue: PopQueue, offset: int, pop_time: int) -> int | HandedOut | None:
        """Remove a message if it has this pop time."""
        due = queue.invisible.remove(offset, pop_time)
        ordered = queue.ordered
        if due is not None or ordered is None:
            return due
        handed = ordered.held(offset, pop_time)
        if handed is None:
            return None
        ordered.remove(offset)
        queue.next_offset = ordered.committed
        return handed

    def _revived(self, queue: PopQueue, entry: Revived) -> Undo:
        removed = [(entry.offset, self._remove(queue, entry.offset, entry.pop_time))]
        if queue.ordered is not None and isinstance(removed[0][1], HandedOut):
            removed.append((entry.follower, queue.ordered.discount(entry.follower)))
        return partial(self._restore, queue, entry.pop_time, removed)

    def _restore(self, queue: PopQueue, pop_time: int, removed: Iterable[tuple[int, int | HandedOut | None]]) -> None:
        for offset, before in removed:
            if isinstance(before, HandedOut):
                if queue.ordered is not None:
                    queue.ordered.messages[offset] = before
                    queue.next_offset = queue.ordered.committed
                self._notify_due(queue, before.due)
            elif before is not None:
                queue.invisible.add((offset,), pop_time, before)
                self._notify_due(queue, before)

    def _changed(self, queue: PopQueue, entry: Changed) -> Undo:
        before = self._change(queue, entry)

        def undo() -> None:
            if before is not None:
                queue.invisible.remove(entry.offset, entry.new_pop_time)
                self._restore(queue, entry.pop_time, [(entry.offset, before)])

        return undo

    def _change(self, queue: PopQueue, entry: Changed) -> int | HandedOut | None:
        due = entry.new_pop_time + entry.invisible_ms
        before = queue.invisible.remove(entry.offset, entry.pop_time)
        if before is not None:
            queue.invisible.add((entry.offset,), entry.new_pop_time, due)
            self._notify_due(queue, due)
            return before
        handed = None if queue.ordered is None else queue.ordered.held(entry.offset, entry.pop_time)
        if queue.ordered is None or handed is None:
            return None
        queue.ordered.messages[entry.offset] = HandedOut(entry.new_pop_time, due, handed.times)
        self._notify_due(queue, due)
        return handed

    def _popped_in_order(self, queue: PopQueue, entry: PoppedInOrder) -> Undo:
        undo = partial(self._set_position, queue, queue.next_offset, queue.is_reset, queue.ordered)
        queue.ordered = (queue.ordered or OrderedMessages(entry.next_offset)).popped(entry)
        queue.next_offset = queue.ordered.committed
        self._notify_due(queue, entry.pop_time + entry.invisible_ms)
        return undo

    @staticmethod
    def _set_position(queue: PopQueue, next_offset: int, is_reset: bool, ordered: OrderedMessages | None) -> None:
        queue.next_offset, queue.is_reset, queue.ordered = next_offset, is_reset, ordered

    def _reset_offset(self, queue: PopQueue, entry: OffsetSet) -> Undo:
        undo = partial(self._set_position, queue, queue.next_offset, queue.is_reset, queue.ordered)
        latest = queue.invisible.remove_from(entry.next_offset)
        if queue.ordered is not None:
            latest = max(latest, queue.ordered.latest)
            queue.ordered = None
        queue.floor_ms = max(queue.floor_ms, latest)
        queue.next_offset, queue.is_reset = entry.next_offset, True
        return undo

    def _delete(self, entry: Forgotten) -> Undo:
        gone: dict[tuple[str, str], dict[int, PopQueue]] = {}
        for key in self._deleted_keys(entry):
            queues = gone[key] = self._queues.pop(key)
            self._of_topic.remove(key[0], key)
            self._of_group.remove(key[1], key)
            for queue in queues.values():
                queue.look_from = NEVER

        def undo() -> None:
            for key, queues in gone.items():
                self._queues_of(*key)
                self._queues[key] = queues

        return undo

    def _deleted_keys(self, entry: Forgotten) -> list[tuple[str, str]]:
        """Return the topic-group pairs that a deletion removes."""
        if entry.topic and entry.group:
            key = (entry.topic, entry.group)
            return [key] if key in self._queues else []
        if entry.topic:
            return self._of_topic.of(entry.topic)
        return self._of_group.of(entry.group) if entry.group else list(self._queues)

    def enter(self, queue: PopQueue) -> None:
        """Add the state of a queue from a snapshot."""
        self._queues_of(queue.topic, queue.group)[queue.queue_id] = queue

    def clear(self) -> None:
        """Remove all queues."""
        self._queues.clear()
        self._of_topic.clear()
        self._of_group.clear()

    def has(self, queue: PopQueue) -> bool:
        """Return whether a queue is still part of the state."""
        return self.find(*queue.key) is queue

    def _notify_due(self, queue: PopQueue, due: int) -> None:
        if due < queue.look_from:
            for listener in self.on_due:
                listener(queue, due)


def offsets_of(entry: Popped) -> list[int]:
    """Return the offsets of the messages in an entry, ascending."""
    offset = entry.start
    offsets = [offset]
    for step in entry.steps:
        offset += step
        offsets.append(offset)
    return offsets


def _do_nothing() -> None:
    pass
