"""LostEnds: lets a log or queue that has lost its end continue after the highest offset that was ever assigned."""

from __future__ import annotations

from cometmq.store.disk import Disk
from cometmq.store.index.index_service import IndexService
from cometmq.store.recovery.damages import LostMessage
from cometmq.store.recovery.derived_writer import Key
from cometmq.store.recovery.end_of_log import EndOfLog
from cometmq.store.recovery.index_recovery import cut_index
from cometmq.store.recovery.known_before import KnownBefore
from cometmq.store.recovery.load import Findings
from cometmq.store.recovery.position import Position
from cometmq.store.recovery.queue_units import last_plausible_unit
from cometmq.store.recovery.replay_steps import ReplaySteps


class LostEnds:
    """The recorded ends of the log and of queues that have lost their last messages."""

    def __init__(
        self,
        steps: ReplaySteps,
        end: EndOfLog,
        index: IndexService | None,
        disk: Disk,
        findings: Findings,
        known: KnownBefore,
    ) -> None:
        self._steps = steps
        self._log = steps.log
        self._queues = steps.queues
        self._writer = steps.writer
        self._ends = steps.ends
        self._end = end
        self._index = index
        self._disk = disk
        self._findings = findings
        self._known = known

    def keep_recorded_ends(self, shortened: dict[Key, int]) -> None:
        """Keep the ends of queues whose last messages are damaged."""
        if not self._known.is_slave and shortened:
            self._write_placeholders(shortened, self._log.position)
            return
        for key, queue_end in shortened.items():  # a slave's log gets no further records
            queue, replacement = self._queues.by_key[key], self._steps.last_replacement
            self._queues.extend_with_blanks(queue, queue_end if replacement is None else queue_end - 1)
            if replacement is not None:
                self._queues.add_unit_of_lost(queue, queue_end - 1, replacement)
        self._writer.write()

    def continue_after(self, position: Position, lost_from: int) -> None:
        """Skip all log and queue offsets that were assigned before according to ``position`` or a unit.

        Units are written about once a second, so they may point to newer messages than ``position``.
        """
        log = self._log
        assigned = position.offset
        ends = self._queues.recorded_ends(position)
        for key, queue in self._queues.by_key.items():
            unit_end, record_end = last_plausible_unit(queue, position.offset + log.segment_size)
            ends[key] = max(unit_end, ends.get(key, 0))
            assigned = max(assigned, record_end)
        if self._index is not None:
            cut_index(self._index, lost_from)
        self._write_placeholders(ends, assigned)
        if position.last_offset >= 0:
            self._findings.add(
                f"{self._findings.name(log.directory)}: ends at {lost_from}, but was known up to {assigned}: messages "
                f"in between are lost; the log continues at {log.position}, and no log or queue offset is used twice"
            )

    def _write_placeholders(self, ends: dict[Key, int], assigned: int) -> None:
        """Make the queues end at ``ends`` and the log at ``assigned`` or later, and write a record for the end of each
        queue.

        The last unit of a queue must not be blank; see :mod:`cometmq.store.recovery.end_of_log`.
        """
        behind = [self._queues.queue_at(key) for key, queue_end in ends.items() if queue_end > self._ends.get(key, 0)]
        last = [LostMessage(*queue.key, ends[queue.key] - 1) for queue in behind]
        replacements = self._end.placeholder_offsets(last, assigned)
        for queue, message, replacement in zip(behind, last, replacements, strict=True):
            self._queues.extend_with_blanks(queue, message.queue_offset)
            self._queues.add_unit_of_lost(queue, message.queue_offset, replacement)
        self._writer.write()
        for queue in behind:  # before a message gets an offset after these
            queue.sync(self._disk, queue.unsynced)
        checkpoint = self._known.checkpoint
        timestamp = self._log.last_timestamp or (checkpoint.physic_msg_timestamp if checkpoint is not None else 0)
        self._end.continue_after(assigned, list(zip(last, replacements, strict=True)), timestamp)
        if replacements:
            self._log.last_record = (replacements[-1].offset, replacements[-1].size)
