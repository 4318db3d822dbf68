"""Claims: units that point into the log. They reveal the sizes of damaged records and a minimum length of the log.

Claims are read from the queue files when they are first needed, which is where the log is damaged or ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.recovery.position import Position
from cometmq.store.recovery.queue_recovery import QueueRecovery
from cometmq.store.recovery.queue_units import Claim, UnitMap


class Claims:
    """The claims about the log that the units of all queues make."""

    def __init__(self, log: CommitLog, queues: QueueRecovery) -> None:
        self._log = log
        self._queues = queues
        self.position: Position | None = None
        """The position file, if it belongs to the log. The units of most queues point to offsets below its offset."""
        self.proven_by_position = 0
        """Log offset up to which a position file proves that the log existed."""

    def unit_at(self, offset: int) -> Claim | None:
        """Return the unit that points to a log offset, or ``None`` if there are none or several."""
        is_behind = self.position is not None and offset >= self.position.offset
        return (self._units_after_position if is_behind else self._all_units).unit_at(offset)

    def size_at(self, offset: int) -> int:
        """Return the size of the record at a log offset according to its unit, or 0 if there is no unit."""
        claim = self.unit_at(offset)
        return claim.size if claim is not None else 0

    def proven_end(self, timestamp: int) -> int:
        """Return the offset up to which the log provably continues. Units that Apache left after the log's end are
        older.
        """
        end, stored = self._end_of_last_sound
        return max(self.proven_by_position, end if stored >= timestamp else 0)

    @cached_property
    def _all_units(self) -> UnitMap:
        return self._map_units(self._queues.by_key.values())

    @cached_property
    def _units_after_position(self) -> UnitMap:
        """Return the queue units that can point beyond the position file's offset."""
        return self._map_units(self._queues.queues_to_check()) if self.position is not None else self._all_units

    @cached_property
    def _end_of_last_sound(self) -> tuple[int, int]:
        return self._units_after_position.last_sound()

    def _map_units(self, queues: Iterable[ConsumeQueue]) -> UnitMap:
        segments = self._log.segments
        return UnitMap(self._log, queues, segments[-1].end if segments else 0)
