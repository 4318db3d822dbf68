"""An archive's commits, and the interface of the tables that store them.

A data file contains messages from one queue and one hour of store time. Its name contains the queue and the hour::

    topic=<topic>/hour=<YYYY-MM-DD-HH>/part-<broker>-<queue>-<first>-<end>.parquet

The name depends only on the content, so a batch that is written again has the same file names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote, unquote

import msgspec

from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.records.queues import OffsetRange, Queue

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)

COMMITS: Final = "_commits"
"""Directory of a Parquet archive's commits."""
DELTA_LOG: Final = "_delta_log"
ICEBERG_POINTER: Final = "_iceberg.json"
"""File that names the catalog of an archive's table."""
WRITING: Final = "_writing"
"""Directory to which the archive job's tasks write files before the commit."""
JOINING: Final = "_joining"
"""Directory to which the upkeep jobs' tasks write files before the commit."""
APPENDED: Final = "append"
"""Kind of a commit that adds messages."""
COMPACTED: Final = "compact"
"""Kind of a commit that replaces files with new files that contain the same messages."""
EXPIRED: Final = "expire"
"""Kind of a commit that removes files."""
HOUR_MS: Final = 3_600_000
_PLACE: Final = re.compile(r"topic=([^/]+)/hour=([^/]+)/[^/]+")
_PART: Final = re.compile(r"topic=([^/]+)/hour=([^/]+)/part-([^/]*)-(\d+)-(\d{20})-(\d{20})\.parquet")


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file: a queue's messages from offset ``first`` up to but not including ``end``, all from one hour."""

    path: str
    """Path relative to the archive's directory. Before the commit it is the path that a task wrote to, and after the
    commit the final path.
    """
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
    """Number of messages whose bodies could not be decompressed. Iceberg does not store this number."""
    committed_ms: int = 0
    """Time in ms since 1970 when the file's last message was committed; 0 if unknown."""

    @property
    def queue(self) -> Queue:
        """Return the queue whose messages the file contains."""
        return Queue(self.topic, self.broker, self.queue_id)


class _OfQueue(msgspec.Struct, frozen=True):
    topic: str
    broker: str
    queue_id: int

    @property
    def queue(self) -> Queue:
        """Return the queue that the offsets belong to."""
        return Queue(self.topic, self.broker, self.queue_id)


class Covered(_OfQueue, frozen=True):
    """A queue's offsets that a batch has read, including offsets without messages."""

    first: int
    end: int

    @classmethod
    def of(cls, part: OffsetRange) -> Covered:
        """Build the offsets of a range that a batch has read."""
        return cls(*part.queue, part.first, part.end)

    def __str__(self) -> str:
        return f"{self.queue} [{self.first}, {self.end})"


class QueueTotals(_OfQueue, frozen=True):
    """A queue's messages in an archive: ``rows`` messages with ``first <= offset < next``."""

    first: int
    next: int
    rows: int
    expired_to: int = 0
    """If hours overlap, retention also removes messages after ``first``: those before this offset …"""
    expired_before_ms: int = 0
    """… that were stored before this time, ms since 1970. Offset and time are 0 if no such messages exist."""


class Commit(msgspec.Struct, frozen=True):
    """One transaction of the archive, which adds or removes files and stores the totals."""

    sequence: int
    query_id: str
    """Id of the query or run that last added messages, in this commit or an earlier commit."""
    batch_id: int
    committed_ms: int
    covered: list[Covered]
    files: list[DataFile]
    """Files that the commit adds."""
    queues: list[QueueTotals]
    """The archive's totals after this commit."""
    gaps: list[str]
    """Offsets that were skipped because their messages are lost."""
    kind: str = APPENDED
    removed: list[str] = []
    """Paths of the files that the commit removes."""

    @property
    def rows(self) -> int:
        """Return the number of messages that this commit adds."""
        return sum(file.rows for file in self.files)


