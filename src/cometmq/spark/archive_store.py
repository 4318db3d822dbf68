"""The archive job from the files of a store: no broker, every record checked, the same archive as from a broker.

The log is read stretch by stretch (:mod:`~.store_stretches`), several side by side; each task writes the files of its
stretch, and the driver commits some stretches at a time, in the order of the log. Offsets of a queue
rise along the log, so the archive's totals say what a run that was killed has left to do: messages below them are
passed over.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.clock import SYSTEM_CLOCK
from cometmq.durable import flushing_beside
from cometmq.spark.apart import bad_bodies
from cometmq.spark.archive_commit import Covered
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_report import ArchivedBatch, ArchiveReport, ArchiveRun, expected
from cometmq.spark.archive_table import TableFormat, format_of
from cometmq.spark.archive_writer import PATH_OPTION, Manifest, QueueWriter, commit_rows
from cometmq.spark.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.decode import Records, decode
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.job_source import job_session
from cometmq.spark.missing_topics import demand_present
from cometmq.spark.queues import OffsetRange, Offsets, Queue
from cometmq.spark.store_options import StoreOptions, parse_store_options
from cometmq.spark.store_reader import StoreScan, demand_stored
from cometmq.spark.store_stretches import STRETCH_BYTES, Stretch, stretches
from cometmq.spark.worker_memory import in_lasting_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "rocketmq_archive_store"
_STRETCHES: Final = "stretches"
STRETCHES_IN_COMMIT: Final = 64
"""8 GiB of log a commit: a minute of work of two cores to repeat after a crash, few enough commits for terabytes."""
_CHUNK_BYTES: Final = STRETCH_BYTES * 9 // 16
"""Bytes of the log that are checked together: a stretch, which ends with a record, is a little more than two halves."""
_GATHERED_BYTES: Final = STRETCH_BYTES
"""Bytes that a task holds before it writes files."""
_KNOWN_BYTES: Final = 200
"""Of these, what is known of a record beside its own bytes."""
_DECODED_BYTES: Final = 32 * 1024 * 1024
"""Bytes of records of one queue that are columns at a time."""


def archive_store(
    store: str | Path,
    to: str | Path,
    *,
    broker_name: str,
    topics: str | Sequence[str] = (),
    table_format: TableFormat | str | None = None,
    options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_batch: Callable[[ArchivedBatch], None] | None = None,
    stop: threading.Event | None = None,
) -> ArchiveReport:
    """Archive the topics in a store's files into ``to``, and return what was done.

    :param store: directory that holds ``commitlog/``, on driver and executors.
    :param to: directory that driver and executors share; an archive of these queues is gone on with.
    :param broker_name: whose store it is; an archive made from the broker itself has the same queues then.
    :param topics: their names; without any all ordinary topics, or ``subscribePattern`` in ``options``.
    :param table_format: of an archive that is not there yet: ``parquet``, ``delta`` or ``iceberg``, or more in a
        :class:`~cometmq.spark.archive_table.TableFormat`.
    :param options: more options of the store reader.
    :param dry_run: read and check everything and write nothing but ``badRecordsPath``; count what is not archived yet.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_batch: called after each commit; ``stop``, when set, ends the run after the commit under way.
    :raises OptionError: an argument is wrong, or a topic is not there; where the consume queues were not saved only
        the log tells that, when all of it has been read.
    :raises ArchiveError: another job holds the archive.
    :raises NoStoreError: there is no log.
    :raises SparkSourceError: damaged records, and no ``badRecordsPath``; or offsets do not follow the archive's.
    """
    named = [topics] if isinstance(topics, str) else list(topics)
    given = {"path": str(Path(store).absolute()), "brokerName": broker_name, **(options or {})}
    if named:
        given["topic"] = ",".join(named)
    if not broker_name:
        raise OptionError("the broker's name is missing", next_step="no file says whose store it is; see broker.conf")
    wanted = parse_store_options(given)
    parts = stretches(wanted)
    told = demand_stored(wanted)
    log = ArchiveLog(to, format_of(table_format))
    if dry_run:
        began = SYSTEM_CLOCK.monotonic()
        with job_session(spark, master, "cometmq archive") as session:
            new = _new_in(session, given, log.next_offsets())
        if not told:
            _demand_found(wanted, chain(log.next_offsets(), (part.queue for part in new)))
        return expected(log, new, seconds=SYSTEM_CLOCK.monotonic() - began)
    with log.locked():
        run = ArchiveRun(log, on_batch)
        run_id = f"store-{uuid.uuid4()}"
        with job_session(spark, master, "cometmq archive") as session:
            session.dataSource.register(ArchiveStoreSource)
            for batch_id, first in enumerate(range(0, len(parts), STRETCHES_IN_COMMIT)):
                if stop is not None and stop.is_set():
                    return run.report(finished=False)
                some = msgspec.json.encode(parts[first : first + STRETCHES_IN_COMMIT]).decode()
                own = {_STRETCHES: some, PATH_OPTION: str(log.root)}
                rows = session.read.format(FORMAT).options(**given, **own).load().collect()
                commit = commit_rows(log, run_id, batch_id, rows)
                if commit is not None:
                    run.committed(commit)
            if not told:
                _demand_found(wanted, log.next_offsets())
            return run.report(finished=True)


def _demand_found(options: StoreOptions, found: Iterable[Queue]) -> None:
    """Demand, where only the log could tell, that it had messages of the topics asked for by name."""
    demand_present(
        options.topics,
        (queue.topic for queue in found),
        f"the log in {options.path} holds no message of topic",
        next_step="without names all topics are archived",
    )


def _new_in(spark: SparkSession, given: Mapping[str, str], archived: Offsets) -> dict[OffsetRange, int]:
    """What a store holds of each queue and the archive does not: offsets, and how many messages they are."""
    from pyspark.sql import functions as f

    limits = [(*queue, end) for queue, end in archived.items()]
    known = spark.createDataFrame(limits, "topic string, brokerName string, queueId int, archivedTo bigint")
    place = ["topic", "brokerName", "queueId"]
    held = spark.read.format("rocketmq_store").options(**given)
    rows = (
        held.schema("topic string, brokerName string, queueId int, queueOffset bigint")
        .load()
        .join(f.broadcast(known), place, "left")
        .where("archivedTo IS NULL OR queueOffset >= archivedTo")
        .groupBy(*place)
        .agg(f.min("queueOffset").alias("first"), f.max("queueOffset").alias("last"), f.count("*").alias("messages"))
        .collect()
    )
    return {
        OffsetRange(Queue(topic, broker, queue_id), first, last + 1): messages
        for topic, broker, queue_id, first, last, messages in rows
    }


class ArchiveStoreSource(DataSource):
    """Registered by the job for itself."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the one column: a manifest entry as JSON."""
        return "manifest string"

    def reader(self, schema: StructType) -> ArchiveStoreReader:
        """Make the reader."""
        own = {_STRETCHES.lower(), PATH_OPTION.lower()}
        given = {name: value for name, value in self.options.items() if name.lower() not in own}
        parts = msgspec.json.decode(self.options[_STRETCHES], type=list[Stretch])
        return ArchiveStoreReader(parse_store_options(given), parts, self.options[PATH_OPTION])


