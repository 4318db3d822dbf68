"""The archive job that reads a store's files. It needs no broker, checks every record, and writes the same archive as
the job that reads from a broker.

Spark tasks read the splits of the log (:mod:`cometmq.spark.store.scan`) in parallel, and each writes the files of its
split; the driver commits several splits at a time, in log order. Offsets of a queue rise along the log, so a run after
a crash skips the messages below the archive's totals.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
from pyspark.sql import functions as f

from cometmq.archive.commits import Covered
from cometmq.clock import SYSTEM_CLOCK
from cometmq.spark.archives.files import QueueWriter, Uploads
from cometmq.spark.archives.log import ArchiveLog, demand_same_queues
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.archive.report import ArchiveReport, ArchiveRun, dry_run_report
from cometmq.spark.jobs.archive.writer import Manifest, OpenedArchive, commit_manifests
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import ArchiveStoreOptions
from cometmq.spark.jobs.run import job_session, run_tasks
from cometmq.spark.object_stores import storage_options
from cometmq.spark.options import demand_present
from cometmq.spark.records.bad_messages import bad_bodies
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.records.queues import NO_MARKS, Mark, Marks, OffsetRange, Offsets, Queue
from cometmq.spark.records.worker_memory import lasting_worker
from cometmq.spark.store.options import StoreOptions, parse_store_options
from cometmq.spark.store.reader import StoreScan, demand_stored
from cometmq.spark.store.scan import SPLIT_BYTES, LogSplit, splits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLITS_IN_COMMIT: Final = 64
"""Number of log bytes per commit. After a crash, a minute of work on two cores is repeated, and a log of several
terabytes still needs few commits.
"""
_CHUNK_BYTES: Final = SPLIT_BYTES * 9 // 16
"""Number of log bytes that are checked together: slightly more than half a split, so that two parts cover a split even
if its last record extends past SPLIT_BYTES.
"""
_GATHERED_BYTES: Final = SPLIT_BYTES
"""Number of bytes that a task buffers before it writes files."""
_KNOWN_BYTES: Final = 200
"""Memory overhead per record, in bytes."""
_DECODED_BYTES: Final = 8 * 1024 * 1024
"""Number of record bytes of one queue that are converted to columns at a time: about a row group. With 32 MB, a task
takes the same time and 90 MB more memory."""


@job(ArchiveStoreOptions)
def archive_store(options: ArchiveStoreOptions) -> ArchiveReport:
    """Archive the topics in a store's files and return the report.

    ``store`` contains ``commitlog/`` on the driver and on the executors, or is the URL of a copy or a backup.
    ``broker_name`` must be the broker's own name, so that an archive made from the running broker has the same queues.
    If ``topics`` is empty, all ordinary topics are archived, or the topics that match ``subscribePattern`` in
    ``options``.

    :raises OptionError: an argument is invalid, or a topic does not exist. Without consume queues, a missing topic is
        detected only after the whole log has been read.
    :raises ArchiveError: another job holds the archive.
    :raises NoStoreError: the directory has no log.
    :raises SparkSourceError: a record is damaged and ``badRecordsPath`` is not set, or offsets do not follow those in
        the archive.
    """
    named = [options.topics] if isinstance(options.topics, str) else list(options.topics)
    given = {
        "path": str(options.store),
        "brokerName": options.broker_name,
        **storage_options((options.options or {}).get("badRecordsPath", ""), options.storage, spark=options.spark),
        **storage_options(options.store, options.storage, spark=options.spark),
        **(options.options or {}),
    }
    if named:
        given["topic"] = ",".join(named)
    if not options.broker_name:
        raise OptionError(
            "the broker's name is missing", next_step="set it as in broker.conf; the store does not contain it"
        )
    wanted = parse_store_options(given)
    parts = splits(wanted)
    is_checked = demand_stored(wanted)
    log = ArchiveLog(options.to, options.table_format, storage=options.storage)
    if options.dry_run:
        began = SYSTEM_CLOCK.monotonic()
        with job_session(options, "cometmq archive") as session:
            new = _count_new(session, given, log.next_offsets())
        if not is_checked:
            _demand_archived(wanted, chain(log.next_offsets(), (part.queue for part in new)))
        return dry_run_report(log, new, seconds=SYSTEM_CLOCK.monotonic() - began)
    with log.locked():
        run = ArchiveRun(log, options.on_batch)
        marks = log.marks()
        run_id = f"store-{uuid.uuid4()}"
        with job_session(options, "cometmq archive") as session:
            for batch_id, first in enumerate(range(0, len(parts), SPLITS_IN_COMMIT)):
                if options.stop is not None and options.stop.is_set():
                    return run.report(finished=False)
                some = parts[first : first + SPLITS_IN_COMMIT]
                work = partial(
                    write_split, wanted, archive=OpenedArchive.of(log), archived=log.next_offsets(), marks=marks
                )
                commit = commit_manifests(log, run_id, batch_id, run_tasks(session, some, work, Manifest))
                if commit is not None:
                    run.add_commit(commit)
            if not is_checked:
                _demand_archived(wanted, log.next_offsets())
            return run.report(finished=True)


def _demand_archived(options: StoreOptions, found: Iterable[Queue]) -> None:
    """Check that the log contained messages of the given topics. If there are no consume queues, this is not known
    before the log has been read.
    """
    demand_present(
        options.topics,
        (queue.topic for queue in found),
        f"the log in {options.path} holds no message of topic",
        next_step="without names all topics are archived",
    )


def _count_new(spark: SparkSession, given: Mapping[str, str], archived: Offsets) -> dict[OffsetRange, int]:
    """Return each queue's offsets that are in the store but not in the archive, with their message counts."""
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


