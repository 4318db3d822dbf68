"""What queues know of the log, checked without trusting it: the last sound unit, and stretches no unit covers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.store.commit_log import CommitLog
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.mapped_file import file_name
from cometmq.store.record_scan import leads_to_record
from cometmq.store.topic_queue import BLANK_SIZE, UNIT_DTYPE, TopicQueue

_CHECKED_FILES: Final = 3
"""Files of a queue in which the end is looked for; as Apache does, those before are taken as whole."""

Ints = npt.NDArray[np.int64]
Units = npt.NDArray[Any]


def read_units(queue: TopicQueue, start: int) -> Units:
    """The units of one file, up to its last byte that is really there."""
    fd = os.open(queue.directory / file_name(start), os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = 0
        while True:
            try:
                end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
            except OSError:  # ENXIO: no more data
                break
        end = min(end, queue.file_size)
        raw = os.pread(fd, end - end % CQ_UNIT_BYTES, 0)
    finally:
        os.close(fd)
    return np.frombuffer(raw, UNIT_DTYPE)


def last_sound_unit(log: CommitLog, queue: TopicQueue) -> int:
    """The offset behind the last unit that leads to its record, after which nothing is believed."""
    log_end = log.segments[-1].end if log.segments else 0
    files = queue.files
    first = files[-_CHECKED_FILES:][:1]
    end = first[0] // CQ_UNIT_BYTES if first else 0
    last_offset = -1
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
        if count < queue.file_units:
            break
    lowest = queue.first_stored
    while end > lowest:
        unit = queue.unit(end - 1)
        if unit is not None and (unit[1] == BLANK_SIZE or is_sound(log, queue, end - 1, unit[0], unit[1])):
            break
        end -= 1
    return end


def is_sound(log: CommitLog, queue: TopicQueue, queue_offset: int, offset: int, size: int) -> bool:
    """Whether a unit leads to its record, or to one that retention has removed."""
    if size <= 0 or offset < 0:
        return False
    if offset < log.min_offset:
        return True
    segment = log.segment_at(offset)
    if segment is None or offset + size > segment.end:
        return False
    at = offset - segment.start
    return leads_to_record(segment.view, at, offset, size, queue, queue_offset)


def account_gaps(log: CommitLog, queues: list[TopicQueue], end: int) -> Iterator[tuple[int, int]]:
    """The stretches of the log from its beginning to ``end`` that no unit of any queue accounts for."""
    parts: list[Units] = []
    owners: list[tuple[TopicQueue, int]] = []
    lengths: list[int] = []
    for queue in queues:
        for start in queue.files:
            units = read_units(queue, start)[: max(0, queue.committed - start // CQ_UNIT_BYTES)]
            if len(units):
                parts.append(units)
                owners.append((queue, start // CQ_UNIT_BYTES))
                lengths.append(len(units))
    if parts:
        units = np.concatenate(parts)
        owner = np.repeat(np.arange(len(parts)), lengths)
        within = np.concatenate([np.arange(length) for length in lengths])
    else:
        units = np.empty(0, UNIT_DTYPE)
        owner = within = np.empty(0, np.int64)
    offsets = units["offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    kept = np.flatnonzero((sizes > 0) & (sizes != BLANK_SIZE) & (offsets >= log.min_offset) & (offsets < end))
    kept = kept[np.argsort(offsets[kept], kind="stable")]
    while True:
        begins = offsets[kept]
        ends = begins + sizes[kept]
        uneven = np.flatnonzero(begins[1:] != ends[:-1])
        doubtful = np.unique(np.concatenate([uneven, uneven + 1]))
        unsound = [
            int(at)
            for at in doubtful
            if not _owner_is_sound(
                log, owners[owner[kept[at]]], int(within[kept[at]]), int(begins[at]), int(sizes[kept[at]])
            )
        ]
        if not unsound:
            break
        kept = np.delete(kept, unsound)
    edges = np.concatenate([[log.min_offset], ends[uneven], ends[-1:], begins[:1], begins[uneven + 1], [end]])
    half = len(edges) // 2
    for first, last in zip(edges[:half].tolist(), edges[half:].tolist(), strict=True):
        if first < last:
            yield first, last


def _owner_is_sound(log: CommitLog, owner: tuple[TopicQueue, int], within: int, offset: int, size: int) -> bool:
    queue, first = owner
    return is_sound(log, queue, first + within, offset, size)
