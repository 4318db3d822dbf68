"""Recovery: makes the log, queues and index consistent (``CommitLog.recoverNormally``).

Theory of operation. The log is the source of truth; queues and index are derived from it.

1. The files are found, and foreign ones quarantined (:mod:`cometmq.store.recovery.load`).
2. ``comet/position.json`` says up to where everything was consistent. If it belongs to this log and each queue ends
   with the unit that it names, everything below is trusted, and reading starts there. Otherwise each queue ends at its
   last unit whose record exists, and every part of the log that no queue covers is read again; after a crash also
   everything younger than Apache's checkpoint, with CRCs.
3. From that position the log is read to its end. The units and index entries of its records overwrite existing ones;
   records of earlier lives (:mod:`~cometmq.store.recovery.known_topics`) have no units.
4. Everything after the end of the log and of each queue becomes zero. Stale bytes would later count as records or units
   (Apache leaves them there and then serves them).

Fault model. The process can die between any two system calls, also during recovery: every step can be repeated. Damage
may be anywhere: bytes of any file can be wrong; files can be truncated, missing, or from another store.
:mod:`cometmq.store.log.log_reader` tells damage from the end of the log, :mod:`cometmq.store.recovery.damages`
    quarantines it and replaces it by records that every reader skips, :mod:`cometmq.store.recovery.queue_sequence`
    finds impossible values in fields that no CRC covers, and :mod:`cometmq.store.recovery.end_of_log` makes up for a
    lost end.

Invariants.

* Bytes are copied into the quarantine before they are truncated or overwritten; if that is impossible, they stay.
* The log never ends below an offset that a position file or a unit with its record proves, and a queue never below its
  end in the position file: an offset that a consumer may have committed is not assigned twice. This holds even if the
  last log files were truncated or are missing. Only a slave continues where its log ends: its master sends the rest.
* A message is lost only if its own bytes are damaged. A slave's log ends at damage unless something proves that it
  continues.
"""

from __future__ import annotations

import dataclasses

from cometmq.limits import MAX_LOST_UNITS
from cometmq.store.disk import Disk
from cometmq.store.index.index_service import IndexService
from cometmq.store.log.checkpoint import Checkpoint
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_reader import DamagedPart, LogEvidence, LogReader, read_damaged_fields
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.log.record_scan import (
    NO_QUEUE_OFFSET,
    ROLLBACK,
    LogRecord,
    first_record,
    record_at,
    store_timestamp_of,
)
from cometmq.store.queue.consume_queue import BLANK_SIZE
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.recovery.claims import Claims
from cometmq.store.recovery.damages import Damages, LostMessage, Replacement
from cometmq.store.recovery.end_of_log import EndOfLog
from cometmq.store.recovery.index_recovery import NEVER, cut_index, index_from
from cometmq.store.recovery.known_files import KnownFiles
from cometmq.store.recovery.known_topics import KnownTopics
from cometmq.store.recovery.load import Findings, load_log
from cometmq.store.recovery.position import Position
from cometmq.store.recovery.queue_recovery import DerivedWriter, Key, QueueRecovery
from cometmq.store.recovery.queue_sequence import QueueSequence
from cometmq.store.recovery.queue_units import UnitMap, last_plausible_unit

_LEAST_RECORD_BYTES = 92


@dataclasses.dataclass(frozen=True, slots=True)
class KnownBefore:
    """The facts from a store's small files and configuration, which are known before its log is read."""

    crashed: bool
    checkpoint: Checkpoint | None
    position: Position | None
    topics: KnownTopics
    check_crc: bool
    is_slave: bool
    files: KnownFiles


