"""The executors' side of the archive job: a source that writes the messages that it reads, and returns only file names.

One Python worker pulls messages, decodes them and writes Parquet. Messages are never passed to the JVM, which receives
only one row for each file and each offset range. The driver commits these files and ranges.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, InputPartition

from cometmq.archive.chain import Writer
from cometmq.archive.changes import Batch
from cometmq.archive.commits import BodyColumn, Commit, Covered
from cometmq.archive.files import DataFile
from cometmq.message.names import DLQ_PREFIX
from cometmq.message.properties import REAL_TOPIC, RETRY_TOPIC, TIMER_DEL_UNIQKEY
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.table import TableFormat
from cometmq.spark.errors import OptionError
from cometmq.spark.records.body_columns.changes import merged
from cometmq.spark.records.body_columns.formats import Bodies
from cometmq.spark.records.body_columns.types import arrow_fields, columns_of
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.queues import NO_MARKS, Marks, OffsetRange, Offsets, Queue
from cometmq.spark.records.worker_memory import lasting_worker
from cometmq.spark.source.offsets import demand_topics
from cometmq.spark.source.options import SourceOptions, parse_options
from cometmq.spark.source.reader import RangePartition
from cometmq.spark.source.stream_reader import RocketMQStreamReader
from cometmq.storage import Storage, StorageOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_DECODED_BYTES: Final = 8 * 1024 * 1024
"""Number of bytes of messages whose bodies are decoded at a time. Python's objects take several times as much."""


class OpenedArchive(NamedTuple):
    """An archive that a job has opened, for its tasks and its other processes. It can be pickled."""

    storage: Storage
    writer: Writer
    wanted: TableFormat | None = None
    in_catalog: bool = False
    """True if the archive is found by the name of its table, not by its storage."""
    bodies: Bodies | None = None
    """The way in which bodies become columns; None for an archive without such columns."""
    of_topic: str | None = None
    """Topic whose messages are kept, also those in dead letter and delay topics; None keeps all messages."""

    @classmethod
    def of(cls, log: ArchiveLog, bodies: Bodies | None = None, of_topic: str | None = None) -> OpenedArchive:
        """Return the archive that this job has opened."""
        return cls(log.storage, log.writer, log.wanted, log.in_catalog, bodies, of_topic)

    def open_log(self) -> ArchiveLog:
        """Open the archive in another process of the job."""
        return ArchiveLog(None if self.in_catalog else self.storage, self.wanted, writer=self.writer)


class Manifest(msgspec.Struct, frozen=True):
    """One result of a task. Exactly one of the first three fields is set."""

    file: DataFile | None = None
    covered: Covered | None = None
    lost: Covered | None = None
    wanted: list[BodyColumn] = []
    """Columns that the file's bodies need and that the table does not have yet."""

    def to_row(self) -> tuple[str]:
        """Encode the result as JSON text, which is the source's only column."""
        return (msgspec.json.encode(self).decode(),)


def commit_manifests(
    log: ArchiveLog,
    query_id: str,
    batch_id: int,
    manifests: Sequence[Manifest],
    body_columns: Sequence[BodyColumn] = (),
) -> Commit | None:
    """Commit the files that a batch's tasks have written. Return None if the batch is already committed.

    :param body_columns: all columns of the table that are decoded from bodies.
    :raises ArchiveError: the batch overlaps archived offsets, or one of its files is missing.
    """
    return log.append(
        Batch(
            query_id,
            batch_id,
            covered=[manifest.covered for manifest in manifests if manifest.covered],
            files=[manifest.file for manifest in manifests if manifest.file],
            lost=[manifest.lost for manifest in manifests if manifest.lost],
            body_columns=body_columns,
        )
    )


@dataclass
class ArchivePartition(InputPartition):
    """The ranges of one task, and the archived ends of their queues. Messages before the archived end are not written
    again.
    """

    ranges: tuple[OffsetRange, ...]
    marks: Marks
    archived: Offsets
    body_columns: Sequence[BodyColumn]


