"""The records of many units of a queue, log file by log file, for who looks at all of them together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.store.commit_log import CommitLog
from cometmq.store.topic_queue import BLANK_SIZE, UNIT_DTYPE, TopicQueue

Ints = npt.NDArray[np.int64]


class UnitRun(NamedTuple):
    """Units whose records are in one log file."""

    numbers: Ints
    """Which units they are, counted from the first one that was asked for."""
    view: memoryview
    base: int
    """Log offset of the first byte of ``view``."""
    at: Ints
    """Where in ``view`` their records begin."""
    sizes: Ints


def unit_runs(log: CommitLog, queue: TopicQueue, offset: int, count: int) -> tuple[list[UnitRun], Ints]:
    """The runs of up to ``count`` units from ``offset`` on, and the log offsets of the units that were read.

    At most the units of one queue file are read. Those whose records cannot be read are in no run. Nothing
    but the place of a record is checked.
    """
    units = np.frombuffer(queue.units(offset, count), UNIT_DTYPE)
    starts: Ints = units["offset"].astype(np.int64)
    sizes: Ints = units["size"].astype(np.int64)
    ends = starts + sizes
    if len(starts) and (run := _only_run(log, starts, sizes, ends)):
        return [run], starts
    readable = (starts >= log.min_offset) & (ends <= log.position) & (sizes >= MIN_RECORD_BYTES) & (sizes != BLANK_SIZE)
    numbers = readable.nonzero()[0]
    runs: list[UnitRun] = []
    while len(numbers):
        segment = log.segment_at(int(starts[numbers[0]]))
        if segment is None:
            return runs, starts
        inside = (starts[numbers] >= segment.start) & (starts[numbers] < segment.end)
        mine = numbers[inside]
        mine = mine[ends[mine] <= segment.end]
        runs.append(UnitRun(mine, segment.view, segment.start, starts[mine] - segment.start, sizes[mine]))
        numbers = numbers[~inside]
    return runs, starts


def _only_run(log: CommitLog, starts: Ints, sizes: Ints, ends: Ints) -> UnitRun | None:
    """The run of all units, ``None`` when there are more, or units whose records cannot be read."""
    segment = log.segment_at(int(starts[0]))
    if segment is None or int(sizes.min()) < MIN_RECORD_BYTES or int(sizes.max()) == BLANK_SIZE:
        return None
    if int(starts.min()) < max(segment.start, log.min_offset) or int(ends.max()) > min(segment.end, log.position):
        return None
    return UnitRun(np.arange(len(starts)), segment.view, segment.start, starts - segment.start, sizes)
