"""The executors' side of the archive job: a source that writes what it reads and yields only what it wrote.

Pulling, decoding and writing Parquet happen in one Python worker; the messages never cross to the JVM, only one row
for each file and each range of offsets does.

A file is written once, under a name of its own in a place that no reader looks at; the driver puts it where it belongs
when it commits it (:mod:`~.archive_log`). So no task can touch what is committed, also not one that is still running
when its batch, repeated elsewhere, is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, InputPartition

from cometmq.durable import flush_file, flushing_beside
from cometmq.spark.archive_commit import HOUR_MS, Commit, Covered, DataFile
from cometmq.spark.archive_log import WRITING, ArchiveLog
from cometmq.spark.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.errors import OptionError
from cometmq.spark.options import SourceOptions, parse_options
from cometmq.spark.queues import OffsetRange, Offsets, Queue
from cometmq.spark.readers import RangePartition
from cometmq.spark.stream_reader import RocketMQStreamReader
from cometmq.spark.worker_memory import in_lasting_worker

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT: Final = "rocketmq_archive"
PATH_OPTION: Final = "archivePath"

_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Arrow bytes gathered into one row group."""
_OPEN_HOURS: Final = 3
"""Files of a range open at once. Store times rise, so older hours rarely come again; they then get another file."""
_DICTIONARY: Final = (
    *("topic", "brokerName", "queueId", "tags", "flag", "sysFlag", "bornHost", "storeHost", "reconsumeTimes"),
    *("preparedTransactionOffset", "properties.key_value.key"),
)
"""Columns of few distinct values; building a dictionary for the others would be in vain."""
_STATISTICS: Final = ("topic", "queueId", "queueOffset", "keys", "uniqKey", "tags", "bornTimestamp", "storeTimestamp")

_TRIED_BYTES: Final = 256 * 1024
"""Bytes of bodies that are packed to see whether it is worth while: a third of a millisecond for each file."""
_TOO_FEW_BYTES: Final = 4096
"""So few say nothing of the bodies behind them."""
_WORTH_WHILE: Final = 0.97


class Manifest(msgspec.Struct, frozen=True):
    """What one task did, as a row: exactly one of the three is set."""

    file: DataFile | None = None
    covered: Covered | None = None
    lost: Covered | None = None

    def to_row(self) -> tuple[str]:
        """Encode as JSON text, the one column of the source."""
        return (msgspec.json.encode(self).decode(),)


def commit_rows(log: ArchiveLog, query_id: str, batch_id: int, rows: Iterable[Any]) -> Commit | None:
    """Commit what the tasks of a batch have written, by the rows they gave; None if it is committed already.

    :raises ArchiveError: it overlaps what is archived, or one of its files is not there.
    """
    manifests = [msgspec.json.decode(row[0], type=Manifest) for row in rows]
    return log.append(
        query_id,
        batch_id,
        covered=[manifest.covered for manifest in manifests if manifest.covered],
        files=[manifest.file for manifest in manifests if manifest.file],
        lost=[manifest.lost for manifest in manifests if manifest.lost],
    )


@dataclass
class ArchivePartition(InputPartition):
    """Ranges of one task, and how far their queues are archived: nothing below is written again."""

    ranges: tuple[OffsetRange, ...]
    archived: Offsets


