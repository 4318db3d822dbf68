"""ReplaySteps: the steps that both passes over the log share (:mod:`.missing_units` and :mod:`.log_replay`)."""

from __future__ import annotations

from typing import Final

from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_reader import DamagedPart, read_damaged_fields
from cometmq.store.log.plain_records import PlainRecords, PlainRun
from cometmq.store.log.record_scan import LogRecord, first_record
from cometmq.store.recovery.claims import Claims
from cometmq.store.recovery.damages import Damages, LostMessage, Replacement
from cometmq.store.recovery.derived_writer import DerivedWriter
from cometmq.store.recovery.queue_recovery import QueueRecovery
from cometmq.store.recovery.queue_sequence import QueueSequence

_LEAST_RECORD_BYTES: Final = 92


class ReplaySteps:
    """Checks records against the units that point to them, replaces damaged parts, and gives plain records units."""

    def __init__(
        self, log: CommitLog, queues: QueueRecovery, writer: DerivedWriter, damages: Damages, claims: Claims
    ) -> None:
        self.log = log
        self.queues = queues
        self.writer = writer
        self.claims = claims
        self.ends = queues.ends
        self._damages = damages
        self.last_replacement: Replacement | None = None
        """Last record that replaces a damaged record."""
        self.rejected = 0
        """Number of records with an impossible queue offset."""
        self.possibly_lost = 0
        """Number of messages that may be lost."""

    def new_sequence(self) -> QueueSequence:
        """Return the checks of queue offsets for one pass."""
        return QueueSequence(self.unit_confirms)

    def end_pass(self, sequence: QueueSequence) -> None:
        """Count the rejected and lost messages of a pass."""
        self.rejected += sequence.rejected
        self.possibly_lost += sequence.possibly_lost

    def unit_confirms(self, record: LogRecord) -> bool | None:
        """Return whether the unit that points to the record has the record's queue offset, or ``None`` if there is no
        unit.
        """
        claim = self.claims.unit_at(record.offset)
        if claim is None or claim.size != record.size:
            first_is_sound = not record.queue_offset and self.queues.unit_is_sound(self.queues.queue_of(record), 0)
            return False if first_is_sound else None  # the topic was not deleted and created again
        return (claim.queue.key, claim.queue_offset) == ((record.topic, record.queue_id), record.queue_offset)

    def replace_damaged_part(
        self, part: DamagedPart, timestamp: int, sequence: QueueSequence, *, point_unit: bool
    ) -> None:
        """Quarantine a damaged part. If ``point_unit`` is true, make its message's unit point to the replacement."""
        size = part.end - part.start
        message = self._message_in(part)
        replacements = self._damages.replace(part, message, timestamp or self._timestamp_behind(part.end))
        if replacements:
            self.last_replacement = replacements[-1]
            self.log.last_record = (replacements[-1].offset, replacements[-1].size)
        sequence.note_lost(replacements, 1 if message is not None else size // _LEAST_RECORD_BYTES)
        if message is not None and replacements and point_unit:
            key = (message.topic, message.queue_id)
            if message.queue_offset >= self.ends.get(key, 0):
                self.queues.add_unit_of_lost(self.queues.queue_at(key), message.queue_offset, replacements[0])

    def _message_in(self, part: DamagedPart) -> LostMessage | None:
        """Return the message in a damaged part, identified by a unit, or by the record itself if it fits its queue."""
        claim = self.claims.unit_at(part.start)
        if claim is not None and part.start + claim.size == part.end:
            return LostMessage(*claim.queue.key, claim.queue_offset)
        segment = self.log.segment_at(part.start)
        outline = read_damaged_fields(segment.view, part.start - segment.start) if segment is not None else None
        if outline is None or part.start + outline.size != part.end:
            return None
        if self.ends.get((outline.topic, outline.queue_id)) != outline.queue_offset:
            return None
        return LostMessage(outline.topic, outline.queue_id, outline.queue_offset)

    def _timestamp_behind(self, offset: int) -> int:
        """Return the store timestamp of the record at ``offset``, or 0 if there is none."""
        record = first_record(self.log, offset)
        return record.store_timestamp if record is not None else 0

    def append_run(self, run: PlainRun, sequence: QueueSequence) -> int:
        """Accept plain records, which follow each other in their queues. Return how many get units."""
        taken = 0
        for part in run.queues:
            key = (part.topic, part.queue_id)
            assert self.ends[key] == part.first
            sequence.note_accepted(key)
            self.writer.add_units(self.queues.queue_at(key), part.first, part.units)
            self.ends[key] = part.end
            taken += part.end - part.first
        return taken

    def let_core_follow(
        self, record: LogRecord, plain: PlainRecords, sequence: QueueSequence, *, may_follow: bool
    ) -> None:
        """Let the core follow the queue that ends with this record, unless the queue offset of one of its records is
        in doubt.
        """
        key = (record.topic, record.queue_id)
        queue = self.queues.by_key.get(key)
        follow = (
            may_follow
            and queue is not None
            and not queue.delay_ms
            and self.ends.get(key) == record.queue_offset + 1
            and not sequence.is_in_doubt(key)
        )
        plain.follow_queue_of(record, follow=follow)
