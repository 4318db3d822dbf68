"""LogReplay: reads the log from the trusted position to its end, and derives queues and index from its records."""

from __future__ import annotations

from cometmq.limits import MAX_LOST_UNITS
from cometmq.store.log.log_reader import DamagedPart, LogEvidence, LogReader
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET, ROLLBACK, LogRecord, store_timestamp_of
from cometmq.store.recovery.damages import Replacement
from cometmq.store.recovery.derived_writer import Key
from cometmq.store.recovery.known_before import KnownBefore
from cometmq.store.recovery.position import Position
from cometmq.store.recovery.queue_sequence import QueueSequence
from cometmq.store.recovery.replay_steps import ReplaySteps


class LogReplay:
    """The pass over the log from the trusted position to its end."""

    def __init__(
        self, steps: ReplaySteps, evidence: LogEvidence, known: KnownBefore, position: Position | None
    ) -> None:
        self._steps = steps
        self._log = steps.log
        self._queues = steps.queues
        self._writer = steps.writer
        self._ends = steps.ends
        self._evidence = evidence
        self._known = known
        self._position = position
        self.last_message = (-1, 0)
        """Start and end of the last record that does not replace a lost record, or else the start of reading."""

    def read(self, start: int, queues_from: int, indexed_from: int) -> dict[Key, int]:
        """Read the log to its end, and derive the queues and index from it.

        Return the queues that end earlier than recorded in the position file because their last messages are damaged,
        with their recorded ends.
        """
        crc = self._known.check_crc
        foreign = self._position is None
        plain = PlainRecords(queues_from, indexed_from, check_crc=crc)
        evidence = self._evidence._replace(ends_at_damage=self._master_sends_again())
        reader = LogReader(self._log, start, evidence, check_crc=crc, plain=plain)
        queues, steps = self._queues, self._steps
        sequence = steps.new_sequence()
        found: LogRecord | DamagedPart | PlainRun | None = None
        self.last_message = (start - 1, start)
        for found in reader:
            if isinstance(found, PlainRun):
                self._log.last_record = (found.last_offset, found.last_size)
                self.last_message = (found.last_offset, found.last_offset + found.last_size)
                self._writer.add_hashed_keys(found)
                steps.append_run(found, sequence)
                continue
            if isinstance(found, DamagedPart):
                steps.replace_damaged_part(found, reader.timestamp, sequence, point_unit=found.start >= queues_from)
                continue
            self._log.last_record = (found.offset, found.size)
            if found.sys_flag & ROLLBACK != ROLLBACK:
                self.last_message = (found.offset, found.offset + found.size)
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
            steps.let_core_follow(found, plain, sequence, may_follow=may_follow)
        self._finish_sequence(sequence)
        self._writer.write()
        self._log.last_timestamp = reader.timestamp
        if found is None and self._position is not None and start == self._position.offset:
            self._set_last_message(self._position.last_offset, self._position.last_size)
        elif found is None:
            self._set_last_message(*queues.last_record())
        self._log.position = reader.end
        witness = self._known.position
        if witness is None or not self._steps.claims.proven_by_position:
            return {}
        shortened = {key: end for key, end in queues.shortened_since(witness).items() if not sequence.has_accepted(key)}
        return queues.restore_emptied_ends(shortened, steps.possibly_lost)

    def _finish_sequence(self, sequence: QueueSequence) -> None:
        """Accept or reject the records whose queue offsets are still in doubt at the end of the log."""
        for record in sequence.decide_doubtful(self._ends.get):
            self._append_unit(record, sequence)
        for record in sequence.last_rejected:
            end = self._ends.get((record.topic, record.queue_id))
            if end is not None:
                self._queues.add_unit_of_lost(
                    self._queues.queue_of(record), end, Replacement(record.offset, record.size)
                )
        self._steps.end_pass(sequence)

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

    def _set_last_message(self, offset: int, size: int) -> None:
        segment = self._log.segment_at(offset) if offset >= 0 else None
        if segment is not None:
            self._log.last_record = (offset, size)
            self._log.last_timestamp = store_timestamp_of(segment.view[offset - segment.start :])

    def _master_sends_again(self) -> bool:
        """Return whether the master sends unproven parts again, because this is a slave's store that CometMQ saved
        last, or that was never saved.
        """
        known = self._known
        was_never_saved = known.position is None and known.checkpoint is None
        return known.is_slave and (self._position is not None or was_never_saved)
