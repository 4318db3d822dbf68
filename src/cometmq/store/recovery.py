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

Damage may be anywhere, in any number. :mod:`cometmq.store.log_reader` tells it from the end of the log,
:mod:`cometmq.store.damages` sets it aside and makes it something that everybody reads over, and
:mod:`cometmq.store.queue_sequence` finds fields that no CRC covers and that cannot be right. These hold:

* Whatever is cut or written over is set aside first; where that is not possible it is not done.
* The log never ends below what a position file or a unit that leads to its record proves, and a queue
  never below what the position file says: an offset that a consumer may have committed is not given twice.
* A message is lost only if its own bytes are damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from cometmq.message.names import SYSTEM_TOPICS
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.damages import Damages, Owner, Place
from cometmq.store.derived_writer import DerivedWriter
from cometmq.store.disk import Disk
from cometmq.store.gaps import account_gaps, is_sound, last_sound_unit
from cometmq.store.index_recovery import cut_index, index_from
from cometmq.store.index_service import IndexService
from cometmq.store.load import Findings, is_zero, load_log, queue_directories, queue_files
from cometmq.store.log_reader import Knowledge, LogReader, Stretch, outline_of
from cometmq.store.mapped_file import clear_from
from cometmq.store.position import Position
from cometmq.store.queue_sequence import QueueSequence
from cometmq.store.record_scan import NO_QUEUE_OFFSET, ROLLBACK, LogRecord, LogScan, store_timestamp_of
from cometmq.store.topic_queue import BLANK_SIZE, BLANK_UNIT, UNIT, TopicQueue
from cometmq.store.unit_map import UnitMap

