"""The marks of an archive: messages that identify the queues they were read from (:class:`Mark`).

A topic that was deleted and created again is another topic; its messages must not be appended to the archived ones. So
a job that continues an archive compares an archived message with the message at the same offset of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cometmq.spark.archives.table import DataFile
from cometmq.spark.errors import ArchiveError
from cometmq.spark.records.queues import Mark, Offsets, Queue

_COLUMNS: Final = ["queueOffset", "physicalOffset", "storeTimestamp"]


def last_marks(root: Path, files: Iterable[DataFile]) -> dict[Queue, Mark]:
    """Return the mark of each queue's last message in some files of an archive."""
    files = list(files)
    ends: Offsets = {}
    for file in files:
        ends[file.queue] = max(file.end, ends.get(file.queue, 0))
    return marks_at(root, files, {queue: end - 1 for queue, end in ends.items()})


def marks_at(root: Path, files: Iterable[DataFile], offsets: Offsets) -> dict[Queue, Mark]:
    """Return the marks of messages at some offsets, one for each queue. Messages that no file contains are left out.

    :raises ArchiveError: a file is lost.
    """
    found = {}
    for file in files:
        offset = offsets.get(file.queue, -1)
        if file.first <= offset < file.end and (mark := _mark_in(root / file.path, offset)) is not None:
            found[file.queue] = mark
    return found


def _mark_in(path: Path, offset: int) -> Mark | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=_COLUMNS, filters=[("queueOffset", "=", offset)], partitioning=None)
    except FileNotFoundError as error:
        raise ArchiveError(f"the archive has lost {path}", next_step="restore it from a backup") from error
    if not rows.num_rows:
        return None
    stored_us = rows.column("storeTimestamp").cast(pa.int64())[0].as_py()
    return Mark(offset, rows.column("physicalOffset")[0].as_py(), stored_us // 1000)


def demand_same_queues(place: object, changed: Iterable[Queue]) -> None:
    """Check that no queue was deleted and created again since it was archived.

    :param place: the archive or another copy of the queues; the error names it.
    :raises ArchiveError: a queue was deleted and created again; the error names it.
    """
    for queue in sorted(changed):
        raise ArchiveError(
            f"{queue} is not the queue whose messages {place} holds: its topic was created again, or its end was lost",
            next_step="continue in another directory; this one keeps the earlier messages",
        )


def differing(marks: Mapping[Queue, Mark], there: Mapping[Queue, Mark]) -> list[Queue]:
    """Return the queues whose message at the offset of a mark differs from the mark."""
    return [queue for queue, mark in there.items() if queue in marks and marks[queue] != mark]
