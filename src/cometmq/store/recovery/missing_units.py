"""MissingUnits: finds the records below the start of replay that have no unit in a queue, and writes their units.

This pass is only needed if a queue is damaged or if there is no position file to trust. Each record keeps its queue
offset: its unit is restored where it was, or appended if the queue ended too early.
"""

from __future__ import annotations

from cometmq.store.log.log_reader import DamagedPart, LogEvidence, LogReader
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET, LogRecord
from cometmq.store.recovery.damages import Replacement
from cometmq.store.recovery.derived_writer import Key
from cometmq.store.recovery.index_recovery import NEVER
from cometmq.store.recovery.load import Findings
from cometmq.store.recovery.queue_sequence import QueueSequence
from cometmq.store.recovery.queue_units import UnitMap
from cometmq.store.recovery.replay_steps import ReplaySteps


class MissingUnits:
    """The records below the start of replay whose units are missing."""

    def __init__(self, steps: ReplaySteps, evidence: LogEvidence, findings: Findings, *, check_crc: bool) -> None:
        self._steps = steps
        self._log = steps.log
        self._queues = steps.queues
        self._ends = steps.ends
        self._evidence = evidence
        self._findings = findings
        self._check_crc = check_crc

    def restore(self, start: int) -> None:
        """Restore the missing units of records below ``start``."""
        steps, queues = self._steps, self._queues
        queues.doubt_all_ends()
        for queue in queues.by_key.values():
            queue.open_at(queue.files, self._ends.get(queue.key, 0))
        filled = forgotten = 0
        ends: dict[Key, tuple[int, int]] = {}
        sequence = steps.new_sequence()
        crc = self._check_crc
        plain = PlainRecords(0, NEVER, check_crc=crc)
        for begin, end in UnitMap(self._log, queues.by_key.values(), start, below_ends=True).gaps():
            reader = LogReader(self._log, begin, self._evidence, check_crc=crc, until=end, plain=plain)
            for found in reader:
                if isinstance(found, PlainRun):
                    filled += steps.append_run(found, sequence)
                    ends |= {(part.topic, part.queue_id): part.last for part in found.queues}
                elif isinstance(found, DamagedPart):
                    steps.replace_damaged_part(found, reader.timestamp, sequence, point_unit=True)
                elif found.sys_flag & NO_QUEUE_OFFSET:
                    sequence.note_lost([Replacement(found.offset, found.size)], 1)
                elif not queues.is_known(found.topic) or queues.is_of_earlier_life(found):
                    forgotten += 1
                else:
                    for record in self._records_to_restore(found, sequence):
                        filled += self._restore_unit(record, ends, sequence)
                    steps.let_core_follow(found, plain, sequence, may_follow=(found.topic, found.queue_id) in ends)
        for record in sequence.decide_doubtful(self._ends.get):
            filled += self._restore_unit(record, ends, sequence)
        steps.end_pass(sequence)
        steps.writer.write()
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
