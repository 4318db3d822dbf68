"""The data files of an archive: each queue's writer appends every message to the file for the message's hour.

A file is written once, in its final place and under a name that is used only once; it appears when it is complete, and
belongs to the archive when a commit names it (:mod:`.log`). So no task can change committed files, even if it is still
running after another task has repeated and committed its batch.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from types import TracebackType
from typing import IO, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import HOUR_MS, DataFile, new_part_path
from cometmq.archive.locks import local_directory
from cometmq.spark.records.body_columns.changes import ERROR_COLUMN
from cometmq.spark.records.columns import ARCHIVE_COLUMNS
from cometmq.spark.records.queues import Queue
from cometmq.storage import ObjectNotFoundError, Storage
from cometmq.storage.objects import UPLOAD_BYTES, ObjectStorage

_ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
"""Number of Arrow bytes that are collected for one row group. A reader of single messages reads one row group."""
_OPEN_HOURS: Final = 3
"""Maximum number of open files per range. Store times rise, so messages from older hours are rare; these messages are
written to another file.
"""
_DICTIONARY: Final = (
    *("topic", "brokerName", "queueId", "tags", "flag", "sysFlag", "bornHost", "storeHost", "reconsumeTimes"),
    *("preparedTransactionOffset", "properties.key_value.key"),
)
"""Columns with few distinct values, which are dictionary-encoded. A dictionary would not help other columns."""
_STATISTICS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "keys",
    "uniqKey",
    "tags",
    "bornTimestamp",
    "storeTimestamp",
)

_TRIED_BYTES: Final = 256 * 1024
"""Number of body bytes that are compressed as a trial. The trial takes a third of a millisecond per file."""
_TOO_FEW_BYTES: Final = 4096
"""Minimum number of bytes in a sample; a smaller sample says little about the other bodies."""
_WORTH_WHILE: Final = 0.97
_READ_ROWS: Final = 65_536


_COMPLETED_AT_ONCE: Final = 4
"""Number of files that threads flush or finish uploading at the same time, while the task continues."""
_COMPLETED_BYTES: Final = 8 * 1024 * 1024
"""Number of bytes that these files may hold in memory, beside one file that holds more."""


class Uploads:
    """The files that a task writes. Threads complete them, and the end of the ``with`` block waits for these threads.

    An error in the block discards the files that are not complete yet.
    """

    def __init__(self, storage: Storage, epoch: int | None) -> None:
        """Write into a storage.

        :param epoch: the writer's epoch, or None for a compaction.
        """
        self.storage: Final = storage
        self.epoch: Final = epoch
        self._holds_parts = isinstance(storage, ObjectStorage)
        self._open: dict[str, ExitStack] = {}
        self._completing: deque[tuple[Future[None], int]] = deque()
        """Files that threads complete, with the bytes that each holds in memory."""
        self._threads = ThreadPoolExecutor(_COMPLETED_AT_ONCE, "upload")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failure = error
        with self._threads:
            if failure is None:
                try:
                    self._wait(0, 0)
                except BaseException as problem:
                    failure = problem
            for stack in self._open.values():
                reason = failure or AssertionError("a file was neither completed nor discarded")
                with suppress(BaseException):  # the block's own error is raised
                    stack.__exit__(type(reason), reason, traceback)
        if failure is not None and error is None:
            raise failure

    def open(self, path: str) -> IO[bytes]:
        """Begin a file."""
        stack = ExitStack()
        file = stack.enter_context(self.storage.open_writer(path))
        self._open[path] = stack
        return file

    def complete(self, path: str, size: int) -> None:
        """Complete a file, whose whole content of ``size`` bytes is written. An earlier file's failure may be raised
        here.
        """
        held = min(size, UPLOAD_BYTES) if self._holds_parts else 0
        self._wait(_COMPLETED_AT_ONCE, max(_COMPLETED_BYTES - held, 0))
        self._completing.append((self._threads.submit(self._open.pop(path).close), held))

    def _wait(self, most: int, most_bytes: int) -> None:
        while len(self._completing) > most or sum(held for _, held in self._completing) > most_bytes:
            self._completing.popleft()[0].result()


class QueueWriter:
    """Writes one queue's messages to one file per hour."""

    def __init__(self, uploads: Uploads, queue: Queue, schema: Any) -> None:
        self._uploads = uploads
        self._queue = queue
        self._schema = schema
        self._open: dict[int, _PartFile] = {}
        self._written: list[DataFile] = []

    def add(self, batch: Any) -> None:
        """Write messages whose offsets directly follow those already written."""
        hours = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // (HOUR_MS * 1000)
        edges = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), batch.num_rows]
        for first, end in pairwise(edges):
            hour = int(hours[first])
            if hour not in self._open:
                if len(self._open) == _OPEN_HOURS:
                    self._finish(min(self._open))
                self._open[hour] = _PartFile(self._uploads, self._queue, self._schema)
            self._open[hour].add(batch.slice(first, end - first))

    def close(self) -> list[DataFile]:
        """Close the files and return them. They are complete at the end of the uploads' block."""
        for hour in sorted(self._open):
            self._finish(hour)
        return self._written

    def _finish(self, hour: int) -> None:
        self._written.append(self._open.pop(hour).close())


