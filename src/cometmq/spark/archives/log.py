"""An archive's log: the archive's files, and the offset up to which each queue is archived.

Files and offsets are committed in one transaction of the archive's table (:mod:`.table`). Tasks write files in their
final places under unique names (:mod:`.files`); a file belongs to the archive when a commit names it, and is never
written again. A job killed at any point leaves at most files that no commit names: readers do not see them, and
``vacuum`` removes them. Each commit also holds the totals of all commits before it, so the last commit states the
offset up to which each queue is archived. A batch that overlaps archived offsets is rejected.

:func:`read_archive` reads the committed files back, and :func:`record_of` rebuilds the stored record of a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.archive.chain import COMMITS, Writer
from cometmq.archive.changes import Batch, batch_commit, file_change, holds
from cometmq.archive.commits import COMPACTED, EXPIRED, BodyColumn, Commit, QueueTotals
from cometmq.archive.files import DataFile
from cometmq.archive.leftovers import leftovers, now_of
from cometmq.archive.locks import COMMIT_LOCK, UPKEEP_LOCK, local_directory, locked, locked_if_free
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.record import encode_record
from cometmq.spark.archives.catalogs import configured_properties, io_properties
from cometmq.spark.archives.parquet import ParquetArchive
from cometmq.spark.archives.rows import read_rows
from cometmq.spark.archives.table import DELTA, DELTA_LOG, ICEBERG, ICEBERG_POINTER, PARQUET, ArchiveTable, TableFormat
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.object_stores import parse_storage, storage_options
from cometmq.spark.options import demand_present
from cometmq.spark.records.body_columns.types import ddl_of
from cometmq.spark.records.columns import ARCHIVE_DDL, milliseconds
from cometmq.spark.records.queues import Mark, Marks, Offsets, Queue
from cometmq.storage import Location, Storage, check_conditional_writes, open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = str | os.PathLike[str] | Storage
"""An archive's path, URL or storage."""
REMOVED_KEPT_MS: Final = 7 * 24 * 3_600_000
"""Time for which compacted or expired files remain in the storage for readers of an older version; the value is Delta's
default.
"""
_MARK_COLUMNS: Final = ["queueOffset", "physicalOffset", "storeTimestamp"]