class ArchiveWriterSource(DataSource):
    """Registered by the archive job for itself."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the one column: a manifest entry as JSON."""
        return "manifest string"

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: N802 (Spark's name)
        """Make the reader."""
        given = {name: value for name, value in self.options.items() if name.lower() != PATH_OPTION.lower()}
        return ArchiveStreamReader(parse_options(given), schema, self.options[PATH_OPTION])


class ArchiveStreamReader(RocketMQStreamReader):
    """Plans as the rocketmq stream does; its tasks write files."""

    def __init__(self, options: SourceOptions, schema: StructType, root: str) -> None:
        if options.is_filtered:
            raise OptionError("an archive holds every message of a topic", next_step="leave tags and sqlFilter out")
        super().__init__(options, schema)
        self._root = root

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Deal a batch out, with how far the archive is: of a batch that Spark repeats in vain nothing is read."""
        archived = ArchiveLog(self._root).next_offsets()
        dealt = super().partitions(start, end)
        return [
            ArchivePartition(part.ranges, {of.queue: archived[of.queue] for of in part.ranges if of.queue in archived})
            for part in dealt
            if isinstance(part, RangePartition)
        ]

    @in_lasting_worker
    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write one partition; ranges that are archived are only told, for the driver to judge."""
        if isinstance(partition, ArchivePartition):
            archived, ranges = partition.archived, partition.ranges
            new = [part for part in ranges if part.first >= archived.get(part.queue, part.first)]
            for manifest in write_ranges(self._options, new, Path(self._root)):
                yield manifest.to_row()
            for part in ranges:
                if part not in new:
                    yield Manifest(covered=_covered(part)).to_row()


def write_ranges(options: SourceOptions, ranges: Sequence[OffsetRange], root: Path) -> Iterator[Manifest]:
    """Read ranges and write them below ``root``; yield what was written, and every range when it is whole."""
    from cometmq.spark.apart import bad_bodies
    from cometmq.spark.decode import Records, decode
    from cometmq.spark.fetch import Fetcher

    schema = arrow_schema(ARCHIVE_COLUMNS)
    fetcher = Fetcher(options)
    files: list[DataFile] = []
    with (
        flushing_beside() as flush,
        bad_bodies(fail=options.fail_on_bad_body, directory=options.bad_records_path) as on_bad_body,
    ):
        for queue, chunks in groupby(fetcher.fetch(ranges), key=lambda chunk: chunk.queue):
            writer = QueueWriter(root, queue, schema, flush=flush)
            for chunk in chunks:
                for batch in decode(Records(chunk.data), schema, broker_name=queue.broker, on_bad_body=on_bad_body):
                    writer.add(batch)
            files += writer.close()
    for file in files:
        yield Manifest(file=file)
    for part in ranges:
        yield Manifest(covered=_covered(part))
    for part in fetcher.lost:
        yield Manifest(lost=_covered(part))


def _covered(part: OffsetRange) -> Covered:
    return Covered(part.queue.topic, part.queue.broker, part.queue.queue_id, part.first, part.end)


class QueueWriter:
    """Spreads messages of one queue over the files of their hours."""

    def __init__(
        self,
        root: Path,
        queue: Queue,
        schema: Any,
        *,
        writing: str = WRITING,
        flush: Callable[[Path], None] = flush_file,
    ) -> None:
        """``flush``: called with each file that is whole, which must not be committed before it is flushed."""
        self._root = root
        self._queue = queue
        self._schema = schema
        self._writing = writing
        self._flush = flush
        self._open: dict[int, _PartFile] = {}
        self._written: list[DataFile] = []

    def add(self, batch: Any) -> None:
        """Write messages whose offsets follow those of before."""
        import numpy as np
        import pyarrow as pa

        hours = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // (HOUR_MS * 1000)
        edges = [0, *(np.flatnonzero(np.diff(hours)) + 1).tolist(), batch.num_rows]
        for first, end in pairwise(edges):
            hour = int(hours[first])
            if hour not in self._open:
                if len(self._open) == _OPEN_HOURS:
                    self._finish(min(self._open))
                self._open[hour] = _PartFile(self._root, self._queue, self._schema, self._writing)
            self._open[hour].add(batch.slice(first, end - first))

    def close(self) -> list[DataFile]:
        """Finish the files and tell what is in them; their paths are those where they wait for their commit."""
        for hour in sorted(self._open):
            self._finish(hour)
        return self._written

    def _finish(self, hour: int) -> None:
        file = self._open.pop(hour).close()
        self._flush(self._root / file.path)
        self._written.append(file)


class _PartFile:
    """One Parquet file: messages of a queue and an hour."""

    def __init__(self, root: Path, queue: Queue, schema: Any, writing: str) -> None:
        self._queue = queue
        self._name = f"{writing}/{uuid.uuid4().hex}.parquet"
        self._path = root / self._name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None
        self._schema = schema
        self._gathered: list[Any] = []
        self._gathered_bytes = 0
        self._rows = self._bad_bodies = 0
        self._first = self._last = self._min_us = self._max_us = -1

    def add(self, batch: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

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
        import pyarrow as pa

        if self._gathered:
            if self._writer is None:
                largest = max(self._gathered, key=lambda batch: batch.nbytes)
                self._writer = self._opened(packed=shrinks(largest.column("body")))
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema))
            self._gathered, self._gathered_bytes = [], 0

    def _opened(self, *, packed: bool) -> Any:
        import pyarrow.parquet as pq

        codecs = dict.fromkeys(_leaves(self._schema), "zstd") | ({} if packed else {"body": "none"})
        return pq.ParquetWriter(
            self._path,
            self._schema,
            compression=codecs,
            use_dictionary=list(_DICTIONARY),
            write_statistics=list(_STATISTICS),
        )

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        return DataFile(
            path=self._name,
            topic=self._queue.topic,
            broker=self._queue.broker,
            queue_id=self._queue.queue_id,
            first=self._first,
            end=self._last + 1,
            rows=self._rows,
            bytes=self._path.stat().st_size,
            min_store_ms=self._min_us // 1000,
            max_store_ms=self._max_us // 1000,
            bad_bodies=self._bad_bodies,
        )


def shrinks(bodies: Any) -> bool:
    """Whether zstd is worth while: bodies that were packed or encrypted before take a third of the work for nothing.

    :param bodies: Arrow binary array, of which a part in the middle is tried.
    """
    import pyarrow as pa

    _, offsets, data = bodies.buffers()
    if data is None:
        return True
    ends = memoryview(offsets).cast("i")
    first, end = ends[bodies.offset], ends[bodies.offset + len(bodies)]
    begin = max(first, (first + end - _TRIED_BYTES) // 2)
    tried = data.slice(begin, min(end - begin, _TRIED_BYTES))
    return tried.size < _TOO_FEW_BYTES or bool(pa.compress(tried, codec="zstd").size < tried.size * _WORTH_WHILE)


def _leaves(schema: Any) -> Iterator[str]:
    """The columns of a Parquet file."""
    import pyarrow as pa

    for field in schema:
        if pa.types.is_map(field.type):
            yield from (f"{field.name}.key_value.key", f"{field.name}.key_value.value")
        else:
            yield field.name
