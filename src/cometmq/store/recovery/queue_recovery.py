"""QueueRecovery: finds the queues of a store that is being opened, their ends and their missing units.

Before the log is read, ``ends`` contains the offset up to which each queue's units are sound. It then grows with each
unit that is added. :meth:`QueueRecovery.truncate_at_ends` makes the ends final.
"""

from __future__ import annotations

import os
from typing import Final

from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import LogRecord
from cometmq.store.queue.consume_queue import BLANK_SIZE, BLANK_UNIT, UNIT, ConsumeQueue, unit_before
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.queue.units import marks_lost_message
from cometmq.store.recovery.damages import Replacement
from cometmq.store.recovery.derived_writer import DerivedWriter, Key
from cometmq.store.recovery.known_files import KnownFiles
from cometmq.store.recovery.known_topics import KnownTopics
from cometmq.store.recovery.load import Findings, is_zero, queue_directories, queue_files, topic_directories
from cometmq.store.recovery.position import Position
from cometmq.store.recovery.queue_units import is_sound, last_plausible_unit, last_sound_unit, read_ends

_BLANKS: Final = 4096
"""Number of blank units per write."""
_MAX_LOG_OFFSET: Final = 1 << 62


class QueueRecovery:
    """The queues of a store during its recovery."""

    def __init__(
        self,
        log: CommitLog,
        table: ConsumeQueueTable,
        writer: DerivedWriter,
        findings: Findings,
        topics: KnownTopics,
    ) -> None:
        self._log = log
        self._table = table
        self._writer = writer
        self._findings = findings
        self._topics = topics
        self.by_key: dict[Key, ConsumeQueue] = {}
        """Queues that have files, or records in the log."""
        self._had_files: frozenset[Key] = frozenset()
        self.ends: dict[Key, int] = {}
        """Offset after the last known unit of each queue."""
        self._recorded: set[Key] = set()
        """Queues that end exactly as recorded in the position file."""

    # --- before the log is read ----------------------------------------------------------------
    def open_files(self, position: Position | None, known: KnownFiles) -> None:
        """Find the queues and their files. Files in ``known`` are not checked again."""
        extents = position.queues if position is not None else {}
        for topic in topic_directories(self._table.root, extents, self._findings):
            is_of_life = position is not None and position.offset > self._topics.begin_of(topic.name)
            of_topic = extents.get(topic.name, {}) if is_of_life else {}
            min_offsets = known.min_offsets(topic.name, of_topic) if of_topic else None
            if min_offsets is None:
                self._open_topic(topic)
                continue
            first_records = known.first_records(topic.name)
            for queue_id, (first, end) in of_topic.items():
                key = topic.name, queue_id
                queue = self._open_queue(key, known.files_of(first, end), end)
                queue.min_logical = min_offsets[queue_id]
                queue.records_from = first_records.get(queue_id, 0)
                self.ends[key] = end
                self._recorded.add(key)
        self._had_files = frozenset(self.by_key)

    def _open_topic(self, topic: os.DirEntry[str]) -> None:
        for queue_id, directory in queue_directories(topic.path, self._findings):
            size = self._table.file_size
            files = queue_files(directory, size, self._findings)
            key = topic.name, queue_id
            self._open_queue(key, files, (files[-1] + size) // CQ_UNIT_BYTES if files else 0)

    def _open_queue(self, key: Key, files: list[int], end: int) -> ConsumeQueue:
        queue = self._table.make(*key)
        queue.open_at(files, end)
        self.by_key[key] = queue
        return queue

    def had_files(self, record: LogRecord) -> bool:
        """Return whether the record's queue had files before recovery wrote anything."""
        return (record.topic, record.queue_id) in self._had_files

    def find_damaged(self, position: Position) -> list[ConsumeQueue]:
        """Record the ends of the queues that agree with the position file. Return the others, which are damaged."""
        damaged: list[ConsumeQueue] = []
        for topic, extents in position.queues.items():
            if position.offset <= self._topics.begin_of(topic):
                continue  # the topic was deleted after the position was saved: these queues are from before
            for queue_id, (first, end) in extents.items():
                queue = self.by_key.get((topic, queue_id))
                if queue is None:
                    if not end or not self.is_known(topic):
                        continue
                    queue = self.queue_at((topic, queue_id))
                    wrong = "missing"
                elif self._accept_recorded_end(queue, first, end, position.offset):
                    continue
                elif (
                    end and not self.unit_is_sound(queue, end - 1) and not marks_lost_message(self._log, queue, end - 1)
                ):
                    wrong = f"its end at {end} is damaged"
                elif queue.first_stored > first and not self._begins_below_log(queue):
                    wrong = f"its files from {first} on are missing"
                else:
                    self.ends[queue.key] = self._topics.end_of(queue, end)
                    continue
                self._findings.add(f"consumequeue/{topic}/{queue_id}: {wrong}; rebuilt from the log")
                damaged.append(queue)
        for key, queue in self.by_key.items():
            if key not in self.ends and queue not in damaged:
                self.ends[key] = self.end_of_sound_units(queue)
        return damaged

    def end_of_sound_units(self, queue: ConsumeQueue) -> int:
        """Return the offset after the last unit that points to its record, or 0 if the queue's files were left by an
        interrupted deletion.
        """
        return self._topics.end_of(queue, last_sound_unit(self._log, queue))

    def end_of_lost_log(self) -> Position | None:
        """Return the end of a log that no longer has records, computed from the last units of the queues.

        It is at most the end of the log's files, if there are any, so that a damaged unit does not create many files.
        """
        segments = self._log.segments
        if not all(is_zero(segment) for segment in segments):
            return None
        most = segments[-1].end if segments else _MAX_LOG_OFFSET
        ends = (last_plausible_unit(queue, most)[1] for queue in self.by_key.values())
        end = max(ends, default=0)
        return Position(end, end - 1, 0, 0, {}) if end else None

    def _accept_recorded_end(self, queue: ConsumeQueue, first: int, end: int, log_end: int) -> bool:
        """Record the end of a queue whose files end exactly as recorded in the position file, as most do.

        A unit that points after ``log_end``, the end of the log at that time, is from a topic that was created again.
        """
        if queue.key in self._recorded:
            return True
        look = read_ends(queue, end) if end and queue.first_stored <= first else None
        if look is None or not look.is_last or not self._topics.begin_of(queue.topic) <= look.last[0] < log_end:
            return False
        if not is_sound(self._log, queue, end - 1, *look.last):
            return False
        queue.open_at(queue.files, end)
        if look.begins_at < self._log.min_offset:
            queue.min_logical = queue.offset_of_log(self._log.min_offset)
        self.ends[queue.key] = end
        self._recorded.add(queue.key)
        return True

    def queues_to_check(self) -> list[ConsumeQueue]:
        """Return the queues whose files may contain units that the position file does not include."""
        return [queue for key, queue in self.by_key.items() if key not in self._recorded]

    def doubt_all_ends(self) -> None:
        """Make :meth:`truncate_at_ends` check all queues again."""
        self._recorded.clear()

    def _begins_below_log(self, queue: ConsumeQueue) -> bool:
        """Return whether the first unit points to a record that retention removed, or to the log's first record."""
        unit = queue.unit(queue.first_stored)
        return unit is not None and unit[0] <= self._log.min_offset

    def recorded_ends(self, position: Position) -> dict[Key, int]:
        """Return the ends that a position file contains for the queues of known topics."""
        return {
            (topic, queue_id): end
            for topic, extents in position.queues.items()
            for queue_id, (_, end) in extents.items()
            if self.is_known(topic) and position.offset > self._topics.begin_of(topic)
        }

    def is_known(self, topic: str) -> bool:
        """Return whether the topic exists according to ``config/topics.json``."""
        return topic in self._topics

    def is_of_earlier_life(self, record: LogRecord) -> bool:
        """Return whether the record was stored before its topic was last deleted."""
        return record.offset < self._topics.begin_of(record.topic)

    # --- units -----------------------------------------------------------------------------------
    def unit_is_sound(self, queue: ConsumeQueue, offset: int) -> bool:
        """Return whether the unit at ``offset`` points to its record."""
        unit = queue.unit(offset)
        return unit is not None and is_sound(self._log, queue, offset, unit[0], unit[1])

    def has_unit(self, record: LogRecord) -> bool:
        """Return whether the queue has a unit for the record. Units that Apache's broker wrote are not checked, as in
        Apache.
        """
        queue = self.by_key.get((record.topic, record.queue_id))
        unit = queue.unit(record.queue_offset) if queue is not None else None
        return unit is not None and unit[:2] == (record.offset, record.size)

    def last_record(self) -> tuple[int, int]:
        """Return the log offset and size of the last record at the end of any queue, or ``(-1, 0)`` if there
        is none.
        """
        best = (-1, 0)
        for queue in self.by_key.values():
            end = self.ends.get(queue.key, 0)
            unit = queue.unit(end - 1) if end else None
            if unit is not None and unit[0] > best[0] and self.unit_is_sound(queue, end - 1):
                best = (unit[0], unit[1])
        return best

    # --- giving units ----------------------------------------------------------------------------
    def queue_at(self, key: Key) -> ConsumeQueue:
        """Return the queue with this topic and id. Create it if it has no files."""
        queue = self.by_key.get(key)
        if queue is None:
            queue = self.by_key[key] = self._table.make(*key)
        return queue

    def queue_of(self, record: LogRecord) -> ConsumeQueue:
        """Return the queue of a record. Create it if it has no files."""
        return self.queue_at((record.topic, record.queue_id))

    def add_unit(self, queue: ConsumeQueue, record: LogRecord) -> None:
        """Add a unit for the record to the queue."""
        unit = UNIT.pack(record.offset, record.size, queue.tags_code_of(record))
        self._writer.add_units(queue, record.queue_offset, unit)

    def add_unit_of_lost(self, queue: ConsumeQueue, offset: int, replacement: Replacement) -> None:
        """Add a unit for the lost last message of a queue. The unit points to the record that replaces the message."""
        self._writer.add_units(queue, offset, UNIT.pack(replacement.offset, replacement.size, 0))
        self.ends[queue.key] = offset + 1

    def extend_with_blanks(self, queue: ConsumeQueue, end: int) -> None:
        """Extend a queue that ends below ``end`` up to ``end``, with units that point nowhere."""
        begin = self.ends.get(queue.key, 0)
        if begin or queue.files:
            for offset in range(begin, end, _BLANKS):
                self._writer.add_units(queue, offset, BLANK_UNIT * min(_BLANKS, end - offset))
        self.ends[queue.key] = max(end, begin)

    def add_units_of_lost(self, queue: ConsumeQueue, end: int, replacements: list[Replacement]) -> None:
        """Add units for lost messages up to ``end``. They point to the records that may replace these messages."""
        begin = self.ends.get(queue.key)
        if begin is None or end <= begin:
            return
        for number, offset in enumerate(range(begin, end)):
            if replacements:
                self.add_unit_of_lost(queue, offset, replacements[min(number, len(replacements) - 1)])
            else:
                self._writer.add_units(queue, offset, BLANK_UNIT)

    # --- after the log was read -------------------------------------------------------------------
    def shortened_since(self, position: Position) -> dict[Key, int]:
        """Return the queues that end earlier than the position file says, with their ends in that file."""
        return {key: end for key, end in self.recorded_ends(position).items() if end > self.ends.get(key, 0)}

    def restore_emptied_ends(self, shortened: dict[Key, int], lost: int) -> dict[Key, int]:
        """Restore the ends of shortened queues whose last messages were in log files that have been deleted.

        Return the other queues, whose messages may be among the ``lost`` messages.
        """
        log_begin = self._log.min_offset
        others = {}
        for key, end in shortened.items():
            known = self.ends.get(key, 0)
            if key in self.by_key and end - known <= lost:
                others[key] = end
                continue
            last = self.by_key[key].unit(known - 1) if known else None
            if log_begin and (last is None or last[0] < log_begin):
                queue = self.queue_at(key)
                self._findings.add(
                    f"consumequeue/{queue.topic}/{queue.queue_id}: its log files were deleted; it continues at {end}"
                )
                self.extend_with_blanks(queue, end - 1)
                self._writer.add_units(queue, end - 1, unit_before(log_begin))
                self.ends[key] = end
        self._writer.write()
        return others

    def truncate_at_ends(self) -> None:
        """Truncate each queue at its end and at the end of the log, and find its first message that still exists."""
        log = self._log
        for queue in self.by_key.values():
            end = self.ends.get(queue.key, 0)
            if queue.key in self._recorded and queue.key not in self._writer.touched:
                continue
            queue.open_at(queue.files, end)
            while queue.key not in self._writer.unwritten and end > queue.first_stored:
                unit = queue.unit(end - 1)
                if unit is not None and (unit[1] == BLANK_SIZE or unit[0] + unit[1] <= log.position):
                    break
                end -= 1
            waiting = self._writer.unwritten.get(queue.key)
            if queue.cut(waiting[0] if waiting is not None else end):
                self._findings.add(
                    f"consumequeue/{queue.topic}/{queue.queue_id}: bytes after its end at {end} were cleared"
                )
            if waiting is not None:
                queue.keep_pending(waiting[1])
            queue.min_logical = queue.offset_of_log(log.min_offset)
