"""Compares the units in queue files with the log: finds the last sound unit, and the parts of the log without units."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import open_file
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.mapped_file import data_part, file_name, first_data
from cometmq.store.log.record_scan import store_timestamp_of
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT, UNIT_DTYPE, ConsumeQueue
from cometmq.store.queue.units import marks_lost_message, points_to_record

_CHECKED_FILES: Final = 3
"""Number of a queue's last files in which its end is searched for. Earlier files count as complete, as in Apache."""

Ints = npt.NDArray[np.int64]
Units = npt.NDArray[Any]


def read_units(queue: ConsumeQueue, start: int) -> Units:
    """Return the units in a file, up to the last byte that was written."""
    with open_file(queue.directory / file_name(start), os.O_RDONLY) as fd:
        end = 0
        while (part := data_part(fd, end, queue.file_size)) is not None:
            end = part[1]
        return np.frombuffer(os.pread(fd, end - end % CQ_UNIT_BYTES, 0), UNIT_DTYPE)


class QueueEnds(NamedTuple):
    """A queue's first unit and the units around its known end. They are read without a mapping, which would cost six
    times as much.
    """

    begins_at: int
    """Log offset of the first unit, or -1 if only a full check can find it."""
    last: tuple[int, int]
    """Log offset and size of the last unit's record."""
    is_last: bool
    """True if only zeros follow the last unit."""


def read_ends(queue: ConsumeQueue, end: int) -> QueueEnds | None:
    """Read the first units of a queue and those around its end. Return ``None`` if no file contains its last unit."""
    size, byte = queue.file_size, (end - 1) * CQ_UNIT_BYTES
    start = byte - byte % size
    if start not in queue.files:
        return None
    first_start = queue.files[0]
    two = b""
    if first_start != start:
        with open_file(queue.path(first_start), os.O_RDONLY) as fd:
            two = os.pread(fd, 2 * CQ_UNIT_BYTES, 0)
    with open_file(queue.path(start), os.O_RDONLY) as fd:
        two = two or os.pread(fd, min(2 * CQ_UNIT_BYTES, byte + CQ_UNIT_BYTES - start), 0)
        offset, unit_size, _ = UNIT.unpack(os.pread(fd, CQ_UNIT_BYTES, byte - start))
        is_last = start == queue.files[-1] and first_data(fd, byte + CQ_UNIT_BYTES - start, size) >= size
    units = [(unit[0], 0 < unit[1] != BLANK_SIZE) for unit in UNIT.iter_unpack(two)]
    rising = all(is_real for _, is_real in units) and units[0][0] <= units[-1][0]
    return QueueEnds(units[0][0] if rising else -1, (offset, unit_size), is_last)


def last_sound_unit(log: CommitLog, queue: ConsumeQueue) -> int:
    """Return the offset after the last unit that points to its record."""
    end, _ = last_plausible_unit(queue, log.segments[-1].end if log.segments else 0)
    lowest = queue.first_stored
    while end > lowest:
        unit = queue.unit(end - 1)
        if unit is not None and is_sound(log, queue, end - 1, unit[0], unit[1]):
            break
        if marks_lost_message(log, queue, end - 1):
            break
        end -= 1
    return end