def part_path(queue: Queue, store_ms: int, first: int, end: int) -> str:
    """Return the path of a data file for a queue's messages, relative to the archive's directory.

    :param store_ms: store time of any of the messages, ms since 1970. Years after 9999, which brokers with wrong clocks
        may write, have more than four digits.
    """
    import numpy as np

    hour = str(np.datetime64(store_ms // HOUR_MS, "h")).replace("T", "-")
    directory = f"topic={quote(queue.topic, safe='')}/hour={hour}"
    return f"{directory}/part-{quote(queue.broker, safe='')}-{queue.queue_id}-{first:020d}-{end:020d}.parquet"


def hour_of(path: str) -> str:
    """Return the hour of store time that a data file's name contains."""
    return _parsed(path)[2]


def hour_ended_ms(path: str) -> int:
    """Return the time when a data file's hour ends, ms since 1970."""
    day, _, hour = hour_of(path).rpartition("-")
    import numpy as np

    return (int(np.datetime64(f"{day}T{hour}", "h").astype(np.int64)) + 1) * HOUR_MS


def place_of(path: str) -> tuple[str, str]:
    """Return the topic and the hour from a path below the data directories; both are empty for other files."""
    match = _PLACE.fullmatch(path)
    return ("", "") if match is None else (unquote(match[1]), match[2])


def data_file_from_name(
    path: str, rows: int, size: int, times: tuple[int, int], bad_bodies: int, committed_ms: int
) -> DataFile:
    """Build a data file from its name and the table's metadata.

    :param times: the first and the last store time in the file, ms since 1970.
    :raises ArchiveError: the file was not written by an archive job.
    """
    match = _parsed(path)
    topic, broker = unquote(match[1]), unquote(match[3])
    places = (int(match[4]), int(match[5]), int(match[6]))
    return DataFile(path, topic, broker, *places, rows, size, *times, bad_bodies, committed_ms)


def _parsed(path: str) -> re.Match[str]:
    match = _PART.fullmatch(path)
    if match is None:
        raise ArchiveError(
            f"the table names {path}, which an archive job did not write",
            next_step="only cometmq pipeline archive may write to the table; restore its previous version",
        )
    return match


def merge_ranges(covered: Iterable[Covered]) -> list[Covered]:
    """Join each queue's adjacent offset ranges, since several tasks may have read parts of one queue."""
    joined: list[Covered] = []
    for part in sorted(covered, key=lambda c: (c.topic, c.broker, c.queue_id, c.first)):
        before = joined[-1] if joined else None
        if before is not None and before.queue == part.queue and before.end == part.first:
            joined[-1] = msgspec.structs.replace(before, end=part.end)
        else:
            joined.append(part)
    return joined


def advance_totals(
    totals: Sequence[QueueTotals], covered: Sequence[Covered], files: Sequence[DataFile]
) -> tuple[list[QueueTotals], list[str]]:
    """Return the totals after a batch, and the gaps between the archived offsets and the batch.

    :raises ArchiveError: part of the batch is already archived.
    """
    found = {of.queue: of for of in totals}
    rows: dict[Queue, int] = {}
    for file in files:
        rows[file.queue] = rows.get(file.queue, 0) + file.rows
    gaps: list[str] = []
    for part in covered:
        queue = part.queue
        before = found.get(queue) or QueueTotals(*queue, part.first, part.first, 0)
        if part.first < before.next:
            raise ArchiveError(
                f"{queue} is archived up to offset {before.next}, but this batch begins at {part.first}",
                next_step="if the topic was deleted and created again, archive it into another directory; "
                "otherwise use "
                "the checkpoint that wrote the archive, or a new one",
            )
        if part.first > before.next:
            gaps.append(f"{queue} [{before.next}, {part.first})")
        found[queue] = msgspec.structs.replace(before, next=part.end, rows=before.rows + rows.pop(queue, 0))
    return [found[queue] for queue in sorted(found)], gaps


def reduce_totals(
    totals: Sequence[QueueTotals], gone: Iterable[DataFile], left: Iterable[DataFile]
) -> list[QueueTotals]:
    """Return the totals after hours are removed. Each queue's archived end remains the same.

    :param left: files that remain in the archive.
    """
    taken: dict[Queue, list[DataFile]] = {}
    for file in gone:
        taken.setdefault(file.queue, []).append(file)
    first: dict[Queue, int] = {}
    for file in left:
        first[file.queue] = min(file.first, first.get(file.queue, file.first))
    return [_reduced(of, taken[of.queue], first.get(of.queue, of.next)) if of.queue in taken else of for of in totals]


def _reduced(of: QueueTotals, gone: Sequence[DataFile], first: int) -> QueueTotals:
    expired_to = max(of.expired_to, *(file.end for file in gone))
    before_ms = max(of.expired_before_ms, *(hour_ended_ms(file.path) for file in gone))
    expired = (expired_to, before_ms) if expired_to > first else (0, 0)
    rows = of.rows - sum(file.rows for file in gone)
    return msgspec.structs.replace(of, first=first, rows=rows, expired_to=expired[0], expired_before_ms=expired[1])


@dataclass(frozen=True)
class TableFormat:
    """The format of an archive's table, with its catalog if the format is Iceberg."""

    name: str = PARQUET
    catalog: str | None = None
    """Name of an Iceberg catalog in pyiceberg's configuration. By default, the table has its own catalog in the
    directory.
    """
    table: str | None = None
    """Namespace and name of the Iceberg table."""

    def check(self) -> None:
        """Check that the format exists.

        :raises OptionError: the format is unknown, or does not use catalogs.
        """
        if self.name not in FORMATS:
            raise OptionError(f"unknown archive format {self.name!r}", next_step=f"use {', '.join(FORMATS)}")
        if self.name != ICEBERG and (self.catalog is not None or self.table is not None):
            raise OptionError(f"catalog and table are only for Iceberg, not for {self.name}")
        if self.catalog is not None and self.table is None:
            raise OptionError(
                f"catalog {self.catalog} needs the name of a table", next_step="add it, as in --table lake.orders"
            )


class ArchiveTable(Protocol):
    """The interface of an archive's table. Commits are atomic."""

    format: str

    def last(self) -> Commit | None:
        """Read the last commit. Its files are left out."""

    def batch_of(self, query_id: str) -> int | None:
        """Return the last batch that a query committed to this archive, or None if it committed no batch."""

    def files(self) -> list[DataFile]:
        """List the files that currently belong to the archive."""

    def commit(self, commit: Commit, removed: Sequence[DataFile]) -> None:
        """Add ``commit.files``, remove ``removed`` and store the totals, in one transaction.

        :raises ArchiveError: another program changed the table at the same time; nothing was committed.
        """

    def removed_since(self, time_ms: int) -> set[str]:
        """Return the paths of files that were removed at or after this time, ms since 1970."""

    def forget(self, time_ms: int) -> None:
        """Delete versions of the table that stopped being current before this time, if the format keeps old
        versions.
        """
