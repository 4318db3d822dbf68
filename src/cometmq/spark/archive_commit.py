"""What a commit of an archive says: the files it adds, the offsets it covers, the totals after it. No I/O here.

A data file holds messages of one queue and one hour of store time; its name says which::

    topic=<topic>/hour=<YYYY-MM-DD-HH>/part-<broker>-<queue>-<first>-<end>.parquet

Names follow from what is inside, so a batch that is written again gets the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import numpy as np

from cometmq.spark.errors import ArchiveError
from cometmq.spark.queues import Queue

APPENDED: Final = "append"
"""Kind of a commit that brings messages."""
COMPACTED: Final = "compact"
"""Kind of a commit that puts files in the place of others with the same messages."""
EXPIRED: Final = "expire"
"""Kind of a commit that takes files out."""
HOUR_MS: Final = 3_600_000
_PLACE: Final = re.compile(r"topic=([^/]+)/hour=([^/]+)/[^/]+")
_PART: Final = re.compile(r"topic=([^/]+)/hour=([^/]+)/part-([^/]*)-(\d+)-(\d{20})-(\d{20})\.parquet")


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file: messages of a queue from offset ``first`` to before ``end``, all of one hour."""

    path: str
    """Relative to the archive's directory: its place, or before the commit where a task has written it."""
    topic: str
    broker: str
    queue_id: int
    first: int
    end: int
    rows: int
    bytes: int
    min_store_ms: int
    max_store_ms: int
    bad_bodies: int
    """Known when the file is committed; Iceberg does not keep it."""
    committed_ms: int = 0
    """When the last of its messages came into the archive, ms since 1970; 0 where that is not kept."""

    @property
    def queue(self) -> Queue:
        """The queue whose messages it holds."""
        return Queue(self.topic, self.broker, self.queue_id)


class Covered(msgspec.Struct, frozen=True):
    """Offsets of a queue that a batch has read, whether or not there were messages in them."""

    topic: str
    broker: str
    queue_id: int
    first: int
    end: int


class QueueTotals(msgspec.Struct, frozen=True):
    """What an archive holds of a queue: ``rows`` messages with ``first <= offset < next``."""

    topic: str
    broker: str
    queue_id: int
    first: int
    next: int
    rows: int
    expired_to: int = 0
    """Where hours interleave, retention takes messages out behind ``first`` too: those before this offset …"""
    expired_before_ms: int = 0
    """… that were stored before this time, ms since 1970. Both are 0 where there are none."""

    @property
    def queue(self) -> Queue:
        """The queue."""
        return Queue(self.topic, self.broker, self.queue_id)


class Commit(msgspec.Struct, frozen=True):
    """One transaction of the archive."""

    sequence: int
    query_id: str
    """Of the query, or the run, that brought messages last: in this commit or before it."""
    batch_id: int
    committed_ms: int
    covered: list[Covered]
    files: list[DataFile]
    """Those that it adds."""
    queues: list[QueueTotals]
    """Totals of the archive after this commit."""
    gaps: list[str]
    """Offsets that were skipped since their messages were gone."""
    kind: str = APPENDED
    removed: list[str] = []
    """Paths of files that belong to the archive no more."""

    @property
    def rows(self) -> int:
        """Messages in this batch."""
        return sum(file.rows for file in self.files)


