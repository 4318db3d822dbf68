"""An archive's log: the archive's files, and the offset up to which each queue is archived.

Files and offsets are committed in one transaction of the archive's table (:mod:`.table`). Tasks write files to a
directory that readers ignore (:mod:`.files`); the commit moves them to their final paths. A committed file is never
written again. A job killed at any point leaves at most files that no commit names: readers do not see them, the next
run removes or overwrites them, and ``vacuum`` removes them. Each commit also holds the totals of all commits before it,
so the last commit states the offset up to which each queue is archived. A batch that overlaps archived offsets, or that
belongs to another query, is rejected.

There are three locks; each is released when the process that holds it ends. A job that archives holds ``_lock``; a job
that compacts, expires or vacuums holds ``_upkeep_lock``, so both jobs can run at the same time; ``_commit_lock`` is
held only while a process reads the last commit and writes the next one.

:func:`read_archive` reads the committed files back, and :func:`record_of` rebuilds the stored record of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.record import encode_record
from cometmq.spark.archives.parquet import ParquetArchive
from cometmq.spark.archives.table import (
    COMMITS,
    COMPACTED,
    DELTA,
    DELTA_LOG,
    EXPIRED,
    ICEBERG,
    ICEBERG_POINTER,
    JOINING,
    PARQUET,
    WRITING,
    ArchiveTable,
    Commit,
    Covered,
    DataFile,
    QueueTotals,
    TableFormat,
    advance_totals,
    merge_ranges,
    part_path,
    reduce_totals,
)
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.options import demand_present
from cometmq.spark.records.columns import ARCHIVE_DDL, milliseconds
from cometmq.spark.records.queues import Mark, Marks, Offsets, Queue
from cometmq.spark.storage import Directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REMOVED_KEPT_MS: Final = 7 * 24 * 3_600_000
"""Time for which compacted or expired files remain on disk for readers of an older version; the value is Delta's
default.
"""
WRITING_SPARED_MS: Final = 24 * 3_600_000
"""Minimum age at which an uncommitted file cannot belong to a batch that a running job is about to commit."""
_UPKEEP_LOCK: Final = "_upkeep_lock"
_COMMIT_LOCK: Final = "_commit_lock"
_MARK_COLUMNS: Final = ["queueOffset", "physicalOffset", "storeTimestamp"]


class ArchiveLog:
    """The commit log of the archive in a directory, in any format."""

    def __init__(
        self, root: str | Path, wanted: TableFormat | str | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Open the archive's table, or choose the format of a new one.

        :param wanted: format of a new archive, or its name; Parquet by default.
        :raises OptionError: the format is unknown.
        :raises PathError: the directory has an unsupported scheme.
        :raises ArchiveError: the archive's format is not ``wanted``, or the format's package is missing.
        """
        self.directory = Directory(root)
        self._table = table_at(self.directory, wanted)
        self._clock = clock

    # Reading --------------------------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """Return the directory's absolute path."""
        return self.directory.root

    @property
    def format(self) -> str:
        """Return the name of the table's format, such as ``parquet``."""
        return self._table.format

    def last(self) -> Commit | None:
        """Read the last commit, or return None if the archive has no commits. The returned commit may lack its
        files.
        """
        return self._table.last()

    def files(self) -> list[DataFile]:
        """List all files that belong to the archive."""
        return self._table.files()

    def queues(self) -> list[QueueTotals]:
        """Return each queue's totals over all commits."""
        last = self.last()
        return [] if last is None else last.queues

    def next_offsets(self) -> Offsets:
        """Return the offset after each queue's last archived message."""
        return {of.queue: of.next for of in self.queues()}

    def marks(self) -> dict[Queue, Mark]:
        """Return the mark of each queue's last message, which later identifies the queue."""
        files = self.files()
        ends: Offsets = {}
        for file in files:
            ends[file.queue] = max(file.end, ends.get(file.queue, 0))
        return self._marks_in(files, {queue: end - 1 for queue, end in ends.items()})

    def marks_at(self, offsets: Offsets) -> dict[Queue, Mark]:
        """Return the marks of archived messages at the given offsets, one per queue. Messages that no file contains are
        left out.

        :raises ArchiveError: a file is lost.
        """
        return self._marks_in(self.files(), offsets)

    def _marks_in(self, files: Iterable[DataFile], offsets: Offsets) -> dict[Queue, Mark]:
        import pyarrow as pa

        from cometmq.spark.archives.files import read_message

        found = {}
        for file in files:
            offset = offsets.get(file.queue, -1)
            if not file.first <= offset < file.end:
                continue
            row = read_message(self.directory, file.path, offset, _MARK_COLUMNS)
            if row.num_rows:
                stored_us = row.column("storeTimestamp").cast(pa.int64())[0].as_py()
                found[file.queue] = Mark(offset, row.column("physicalOffset")[0].as_py(), stored_us // 1000)
        return found

    def holds(self, query_id: str, batch_id: int) -> bool:
        """Return True if a batch is committed. A query's batches are committed in order."""
        committed = self._table.batch_of(query_id)
        return committed is not None and committed >= batch_id

    def last_batch_of(self, query_id: str) -> int | None:
        """Return the last batch that a query committed to this archive, or None if it committed no batch."""
        return self._table.batch_of(query_id)

    def demand_any(self, topics: Iterable[str] = ()) -> None:
        """Check that the directory contains an archive.

        :param topics: topics that the archive must contain.
        :raises OptionError: the archive does not exist, or lacks one of the topics.
        """
        last = self.last()
        if last is None:
            raise OptionError(f"{self.root} contains no archive", next_step="create one: cometmq pipeline archive")
        there = {of.topic for of in last.queues}
        beginning = f"the archive {self.root} has no topic"
        demand_present(topics, there, beginning, next_step=f"it has {', '.join(sorted(there))}")

    # Writing --------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the archive for one writer. The lock is released when the process ends, even by a crash.

        Files that an earlier writer did not commit are removed.

        :raises ArchiveError: another process holds the lock.
        """
        with self.directory.locked():
            self.discard(WRITING)
            yield

    @contextmanager
    def locked_for_upkeep(self) -> Iterator[None]:
        """Lock the archive for one upkeep job. Another job may archive messages at the same time.

        :raises ArchiveError: another process holds the lock.
        """
        with self.directory.locked(_UPKEEP_LOCK):
            yield

    def discard(self, place: str) -> None:
        """Remove files in ``place`` that an earlier run did not commit. The caller holds the lock on ``place``."""
        for name in self.directory.names(f"{place}/*.parquet"):
            self.directory.delete(name)

    def append(
        self,
        query_id: str,
        batch_id: int,
        covered: Iterable[Covered],
        files: Sequence[DataFile],
        lost: Iterable[Covered] = (),
    ) -> Commit | None:
        """Commit a batch, even if it is empty. Return None if the batch is already committed.

        :param lost: offsets within ``covered`` whose messages were deleted before they could be read.
        :raises ArchiveError: the batch overlaps archived offsets, or one of its files is missing.
        """
        joined = merge_ranges(covered)
        for file in files:
            self._demand_file(file)
        with self.directory.locked(_COMMIT_LOCK, wait=True):
            last = self.last()
            if last is not None and self.holds(query_id, batch_id):
                return None
            queues, gaps = advance_totals([] if last is None else last.queues, joined, files)
            now = self._clock.now_ms()
            new = [msgspec.structs.replace(file, committed_ms=now) for file in self._move_into_place(files)]
            commit = Commit(
                sequence=0 if last is None else last.sequence + 1,
                query_id=query_id,
                batch_id=batch_id,
                committed_ms=now,
                covered=joined,
                files=new,
                queues=queues,
                gaps=[*gaps, *map(str, merge_ranges(lost))],
            )
            self._table.commit(commit, [])
        return commit

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """Replace files with new files that contain the same messages.

        :raises ArchiveError: the new files contain other messages, or an old file was removed from the archive.
        """
        for file in new:
            self._demand_file(file)
        if _rows_by_queue(old) != _rows_by_queue(new):
            raise ArchiveError(
                f"{len(new)} new files do not hold the messages of {len(old)} old ones; nothing was changed"
            )
        with self.directory.locked(_COMMIT_LOCK, wait=True):
            self._change_files(COMPACTED, old, new)

    def expire(self, old: Sequence[DataFile]) -> None:
        """Remove files from the archive. Each queue's archived end remains the same.

        :raises ArchiveError: another process has removed one of the files from the archive.
        """
        with self.directory.locked(_COMMIT_LOCK, wait=True):
            self._change_files(EXPIRED, old, [])

    def _change_files(self, kind: str, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        last = self.last()
        there = {file.path: file for file in self.files()}
        gone = [there.pop(file.path) for file in old if file.path in there]
        if last is None or len(gone) != len(old):
            raise ArchiveError(
                f"{len(old) - len(gone)} files were removed from the archive {self.root} meanwhile",
                next_step="run it again",
            )
        queues = last.queues if kind == COMPACTED else reduce_totals(last.queues, gone, there.values())
        new = self._move_into_place(new)
        commit = msgspec.structs.replace(
            last,
            sequence=last.sequence + 1,
            committed_ms=self._clock.now_ms(),
            covered=[],
            files=new,
            queues=queues,
            gaps=[],
            kind=kind,
            removed=[],
        )
        self._table.commit(commit, gone)

    def _move_into_place(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Move files that tasks have written to their final paths, in the order of the file names."""
        paths = {file.path: part_path(file.queue, file.min_store_ms, file.first, file.end) for file in files}
        self.directory.move(paths)
        placed = [msgspec.structs.replace(file, path=paths[file.path]) for file in files]
        return sorted(placed, key=lambda file: file.path)

    def _demand_file(self, file: DataFile) -> None:
        info = self.directory.info(file.path)
        if info is None or info.size != file.bytes:
            raise ArchiveError(
                f"an executor wrote {self.directory.path(file.path)} with {file.bytes} bytes, but the driver sees "
                "another size or no file",
                next_step="use a directory that driver and executors share",
            )

    def sweep(self, *, keep_ms: int = REMOVED_KEPT_MS, dry_run: bool = False) -> list[tuple[str, int]]:
        """Delete data files that the table does not name. Return the deleted files' sizes, keyed by path relative to
        the archive.

        While a job is archiving, files that are not committed yet are kept until they are a day old.

        :param keep_ms: files that were removed from the archive within this time are kept.
        :raises ArchiveError: another upkeep job is running.
        :raises OptionError: the directory contains no archive.
        """
        self.demand_any()
        with self.locked_for_upkeep(), self.directory.locked_if_free() as alone:
            now = self._clock.now_ms()
            found = [
                name
                for pattern in ("topic=*/hour=*/*", f"{WRITING}/*.parquet", f"{JOINING}/*.parquet")
                for name in self.directory.names(pattern)
            ]
            with self.directory.locked(_COMMIT_LOCK, wait=True):  # so that no file is put into its place meanwhile
                if not dry_run:
                    self._table.forget(now - keep_ms)
                needed = {file.path for file in self.files()} | self._table.removed_since(now - keep_ms)
                orphans = []
                for name in found:
                    info = None if name in needed else self.directory.info(name)
                    if info is not None and (alone or info.modified_ms < now - WRITING_SPARED_MS):
                        orphans.append((name, info.size))
                if not dry_run:
                    for name, _ in orphans:
                        self.directory.delete(name)
            return orphans


def table_at(directory: Directory, wanted: TableFormat | str | None) -> ArchiveTable:
    """Return the table in a directory. A new table has the ``wanted`` format, by default Parquet.

    :raises OptionError: the format is unknown.
    :raises ArchiveError: the directory contains an archive in another format, or the format's package is missing.
    """
    found = _format_of(directory)
    wanted = TableFormat(wanted) if isinstance(wanted, str) else wanted
    if wanted is not None:
        wanted.check()
        if found is not None and found != wanted.name:
            raise ArchiveError(
                f"{directory} holds an archive of format {found}, not {wanted.name}",
                next_step=f"continue with --format {found}, or archive into another directory",
            )
    name = found or (wanted.name if wanted is not None else PARQUET)
    if name == DELTA:
        from cometmq.spark.archives.delta import DeltaArchive

        return DeltaArchive(directory)
    if name == ICEBERG:
        from cometmq.spark.archives.iceberg import IcebergArchive

        return IcebergArchive(directory, wanted)
    return ParquetArchive(directory)


def _format_of(directory: Directory) -> str | None:
    marks = {DELTA_LOG: DELTA, ICEBERG_POINTER: ICEBERG, COMMITS: PARQUET}
    return next((table for name, table in marks.items() if directory.exists(name)), None)


def demand_same_queues(place: object, changed: Iterable[Queue]) -> None:
    """Check that no queue has been deleted and recreated since it was archived.

    :param place: the archive or other copy of the queues, named in the error.
    :raises ArchiveError: a queue was deleted and recreated; the error names the queue.
    """
    for queue in sorted(changed):
        raise ArchiveError(
            f"{queue} is not the queue whose messages are in {place}: its topic was created again, or its end was lost",
            next_step="continue in another directory; this one keeps the earlier messages",
        )


def differing(marks: Marks, there: Marks) -> list[Queue]:
    """Return the queues whose message at a mark's offset differs from the mark."""
    return [queue for queue, mark in there.items() if queue in marks and marks[queue] != mark]


def _rows_by_queue(files: Sequence[DataFile]) -> dict[Queue, int]:
    rows: dict[Queue, int] = {}
    for file in files:
        rows[file.queue] = rows.get(file.queue, 0) + file.rows
    return rows


def read_archive(spark: SparkSession, directory: str | Path) -> DataFrame:
    """Return an archive's messages as a DataFrame with every column of the source. All archive formats are supported.

    The DataFrame contains the commits made before the call. Call this function again to read later commits.

    :raises OptionError: the directory contains no archive.
    :raises ArchiveError: the package of the archive's format is not installed.
    """
    log = ArchiveLog(directory)
    log.demand_any()
    return read_files(spark, log, log.files())


def read_files(spark: SparkSession, log: ArchiveLog, files: Iterable[DataFile]) -> DataFrame:
    """Read the messages in the given files of an archive."""
    paths = [str(log.directory.path(file.path)) for file in files]
    if not paths:
        return spark.createDataFrame([], ARCHIVE_DDL)
    return spark.read.schema(ARCHIVE_DDL).parquet(*paths)


def record_of(row: Mapping[str, Any]) -> bytes:
    """Rebuild the stored record from an archived row with all columns. The record is byte for byte the same as in the
    broker's log.
    """
    times = {name: milliseconds(row[name]) for name in ("bornTimestamp", "storeTimestamp")}
    body = bytes(row["body"] if row["storedBody"] is None else row["storedBody"])
    return encode_row({**row, **times}, body, row["propertiesText"], row["sysFlag"])


def encode_row(row: Mapping[str, Any], body: bytes, properties_text: str, sys_flag: int) -> bytes:
    """Encode a row as a stored record with the given body and properties. The row's times are in ms since 1970.

    :raises ValueError: the properties are too long.
    """
    return encode_record(
        topic=row["topic"],
        queue_id=row["queueId"],
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        body=body,
        properties_text=properties_text,
        flag=row["flag"],
        sys_flag=sys_flag,
        born_timestamp=row["bornTimestamp"],
        born_host=encode_host(*parse_address(row["bornHost"])),
        store_timestamp=row["storeTimestamp"],
        store_host=encode_host(*parse_address(row["storeHost"])),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
    )