class _PartFile:
    """Writes one Parquet file with a queue's messages from one hour."""

    def __init__(self, uploads: Uploads, queue: Queue, schema: Any) -> None:
        self._uploads = uploads
        self._queue = queue
        self._path = ""
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._schema = schema
        self._gathered: list[Any] = []
        self._gathered_bytes = 0
        self._rows = self._bad_bodies = 0
        self._first = self._last = self._min_us = self._max_us = -1

    def add(self, batch: Any) -> None:
        offsets = batch.column("queueOffset")
        times = pc.min_max(batch.column("storeTimestamp").cast(pa.int64())).as_py()
        if not self._rows:
            self._first, self._min_us, self._max_us = offsets[0].as_py(), times["min"], times["max"]
        self._last = offsets[-1].as_py()
        self._min_us, self._max_us = min(self._min_us, times["min"]), max(self._max_us, times["max"])
        self._rows += batch.num_rows
        self._bad_bodies += _bad_bodies(batch)
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            if self._writer is None:
                largest = max(self._gathered, key=lambda batch: batch.nbytes)
                self._writer = self._opened(packed=shrinks(largest.column("body")))
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema))
            self._gathered, self._gathered_bytes = [], 0

    def _opened(self, *, packed: bool) -> Any:
        self._path = new_part_path(self._queue, self._min_us // 1000, self._first, self._uploads.epoch)
        self._file = self._uploads.open(self._path)
        codecs = dict.fromkeys(_leaves(self._schema), "zstd") | ({} if packed else {"body": "none"})
        return pq.ParquetWriter(
            self._file,
            self._schema,
            compression=codecs,
            use_dictionary=[*_DICTIONARY, *self._of_bodies()],
            write_statistics=[*_STATISTICS, *self._of_bodies()],
        )

    def _of_bodies(self) -> Iterator[str]:
        """Return the columns in the file that are decoded from bodies."""
        return _leaves(field for field in self._schema if field.name not in ARCHIVE_COLUMNS)

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        assert self._file is not None, "a file has messages"
        size = self._file.tell()
        self._uploads.complete(self._path, size)
        return DataFile(
            path=self._path,
            topic=self._queue.topic,
            broker=self._queue.broker,
            queue_id=self._queue.queue_id,
            first=self._first,
            end=self._last + 1,
            rows=self._rows,
            bytes=size,
            min_store_ms=self._min_us // 1000,
            max_store_ms=self._max_us // 1000,
            bad_bodies=self._bad_bodies,
        )


def read_batches(
    storage: Storage, file: DataFile, columns: list[str] | None = None, *, rows: int = _READ_ROWS
) -> Iterator[Any]:
    """Yield the messages in a data file as Arrow record batches.

    :param columns: columns to read; by default all.
    :param rows: maximum number of messages in a batch.
    :raises ArchiveError: the file is lost or damaged.
    """
    with (
        _failures(storage, file),
        pq.ParquetFile(_opened(storage, file), pre_buffer=True) as opened,
    ):
        yield from opened.iter_batches(batch_size=rows, columns=columns, use_threads=False)


def read_message(storage: Storage, file: DataFile, offset: int, columns: list[str] | None = None) -> Any:
    """Return the message at a queue offset in a data file as an Arrow table with one row, or no row if it is missing.

    :raises ArchiveError: the file is lost or damaged.
    """
    with _failures(storage, file):
        return pq.read_table(
            _opened(storage, file),
            columns=columns,
            filters=[("queueOffset", "=", offset)],
            partitioning=None,
        )


def _opened(storage: Storage, file: DataFile) -> io.RawIOBase:
    """Open a data file. On a local disk, also check its size, which takes no time and detects a replaced file."""
    return storage.open_reader(file.path, None if local_directory(storage) else file.bytes)


@contextmanager
def _failures(storage: Storage, file: DataFile) -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as error:
        raise ArchiveError(
            f"the archive has lost {storage.describe(file.path)}", next_step="restore it from a backup"
        ) from error
    except pa.ArrowInvalid as error:
        raise damaged(file) from error


def damaged(file: DataFile) -> ArchiveError:
    """Return the error for a file whose content differs from what the table states."""
    return ArchiveError(
        f"{file.path} does not hold the {file.rows} messages that the table states",
        next_step="find the damage with cometmq pipeline audit, then restore the file from a backup",
    )


def shrinks(bodies: Any) -> bool:
    """Return True if zstd makes the bodies clearly smaller. For compressed or encrypted bodies, it would add a third to
    the work without saving space.

    :param bodies: Arrow binary array; a sample from its middle is compressed as a trial.
    """
    _, offsets, data = bodies.buffers()
    if data is None:
        return True
    ends = memoryview(offsets).cast("i")
    first, end = ends[bodies.offset], ends[bodies.offset + len(bodies)]
    begin = max(first, (first + end - _TRIED_BYTES) // 2)
    tried = data.slice(begin, min(end - begin, _TRIED_BYTES))
    return tried.size < _TOO_FEW_BYTES or bool(pa.compress(tried, codec="zstd").size < tried.size * _WORTH_WHILE)


def _leaves(fields: Iterable[Any], before: str = "") -> Iterator[str]:
    """Return the column names in a Parquet file."""
    for field in fields:
        yield from _leaves_of(field.type, f"{before}{field.name}")


def _leaves_of(kind: Any, path: str) -> Iterator[str]:
    if pa.types.is_map(kind):
        yield f"{path}.key_value.key"
        yield from _leaves_of(kind.item_type, f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from _leaves_of(kind.value_type, f"{path}.list.element")
    elif pa.types.is_struct(kind):
        yield from _leaves(kind, f"{path}.")
    else:
        yield path


def _bad_bodies(batch: Any) -> int:
    """Count messages whose bodies could not be decompressed or, in a table with columns from bodies, decoded."""
    errors = batch.schema.get_field_index(ERROR_COLUMN.name)
    count: int = batch.column("body").null_count if errors < 0 else batch.num_rows - batch.column(errors).null_count
    return count