def write_split(
    options: StoreOptions, split: LogSplit, archive: OpenedArchive, archived: Offsets, marks: Marks = NO_MARKS
) -> Iterator[Manifest]:
    """Write a split's messages that are not yet in the archive; yield the complete files and their offsets.

    :raises ArchiveError: a queue was recreated: the message at its mark's offset is a different one.
    """
    gathered: dict[Queue, list[Records]] = {}
    made: list[Manifest] = []
    size = 0
    with lasting_worker(), Uploads(archive.storage, archive.writer.epoch) as uploads:
        for records in StoreScan(options).records(split, _CHUNK_BYTES):
            for topic, queue_id, part in records.by_queue():
                queue = Queue(topic, options.broker_name, queue_id)
                offsets = part.queue_offsets
                if queue in marks:
                    demand_same_queues(archive.storage.url, [queue] if _differs_from_mark(part, marks[queue]) else ())
                new = offsets >= archived.get(queue, 0)
                if new.any():
                    gathered.setdefault(queue, []).append(part if new.all() else part.rows(new))
            size += len(records.source) + len(records) * _KNOWN_BYTES
            if size >= _GATHERED_BYTES:
                made += _write(options, gathered, uploads)
                gathered, size = {}, 0
        made += _write(options, gathered, uploads)
    yield from made


def _differs_from_mark(records: Records, mark: Mark) -> bool:
    at = records.queue_offsets == mark.offset
    places = records.physical_offsets[at] != mark.physical_offset
    return bool((places | (records.store_timestamps[at] != mark.stored_ms)).any())


def _write(options: StoreOptions, gathered: Mapping[Queue, list[Records]], uploads: Uploads) -> Iterator[Manifest]:
    schema = arrow_schema(ARCHIVE_COLUMNS)
    for queue in sorted(gathered):
        parts = gathered[queue]
        offsets = np.concatenate([part.queue_offsets for part in parts])
        steps = np.diff(offsets)
        if (steps <= 0).any():
            at = int(offsets[int(np.argmax(steps <= 0)) + 1])
            raise ArchiveError(
                f"{queue} has offset {at} after a later one: the log holds messages of a deleted topic with the "
                "same name",
                next_step="add the store's consume queues, or set startingTimestamp to when the topic was "
                "created again",
            )
        writer = QueueWriter(uploads, queue, schema)
        with bad_bodies(options) as on_bad_body:
            for part in chain.from_iterable(map(_portions, parts)):
                for batch in decode(part, schema, broker_name=queue.broker, on_bad_body=on_bad_body):
                    writer.add(batch)
        for file in writer.close():
            yield Manifest(file=file)
        yield Manifest(covered=Covered(*queue, int(offsets[0]), int(offsets[-1]) + 1))
        for gap in np.flatnonzero(steps > 1).tolist():
            yield Manifest(lost=Covered(*queue, int(offsets[gap]) + 1, int(offsets[gap + 1])))


def _portions(records: Records) -> Iterator[Records]:
    ends = np.cumsum(records.sizes, dtype=np.int64)
    for rows in np.split(np.arange(len(records)), np.flatnonzero(np.diff(ends // _DECODED_BYTES)) + 1):
        yield records.rows(slice(int(rows[0]), int(rows[-1]) + 1))