class ArchiveLog:
    """The commit log of an archive, in any format."""

    def __init__(
        self,
        place: Place | None,
        wanted: TableFormat | str | None = None,
        *,
        storage: Mapping[str, str] | None = None,
        writer: Writer | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Open the archive's table, or choose the format of a new one.

        :param place: the archive's place, or None for a table whose location its catalog chooses.
        :param wanted: format of a new archive, or its name; Parquet by default.
        :param storage: options of the object store, such as ``endpoint``. Those that are not given come from the active
            session's Hadoop configuration, or from the environment.
        :param writer: the job for which another process has opened the archive (:attr:`writer`).
        :raises OptionError: the format is unknown.
        :raises PathError: the URL has an unsupported scheme.
        :raises ArchiveError: the archive's format is not ``wanted``, or the format's package is missing.
        """
        wanted = TableFormat(wanted) if isinstance(wanted, str) else wanted
        found: Storage | None = None
        if isinstance(place, Storage):
            found = place
        elif place is not None:
            location, options = Location.parse(place), parse_storage(storage_options(place, storage))
            if location.kind == "iceberg":
                wanted = table_named(location, wanted)
            else:
                found = open_storage(location, options)
            if wanted is not None and wanted.catalog is not None:
                # other processes of a job may not have the configuration of this one
                configured = configured_properties(wanted.catalog) | io_properties(options)
                wanted = replace(wanted, catalog_options=configured | dict(wanted.catalog_options or {}))
        self.wanted: Final = wanted
        self.in_catalog: Final = found is None
        self._table = table_at(found, wanted)
        self._writer = writer
        self._clock = clock

    # Reading --------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Return the archive's absolute path or its URL."""
        return self._table.url

    @property
    def storage(self) -> Storage:
        """Return the storage of the data files.

        :raises OptionError: the archive does not exist yet, and its catalog chooses its location.
        """
        return self._table.storage

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

    def body_columns(self) -> list[BodyColumn]:
        """Return the table's columns that are decoded from bodies; none for an archive without such columns."""
        last = self.last()
        return [] if last is None else last.body_columns

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
            row = read_message(self.storage, file, offset, _MARK_COLUMNS)
            if row.num_rows:
                stored_us = row.column("storeTimestamp").cast(pa.int64())[0].as_py()
                found[file.queue] = Mark(offset, row.column("physicalOffset")[0].as_py(), stored_us // 1000)
        return found

    def holds(self, query_id: str, batch_id: int) -> bool:
        """Return True if a batch is committed. A query's batches are committed in order."""
        return holds(self._table, query_id, batch_id)

    def last_batch_of(self, query_id: str) -> int | None:
        """Return the last batch that a query committed to this archive, or None if it committed no batch."""
        return self._table.batch_of(query_id)

    def demand_any(self, topics: Iterable[str] = ()) -> None:
        """Check that there is an archive.

        :param topics: topics that the archive must contain.
        :raises OptionError: the archive does not exist, or lacks one of the topics.
        """
        last = self.last()
        if last is None:
            raise OptionError(f"{self.url} contains no archive", next_step="create one: cometmq pipeline archive")
        there = {of.topic for of in last.queues}
        beginning = f"the archive {self.url} has no topic"
        demand_present(topics, there, beginning, next_step=f"it has {', '.join(sorted(there))}")

    # Writing --------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Open the archive for this job. A job that opened it earlier can no longer commit.

        In a local directory, this fails instead while another job is running.

        :raises ArchiveError: another process holds the lock.
        :raises UnsafeStorageError: the storage would let two jobs create the same commit.
        """
        self._table.prepare()
        with locked(self.storage):
            if self.format != ICEBERG and self.last() is None and local_directory(self.storage) is None:
                check_conditional_writes(self.storage)
            self._writer = self._table.open_writer(self._clock.now_ms())
            yield

    @property
    def writer(self) -> Writer:
        """The job that owns the archive. If this process has not opened the archive yet, it does so now."""
        if self._writer is None:
            self._writer = self._table.open_writer(self._clock.now_ms())
        return self._writer

    @contextmanager
    def locked_for_upkeep(self) -> Iterator[None]:
        """Lock a local archive for one upkeep job. Another job may archive messages at the same time.

        :raises ArchiveError: another process holds the lock.
        """
        with locked(self.storage, UPKEEP_LOCK):
            yield

    def append(self, batch: Batch) -> Commit | None:
        """Commit a batch, even if it is empty. Return None if the batch is already committed.

        :raises ArchiveError: the batch overlaps archived offsets, one of its files is missing, or another job has
            opened the archive in the meantime.
        """
        demand_visible(self.storage, ((file.path, file.bytes) for file in batch.files))
        with locked(self.storage, COMMIT_LOCK, wait=True):
            return self._table.append(self.writer, partial(batch_commit, batch=batch, now_ms=self._clock.now_ms()))

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """Replace files with new files that contain the same messages.

        :raises ArchiveError: the new files contain other messages, or an old file was removed from the archive.
        """
        demand_visible(self.storage, ((file.path, file.bytes) for file in new))
        self._change_files(COMPACTED, old, new)

    def expire(self, old: Sequence[DataFile]) -> None:
        """Remove files from the archive. Each queue's archived end remains the same.

        :raises ArchiveError: another process has removed one of the files from the archive.
        """
        self._change_files(EXPIRED, old, [])

    def _change_files(self, kind: str, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        with locked(self.storage, COMMIT_LOCK, wait=True):
            self._table.change(partial(file_change, kind=kind, old=old, new=new, now_ms=self._clock.now_ms()))

    def sweep(self, *, keep_ms: int = REMOVED_KEPT_MS, dry_run: bool = False) -> list[tuple[str, int]]:
        """Delete data files that the table does not name. Return the deleted files' sizes, keyed by path relative to
        the archive.

        While a job may be archiving, its files that are not committed yet are kept until they are a day old.

        :param keep_ms: files that were removed from the archive within this time are kept.
        :raises ArchiveError: another upkeep job is running.
        :raises OptionError: there is no archive.
        """
        self.demand_any()
        kept_since_ms = self._clock.now_ms() - keep_ms

        def named() -> tuple[set[str], int]:
            with locked(self.storage, COMMIT_LOCK, wait=True):
                if not dry_run:
                    self._table.forget(kept_since_ms)
                epoch = self._table.epoch()
                return {file.path for file in self.files()} | self._table.removed_since(kept_since_ms), epoch

        with self.locked_for_upkeep(), locked_if_free(self.storage) as alone:
            now_ms = now_of(self.storage, self._clock)
            orphans = leftovers(self.storage, named, now_ms, alone=bool(alone))
            if not dry_run:
                self.storage.delete(found.key for found in orphans)
            return sorted((found.key, found.size) for found in orphans)


def table_named(location: Location, wanted: TableFormat | None) -> TableFormat:
    """Return the table that an address such as ``iceberg://prod/lake.orders`` names.

    :param wanted: its options; it may not name another table.
    :raises OptionError: ``wanted`` names another table.
    """
    wanted = wanted or TableFormat(ICEBERG)
    for given, named in ((wanted.catalog, location.container), (wanted.table, location.path)):
        if given not in (None, named):
            raise OptionError(f"{location} is not the table {wanted.table} of the catalog {wanted.catalog}")
    return replace(wanted, name=ICEBERG, catalog=location.container, table=location.path)


def table_at(storage: Storage | None, wanted: TableFormat | str | None) -> ArchiveTable:
    """Return the table in a storage. A new table has the ``wanted`` format, by default Parquet.

    :raises OptionError: the format is unknown.
    :raises ArchiveError: there is an archive in another format, or the format's package is missing.
    """
    if isinstance(wanted, str):
        wanted = TableFormat(wanted)
    if wanted is not None:
        wanted.check()
    if storage is None:
        if wanted is None or wanted.catalog is None:
            raise OptionError("an archive needs a directory, or the catalog of an Iceberg table")
        from cometmq.spark.archives.iceberg import IcebergArchive

        return IcebergArchive(None, wanted)
    found = _format_of(storage)
    if wanted is not None and found is not None and found != wanted.name:
        raise ArchiveError(
            f"{storage.url} holds an archive of format {found}, not {wanted.name}",
            next_step=f"continue with --format {found}, or archive into another directory",
        )
    name = found or (wanted.name if wanted is not None else PARQUET)
    if name == DELTA:
        from cometmq.spark.archives.delta import DeltaArchive

        return DeltaArchive(storage)
    if name == ICEBERG:
        from cometmq.spark.archives.iceberg import IcebergArchive

        return IcebergArchive(storage, wanted)
    return ParquetArchive(storage)


def _format_of(storage: Storage) -> str | None:
    there = storage.list_directories()
    if DELTA_LOG in there:
        return DELTA
    if storage.stat(ICEBERG_POINTER) is not None:
        return ICEBERG
    return PARQUET if COMMITS in there else None


def demand_visible(storage: Storage, sizes: Iterable[tuple[str, int]]) -> None:
    """Check that the driver sees the files of its tasks. A storage that all machines share need not be asked.

    :param sizes: path and size of each file.
    :raises ArchiveError: a file is missing or has another size.
    """
    if local_directory(storage) is None:
        return
    for path, size in sizes:
        info = storage.stat(path)
        if info is None or info.size != size:
            raise ArchiveError(
                f"an executor wrote {storage.describe(path)} with {size} bytes, but the driver sees another size or no "
                "file",
                next_step="use a directory that driver and executors share, or an object store",
            )


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


def read_archive(spark: SparkSession, directory: Place, storage: Mapping[str, str] | None = None) -> DataFrame:
    """Return an archive's messages as a DataFrame with every column of the source. All archive formats are supported.

    The DataFrame contains the commits made before the call. Call this function again to read later commits. It also has
    the columns of a table that are decoded from bodies.

    :param storage: options of the object store, such as ``endpoint``.
    :raises OptionError: there is no archive.
    :raises ArchiveError: the package of the archive's format is not installed.
    """
    log = ArchiveLog(directory, storage=storage)
    log.demand_any()
    return read_files(spark, log, log.files(), body_columns=log.body_columns())


def read_files(
    spark: SparkSession,
    log: ArchiveLog,
    files: Iterable[DataFile],
    *,
    name: str = "",
    body_columns: Sequence[BodyColumn] = (),
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Read the messages in the given files of an archive.

    :param name: column for the name of a message's file; none by default.
    :param body_columns: columns of a table that are decoded from bodies; none by default.
    :param columns: columns to read from files that Spark does not read itself. Spark reads only those that are used.
    """
    wanted = list(files)
    ddl = ", ".join(filter(None, [ARCHIVE_DDL, ddl_of(body_columns)]))
    if not wanted:
        return spark.createDataFrame([], f"{ddl}, {name} string" if name else ddl)
    if local_directory(log.storage) is None:
        return read_rows(spark, log.storage, wanted, name, body_columns, columns)
    frame = spark.read.schema(ddl).parquet(*(log.storage.describe(file.path) for file in wanted))
    return frame.selectExpr("*", f"_metadata.file_name AS {name}") if name else frame


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
