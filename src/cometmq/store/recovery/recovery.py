"""Recovery: makes the log, queues and index consistent (``CommitLog.recoverNormally``).

:mod:`cometmq.store.recovery` describes what is trusted, the order of the steps and the invariants.
"""

from __future__ import annotations

from cometmq.store.disk import Disk
from cometmq.store.index.index_service import IndexService
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_reader import LogEvidence
from cometmq.store.log.record_scan import record_at
from cometmq.store.queue.consume_queue import BLANK_SIZE
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable
from cometmq.store.recovery.claims import Claims
from cometmq.store.recovery.damages import Damages
from cometmq.store.recovery.derived_writer import DerivedWriter
from cometmq.store.recovery.end_of_log import EndOfLog
from cometmq.store.recovery.index_recovery import cut_index, index_from
from cometmq.store.recovery.known_before import KnownBefore
from cometmq.store.recovery.load import Findings, load_log
from cometmq.store.recovery.log_replay import LogReplay
from cometmq.store.recovery.lost_ends import LostEnds
from cometmq.store.recovery.missing_units import MissingUnits
from cometmq.store.recovery.position import Position
from cometmq.store.recovery.queue_recovery import QueueRecovery
from cometmq.store.recovery.replay_steps import ReplaySteps


class Recovery:
    """Recovers one store; :meth:`run` does all steps."""

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
        writer = DerivedWriter(disk, index, findings)
        self._queues = QueueRecovery(log, queues, writer, findings, known.topics)
        self._ends = self._queues.ends
        self._damages = Damages(log, disk, findings)
        self._claims = Claims(log, self._queues)
        self._steps = ReplaySteps(log, self._queues, writer, self._damages, self._claims)
        self._position = known.position  # set if it belongs to the log
        self._why_not_used = "does not belong to this log"
        """Reason why the position file is ignored."""
        self._position_of_lost_end: Position | None = None
        """The position file, if it belongs to the log and the log may have lost its end."""
        self.lost_from: int | None = None
        """Log offset at which the log ended when it was opened, if its real end was lost; otherwise ``None``."""
        self.has_lost_end = False
        """True if the log ended before the position in the position file, which was flushed."""

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
        evidence = LogEvidence(self._claims.size_at, self._claims.proven_end)
        if damaged or position is None:
            MissingUnits(self._steps, evidence, self._findings, check_crc=known.check_crc).restore(start)
        replay = LogReplay(self._steps, evidence, known, position)
        shortened = replay.read(min(start, indexed_from), start, indexed_from)
        self._damages.report_rest()
        if self._steps.rejected:
            self._findings.add(f"{self._steps.rejected} records have an impossible queue offset; they are skipped")
        end = EndOfLog(log, self._disk, self._findings)
        end.truncate()
        self.has_lost_end = known.position is not None and known.position.offset > log.position
        self._replace_lost_ends(shortened, end, replay.last_message)
        self._damages.fill_recreated(segment for segment in recreated if segment.end <= log.position)
        queues.truncate_at_ends()
        if self._index is not None:
            cut_index(self._index, log.position)
        log.rest(log.position)

    def _replace_lost_ends(
        self, shortened: dict[tuple[str, int], int], end: EndOfLog, last_message: tuple[int, int]
    ) -> None:
        """Keep the ends of queues and of the log that were known before.

        :param last_message: start and end of the last message that the log still has.
        """
        lost = LostEnds(self._steps, end, self._index, self._disk, self._findings, self._known)
        lost.keep_recorded_ends(shortened)
        position = self._position_of_lost_end
        if position is not None and last_message[0] < max(position.last_offset, 0):
            lost.continue_after(position, last_message[1])
            if position.last_offset >= 0:
                self.lost_from = last_message[1]
        elif self._position is not self._known.position and self._log.segments:
            self._findings.add(f"comet/position.json: {self._why_not_used}; everything is checked instead")

    def _check_position(self) -> None:
        """Determine whether the position file matches the log, is older than a loss of the log's end, or is another
        log's.
        """
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