def last_plausible_unit(queue: ConsumeQueue, log_end: int) -> tuple[int, int]:
    """Return the offset after the last unit that is plausible in a log with this end, and the end of that unit's
    record.

    The record need not exist. Its end is 0 if there is no plausible unit, or only a blank one.
    """
    files = queue.files
    first = files[-_CHECKED_FILES:][:1]
    end = first[0] // CQ_UNIT_BYTES if first else 0
    last_offset = -1
    record_end = 0
    for start in files[-_CHECKED_FILES:]:
        units = read_units(queue, start)
        offsets = units["offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        blank = sizes == BLANK_SIZE
        good = (offsets >= 0) & (sizes > 0) & (blank | (offsets + sizes <= log_end))
        rising = np.empty(len(units), np.bool_)
        if len(units):
            rising[0] = blank[0] or offsets[0] > last_offset
            rising[1:] = blank[1:] | (offsets[1:] > offsets[:-1]) | blank[:-1]
        bad = np.flatnonzero(~(good & rising))
        count = int(bad[0]) if len(bad) else len(units)
        end = start // CQ_UNIT_BYTES + count
        if count:
            last_offset = int(offsets[count - 1])
            record_end = 0 if blank[count - 1] else last_offset + int(sizes[count - 1])
        if count < queue.file_units:
            break
    return end, record_end


def is_sound(log: CommitLog, queue: ConsumeQueue, queue_offset: int, offset: int, size: int) -> bool:
    """Return whether a unit points to its record, or to a record that retention removed."""
    if size <= 0 or offset < 0:
        return False
    if offset < log.min_offset:
        return True
    segment = log.segment_at(offset)
    if segment is None or offset + size > segment.end:
        return False
    at = offset - segment.start
    return points_to_record(segment.view, at, offset, size, queue, queue_offset)


class Claim(NamedTuple):
    """A queue unit that points to a position in the log."""

    queue: ConsumeQueue
    queue_offset: int
    offset: int
    size: int


class UnitMap:
    """The units in queue files by log offset, up to ``end``, including those that point to no record.

    It uses 40 bytes of memory per message, so it is created only when it is needed.

    :param below_ends: leave out the units after the ends of their queues.
    """

    def __init__(self, log: CommitLog, queues: Iterable[ConsumeQueue], end: int, *, below_ends: bool = False) -> None:
        self._log = log
        self._end = end
        parts: list[Units] = []
        self._owners: list[tuple[ConsumeQueue, int]] = []
        for queue in queues:
            for start in queue.files:
                first = start // CQ_UNIT_BYTES
                units = read_units(queue, start)[: max(0, queue.committed - first) if below_ends else None]
                if len(units):
                    parts.append(units)
                    self._owners.append((queue, first))
        units = np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)
        offsets: Ints = units["offset"].astype(np.int64)
        sizes: Ints = units["size"].astype(np.int64)
        kept = np.flatnonzero((sizes > 0) & (sizes != BLANK_SIZE) & (offsets >= log.min_offset) & (offsets < end))
        kept = kept[np.argsort(offsets[kept], kind="stable")]
        self._firsts: Ints = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        self._numbers: Ints = kept
        self._offsets: Ints = offsets[kept]
        self._sizes: Ints = sizes[kept]

    def unit_at(self, offset: int) -> Claim | None:
        """Return the unit that points to ``offset``, or ``None`` if there is none or another unit contradicts it."""
        first = int(np.searchsorted(self._offsets, offset))
        after = int(np.searchsorted(self._offsets, offset, side="right"))
        if after != first + 1:
            return None
        size = int(self._sizes[first])
        if after < len(self._offsets) and self._offsets[after] < offset + size:
            return None
        if first and self._offsets[first - 1] + self._sizes[first - 1] > offset:
            return None
        return self._claim_of(first)

    def last_sound(self) -> tuple[int, int]:
        """Return the end and store timestamp of the last record that a unit points to, or zeros."""
        for number in range(len(self._offsets) - 1, -1, -1):
            claim = self._claim_of(number)
            if self._is_sound(claim):
                segment = self._log.segment_at(claim.offset)
                assert segment is not None
                return claim.offset + claim.size, store_timestamp_of(segment.view[claim.offset - segment.start :])
        return 0, 0

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the parts of the log, from its beginning to ``end``, that no unit covers."""
        kept = np.arange(len(self._offsets))
        while True:
            begins = self._offsets[kept]
            ends = begins + self._sizes[kept]
            uneven = np.flatnonzero(begins[1:] != ends[:-1])
            doubtful = np.unique(np.concatenate([uneven, uneven + 1]))
            unsound = [at for at in doubtful.tolist() if not self._is_sound(self._claim_of(int(kept[at])))]
            if not unsound:
                break
            kept = np.delete(kept, unsound)
        firsts = [self._log.min_offset, *ends[uneven].tolist(), *ends[-1:].tolist()]
        lasts = [*begins[:1].tolist(), *begins[uneven + 1].tolist(), self._end]
        for first, last in zip(firsts, lasts, strict=True):
            if first < last:
                yield first, last

    def _claim_of(self, number: int) -> Claim:
        unit = int(self._numbers[number])
        part = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        queue, first = self._owners[part]
        place = first + unit - int(self._firsts[part])
        return Claim(queue, place, int(self._offsets[number]), int(self._sizes[number]))

    def _is_sound(self, claim: Claim) -> bool:
        return is_sound(self._log, claim.queue, claim.queue_offset, claim.offset, claim.size)
