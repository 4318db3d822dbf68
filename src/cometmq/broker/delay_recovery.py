"""After a crash: which delayed messages were delivered since the offsets were last saved.

Each level is delivered in the order of its queue, and a delivered record has everything of the parked one but
its place. So the log behind the saved position is read once, and each level's offset moves on past every
record that stands there as its next delivery, or as the next one that moved into the timer. (Apache delivers
all of these again.)
"""

from __future__ import annotations

from cometmq.broker.delay_hold import moved
from cometmq.broker.delay_offsets import NO_POSITION, DelayProgress
from cometmq.broker.delayed_record import NotDeliverableError, delivered
from cometmq.broker.inner_message import InnerMessage
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.properties import REAL_QID, REAL_TOPIC, decode_properties
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.store.message_store import MessageStore, TopicQueue


def delivered_since(progress: DelayProgress, store: MessageStore) -> dict[int, int]:
    """The next offset of each level's queue, by level.

    An offset that cannot be true, behind the end of its queue or behind a message that is not due yet and has not
    moved into the timer, is not believed: then the log tells of all that is kept of the level.
    """
    offsets = dict(progress.offsets)
    position = progress.position
    if 0 < position < store.max_physical_offset and store.record_at(position) is None:
        position = 0
    levels = []
    waited_for: dict[tuple[str, int], list[_Level]] = {}
    start = store.max_physical_offset
    for queue_id, queue in store.queues().get(SCHEDULE_TOPIC, {}).items():
        offset = offsets.pop(queue_id + 1, 0)
        level = _Level(queue, offset, position, store, moved_to=progress.moved.get(queue_id + 1) == offset)
        levels.append(level)
        if level.counts_from != NO_POSITION:
            level.expect(waited_for)
            start = min(start, max(level.parked_at, level.counts_from))
    for record in store.scan(max(start, store.min_physical_offset)) if waited_for else ():
        if record.topic == SCHEDULE_TOPIC:
            continue
        place, found = (record.topic, record.queue_id), None
        if record.topic == TIMER_TOPIC:
            found = _decoded(store, record.offset, record.size)
            place = _real_place(found)
        candidates = waited_for.get(place)
        if candidates:
            found = found or _decoded(store, record.offset, record.size)
            for level in list(candidates):
                if found is not None and level.matches(found):
                    candidates.remove(level)
                    level.offset += 1
                    level.expect(waited_for)
                    break
    return offsets | {level.queue.queue_id + 1: level.offset for level in levels if level.offset}


def not_due(queue: TopicQueue, offset: int, now_ms: int) -> bool:
    """Whether the message before ``offset`` is due later than now."""
    last = queue.unit(offset - 1) if offset else None
    return last is not None and last[2] > now_ms


class _Level:
    """One level and the message that it delivers next."""

    def __init__(self, queue: TopicQueue, offset: int, position: int, store: MessageStore, *, moved_to: bool) -> None:
        self.queue = queue
        self.offset = offset
        self.counts_from = position
        """Deliveries from this log offset on count; ``NO_POSITION`` when none do."""
        self.parked_at = store.max_physical_offset
        """The log offset of the message that it delivers next."""
        self._store = store
        self._next: InnerMessage | None = None
        self._due_ms = 0
        if offset > queue.max_offset() or (not_due(queue, offset, store.clock.now_ms()) and not moved_to):
            self.offset = self.counts_from = 0

    def expect(self, waited_for: dict[tuple[str, int], list[_Level]]) -> None:
        """Enter the level where its next delivery would be stored; what cannot be delivered was passed over."""
        at = max(self.offset, self.queue.min_offset())
        while (unit := self.queue.unit(at)) is not None:
            self._next, self._due_ms = self._delivery(unit[0], unit[1]), unit[2]
            if self._next is not None:
                self.offset = at
                self.parked_at = unit[0]
                waited_for.setdefault((self._next.topic, self._next.queue_id), []).append(self)
                return
            at += 1

    def _delivery(self, position: int, size: int) -> InnerMessage | None:
        record = _decoded(self._store, position, size)
        try:
            return None if record is None else delivered(record)
        except NotDeliverableError:
            return None

    def matches(self, record: StoredRecord) -> bool:
        """Whether a record is this level's next delivery; Apache may have written its properties in another order."""
        expected = self._next
        if expected is not None and record.topic == TIMER_TOPIC:
            expected = moved(expected, self._due_ms)
        return (
            expected is not None
            and record.physical_offset > max(self.parked_at, self.counts_from - 1)
            and record.born_timestamp == expected.born_timestamp
            and record.born_host == expected.born_host
            and record.reconsume_times == expected.reconsume_times
            and record.flag == expected.flag
            and record.body == expected.body
            and record.properties == decode_properties(expected.properties)
        )


def _real_place(record: StoredRecord | None) -> tuple[str, int]:
    """Where a record of the timer belongs when it is due."""
    queue_id = record.properties.get(REAL_QID, "") if record is not None else ""
    return (record.properties.get(REAL_TOPIC, ""), int(queue_id)) if record and queue_id.isdecimal() else ("", -1)


def _decoded(store: MessageStore, position: int, size: int) -> StoredRecord | None:
    data = store.record_at(position, size)
    try:
        return None if data is None else decode_record(data)
    except RecordError:
        return None
