"""Commits of an archive, and the totals of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile, hour_ended_ms
from cometmq.archive.limits import Count, Milliseconds, QueueId
from cometmq.message.queues import Queue

OPENED: Final = "open"
"""Kind of a commit with which a writer takes the archive over; it changes no files."""
APPENDED: Final = "append"
"""Kind of a commit that adds messages."""
COMPACTED: Final = "compact"
"""Kind of a commit that replaces files with new files that contain the same messages."""
EXPIRED: Final = "expire"
"""Kind of a commit that removes files."""


class _OfQueue(msgspec.Struct, frozen=True):
    topic: str
    broker: str
    queue_id: QueueId

    @property
    def queue(self) -> Queue:
        """Return the queue that the offsets belong to."""
        return Queue(self.topic, self.broker, self.queue_id)


class Covered(_OfQueue, frozen=True):
    """A queue's offsets that a batch has read, including offsets without messages."""

    first: Count
    end: Count

    def __str__(self) -> str:
        return f"{self.queue} [{self.first}, {self.end})"


class QueueTotals(_OfQueue, frozen=True):
    """A queue's messages in an archive: ``rows`` messages with ``first <= offset < next``."""

    first: Count
    next: Count
    rows: Count
    expired_to: Count = 0
    """If hours overlap, retention also removes messages after ``first``: those before this offset …"""
    expired_before_ms: Milliseconds = 0
    """… that were stored before this time, ms since 1970. Offset and time are 0 if no such messages exist."""


class BodyColumn(msgspec.Struct, frozen=True):
    """A column whose values are decoded from bodies."""

    name: str
    type: str
    """Type in Spark's notation, such as ``bigint`` or ``struct<sku:string>``."""


class Commit(msgspec.Struct, frozen=True):
    """One transaction of the archive, which adds or removes files and stores the totals."""

    sequence: Count
    query_id: str
    """Id of the query or run that last added messages, in this commit or an earlier commit."""
    batch_id: int
    committed_ms: Milliseconds
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
    format: Count = 1
    """1 in commits of versions that wrote them without a condition, else 2."""
    epoch: Count = 0
    """Number of writers that have opened the archive so far."""
    writer: str = ""
    """Random id of the writer of an ``open`` or ``append`` commit."""
    token: str = ""
    """Random text that no other commit contains. A writer whose request has no answer finds its commit by it."""
    body_columns: list[BodyColumn] = []
    """The table's columns that are decoded from bodies, after this commit; none in an archive without such columns."""

    @property
    def rows(self) -> int:
        """Return the number of messages that this commit adds."""
        return sum(file.rows for file in self.files)


def next_sequence(last: Commit | None) -> int:
    """Return the number of the commit after the last one."""
    return 0 if last is None else last.sequence + 1


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