@dataclass
class StretchPartition(InputPartition):
    """One stretch of the log, and how far each queue is archived."""

    stretch: Stretch
    archived: Offsets


class ArchiveStoreReader(DataSourceReader):
    """Writes some stretches of a log into the archive; its rows are what was written."""

    def __init__(self, options: StoreOptions, parts: Sequence[Stretch], root: str) -> None:
        self._options = options
        self._parts = parts
        self._root = root

    def partitions(self) -> Sequence[InputPartition]:
        """The stretches of this commit, with how far the archive is."""
        archived = ArchiveLog(self._root).next_offsets()
        return [StretchPartition(stretch, archived) for stretch in self._parts]

    @in_lasting_worker
    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write the files of one stretch."""
        if isinstance(partition, StretchPartition):
            for manifest in write_stretch(self._options, partition.stretch, Path(self._root), partition.archived):
                yield manifest.to_row()


def write_stretch(options: StoreOptions, stretch: Stretch, root: Path, archived: Offsets) -> Iterator[Manifest]:
    """Write the messages of a stretch that the archive does not hold yet; yield flushed files, and what they cover."""
    gathered: dict[Queue, list[Records]] = {}
    made: list[Manifest] = []
    size = 0
    with flushing_beside() as flush:
        for records in StoreScan(options).records(stretch, _CHUNK_BYTES):
            for topic, queue_id, part in records.by_queue():
                queue = Queue(topic, options.broker_name, queue_id)
                offsets = part.queue_offsets
                new = offsets >= archived.get(queue, 0)
                if new.any():
                    gathered.setdefault(queue, []).append(part if new.all() else part.rows(new))
            size += len(records.source) + len(records) * _KNOWN_BYTES
            if size >= _GATHERED_BYTES:
                made += _write(options, gathered, root, flush)
                gathered, size = {}, 0
        made += _write(options, gathered, root, flush)
    yield from made


def _write(
    options: StoreOptions, gathered: Mapping[Queue, list[Records]], root: Path, flush: Callable[[Path], None]
) -> Iterator[Manifest]:
    schema = arrow_schema(ARCHIVE_COLUMNS)
    for queue in sorted(gathered):
        parts = gathered[queue]
        offsets = np.concatenate([part.queue_offsets for part in parts])
        steps = np.diff(offsets)
        if (steps <= 0).any():
            at = int(offsets[int(np.argmax(steps <= 0)) + 1])
            raise ArchiveError(
                f"{queue} has offset {at} behind a later one: the log holds an earlier life of its topic",
                next_step="read it with its consume queues, which tell the two apart, or from startingTimestamp on",
            )
        writer = QueueWriter(root, queue, schema, flush=flush)
        with bad_bodies(fail=options.fail_on_bad_body, directory=options.bad_records_path) as on_bad_body:
            for part in chain.from_iterable(map(_portions, parts)):
                for batch in decode(part, schema, broker_name=queue.broker, on_bad_body=on_bad_body):
                    writer.add(batch)
        for file in writer.close():
            yield Manifest(file=file)
        yield Manifest(covered=_covered(queue, int(offsets[0]), int(offsets[-1]) + 1))
        for gap in np.flatnonzero(steps > 1).tolist():
            yield Manifest(lost=_covered(queue, int(offsets[gap]) + 1, int(offsets[gap + 1])))


def _portions(records: Records) -> Iterator[Records]:
    ends = np.cumsum(records.sizes, dtype=np.int64)
    for rows in np.split(np.arange(len(records)), np.flatnonzero(np.diff(ends // _DECODED_BYTES)) + 1):
        yield records.rows(slice(int(rows[0]), int(rows[-1]) + 1))


def _covered(queue: Queue, first: int, end: int) -> Covered:
    return Covered(queue.topic, queue.broker, queue.queue_id, first, end)
