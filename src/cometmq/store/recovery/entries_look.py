"""Finds the units of a stopped store that cannot point to a message. Nothing is changed.

Only the units and the queues' ends in ``comet/position.json`` are read, but no records. Each unit that is not blank
must point into the log, after the record of the unit before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cometmq.quantity import quantity
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT_DTYPE
from cometmq.store.recovery.file_sizes import numbered_files, queue_directories_of
from cometmq.store.recovery.known_topics import known_topics
from cometmq.store.recovery.load import Findings
from cometmq.store.recovery.position import load_position


@dataclasses.dataclass(frozen=True, slots=True)
class MissingEntries:
    """A queue that has units which cannot point to a message."""

    topic: str
    queue_id: int
    first: int
    """Queue offset of the first unit that cannot point to a message."""
    count: int


def missing_entries(root: Path) -> Iterator[MissingEntries]:
    """Yield the queues that have units which cannot point to a message.

    :raises OSError: a file cannot be read.
    """
    position = load_position(root / "comet" / "position.json")
    if position is None or position.made_anew:  # the next start checks everything
        return
    topics = known_topics(root, Findings(root))
    directories = {(topic, queue_id): directory for topic, queue_id, directory in queue_directories_of(root)}
    log = numbered_files(root / "commitlog")
    log_begin = log[0].start if log else 0
    for topic, extents in position.queues.items():
        if topic not in topics or position.offset <= topics.begin_of(topic):
            continue
        for queue_id, (first, end) in extents.items():
            directory = directories.get((topic, queue_id))
            wrong = _wrong_entries(directory, first, end, (log_begin, position.offset))
            if len(wrong):
                yield MissingEntries(topic, queue_id, int(wrong[0]), len(wrong))


def text_of(missing: Sequence[MissingEntries]) -> str:
    """Return the number of units in ``missing``, which is not empty, and the place of the first one."""
    first = missing[0]
    count = sum(queue.count for queue in missing)
    queues = quantity(len(missing), "queue")
    return f"{count:,} of {queues}, the first at offset {first.first} of {first.topic}/{first.queue_id}"


def _wrong_entries(directory: Path | None, first: int, end: int, log: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return the queue offsets from ``first`` to before ``end`` whose units are missing or wrong.

    :param log: the first and last log offset of the log.
    """
    found: list[npt.NDArray[np.int64]] = []
    known = first
    last = -1
    for file in numbered_files(directory) if directory is not None else ():
        begin = file.start // CQ_UNIT_BYTES
        units = np.fromfile(file.path, UNIT_DTYPE, count=max(0, min(file.size // CQ_UNIT_BYTES, end - begin)))
        if begin > known and not (last < 0 and _begins_below_log(units, log[0])):
            found.append(np.arange(known, begin))
        bad, last = _wrong_units(units, last, log[1])
        found.append(begin + bad)
        known = max(known, begin + len(units))
    found.append(np.arange(known, end))
    return np.concatenate(found)


def _begins_below_log(units: npt.NDArray[Any], log_begin: int) -> bool:
    """Return whether the messages before the first unit were deleted together with their log files."""
    return bool(len(units)) and (int(units["size"][0]) == BLANK_SIZE or int(units["offset"][0]) <= log_begin)


def _wrong_units(units: npt.NDArray[Any], last: int, log_end: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the positions of wrong units, and the log offset of the last plausible unit.

    :param last: the log offset in the unit before ``units``.
    """
    offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
    lead = np.flatnonzero((sizes > 0) & (sizes != BLANK_SIZE) & (offsets >= 0) & (offsets + sizes <= log_end))
    right = lead[np.diff(offsets[lead], prepend=last) >= 0]  # units of lost messages may point to the same record
    is_bad = sizes != BLANK_SIZE
    is_bad[right] = False
    return np.flatnonzero(is_bad), int(offsets[right[-1]]) if len(right) else last