def part_path(queue: Queue, store_ms: int, first: int, end: int) -> str:
    """Name the file of some messages of a queue, relative to the archive's directory.

    :param store_ms: the store time of any of them, ms since 1970; years beyond 9999, which brokers with a wrong clock
        write, have as many digits as they need.
    """
    hour = str(np.datetime64(store_ms // HOUR_MS, "h")).replace("T", "-")
    directory = f"topic={quote(queue.topic, safe='')}/hour={hour}"
    return f"{directory}/part-{quote(queue.broker, safe='')}-{queue.queue_id}-{first:020d}-{end:020d}.parquet"


def hour_of(path: str) -> str:
    """The hour of store time that the name of a data file says."""
    return _parsed(path)[2]


def hour_ended_ms(path: str) -> int:
    """When the hour of a data file was over, ms since 1970."""
    day, _, hour = hour_of(path).rpartition("-")
    return (int(np.datetime64(f"{day}T{hour}", "h").astype(np.int64)) + 1) * HOUR_MS


def place_of(path: str) -> tuple[str, str]:
    """Topic and hour of any file that lies where data files do; empty if it lies elsewhere."""
    match = _PLACE.fullmatch(path)
    return ("", "") if match is None else (unquote(match[1]), match[2])


def file_named(path: str, rows: int, size: int, times: tuple[int, int], bad_bodies: int, committed_ms: int) -> DataFile:
    """A data file by its name and what a table's metadata says of it.

    :param times: the first and the last store time in it, ms since 1970.
    :raises ArchiveError: it has not the name of a file that an archive job has written.
    """
    match = _parsed(path)
    topic, broker = unquote(match[1]), unquote(match[3])
    places = (int(match[4]), int(match[5]), int(match[6]))
    return DataFile(path, topic, broker, *places, rows, size, *times, bad_bodies, committed_ms)


def _parsed(path: str) -> re.Match[str]:
    match = _PART.fullmatch(path)
    if match is None:
        raise ArchiveError(
            f"the table names {path}, which no archive job has written",
            next_step="an archive's table is written by cometmq pipeline archive alone; restore the version before",
        )
    return match


def merged(covered: Iterable[Covered]) -> list[Covered]:
    """Join neighbouring offsets of each queue; tasks may have shared a queue."""
    joined: list[Covered] = []
    for part in sorted(covered, key=lambda c: (c.topic, c.broker, c.queue_id, c.first)):
        before = joined[-1] if joined else None
        if before is not None and _queue(before) == _queue(part) and before.end == part.first:
            joined[-1] = msgspec.structs.replace(before, end=part.end)
        else:
            joined.append(part)
    return joined


def advanced(
    totals: Sequence[QueueTotals], covered: Sequence[Covered], files: Sequence[DataFile]
) -> tuple[list[QueueTotals], list[str]]:
    """Totals after a batch, and what it left out.

    :raises ArchiveError: some of it is archived already.
    """
    found = {of.queue: of for of in totals}
    rows: dict[Queue, int] = {}
    for file in files:
        rows[file.queue] = rows.get(file.queue, 0) + file.rows
    gaps: list[str] = []
    for part in covered:
        queue = _queue(part)
        before = found.get(queue) or QueueTotals(*queue, part.first, part.first, 0)
        if part.first < before.next:
            raise ArchiveError(
                f"{queue} is archived up to offset {before.next}, and this batch would add it again from {part.first}",
                next_step="if the topic was deleted and made anew, archive it into another directory; otherwise use "
                "the checkpoint that wrote the archive, or a new one",
            )
        if part.first > before.next:
            gaps.append(f"{queue} [{before.next}, {part.first})")
        found[queue] = msgspec.structs.replace(before, next=part.end, rows=before.rows + rows.pop(queue, 0))
    return [found[queue] for queue in sorted(found)], gaps


def without(totals: Sequence[QueueTotals], gone: Iterable[DataFile], left: Iterable[DataFile]) -> list[QueueTotals]:
    """Totals after hours have left; how far each queue is archived stays as it was.

    :param left: the files that stay.
    """
    taken: dict[Queue, list[DataFile]] = {}
    for file in gone:
        taken.setdefault(file.queue, []).append(file)
    first: dict[Queue, int] = {}
    for file in left:
        first[file.queue] = min(file.first, first.get(file.queue, file.first))
    return [_without(of, taken[of.queue], first.get(of.queue, of.next)) if of.queue in taken else of for of in totals]


def _without(of: QueueTotals, gone: Sequence[DataFile], first: int) -> QueueTotals:
    reach = max(of.expired_to, *(file.end for file in gone))
    before_ms = max(of.expired_before_ms, *(hour_ended_ms(file.path) for file in gone))
    expired = (reach, before_ms) if reach > first else (0, 0)
    rows = of.rows - sum(file.rows for file in gone)
    return msgspec.structs.replace(of, first=first, rows=rows, expired_to=expired[0], expired_before_ms=expired[1])


def _queue(of: Covered) -> Queue:
    return Queue(of.topic, of.broker, of.queue_id)


def told(covered: Covered) -> str:
    """A range for people."""
    return f"{_queue(covered)} [{covered.first}, {covered.end})"
