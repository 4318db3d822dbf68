"""QueueSequence: decides which records have a plausible queue offset.

No CRC covers the fields before the body. In log order, a queue's offsets increase by one. A record that breaks this
rule is *in doubt* until the queue's next record is read. If the next record continues after the doubtful record, the
doubtful record is right: the topic was created again, or messages are lost. If it continues after the record before,
the doubtful record is damaged.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.store.log.record_scan import LogRecord
from cometmq.store.recovery.damages import Replacement

Key = tuple[str, int]


class QueueSequence:
    """Checks the queue offsets of all records while the log is read once."""

    def __init__(self, unit_confirms: Callable[[LogRecord], bool | None]) -> None:
        self._unit_confirms = unit_confirms
        """Function that returns whether the unit that points to a record confirms its offset, or ``None`` if there is
        no unit.
        """
        self.possibly_lost = 0
        """Number of messages that may have been lost so far."""
        self._replacements: list[Replacement] = []
        self._at_last_accepted: dict[Key, tuple[int, int]] = {}
        """For each queue, up to its last record: how many messages may have been lost, and their possible
        replacements.
        """
        self._doubtful: dict[Key, LogRecord] = {}
        self._after_a_jump: dict[Key, int] = {}
        """For each queue, the latest queue offset that did not follow its predecessor."""
        self.last_rejected: list[LogRecord] = []
        """Rejected records that are not followed by another record of their queue."""
        self.rejected = 0
        """Number of rejected records."""

    def note_lost(self, replacements: list[Replacement], possibly_lost: int) -> None:
        """Record that up to ``possibly_lost`` messages are lost here. Their units may point to ``replacements``."""
        self.possibly_lost += possibly_lost
        self._replacements += replacements

    def has_accepted(self, key: Key) -> bool:
        """Return whether a record of this queue was accepted."""
        return key in self._at_last_accepted

    def replacements_before(self, record: LogRecord) -> list[Replacement]:
        """Return the records that may replace the messages between this record and its predecessor in the queue."""
        _, first = self._at_last_accepted.get((record.topic, record.queue_id), (0, 0))
        return [found for found in self._replacements[first:] if found.offset < record.offset]

    def note_accepted(self, key: Key) -> None:
        """Record that a record of this queue has received its unit."""
        self._at_last_accepted[key] = (self.possibly_lost, len(self._replacements))

    def is_in_doubt(self, key: Key) -> bool:
        """Return whether the queue offset of a record in this queue is in doubt."""
        return key in self._doubtful

    def accept(self, record: LogRecord, expected: int | None) -> list[LogRecord]:
        """Return the records that can be accepted after this record was read, in order.

        :param expected: the next offset of the record's queue, or ``None`` if the queue is unknown.
        """
        key = (record.topic, record.queue_id)
        doubtful = self._doubtful.pop(key, None)
        offset = record.queue_offset
        if doubtful is not None:
            if offset == doubtful.queue_offset + 1:
                return [doubtful, record]
            if expected is None and 0 < offset - doubtful.queue_offset <= self.possibly_lost + 1:
                return [doubtful, record]
            self._reject(doubtful)
        if expected is None:
            self.possibly_lost += 1  # the record may be from another queue, with a damaged topic or queue id
            if offset == 0:
                return [record]
        elif offset == expected:
            return [record]
        elif 0 < offset - expected <= self._possibly_lost_since(key) and self._unit_confirms(record) is not False:
            self._after_a_jump[key] = offset
            return [record]
        self._doubtful[key] = record
        return []

    def decide_doubtful(self, expected: Callable[[Key], int | None]) -> list[LogRecord]:
        """Return the accepted records among those that are still in doubt at the end of the log."""
        doubtful = list(self._doubtful.items())
        self._doubtful.clear()
        self.possibly_lost += max(0, len(doubtful) - 1)
        accepted: list[LogRecord] = []
        for key, record in doubtful:
            if self._is_plausible(record, expected(key)):
                accepted.append(record)
            else:
                self._reject(record)
                self.last_rejected.append(record)
        return accepted

    def _is_plausible(self, record: LogRecord, expected: int | None) -> bool:
        confirmed = self._unit_confirms(record)
        if confirmed is not None:
            return confirmed
        if expected is None:
            return True
        if record.queue_offset == 0:  # a recreated topic with one message so far: keep the record
            return not self.has_accepted((record.topic, record.queue_id))
        if record.queue_offset == expected - 1 == self._after_a_jump.get((record.topic, record.queue_id)):
            # The record before it has the same offset and skipped others to reach it, so that one may be damaged.
            return True
        return 0 < record.queue_offset - expected <= self._possibly_lost_since((record.topic, record.queue_id))

    def _possibly_lost_since(self, key: Key) -> int:
        return self.possibly_lost - self._at_last_accepted.get(key, (0, 0))[0]

    def _reject(self, record: LogRecord) -> None:
        self.rejected += 1
        self.note_lost([Replacement(record.offset, record.size)], 1)
