"""Opening a store: from the files as they lie there to a log, queues and an index that agree.

Theory of operation. The log is the truth; queues and index are derived from it.

1. The files are found, and strange ones set aside (:mod:`cometmq.store.load`).
2. ``comet/position.json`` says up to where everything agreed. If it belongs to this log and each queue
   ends with the unit it names, all below it stands, and reading begins there. Otherwise each queue ends
   at its last unit whose record is really there, every stretch of the log that no queue accounts for is
   read again, and after a crash all that is younger than Apache's checkpoint, with CRCs.
3. From the place so found the log is read to its end. What is read is written into queues and index,
   over whatever is there.
4. Behind the end of the log, and behind the end of each queue, everything becomes zero: stale bytes
   would be taken for records or units later (Apache leaves them there and then serves them).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.message.names import SYSTEM_TOPICS
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.commit_log import CommitLog, store_error
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreFullError
from cometmq.store.gaps import account_gaps, is_sound, last_sound_unit
from cometmq.store.index_recovery import cut_index, index_from
from cometmq.store.index_service import IndexService
from cometmq.store.load import Findings, is_zero, load_log, queue_directories, queue_files
from cometmq.store.mapped_file import clear_from
from cometmq.store.position import Position
from cometmq.store.record_scan import NO_QUEUE_OFFSET, ROLLBACK, LogRecord, LogScan, store_timestamp_of
from cometmq.store.topic_queue import BLANK_SIZE, UNIT, TopicQueue

_BLOCK_BYTES: Final = 1 << 16
_INDEX_BLOCK_MESSAGES: Final = 4096
QueueOf = Callable[[str, int], TopicQueue]


class Recovery:
    """One opening of one store; :meth:`run` does it all."""

    def __init__(
        self,
        log: CommitLog,
        queue_of: QueueOf,
        index: IndexService | None,
        disk: Disk,
        findings: Findings,
        *,
        crashed: bool,
        checkpoint: Checkpoint | None,
        position: Position | None,
        known_topics: frozenset[str] | None,
        check_crc: bool,
    ) -> None:
        self._log = log
        self._queue_of = queue_of
        self._index = index
        self._disk = disk
        self._findings = findings
        self._crashed = crashed
        self._checkpoint = checkpoint
        self._position = position
        self._known_topics = known_topics
        self._check_crc = check_crc
        self._queues: dict[tuple[str, int], TopicQueue] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._unwritten: dict[tuple[str, int], tuple[int, bytearray]] = {}
        self._full = False
        self.last_timestamp = 0
        """Store timestamp of the last record."""
        self.last_record: tuple[int, int] = (-1, 0)
        """Log offset and size of the last record, ``(-1, 0)`` when there is none."""

    def run(self, queue_root: Path) -> None:
        """Open, mend, and leave log, queues and index in agreement."""
        log = self._log
        load_log(log, self._findings)
        self._open_queues(queue_root)
        position = self._position
        if position is not None and not position.belongs_to(log):
            if log.segments:
                self._findings.add("comet/position.json: does not belong to this log; everything is checked instead")
            position = None
        damaged = self._check_against(position) if position is not None else []
        if position is not None:
            start = position.offset
        else:
            damaged = list(self._queues.values())
        for queue in damaged:
            self._ends[queue.key] = last_sound_unit(log, queue)
        if position is None:
            start = self._start_without_position()
        indexed_from = index_from(self._index, log, position, self._crashed, self._findings)
        if damaged or position is None:
            self._fill_gaps(start)
        self._read_log(min(start, indexed_from), start, indexed_from)
        self._end_log()
        self._end_queues()

    # --- before the log is read ----------------------------------------------------------------
    def _open_queues(self, queue_root: Path) -> None:
        for topic, queue_id, directory in queue_directories(queue_root, self._findings):
            queue = self._queue_of(topic, queue_id)
            files = queue_files(directory, queue.file_size, self._findings)
            queue.open_at(files, (files[-1] + queue.file_size) // CQ_UNIT_BYTES if files else 0)
            self._queues[queue.key] = queue

    def _check_against(self, position: Position) -> list[TopicQueue]:
        """The queues that do not end as the position says; of the others the end is noted."""
        damaged: list[TopicQueue] = []
        for topic, extents in position.queues.items():
            for queue_id, (first, end) in extents.items():
                queue = self._queues.get((topic, queue_id))
                if queue is None:
                    if end and self._is_known(topic):
                        queue = self._queues[topic, queue_id] = self._queue_of(topic, queue_id)
                        self._findings.add(f"consumequeue/{topic}/{queue_id}: missing; rebuilt from the log")
                        damaged.append(queue)
                elif end and not self._unit_is_sound(queue, end - 1):
                    self._findings.add(
                        f"consumequeue/{topic}/{queue_id}: its end at {end} is damaged; rebuilt from the log"
                    )
                    damaged.append(queue)
                elif queue.first_stored > first and not self._begins_below_log(queue):
                    self._findings.add(
                        f"consumequeue/{topic}/{queue_id}: its files from {first} on are missing; rebuilt from the log"
                    )
                    damaged.append(queue)
                else:
                    self._ends[queue.key] = end
        for key, queue in self._queues.items():
            if key not in self._ends and queue not in damaged:
                self._ends[key] = last_sound_unit(self._log, queue)
        return damaged

    def _begins_below_log(self, queue: TopicQueue) -> bool:
        """Whether the first unit is one whose record retention has removed, or the first record kept."""
        unit = queue.unit(queue.first_stored)
        return unit is not None and unit[0] <= self._log.min_offset

    def _is_known(self, topic: str) -> bool:
        """Whether the topic exists, as far as ``config/topics.json`` tells."""
        return self._known_topics is None or topic in self._known_topics or topic in SYSTEM_TOPICS

    def _unit_is_sound(self, queue: TopicQueue, offset: int) -> bool:
        unit = queue.unit(offset)
        return unit is not None and is_sound(self._log, queue, offset, unit[0], unit[1])

    def _start_without_position(self) -> int:
        """Where reading must begin when only Apache's files tell."""
        log = self._log
        if not log.segments:
            return log.position
        if self._crashed:
            safe = self._checkpoint.safe_timestamp if self._checkpoint is not None else 0
            for segment in reversed(log.segments):
                first = LogScan(log, segment.start, check_crc=False, until=segment.end)
                record = next(iter(first), None)
                if record is not None and 0 < record.store_timestamp <= safe:
                    return segment.start
            return log.min_offset
        start = log.min_offset
        for queue in self._queues.values():
            end = self._ends[queue.key]
            unit = queue.unit(end - 1) if end else None
            if unit is not None and unit[1] != BLANK_SIZE:
                start = max(start, unit[0] + unit[1])
        return start

    def _fill_gaps(self, start: int) -> None:
        """Give the queues back the units of records below ``start`` that no queue knows."""
        for queue in self._queues.values():
            queue.open_at(queue.files, self._ends.get(queue.key, 0))
        filled = 0
        forgotten = 0
        ends: dict[tuple[str, int], tuple[int, int]] = {}
        for begin, end in account_gaps(self._log, list(self._queues.values()), start):
            for record in LogScan(self._log, begin, check_crc=self._check_crc, until=end):
                if record.sys_flag & NO_QUEUE_OFFSET:
                    continue
                if not self._is_known(record.topic):
                    forgotten += 1
                    continue
                filled += self._give_back(record, ends)
        if filled:
            self._findings.add(f"{filled} messages that no queue knew were put back into their queues")
        if forgotten:
            self._findings.add(f"{forgotten} messages belong to topics that were deleted; they stay hidden")

    def _give_back(self, record: LogRecord, ends: dict[tuple[str, int], tuple[int, int]]) -> bool:
        queue = self._queue(record)
        end = self._ends.get(queue.key, 0)
        if record.queue_offset < end and self._unit_is_sound(queue, record.queue_offset):
            return False
        if record.queue_offset >= end:
            last = ends.get(queue.key)
            if last is None:
                unit = queue.unit(end - 1) if end else None
                last = (unit[0], unit[1]) if unit is not None else (-1, 0)
            if record.offset <= last[0]:
                return False  # of an earlier life of a topic that was deleted and made again
            self._ends[queue.key] = record.queue_offset + 1
            ends[queue.key] = (record.offset, record.size)
        unit_bytes = UNIT.pack(record.offset, record.size, self._tags_code(queue, record))
        queue.write_units(self._disk, record.queue_offset, unit_bytes)
        return True

    # --- reading the log -----------------------------------------------------------------------
    def _queue(self, record: LogRecord) -> TopicQueue:
        key = (record.topic, record.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._queue_of(*key)
        return queue

    @staticmethod
    def _tags_code(queue: TopicQueue, record: LogRecord) -> int:
        return record.store_timestamp + queue.delay_ms if queue.delay_ms else record.tags_code

    def _read_log(self, start: int, queues_from: int, indexed_from: int) -> None:
        """Read the log to its end and derive queues and index from it."""
        runs: dict[tuple[str, int], tuple[int, bytearray]] = {}
        scan = LogScan(self._log, start, check_crc=self._check_crc)
        record: LogRecord | None = None
        foreign = self._position is None
        for record in scan:
            if record.offset >= indexed_from and record.keys and record.sys_flag & ROLLBACK != ROLLBACK:
                self._index_record(record)
            if record.offset < queues_from or record.sys_flag & NO_QUEUE_OFFSET:
                continue
            queue = self._queue(record)
            if foreign and self._has_unit(queue, record):
                self._ends[queue.key] = record.queue_offset + 1
                continue
            unit = UNIT.pack(record.offset, record.size, self._tags_code(queue, record))
            run = runs.get(queue.key)
            if (
                run is not None
                and run[0] + len(run[1]) // CQ_UNIT_BYTES == record.queue_offset
                and len(run[1]) < _BLOCK_BYTES
            ):
                run[1].extend(unit)
            else:
                if run is not None:
                    self._write_run(queue, *run)
                runs[queue.key] = (record.queue_offset, bytearray(unit))
            self._ends[queue.key] = record.queue_offset + 1
        for key, (offset, units) in runs.items():
            self._write_run(self._queues[key], offset, units)
        self._write_index()
        if record is not None:
            self.last_record = (record.offset, record.size)
            self.last_timestamp = record.store_timestamp
        elif self._position is not None and start == self._position.offset:
            self._take_last(self._position.last_offset, self._position.last_size)
        else:
            self._last_of_queues()
        self._log.position = scan.end

    @staticmethod
    def _has_unit(queue: TopicQueue, record: LogRecord) -> bool:
        """Whether the queue has a unit for the record; of Apache's such units are left as they are, as it does."""
        unit = queue.unit(record.queue_offset)
        return unit is not None and unit[0] == record.offset and unit[1] == record.size

    def _index_record(self, record: LogRecord) -> None:
        index = self._index
        if index is not None:
            index.pending.append((record.topic + "#", record.offset, record.store_timestamp, record.keys))
            if len(index.pending) % _INDEX_BLOCK_MESSAGES == 0:
                self._write_index()

    def _write_index(self) -> None:
        try:
            if self._index is not None:
                self._index.commit()
                self._index.write_pending()
        except OSError as error:
            self._no_room(error)

    def _write_run(self, queue: TopicQueue, offset: int, units: bytearray) -> None:
        """Write units into a queue's files; without room for them, they wait in memory as those of new messages do."""
        kept = self._unwritten.get(queue.key)
        if kept is not None and kept[0] + len(kept[1]) // CQ_UNIT_BYTES == offset:
            kept[1].extend(units)
            return
        try:
            queue.write_units(self._disk, offset, bytes(units))
        except OSError as error:
            self._no_room(error)
            self._unwritten[queue.key] = (offset, units)

    def _no_room(self, error: OSError) -> None:
        if not isinstance(store_error(error, ""), StoreFullError):
            raise error
        if not self._full:
            self._full = True
            self._findings.add("the disk is full; units and index entries wait in memory until it has room")

    def _take_last(self, offset: int, size: int) -> None:
        segment = self._log.segment_at(offset) if offset >= 0 else None
        if segment is not None:
            self.last_record = (offset, size)
            at = offset - segment.start
            self.last_timestamp = store_timestamp_of(segment.view[at : at + size])

    def _last_of_queues(self) -> None:
        """The last record, as the units say, when none was read."""
        best = (-1, 0)
        for queue in self._queues.values():
            end = self._ends.get(queue.key, 0)
            unit = queue.unit(end - 1) if end else None
            if unit is not None and unit[0] > best[0] and self._unit_is_sound(queue, end - 1):
                best = (unit[0], unit[1])
        if best[0] >= self._log.min_offset:
            self._take_last(*best)

    # --- after ---------------------------------------------------------------------------------
    def _end_log(self) -> None:
        """Set aside the segments behind the end, and clear what stands behind it in the last one."""
        log = self._log
        end = log.position
        if log.segments and end == log.segments[-1].end:
            return
        while log.segments and log.segments[-1].start >= end and len(log.segments) > 1:
            segment = log.segments.pop()
            if is_zero(segment):
                segment.path.unlink()
            else:
                self._findings.set_aside(segment.path, "holds no record that follows the log's last one")
            segment.close()
        if not log.segments:
            return
        last = log.segments[-1]
        if not is_zero(last, end - last.start):
            self._findings.add(f"{self._findings.name(last.path)}: cut after the last whole record, at {end}")
            at = end - last.start
            clear_from(last.path, at, last.size)

    def _end_queues(self) -> None:
        """Cut each queue at its end, and at the end of the log; find its first message that is kept."""
        log = self._log
        for queue in self._queues.values():
            end = self._ends.get(queue.key, 0)
            queue.open_at(queue.files, end)
            while queue.key not in self._unwritten and end > queue.first_stored:
                unit = queue.unit(end - 1)
                if unit is not None and (unit[1] == BLANK_SIZE or unit[0] + unit[1] <= log.position):
                    break
                end -= 1
            waiting = self._unwritten.get(queue.key)
            if queue.cut(waiting[0] if waiting is not None else end):
                self._findings.add(
                    f"consumequeue/{queue.topic}/{queue.queue_id}: bytes behind its end at {end} were cleared"
                )
            if waiting is not None:
                queue.keep_pending(waiting[1])
            queue.min_logical = queue.offset_of_log(log.min_offset)
        if self._index is not None:
            cut_index(self._index, log.position)
