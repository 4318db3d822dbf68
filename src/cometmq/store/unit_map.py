"""UnitMap: which unit of which queue leads to a place of the log, whether a record stands there or not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cometmq.store.commit_log import CommitLog
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.gaps import Ints, Units, is_sound, read_units
from cometmq.store.record_scan import store_timestamp_of
from cometmq.store.topic_queue import BLANK_SIZE, UNIT_DTYPE, TopicQueue


class Claim(NamedTuple):
    """What a unit says of a place of the log."""

    queue: TopicQueue
    queue_offset: int
    offset: int
    size: int


class UnitMap:
    """All units in the files of all queues, by log offset: also those that lead to no record.

    Made when the first damage is found, since it takes 40 bytes of memory for each message of the store.
    """

    def __init__(self, log: CommitLog, queues: list[TopicQueue]) -> None:
        self._log = log
        parts: list[Units] = []
        self._owners: list[tuple[TopicQueue, int]] = []
        for queue in queues:
            for start in queue.files:
                units = read_units(queue, start)
                if len(units):
                    parts.append(units)
                    self._owners.append((queue, start // CQ_UNIT_BYTES))
        units = np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)
        offsets: Ints = units["offset"].astype(np.int64)
        sizes: Ints = units["size"].astype(np.int64)
        end = log.segments[-1].end if log.segments else 0
        kept = np.flatnonzero((sizes > 0) & (sizes != BLANK_SIZE) & (offsets >= log.min_offset) & (offsets < end))
        kept = kept[np.argsort(offsets[kept], kind="stable")]
        self._firsts: Ints = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        self._numbers: Ints = kept
        self._offsets: Ints = offsets[kept]
        self._sizes: Ints = sizes[kept]

    def at(self, offset: int) -> Claim | None:
        """What a unit says stands at ``offset``; ``None`` unless one does, and no other contradicts it."""
        first = int(np.searchsorted(self._offsets, offset))
        after = int(np.searchsorted(self._offsets, offset, side="right"))
        if after != first + 1:
            return None
        size = int(self._sizes[first])
        if after < len(self._offsets) and self._offsets[after] < offset + size:
            return None
        if first and self._offsets[first - 1] + self._sizes[first - 1] > offset:
            return None
        return self._claim(first)

    def _claim(self, number: int) -> Claim:
        unit = int(self._numbers[number])
        part = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        queue, first = self._owners[part]
        within = unit - int(self._firsts[part])
        return Claim(queue, first + within, int(self._offsets[number]), int(self._sizes[number]))

    def last_sound(self) -> tuple[int, int]:
        """The end and the store timestamp of the last record that a unit leads to; zeros for none."""
        for number in range(len(self._offsets) - 1, -1, -1):
            claim = self._claim(number)
            if is_sound(self._log, claim.queue, claim.queue_offset, claim.offset, claim.size):
                segment = self._log.segment_at(claim.offset)
                assert segment is not None
                return claim.offset + claim.size, store_timestamp_of(segment.view[claim.offset - segment.start :])
        return 0, 0