class ArchiveWriterSource(DataSource):
    """The archive job's data source. The job registers a subclass with the archive, so that Spark pickles its storage:
    a credential must not be one of the options, which Spark shows.
    """

    archive: ClassVar[OpenedArchive]
    storage_options: ClassVar[StorageOptions]
    """Options for the place of bad records."""
    format_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def schema(self) -> str:
        """Return the schema: one column with a manifest as JSON."""
        return "manifest string"

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: N802 (Spark's name)
        """Create the reader."""
        options = replace(parse_options(dict(self.options)), storage=self.storage_options)
        return ArchiveStreamReader(options, schema, self.archive)


def source_for(archive: OpenedArchive, storage_options: StorageOptions) -> type[ArchiveWriterSource]:
    """Return the data source that writes into an archive. Its name is unique, since a session may run several jobs.

    :param storage_options: options for the place of bad records.
    """
    fields = {
        "archive": archive,
        "storage_options": storage_options,
        "format_name": f"rocketmq_archive_{uuid.uuid4().hex[:8]}",
    }
    return type("OpenedArchiveSource", (ArchiveWriterSource,), fields)


class ArchiveStreamReader(RocketMQStreamReader):
    """Plans batches like the rocketmq stream, but its tasks write files."""

    def __init__(self, options: SourceOptions, schema: StructType, archive: OpenedArchive) -> None:
        if options.is_filtered:
            raise OptionError(
                "tags and sqlFilter are not allowed: an archive holds every message of a topic",
                next_step="leave them out",
            )
        super().__init__(options, schema)
        self._archive = archive

    @cached_property
    def _log(self) -> ArchiveLog:
        """The archive's log in the process that plans batches. It reads only the commits that are new."""
        return self._archive.open_log()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the log out of what is pickled for tasks, since connections cannot leave their process."""
        return {name: value for name, value in self.__dict__.items() if name != "_log"}

    def _demand_topics(self, queues: Iterable[Queue]) -> None:
        """Check that the topic of the table has readable queues. The topics for its dead letters may come later."""
        of_topic = self._archive.of_topic
        topics = self._options.topics if of_topic is None else (of_topic,)
        demand_topics(replace(self._options, topics=topics), queues)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a batch into tasks that know the archived ends. If the batch is already committed, the tasks read
        nothing.
        """
        last, bodies = self._log.last(), self._archive.bodies
        archived = {} if last is None else {of.queue: of.next for of in last.queues}
        columns = [] if bodies is None else bodies.columns([] if last is None else last.body_columns)
        dealt = super().partitions(start, end)
        return [
            ArchivePartition(
                part.ranges,
                part.marks,
                {of.queue: archived[of.queue] for of in part.ranges if of.queue in archived},
                columns,
            )
            for part in dealt
            if isinstance(part, RangePartition)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write one partition. If a range is already archived, send only its offsets to the driver, which checks
        them.
        """
        if isinstance(partition, ArchivePartition):
            archived, ranges = partition.archived, partition.ranges
            new = [part for part in ranges if part.first >= archived.get(part.queue, part.first)]
            with lasting_worker():
                for manifest in write_ranges(
                    self._options, new, self._archive, partition.marks, partition.body_columns
                ):
                    yield manifest.to_row()
            for part in ranges:
                if part not in new:
                    yield Manifest(covered=Covered(*part.queue, part.first, part.end)).to_row()


class RowWriter:
    """Writes messages to files, with columns that are decoded from their bodies."""

    def __init__(self, archive: OpenedArchive, body_columns: Sequence[BodyColumn] = ()) -> None:
        self._archive = archive
        self._fields = arrow_fields(body_columns)
        self._decoder = None if archive.bodies is None else archive.bodies.decoder(body_columns)
        self.schema = pa.schema([*arrow_schema(ARCHIVE_COLUMNS), *self._fields])

    def uploads(self) -> Uploads:
        """Return the uploads of one task."""
        return Uploads(self._archive.storage, self._archive.writer.epoch)

    def write(self, uploads: Uploads, queue: Queue, batches: Iterable[pa.RecordBatch]) -> list[Manifest]:
        """Write one queue's messages. The files are complete at the end of the uploads' block.

        :param batches: messages in the columns of an archive.
        """
        writer, wanted = QueueWriter(uploads, queue, self.schema), dict[str, pa.DataType]()
        for batch in self._chosen(queue.topic, batches):
            if self._decoder is None:
                writer.add(batch)
                continue
            decoded = self._decoder.decode(batch.column("body"))
            writer.add(pa.RecordBatch.from_arrays([*batch.columns, *decoded.columns], schema=self.schema))
            for name, kind in decoded.wanted.items():
                committed = next((of.type for of in self._fields if of.name == name), None)
                wanted[name] = merged(committed, wanted.get(name, pa.null()), kind)
        columns = list(columns_of(pa.field(name, kind) for name, kind in wanted.items()))
        return [Manifest(file=file, wanted=columns) for file in writer.close()]

    def _chosen(self, topic: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages that belong to the table, in batches whose decoded bodies fit into a task's memory."""
        for every in batches:
            batch = _of_topic(every, topic, self._archive.of_topic)
            parts = 1 if self._decoder is None else -(-batch.nbytes // _DECODED_BYTES)
            rows = max(1, -(-batch.num_rows // parts)) if parts else 1
            for first in range(0, batch.num_rows, rows):
                yield batch.slice(first, rows)


def _of_topic(batch: pa.RecordBatch, stored_in: str, topic: str | None) -> pa.RecordBatch:
    """Return the messages that belong to a topic. Dead letters and waiting messages name it in a property."""
    if topic in (None, stored_in):
        return batch
    properties = batch.column("properties")
    name = RETRY_TOPIC if stored_in.startswith(DLQ_PREFIX) else REAL_TOPIC
    is_recall = pc.is_valid(pc.map_lookup(properties, TIMER_DEL_UNIQKEY, "first"))
    belongs = pc.equal(pc.map_lookup(properties, name, "first"), topic)
    return batch.filter(pc.and_not(belongs.fill_null(False), is_recall))


def write_ranges(
    options: SourceOptions,
    ranges: Sequence[OffsetRange],
    archive: OpenedArchive,
    marks: Marks = NO_MARKS,
    body_columns: Sequence[BodyColumn] = (),
) -> Iterator[Manifest]:
    """Read ranges and write their messages to files. Yield the files, and each range when it is complete."""
    from cometmq.spark.records.bad_messages import bad_bodies
    from cometmq.spark.records.pieces import decode_pieces
    from cometmq.spark.source.fetch import Fetcher

    schema = arrow_schema(ARCHIVE_COLUMNS)
    fetcher, rows = Fetcher(options), RowWriter(archive, body_columns)
    files: list[Manifest] = []
    with (
        rows.uploads() as uploads,
        bad_bodies(options) as on_bad_body,
    ):
        for queue, chunks in groupby(fetcher.fetch(ranges, marks), key=lambda chunk: chunk.queue):
            pieces = (chunk.data for chunk in chunks)
            batches = decode_pieces(pieces, schema, broker_name=queue.broker, on_bad_body=on_bad_body)
            files += rows.write(uploads, queue, batches)
    yield from files
    for part in ranges:
        yield Manifest(covered=Covered(*part.queue, part.first, part.end))
    for part in fetcher.lost:
        yield Manifest(lost=Covered(*part.queue, part.first, part.end))
