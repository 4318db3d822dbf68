"""The changes of an archive: functions that compute the next commit from the archive's contents, in any format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from cometmq.archive.commits import (
    COMPACTED,
    BodyColumn,
    Commit,
    Covered,
    advance_totals,
    merge_ranges,
    next_sequence,
    reduce_totals,
)
from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile
from cometmq.message.queues import Queue


class Snapshot(Protocol):
    """The contents of an archive's table."""

    def last(self) -> Commit | None:
        """Return the last commit. Its files are left out."""

    def batch_of(self, query_id: str) -> int | None:
        """Return the last batch that a query committed to this archive, or None if it committed no batch."""

    def files(self) -> list[DataFile]:
        """List the files that belong to the archive."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that a job has read and written to files. A query's batches are committed in order."""

    query_id: str
    batch_id: int
    covered: Sequence[Covered]
    files: Sequence[DataFile]
    lost: Sequence[Covered] = ()
    """Offsets within ``covered`` whose messages were deleted before they could be read."""
    body_columns: Sequence[BodyColumn] = ()
    """All columns of the table that are decoded from bodies."""


def holds(before: Snapshot, query_id: str, batch_id: int) -> bool:
    """Return True if a batch is committed."""
    committed = before.batch_of(query_id)
    return committed is not None and committed >= batch_id


def next_commit(last: Commit | None, kind: str, now_ms: int) -> Commit:
    """Return the next commit, without files, totals and batch as they are."""
    return Commit(
        sequence=next_sequence(last),
        query_id="" if last is None else last.query_id,
        batch_id=-1 if last is None else last.batch_id,
        committed_ms=now_ms,
        covered=[],
        files=[],
        queues=[] if last is None else last.queues,
        gaps=[],
        kind=kind,
        body_columns=[] if last is None else last.body_columns,
    )


def batch_commit(before: Snapshot, batch: Batch, now_ms: int) -> Commit | None:
    """Return the commit that adds a batch, or None if the batch is already committed.

    :raises ArchiveError: the batch overlaps archived offsets, or lacks columns of the table.
    """
    last = before.last()
    if last is not None and holds(before, batch.query_id, batch.batch_id):
        return None
    missing = {of.name for of in (last.body_columns if last else ())} - {of.name for of in batch.body_columns}
    if missing:
        raise ArchiveError(
            f"the table has columns that are decoded from bodies, and this job does not decode {min(missing)}",
            next_step="continue it with cometmq pipeline table",
        )
    covered = merge_ranges(batch.covered)
    queues, gaps = advance_totals([] if last is None else last.queues, covered, batch.files)
    files = [msgspec.structs.replace(file, committed_ms=now_ms) for file in batch.files]
    return Commit(
        sequence=next_sequence(last),
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        committed_ms=now_ms,
        covered=covered,
        files=sorted(files, key=lambda file: file.path),
        queues=queues,
        gaps=[*gaps, *map(str, merge_ranges(batch.lost))],
        body_columns=list(batch.body_columns),
    )


def file_change(before: Snapshot, kind: str, old: Sequence[DataFile], new: Sequence[DataFile], now_ms: int) -> Commit:
    """Return the commit that replaces or removes files.

    :raises ArchiveError: the new files contain other messages, or an old file was removed from the archive.
    """
    if kind == COMPACTED and _rows_by_queue(old) != _rows_by_queue(new):
        raise ArchiveError(f"{len(new)} new files do not hold the messages of {len(old)} old ones; nothing was changed")
    last = before.last()
    left = {file.path: file for file in before.files()}
    gone = [left.pop(file.path) for file in old if file.path in left]
    if last is None or len(gone) != len(old):
        raise ArchiveError(
            f"{len(old) - len(gone)} files were removed from the archive meanwhile", next_step="run it again"
        )
    queues = last.queues if kind == COMPACTED else reduce_totals(last.queues, gone, left.values())
    return msgspec.structs.replace(
        next_commit(last, kind, now_ms),
        files=sorted(new, key=lambda file: file.path),
        queues=queues,
        removed=[file.path for file in gone],
    )


def _rows_by_queue(files: Iterable[DataFile]) -> dict[Queue, int]:
    rows: dict[Queue, int] = {}
    for file in files:
        rows[file.queue] = rows.get(file.queue, 0) + file.rows
    return rows