class Recovery:
    """The recovery of one store, which :meth:`run` performs."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        disk: Disk,
        findings: Findings,
        known: KnownBefore,
    ) -> None:
        self._log = log
        self._index = index
        self._disk = disk
        self._findings = findings
        self._known = known
        self._writer = DerivedWriter(disk, index, findings)
        self._queues = QueueRecovery(log, queues, self._writer, findings, known.topics)
        self._ends = self._queues.ends
        self._damages = Damages(log, disk, findings)
        self._claims = Claims(log, self._queues)
        self._evidence = LogEvidence(self._claims.size_at, self._claims.proven_end)
        self._position = known.position  # set if it belongs to the log
        self._why_not_used = "does not belong to this log"
        """Reason why the position file is ignored."""
        self._position_of_lost_end: Position | None = None
        """The position file, if it belongs to the log and the log may have lost its end."""
        self._rejected = 0
        self._possibly_lost = 0
        """Number of messages that may be lost."""
        self._last_replacement: Replacement | None = None
        """Last record that replaces a damaged record."""
        self._last_message = (-1, 0)
        """Start and end of the last record that does not replace a lost record, or else the start of reading."""
        self.lost_from: int | None = None
        """End of the log that was found at this start, if the log had lost its real end; otherwise ``None``."""

    @property
    def marks(self) -> dict[int, int]:
        """Checksums (``marks``) of log files in the position file, if it belongs to the log."""
        return self._position.marks if self._position is not None else {}

    def run(self) -> None:
        """Open and repair the store, and make its log, queues and index consistent."""
        log, queues, known = self._log, self._queues, self._known
        recreated = load_log(log, self._findings)
        self._check_position()
        position = self._claims.position = self._position
        if not recreated:
            known.files.load(crashed=known.crashed)
        queues.open_files(position, known.files)
        if known.position is None and not known.is_slave:
            self._position_of_lost_end = queues.end_of_lost_log()
        damaged = queues.find_damaged(position) if position is not None else list(queues.by_key.values())
        for queue in damaged:
            self._ends[queue.key] = queues.end_of_sound_units(queue)
        start = position.offset if position is not None else self._start_without_position()
        indexed_from = index_from(self._index, log, position, known.crashed, self._findings)
        if damaged or position is None:
            self._restore_missing_units(start)
        shortened = self._read_log(min(start, indexed_from), start, indexed_from)
        self._damages.report_rest()
        if self._rejected:
            self._findings.add(f"{self._rejected} records have an impossible queue offset; they are skipped")
        end = EndOfLog(log, self._disk, self._findings)
        end.truncate()
        self._keep_recorded_ends(shortened, end)
        if self._position_of_lost_end is not None and self._last_message[0] < max(
            self._position_of_lost_end.last_offset, 0
        ):
            self._continue_after_lost_end(self._position_of_lost_end, end)
        elif position is not known.position and log.segments:
            self._findings.add(f"comet/position.json: {self._why_not_used}; everything is checked instead")
        self._damages.fill_recreated(segment for segment in recreated if segment.end <= log.position)
        queues.truncate_at_ends()
        if self._index is not None:
            cut_index(self._index, log.position)

    # --- before the log is read ----------------------------------------------------------------
    def _check_position(self) -> None:
        """Determine whether the position file belongs to the log, to a lost end of it, or to another log."""
        position, log = self._position, self._log
        if position is None:
            return
        if position.belongs_to(log):
            self._claims.proven_by_position = position.offset
            if position.made_anew:
                self._position, self._why_not_used = None, "queues were rebuilt"
            return
        self._position = None
        self._claims.proven_by_position = position.proven_end(log)
        if not self._known.is_slave and not self._claims.proven_by_position and position.is_of(log):
            self._position_of_lost_end = position

    def _start_without_position(self) -> int:
        """Return the position at which reading must start if there is no position file."""
        log = self._log
        if not log.segments:
            return log.position
        if self._known.crashed:
            checkpoint = self._known.checkpoint
            safe = checkpoint.safe_timestamp if checkpoint is not None else 0
            for segment in reversed(log.segments):
                record = record_at(log, segment.start)
                if record is not None and 0 < record.store_timestamp <= safe:
                    return segment.start
            return log.min_offset
        start = log.min_offset
        for key, queue in self._queues.by_key.items():
            end = self._ends[key]
            unit = queue.unit(end - 1) if end else None
            if unit is not None and unit[1] != BLANK_SIZE:
                start = max(start, unit[0] + unit[1])
        return start

    def _restore_missing_units(self, start: int) -> None:
        """Restore the missing units of records below ``start``."""
        queues = self._queues
        queues.doubt_all_ends()
        for queue in queues.by_key.values():
            queue.open_at(queue.files, self._ends.get(queue.key, 0))
        filled = forgotten = 0
        ends: dict[Key, tuple[int, int]] = {}
        sequence = QueueSequence(self._unit_confirms)
        crc = self._known.check_crc
        plain = PlainRecords(0, NEVER, check_crc=crc)
        for begin, end in UnitMap(self._log, queues.by_key.values(), start, below_ends=True).gaps():
            reader = LogReader(self._log, begin, self._evidence, check_crc=crc, until=end, plain=plain)
            for found in reader:
                if isinstance(found, PlainRun):
                    filled += self._append_run(found, sequence)
                    ends |= {(part.topic, part.queue_id): part.last for part in found.queues}
                elif isinstance(found, DamagedPart):
                    self._replace_damaged_part(found, reader.timestamp, sequence, point_unit=True)
                elif found.sys_flag & NO_QUEUE_OFFSET:
                    sequence.note_lost([Replacement(found.offset, found.size)], 1)
                elif not queues.is_known(found.topic) or queues.is_of_earlier_life(found):
                    forgotten += 1
                else:
                    for record in self._records_to_restore(found, sequence):
                        filled += self._restore_unit(record, ends, sequence)
                    self._let_core_follow(found, plain, sequence, may_follow=(found.topic, found.queue_id) in ends)
        for record in sequence.decide_doubtful(self._ends.get):
            filled += self._restore_unit(record, ends, sequence)
        self._rejected += sequence.rejected
        self._possibly_lost += sequence.possibly_lost
        self._writer.write()
        if filled:
            self._findings.add(f"{filled} messages that were missing from their queues were added again")
        if forgotten:
            self._findings.add(f"{forgotten} messages belong to topics that were deleted; they remain hidden")

    def _records_to_restore(self, record: LogRecord, sequence: QueueSequence) -> list[LogRecord]:
        """Return the records whose units are restored after this record was read."""
        queue = self._queues.queue_of(record)
        end = self._ends.get(queue.key)
        return [record] if record.queue_offset < queue.committed else sequence.accept(record, end)

    def _restore_unit(self, record: LogRecord, ends: dict[Key, tuple[int, int]], sequence: QueueSequence) -> bool:
        queue = self._queues.queue_of(record)
        end = self._ends.get(queue.key, 0)
        if record.queue_offset < end and self._queues.unit_is_sound(queue, record.queue_offset):
            return False
        if record.queue_offset >= end:
            last = ends.get(queue.key)
            if last is None:
                unit = queue.unit(end - 1) if end else None
                last = (unit[0], unit[1]) if unit is not None else (-1, 0)
            if record.offset <= last[0]:
                return False  # from an earlier life of a topic that was deleted and created again
            self._queues.add_units_of_lost(queue, record.queue_offset, sequence.replacements_before(record))
            self._ends[queue.key] = record.queue_offset + 1
            ends[queue.key] = (record.offset, record.size)
        sequence.note_accepted(queue.key)
        self._queues.add_unit(queue, record)
        return True

    # --- damage --------------------------------------------------------------------------------
    def _unit_confirms(self, record: LogRecord) -> bool | None:
        """Return whether the unit that points to the record has the record's queue offset, or ``None`` if there is no
        unit.
        """
        claim = self._claims.unit_at(record.offset)
        if claim is None or claim.size != record.size:
            first_is_sound = not record.queue_offset and self._queues.unit_is_sound(self._queues.queue_of(record), 0)
            return False if first_is_sound else None  # the topic was not deleted and created again
        return (claim.queue.key, claim.queue_offset) == ((record.topic, record.queue_id), record.queue_offset)

    def _replace_damaged_part(
        self, part: DamagedPart, timestamp: int, sequence: QueueSequence, *, point_unit: bool
    ) -> None:
        """Quarantine a damaged part. If ``point_unit`` is true, make its message's unit point to the replacement."""
        size = part.end - part.start
        message = self._message_in(part)
        replacements = self._damages.replace(part, message, timestamp or self._timestamp_behind(part.end))
        if replacements:
            self._last_replacement = replacements[-1]
            self._log.last_record = (replacements[-1].offset, replacements[-1].size)
        sequence.note_lost(replacements, 1 if message is not None else size // _LEAST_RECORD_BYTES)
        if message is not None and replacements and point_unit:
            key = (message.topic, message.queue_id)
            if message.queue_offset >= self._ends.get(key, 0):
                self._queues.add_unit_of_lost(self._queues.queue_at(key), message.queue_offset, replacements[0])

    def _message_in(self, part: DamagedPart) -> LostMessage | None:
        """Return the message in a damaged part, identified by a unit, or by the record itself if it fits its queue."""
        claim = self._claims.unit_at(part.start)
        if claim is not None and part.start + claim.size == part.end:
            return LostMessage(*claim.queue.key, claim.queue_offset)
        segment = self._log.segment_at(part.start)
        outline = read_damaged_fields(segment.view, part.start - segment.start) if segment is not None else None
        if outline is None or part.start + outline.size != part.end:
            return None
        if self._ends.get((outline.topic, outline.queue_id)) != outline.queue_offset:
            return None
        return LostMessage(outline.topic, outline.queue_id, outline.queue_offset)

    def _timestamp_behind(self, offset: int) -> int:
        """Return the store timestamp of the record at ``offset``, or 0 if there is none."""
        record = first_record(self._log, offset)
        return record.store_timestamp if record is not None else 0

    # --- reading the log -----------------------------------------------------------------------
    def _master_sends_again(self) -> bool:
        """Return whether the master sends unproven parts again, because this is a slave's store that CometMQ saved
        last, or that was never saved.
        """
        known = self._known
        was_never_saved = known.position is None and known.checkpoint is None
        return known.is_slave and (self._position is not None or was_never_saved)

    def _read_log(self, start: int, queues_from: int, indexed_from: int) -> dict[Key, int]:
        """Read the log to its end, and derive the queues and index from it.

        Return the queues that end earlier than recorded in the position file because their last messages are damaged,
        with their recorded ends.
        """
        crc = self._known.check_crc
        foreign = self._position is None
        plain = PlainRecords(queues_from, indexed_from, check_crc=crc)
        evidence = self._evidence._replace(ends_at_damage=self._master_sends_again())
        reader = LogReader(self._log, start, evidence, check_crc=crc, plain=plain)
        queues = self._queues
        sequence = QueueSequence(self._unit_confirms)
        found: LogRecord | DamagedPart | PlainRun | None = None
        self._last_message = (start - 1, start)
        for found in reader:
            if isinstance(found, PlainRun):
                self._log.last_record = (found.last_offset, found.last_size)
                self._last_message = (found.last_offset, found.last_offset + found.last_size)
                self._writer.add_hashed_keys(found)
                self._append_run(found, sequence)
                continue
            if isinstance(found, DamagedPart):
                self._replace_damaged_part(found, reader.timestamp, sequence, point_unit=found.start >= queues_from)
                continue
            self._log.last_record = (found.offset, found.size)
            if found.sys_flag & ROLLBACK != ROLLBACK:
                self._last_message = (found.offset, found.offset + found.size)
                if found.offset >= indexed_from:
                    self._writer.add_keys(found)
            is_hidden = found.offset < queues_from or queues.is_of_earlier_life(found)
            if is_hidden:
                pass
            elif found.sys_flag & NO_QUEUE_OFFSET:
                self._pass_record_without_unit(found, sequence)
            elif foreign and queues.has_unit(found):
                sequence.note_accepted((found.topic, found.queue_id))
                self._ends[found.topic, found.queue_id] = found.queue_offset + 1
            else:
                for record in self._accepted_records(found, sequence):
                    self._append_unit(record, sequence)
            may_follow = not is_hidden and not (foreign and queues.had_files(found))
            self._let_core_follow(found, plain, sequence, may_follow=may_follow)
        self._finish_sequence(sequence)
        self._writer.write()
        self._log.last_timestamp = reader.timestamp
        if found is None and self._position is not None and start == self._position.offset:
            self._set_last_message(self._position.last_offset, self._position.last_size)
        elif found is None:
            self._set_last_message(*queues.last_record())
        self._log.position = reader.end
        witness = self._known.position
        if witness is None or not self._claims.proven_by_position:
            return {}
        shortened = {key: end for key, end in queues.shortened_since(witness).items() if not sequence.has_accepted(key)}
        return queues.restore_emptied_ends(shortened, self._possibly_lost)

    def _finish_sequence(self, sequence: QueueSequence) -> None:
        """Accept or reject the records that are still in doubt at the end of the log."""
        for record in sequence.decide_doubtful(self._ends.get):
            self._append_unit(record, sequence)
        for record in sequence.last_rejected:
            end = self._ends.get((record.topic, record.queue_id))
            if end is not None:
                self._queues.add_unit_of_lost(
                    self._queues.queue_of(record), end, Replacement(record.offset, record.size)
                )
        self._rejected += sequence.rejected
        self._possibly_lost += sequence.possibly_lost

    def _accepted_records(self, record: LogRecord, sequence: QueueSequence) -> list[LogRecord]:
        """Return the records that are accepted after this record was read.

        A record that fills a gap in existing units is accepted without a check: the end of its queue is further on.
        """
        key = (record.topic, record.queue_id)
        end = self._ends.get(key)
        if end is not None and record.queue_offset < end and not sequence.has_accepted(key):
            queue = self._queues.by_key.get(key)
            if queue is not None and not self._queues.unit_is_sound(queue, record.queue_offset):
                return [record]
        return sequence.accept(record, end)

    def _pass_record_without_unit(self, record: LogRecord, sequence: QueueSequence) -> None:
        """Handle a record that gets no unit: a transactional record, or one that replaces a damaged record."""
        replacement = Replacement(record.offset, record.size)
        sequence.note_lost([replacement], 1)
        key = (record.topic, record.queue_id)
        missing = record.queue_offset - self._ends.get(key, 0)
        if record.queue_offset and (
            not missing or (0 < missing <= MAX_LOST_UNITS and self._queues.is_known(record.topic))
        ):
            queue = self._queues.queue_at(key)
            self._queues.extend_with_blanks(queue, record.queue_offset)
            self._queues.add_unit_of_lost(queue, record.queue_offset, replacement)

    def _append_unit(self, record: LogRecord, sequence: QueueSequence) -> None:
        queue = self._queues.queue_of(record)
        self._queues.add_units_of_lost(queue, record.queue_offset, sequence.replacements_before(record))
        sequence.note_accepted(queue.key)
        self._queues.add_unit(queue, record)
        self._ends[queue.key] = record.queue_offset + 1

    def _append_run(self, run: PlainRun, sequence: QueueSequence) -> int:
        """Accept plain records, as :meth:`_append_unit` and :meth:`_restore_unit` do. Return how many get units."""
        taken = 0
        for part in run.queues:
            key = (part.topic, part.queue_id)
            assert self._ends[key] == part.first
            sequence.note_accepted(key)
            self._writer.add_units(self._queues.queue_at(key), part.first, part.units)
            self._ends[key] = part.end
            taken += part.end - part.first
        return taken

    def _let_core_follow(
        self, record: LogRecord, plain: PlainRecords, sequence: QueueSequence, *, may_follow: bool
    ) -> None:
        """Let the core follow the queue that ends with this record, unless one of its records is in doubt."""
        key = (record.topic, record.queue_id)
        queue = self._queues.by_key.get(key)
        follow = (
            may_follow
            and queue is not None
            and not queue.delay_ms
            and self._ends.get(key) == record.queue_offset + 1
            and not sequence.is_in_doubt(key)
        )
        plain.follow_queue_of(record, follow=follow)

    def _set_last_message(self, offset: int, size: int) -> None:
        segment = self._log.segment_at(offset) if offset >= 0 else None
        if segment is not None:
            self._log.last_record = (offset, size)
            self._log.last_timestamp = store_timestamp_of(segment.view[offset - segment.start :])

    # --- after ---------------------------------------------------------------------------------
    def _keep_recorded_ends(self, shortened: dict[Key, int], end: EndOfLog) -> None:
        """Keep the ends of queues whose last messages are damaged."""
        if not self._known.is_slave and shortened:
            self._write_placeholders(shortened, self._log.position, end)
            return
        for key, queue_end in shortened.items():  # a slave's log gets no further records
            queue, replacement = self._queues.by_key[key], self._last_replacement
            self._queues.extend_with_blanks(queue, queue_end if replacement is None else queue_end - 1)
            if replacement is not None:
                self._queues.add_unit_of_lost(queue, queue_end - 1, replacement)
        self._writer.write()

    def _continue_after_lost_end(self, position: Position, end: EndOfLog) -> None:
        """Skip all log and queue offsets that were assigned before according to ``position`` or a unit.

        Units are written about once a second, so they may point to newer messages than ``position``.
        """
        log = self._log
        lost_from = self._last_message[1]
        assigned = position.offset
        ends = self._queues.recorded_ends(position)
        for key, queue in self._queues.by_key.items():
            unit_end, record_end = last_plausible_unit(queue, position.offset + log.segment_size)
            ends[key] = max(unit_end, ends.get(key, 0))
            assigned = max(assigned, record_end)
        if self._index is not None:
            cut_index(self._index, lost_from)
        self._write_placeholders(ends, assigned, end)
        if position.last_offset >= 0:
            self.lost_from = lost_from
            self._findings.add(
                f"{self._findings.name(log.directory)}: ends at {lost_from}, but was known up to {assigned}: messages "
                f"in between are lost; the log continues at {log.position}, and no log or queue offset is used twice"
            )

    def _write_placeholders(self, ends: dict[Key, int], assigned: int, end: EndOfLog) -> None:
        """Make the queues end at ``ends`` and the log at ``assigned`` or later, and write a record for the end of each
        queue.

        The last unit of a queue must not be blank; see :mod:`cometmq.store.recovery.end_of_log`.
        """
        behind = [self._queues.queue_at(key) for key, queue_end in ends.items() if queue_end > self._ends.get(key, 0)]
        last = [LostMessage(*queue.key, ends[queue.key] - 1) for queue in behind]
        replacements = end.placeholder_offsets(last, assigned)
        for queue, message, replacement in zip(behind, last, replacements, strict=True):
            self._queues.extend_with_blanks(queue, message.queue_offset)
            self._queues.add_unit_of_lost(queue, message.queue_offset, replacement)
        self._writer.write()
        for queue in behind:  # before a message gets an offset after these
            queue.sync(self._disk, queue.unsynced)
        checkpoint = self._known.checkpoint
        timestamp = self._log.last_timestamp or (checkpoint.physic_msg_timestamp if checkpoint is not None else 0)
        end.continue_after(assigned, list(zip(last, replacements, strict=True)), timestamp)
        if replacements:
            self._log.last_record = (replacements[-1].offset, replacements[-1].size)
