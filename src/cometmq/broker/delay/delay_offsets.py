"""Persistence and crash recovery for the progress of delay levels (``DelayOffsetSerializeWrapper``).

Apache's ``config/delayOffset.json`` contains the next offset of each level's queue. In addition,
``comet/delayOffset.json`` contains the same offsets and the log offset at which they were valid. Both files are written
only after the log has been flushed up to that offset.

After a crash, the log after that offset contains the messages that were delivered later. Each level is delivered in the
order of its queue, and a delivered record equals the parked one except for its position. The log is therefore read once
from that offset, and each level's offset advances past every record that is the level's next delivery, or its next
message that was moved into the timer. (Apache's broker delivers all of these again.)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.broker.delay.parked_message import NotDeliverableError, delivered, to_timer_message
from cometmq.broker.tables.table_file import TableFile, int64, offset_table, set_aside
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.durable import replace_file
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.message.properties import REAL_QID, REAL_TOPIC, decode_properties
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.store.failure_log import FailureLog
from cometmq.store.message_store import ConsumeQueue, MessageStore

_log = logging.getLogger(__name__)

NO_POSITION: Final = -1


class DelayProgress(msgspec.Struct, frozen=True):
    """The next offset of each level's queue, and the log position at which these offsets were valid."""

    offsets: dict[int, int]
    position: int = NO_POSITION
    """The log position, or ``NO_POSITION`` if another broker has delivered messages after it."""
    moved: dict[int, int] = {}
    """The offsets after messages that were moved into the timer before they were due."""


class DelayOffsets:
    """The two files that contain the progress of a store's delay levels.

    :param root: the directory of the store.
    """

    def __init__(self, root: Path) -> None:
        self._file = TableFile(root / "config" / "delayOffset.json")
        self._exact = root / "comet" / "delayOffset.json"
        self._saved: dict[int, int] = {}
        self._failures = FailureLog(_log)

    def load(self) -> tuple[DelayProgress, list[str]]:
        """Return the progress of delivery, and one line for each problem found.

        If a file is damaged, the deliveries are read from the entire log.
        """
        offsets = self._file.load(_parse_offsets)
        findings = list(self._file.findings)
        if findings:  # a .bak file is too old
            offsets = None
        self._saved = offsets or {}
        exact, wrong = self._load_exact()
        # If Apache's file is ahead of the exact file, another broker has delivered messages: the position is not valid.
        if exact is not None and all(offset <= exact.offsets.get(level, 0) for level, offset in self._saved.items()):
            return exact, findings
        if wrong is not None:
            findings.append(wrong)
        if findings:
            findings.append("reading the progress of delay levels from the log")
        if findings or offsets is None:  # without both files nothing was delivered before the log began
            return DelayProgress({}, 0), findings
        return DelayProgress(offsets), findings

    def _load_exact(self) -> tuple[DelayProgress | None, str | None]:
        """Read ``comet/delayOffset.json``; return its contents, or the reason why it cannot be used."""
        try:
            progress = msgspec.json.decode(self._exact.read_bytes(), type=DelayProgress)
        except FileNotFoundError:
            return None, None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return None, set_aside(self._exact, f"cannot be used: {error}")
        values = (*progress.offsets.values(), progress.position, *progress.offsets, *progress.moved.values())
        if not all(NO_POSITION <= value < 1 << 63 for value in values):
            return None, set_aside(self._exact, "cannot be used: an offset is out of range")
        return progress, None

    def save(self, progress: DelayProgress) -> None:
        """Write both files; a failure is logged, and the next call tries again.

        The exact file is written first, and :meth:`load` handles the case that it is ahead.
        """
        try:
            replace_file(self._exact, msgspec.json.encode(progress))
        except OSError as error:
            self._failures.failed(f"write {self._exact}", error)
            return
        self._failures.ended(f"write {self._exact}")
        if progress.offsets != self._saved or not self._file.path.exists():
            self._file.write({"offsetTable": progress.offsets})
            if not self._file.failed:
                self._saved = dict(progress.offsets)


def _parse_offsets(loaded: Any) -> dict[int, int]:
    return {int64(level): int64(offset) for level, offset in offset_table(loaded).items()}


def delivered_since(progress: DelayProgress, store: MessageStore) -> dict[int, int]:
    """Return the next offset of each level's queue, after the deliveries that are found in the log.

    An offset is wrong if it is past the end of its queue, or past a message that is not due yet and was not moved into
    the timer. The deliveries are then read from the entire log. The same happens for all levels if the log has lost its
    end, and with it deliveries that the saved offsets already count.
    """
    if store.lost_from is not None and progress.position > store.lost_from:
        progress = DelayProgress({}, 0)
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
            found = _decode_record(store, record.offset, record.size)
            place = _real_place(found)
        candidates = waited_for.get(place)
        if candidates:
            found = found or _decode_record(store, record.offset, record.size)
            for level in list(candidates):
                if found is not None and level.matches(found):
                    candidates.remove(level)
                    level.offset += 1
                    level.expect(waited_for)
                    break
    return offsets | {level.queue.queue_id + 1: level.offset for level in levels if level.offset}


def not_due(queue: ConsumeQueue, offset: int, now_ms: int) -> bool:
    """Return whether the message before ``offset`` is not due yet."""
    last = queue.unit(offset - 1) if offset else None
    return last is not None and last[2] > now_ms


class _Level:
    """A delay level and its next message."""

    def __init__(self, queue: ConsumeQueue, offset: int, position: int, store: MessageStore, *, moved_to: bool) -> None:
        self.queue = queue
        self.offset = offset
        self.counts_from = position
        """Log offset of the first record that may be a delivery for this level, or ``NO_POSITION`` if none can be."""
        self.parked_at = store.max_physical_offset
        """Log offset of the next message."""
        self._store = store
        self._next: InnerMessage | None = None
        self._due_ms = 0
        if offset > queue.committed or (not_due(queue, offset, store.clock.now_ms()) and not moved_to):
            self.offset = self.counts_from = 0

    def expect(self, waited_for: dict[tuple[str, int], list[_Level]]) -> None:
        """Add the level to ``waited_for`` under the queue of its next delivery; skip messages that cannot be
        delivered.
        """
        at = max(self.offset, self.queue.min_offset())
        while (unit := self.queue.unit(at)) is not None:
            self._next, self._due_ms = self._delivery_at(unit[0], unit[1]), unit[2]
            if self._next is not None:
                self.offset = at
                self.parked_at = unit[0]
                waited_for.setdefault((self._next.topic, self._next.queue_id), []).append(self)
                return
            at += 1

    def _delivery_at(self, position: int, size: int) -> InnerMessage | None:
        record = _decode_record(self._store, position, size)
        try:
            return None if record is None else delivered(record)
        except NotDeliverableError:
            return None

    def matches(self, record: StoredRecord) -> bool:
        """Return whether a record is this level's next delivery, regardless of the order of its properties."""
        expected = self._next
        if expected is not None and record.topic == TIMER_TOPIC:
            expected = to_timer_message(expected, self._due_ms)
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
    """Return the topic and queue to which a timer record is delivered."""
    queue_id = record.properties.get(REAL_QID, "") if record is not None else ""
    return (record.properties.get(REAL_TOPIC, ""), int(queue_id)) if record and queue_id.isdecimal() else ("", -1)


def _decode_record(store: MessageStore, position: int, size: int) -> StoredRecord | None:
    data = store.record_at(position, size)
    try:
        return None if data is None else decode_record(data)
    except RecordError:
        return None
