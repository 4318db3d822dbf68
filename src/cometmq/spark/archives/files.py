"""The data files of an archive: each queue's writer appends every message to the file for the message's hour.

A file is written under a unique name in a directory that readers ignore; the commit moves it to its final path
(:mod:`.log`). So no task can change committed files, even if it is still running after another task has repeated and
committed its batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cometmq.spark.archives.table import HOUR_MS, WRITING, DataFile
from cometmq.spark.errors import ArchiveError
from cometmq.spark.records.queues import Queue
from cometmq.spark.storage import Directory

_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Number of Arrow bytes that are collected for one row group."""
_OPEN_HOURS: Final = 3
"""Maximum number of open files per range. Store times rise, so messages from older hours are rare; these messages are
written to another file.
"""
_DICTIONARY: Final = (
    *("topic", "brokerName", "queueId", "tags", "flag", "sysFlag", "bornHost", "storeHost", "reconsumeTimes"),
    *("preparedTransactionOffset", "properties.key_value.key"),
)
"""Columns with few distinct values, which are dictionary-encoded. A dictionary would not help other columns."""
_STATISTICS: Final = ("topic", "queueId", "queueOffset", "keys", "uniqKey", "tags", "bornTimestamp", "storeTimestamp")

_TRIED_BYTES: Final = 256 * 1024
"""Number of body bytes that are compressed as a trial. The trial takes a third of a millisecond per file."""
_TOO_FEW_BYTES: Final = 4096
"""Minimum number of bytes in a sample; a smaller sample says little about the other bodies."""
_WORTH_WHILE: Final = 0.97
_READ_ROWS: Final = 65_536


class QueueWriter:
    """Writes one queue's messages to one file per hour."""

    def __init__(
        self,
        directory: Directory,
        queue: Queue,
        schema: Any,
        *,
        writing: str = WRITING,
        flush: Callable[[str], None] | None = None,
    ) -> None:
        """Write below ``directory``.

        :param flush: function that flushes a complete file, called before the file is committed; by default the
            directory's own ``flush``.
        """
        self._directory = directory
        self._queue = queue
        self._schema = schema
        self._writing = writing
        self._flush = flush or directory.flush
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
                self._open[hour] = _PartFile(self._directory, self._queue, self._schema, self._writing)
            self._open[hour].add(batch.slice(first, end - first))

    def close(self) -> list[DataFile]:
        """Close the files and return them with their uncommitted paths."""
        for hour in sorted(self._open):
            self._finish(hour)
        return self._written

    def _finish(self, hour: int) -> None:
        file = self._open.pop(hour).close()
        self._flush(file.path)
        self._written.append(file)


class _PartFile:
    """Writes one Parquet file with a queue's messages from one hour."""

    def __init__(self, directory: Directory, queue: Queue, schema: Any, writing: str) -> None:
        self._queue = queue
        self._name = f"{writing}/{uuid.uuid4().hex}.parquet"
        self._directory = directory
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
        self._bad_bodies += batch.column("body").null_count
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
        codecs = dict.fromkeys(_leaves(self._schema), "zstd") | ({} if packed else {"body": "none"})
        return pq.ParquetWriter(
            self._directory.new_path(self._name),
            self._schema,
            compression=codecs,
            use_dictionary=list(_DICTIONARY),
            write_statistics=list(_STATISTICS),
        )

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        info = self._directory.info(self._name)
        assert info is not None, "the file was just written"
        return DataFile(
            path=self._name,
            topic=self._queue.topic,
            broker=self._queue.broker,
            queue_id=self._queue.queue_id,
            first=self._first,
            end=self._last + 1,
            rows=self._rows,
            bytes=info.size,
            min_store_ms=self._min_us // 1000,
            max_store_ms=self._max_us // 1000,
            bad_bodies=self._bad_bodies,
        )


def read_batches(
    directory: Directory, path: str, columns: list[str] | None = None, *, rows: int = _READ_ROWS
) -> Iterator[Any]:
    """Yield the messages in a data file as Arrow record batches.

    :param columns: columns to read; by default all.
    :param rows: maximum number of messages in a batch.
    """
    with pq.ParquetFile(directory.path(path)) as file:
        yield from file.iter_batches(batch_size=rows, columns=columns, use_threads=False)


def read_message(directory: Directory, path: str, offset: int, columns: list[str] | None = None) -> Any:
    """Return the message at a queue offset in a data file as an Arrow table with one row, or no row if it is missing.

    :raises ArchiveError: the file is lost.
    """
    try:
        return pq.read_table(
            directory.path(path), columns=columns, filters=[("queueOffset", "=", offset)], partitioning=None
        )
    except FileNotFoundError as error:
        raise ArchiveError(
            f"the archive has lost {directory.path(path)}", next_step="restore it from a backup"
        ) from error


def shrinks(bodies: Any) -> bool:
    """Return True if compression with zstd pays off. For compressed or encrypted bodies, it would add a third to the
    work for nothing.

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


def _leaves(schema: Any) -> Iterator[str]:
    """Return the column names in a Parquet file."""
    for field in schema:
        if pa.types.is_map(field.type):
            yield from (f"{field.name}.key_value.key", f"{field.name}.key_value.value")
        else:
            yield field.name