_LEAST_RECORD_BYTES = 92
QueueOf = Callable[[str, int], TopicQueue]
Key = tuple[str, int]


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
        self._queues: dict[Key, TopicQueue] = {}
        self._ends: dict[Key, int] = {}
        self._writer = DerivedWriter(disk, index, findings)
        self._damages = Damages(log, disk, findings)
        self._knowledge = Knowledge(self._extent, self._proven)
        self._proven_by_position = 0
        self._dropped = 0
        self._possible = 0
        self._witness = position
        self.last_timestamp = 0
        """Store timestamp of the last record."""
        self.last_record: tuple[int, int] = (-1, 0)
        """Log offset and size of the last record, ``(-1, 0)`` when there is none."""

    def run(self, queue_root: Path) -> None:
        """Open, mend, and leave log, queues and index in agreement."""
        log = self._log
        made_again = load_log(log, self._findings)
        self._open_queues(queue_root)
        position = self._position
        if position is not None and not position.belongs_to(log):
            self._proven_by_position = position.proves(log)
            self._witness = position if self._proven_by_position else None
            if log.segments:
                self._findings.add("comet/position.json: does not belong to this log; everything is checked instead")
            position = None
        damaged = self._check_against(position) if position is not None else []
        if position is not None:
            start = self._proven_by_position = position.offset
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
        self._tell()
        self._end_log()
        self._damages.fill(segment for segment in made_again if segment.end <= log.position)
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
                elif end and not self._unit_is_sound(queue, end - 1) and not self._stands_for_lost(queue, end - 1):
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

    def _stands_for_lost(self, queue: TopicQueue, offset: int) -> bool:
        """Whether an earlier start made a unit lead to a place that everybody reads over."""
        unit = queue.unit(offset)
        if unit is None or unit[1] == BLANK_SIZE:
            return unit is not None
        record = next(iter(LogScan(self._log, unit[0], check_crc=False)), None)
        return record is not None and record.size == unit[1] and bool(record.sys_flag & NO_QUEUE_OFFSET)

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
        ends: dict[Key, tuple[int, int]] = {}
        sequence = QueueSequence(self._confirmed)
        for begin, end in account_gaps(self._log, list(self._queues.values()), start):
            reader = LogReader(self._log, begin, self._knowledge, check_crc=self._check_crc, until=end)
            for found in reader:
                if isinstance(found, Stretch):
                    self._mend(found, reader.timestamp, sequence, give=True)
                elif found.sys_flag & NO_QUEUE_OFFSET:
                    sequence.lost([Place(found.offset, found.size)], 1)
                elif not self._is_known(found.topic):
                    forgotten += 1
                else:
                    for record in self._credible(found, sequence):
                        filled += self._give_back(record, ends, sequence)
        for record in sequence.rest(self._ends.get):
            filled += self._give_back(record, ends, sequence)
        self._dropped += sequence.dropped
        self._possible += sequence.possible
        self._writer.write()
        if filled:
            self._findings.add(f"{filled} messages that no queue knew were put back into their queues")
        if forgotten:
            self._findings.add(f"{forgotten} messages belong to topics that were deleted; they stay hidden")

    def _credible(self, record: LogRecord, sequence: QueueSequence) -> list[LogRecord]:
        """The records that can be given back, now that this one was read; what units knew of is not judged."""
        queue = self._queue(record)
        end = self._ends.get(queue.key)
        return [record] if record.queue_offset < queue.committed else sequence.admit(record, end)

    def _give_back(self, record: LogRecord, ends: dict[Key, tuple[int, int]], sequence: QueueSequence) -> bool:
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
            self._fill_hole(queue, record, sequence)
            self._ends[queue.key] = record.queue_offset + 1
            ends[queue.key] = (record.offset, record.size)
        sequence.took(record)
        self._writer.add_unit(
            queue, record.queue_offset, UNIT.pack(record.offset, record.size, self._tags_code(queue, record))
        )
        return True

    # --- damage --------------------------------------------------------------------------------
    @cached_property
    def _units(self) -> UnitMap:
        """What the queues' files said, from when it is first asked for on."""
        return UnitMap(self._log, list(self._queues.values()))

    def _extent(self, offset: int) -> int:
        claim = self._units.at(offset)
        return claim.size if claim is not None else 0

    @cached_property
    def _proven_by_units(self) -> tuple[int, int]:
        return self._units.last_sound()

    def _proven(self, timestamp: int) -> int:
        """Up to where the log is known to go; units that Apache left behind its end are older than it."""
        end, stored = self._proven_by_units
        return max(self._proven_by_position, end if stored >= timestamp else 0)

    def _confirmed(self, record: LogRecord) -> bool | None:
        """Whether the unit that leads to the record is where the record says; ``None`` when there is none."""
        claim = self._units.at(record.offset)
        if claim is None or claim.size != record.size:
            first_is_sound = not record.queue_offset and self._unit_is_sound(self._queue(record), 0)
            return False if first_is_sound else None  # the topic was not deleted and made again
        return (claim.queue.key, claim.queue_offset) == ((record.topic, record.queue_id), record.queue_offset)

    def _mend(self, stretch: Stretch, timestamp: int, sequence: QueueSequence, *, give: bool) -> None:
        """Deal with a damaged stretch; with ``give``, the unit of the message that it was leads there."""
        size = stretch.end - stretch.start
        owner = self._owner(stretch)
        places = self._damages.mend(stretch, owner, timestamp or self._timestamp_behind(stretch.end))
        if places:
            self.last_record = (places[-1].offset, places[-1].size)
        sequence.lost(places, 1 if owner is not None else size // _LEAST_RECORD_BYTES)
        if owner is not None and places and give:
            key = (owner.topic, owner.queue_id)
            if owner.queue_offset >= self._ends.get(key, 0):
                self._add_lost_unit(self._queue_at(key), owner.queue_offset, places[0])

    def _owner(self, stretch: Stretch) -> Owner | None:
        """Whose message was in a stretch: as a unit says, or the record itself where that fits its queue."""
        claim = self._units.at(stretch.start)
        if claim is not None and stretch.start + claim.size == stretch.end:
            return Owner(*claim.queue.key, claim.queue_offset)
        segment = self._log.segment_at(stretch.start)
        outline = outline_of(segment.view, stretch.start - segment.start) if segment is not None else None
        if outline is None or stretch.start + outline.size != stretch.end:
            return None
        if self._ends.get((outline.topic, outline.queue_id)) != outline.queue_offset:
            return None
        return Owner(outline.topic, outline.queue_id, outline.queue_offset)

    def _timestamp_behind(self, offset: int) -> int:
        """The store timestamp of the record at ``offset``; 0 when none stands there."""
        record = next(iter(LogScan(self._log, offset, check_crc=False)), None)
        return record.store_timestamp if record is not None else 0

    def _fill_hole(self, queue: TopicQueue, record: LogRecord, sequence: QueueSequence) -> None:
        """Let units of messages that are lost ahead of ``record`` lead to where they may have been."""
        end = self._ends.get(queue.key)
        if end is None or record.queue_offset <= end:
            return
        places = sequence.places(record)
        for number, offset in enumerate(range(end, record.queue_offset)):
            if places:
                self._add_lost_unit(queue, offset, places[min(number, len(places) - 1)])
            else:
                self._writer.add_unit(queue, offset, BLANK_UNIT)

    def _add_lost_unit(self, queue: TopicQueue, offset: int, place: Place) -> None:
        self._writer.add_unit(queue, offset, UNIT.pack(place.offset, place.size, 0))
        self._ends[queue.key] = offset + 1

    def _tell(self) -> None:
        self._damages.tell_the_rest()
        if self._dropped:
            self._findings.add(
                f"{self._dropped} records say that they stand where they cannot in their queues; they are passed over"
            )

    # --- reading the log -----------------------------------------------------------------------
    def _queue(self, record: LogRecord) -> TopicQueue:
        return self._queue_at((record.topic, record.queue_id))

    def _queue_at(self, key: Key) -> TopicQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._queue_of(*key)
        return queue

    @staticmethod
    def _tags_code(queue: TopicQueue, record: LogRecord) -> int:
        return record.store_timestamp + queue.delay_ms if queue.delay_ms else record.tags_code

    def _read_log(self, start: int, queues_from: int, indexed_from: int) -> None:
        """Read the log to its end and derive queues and index from it."""
        reader = LogReader(self._log, start, self._knowledge, check_crc=self._check_crc)
        sequence = QueueSequence(self._confirmed)
        last: LogRecord | Stretch | None = None
        foreign = self._position is None
        for found in reader:
            last = found
            if isinstance(found, Stretch):
                self._mend(found, reader.timestamp, sequence, give=found.start >= queues_from)
                continue
            if found.offset >= indexed_from and found.sys_flag & ROLLBACK != ROLLBACK:
                self._writer.add_keys(found)
            if found.offset < queues_from:
                continue
            if found.sys_flag & NO_QUEUE_OFFSET:
                self._pass_over(found, sequence)
            elif foreign and self._has_unit(found):
                sequence.took(found)
                self._ends[found.topic, found.queue_id] = found.queue_offset + 1
            else:
                for record in self._believed(found, sequence):
                    self._take(record, sequence)
        for record in sequence.rest(self._ends.get):
            self._take(record, sequence)
        for record in sequence.last_rejected:
            end = self._ends.get((record.topic, record.queue_id))
            if end is not None:
                self._add_lost_unit(self._queue(record), end, Place(record.offset, record.size))
        self._dropped += sequence.dropped
        self._possible += sequence.possible
        if self._witness is not None:
            self._keep_ends(self._witness, sequence)
        self._writer.write()
        if isinstance(last, LogRecord):
            self.last_record = (last.offset, last.size)
        self.last_timestamp = reader.timestamp
        if last is None and self._position is not None and start == self._position.offset:
            self._take_last(self._position.last_offset, self._position.last_size)
        elif last is None:
            self._last_of_queues()
        self._log.position = reader.end

    def _keep_ends(self, witness: Position, sequence: QueueSequence) -> None:
        """Let no queue end below where the position file says, unless the log has shown another end of it since."""
        for topic, extents in witness.queues.items():
            for queue_id, (_, end) in extents.items():
                key = (topic, queue_id)
                least = self._ends.get(key, 0)
                if (
                    key in self._queues
                    and self._is_known(topic)
                    and not sequence.knows(key)
                    and end - least <= self._possible
                ):
                    for offset in range(least, end):
                        self._writer.add_unit(self._queues[key], offset, BLANK_UNIT)
                        self._ends[key] = offset + 1

    def _believed(self, record: LogRecord, sequence: QueueSequence) -> list[LogRecord]:
        """The records that can be taken, now that this one was read.

        What fills a gap in units that were there before is not judged: there the queue's end is not the place where
        the reading of it is.
        """
        key = (record.topic, record.queue_id)
        end = self._ends.get(key)
        if end is not None and record.queue_offset < end and not sequence.knows(key):
            queue = self._queues.get(key)
            if queue is not None and not self._unit_is_sound(queue, record.queue_offset):
                return [record]
        return sequence.admit(record, end)

    def _pass_over(self, record: LogRecord, sequence: QueueSequence) -> None:
        """A record without a unit: that of a transaction, or one that stands for a damaged one."""
        place = Place(record.offset, record.size)
        sequence.lost([place], 1)
        key = (record.topic, record.queue_id)
        if record.queue_offset and self._ends.get(key) == record.queue_offset:
            self._add_lost_unit(self._queue_at(key), record.queue_offset, place)

    def _take(self, record: LogRecord, sequence: QueueSequence) -> None:
        queue = self._queue(record)
        self._fill_hole(queue, record, sequence)
        sequence.took(record)
        self._writer.add_unit(
            queue, record.queue_offset, UNIT.pack(record.offset, record.size, self._tags_code(queue, record))
        )
        self._ends[queue.key] = record.queue_offset + 1

    def _has_unit(self, record: LogRecord) -> bool:
        """Whether the queue has a unit for the record; of Apache's such units are left as they are, as it does."""
        queue = self._queues.get((record.topic, record.queue_id))
        unit = queue.unit(record.queue_offset) if queue is not None else None
        return unit is not None and unit[0] == record.offset and unit[1] == record.size

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
        at = end - last.start
        if not is_zero(last, at):
            try:
                kept = self._damages.cut(last.path, at, last.size)
            except OSError as error:
                self._findings.add(
                    f"{self._findings.name(last.path)}: what stands after the last whole record, at {end}, cannot be "
                    f"set aside: {error.strerror}; messages are refused until it can"
                )
                log.owe(lambda: self._cut_later(last.path, at, last.size))
                return
            self._findings.add(f"{self._findings.name(last.path)}: cut after the last whole record, at {end}{kept}")
            clear_from(last.path, at, last.size)

    def _cut_later(self, path: Path, at: int, size: int) -> None:
        self._damages.cut(path, at, size)
        clear_from(path, at, size)

    def _end_queues(self) -> None:
        """Cut each queue at its end, and at the end of the log; find its first message that is kept."""
        log = self._log
        for queue in self._queues.values():
            end = self._ends.get(queue.key, 0)
            queue.open_at(queue.files, end)
            while queue.key not in self._writer.unwritten and end > queue.first_stored:
                unit = queue.unit(end - 1)
                if unit is not None and (unit[1] == BLANK_SIZE or unit[0] + unit[1] <= log.position):
                    break
                end -= 1
            waiting = self._writer.unwritten.get(queue.key)
            if queue.cut(waiting[0] if waiting is not None else end):
                self._findings.add(
                    f"consumequeue/{queue.topic}/{queue.queue_id}: bytes behind its end at {end} were cleared"
                )
            if waiting is not None:
                queue.keep_pending(waiting[1])
            queue.min_logical = queue.offset_of_log(log.min_offset)
        if self._index is not None:
            cut_index(self._index, log.position)
