"""A key index for an archive. It finds messages that brokers have already deleted, without reading the entire archive.

Layout below the index's directory or URL::

    run=<number>/bucket=<0..63>/part-<random>.parquet
    run=<number>/_indexed.json

Each run indexes the messages that were archived since the last run. ``_indexed.json`` is created last and once: it
contains the offset up to which each queue is indexed, and the files of each bucket. Other files in the directory are
from runs that were killed, and do not count. Rows: topic, key, broker, queue, queue offset, store time; sorted by topic
and key within a bucket, which is the CRC32 of ``topic#key``. Both KEYS and the unique key are keys, as in a broker's
IndexFile.

In indexes of earlier versions, ``_indexed.json`` contains only the offsets, and all files of the directory count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.archive.commits import QueueTotals
from cometmq.archive.files import DataFile
from cometmq.archive.locks import local_directory
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.quantity import quantity
from cometmq.spark.archives.log import ArchiveLog, demand_visible, record_of
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.documents import REQUESTS_AT_ONCE, create_document, find_document
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import KeyIndexOptions
from cometmq.spark.jobs.report.parts import Part, Table
from cometmq.spark.jobs.report.plots import Bars, Plot
from cometmq.spark.jobs.report.report import Report
from cometmq.spark.jobs.run import collect_results, job_session, run_tasks
from cometmq.spark.jobs.task_files import delete_unnamed
from cometmq.spark.object_stores import open_place
from cometmq.spark.records.queues import Offsets, Queue
from cometmq.storage import Storage, check_conditional_writes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cometmq.spark.jobs.key_entries import Counts, NewMessages

Ranges = Mapping[Queue, tuple[int, int]]
"""For each queue, the first offset that is not indexed yet, and the offset after the last one that is archived."""
_DONE: Final = "_indexed.json"
_RUN: Final = re.compile(r"run=(\d+)")
_TASK_ROWS: Final = 1_000_000
"""Number of messages after which a task gets no more files. Reading them takes about two seconds."""
_WRITTEN_ROWS: Final = 250_000
"""Number of messages whose entries a task sorts and writes, until each bucket has a task of its own."""
MAX_FOUND: Final = 10_000
"""Maximum number of messages that one lookup returns."""


class _Indexed(msgspec.Struct, frozen=True):
    """The content of ``_indexed.json``."""

    totals: list[QueueTotals]
    files: dict[int, list[str]] | None = None
    """Paths of the files of each bucket; None in indexes of earlier versions."""


@dataclass(frozen=True, slots=True)
class IndexedTopic:
    """One topic's new entries."""

    topic: str
    messages: int
    keys: int
    """Number of entries: one for each key of a message."""


@dataclass(frozen=True)
class KeyIndexReport(Report):
    """The entries that one run has added; with ``dry_run``, the entries that a run would add."""

    TITLE = "Keys of {0.archive}"
    COMPUTED = ("messages", "keys")

    archive: str
    index: str
    dry_run: bool
    topics: tuple[IndexedTopic, ...]
    """Topics that had new messages, sorted by name."""
    seconds: float

    @property
    def messages(self) -> int:
        """Return the number of messages in all topics."""
        return sum(of.messages for of in self.topics)

    @property
    def keys(self) -> int:
        """Return the number of entries for all topics."""
        return sum(of.keys for of in self.topics)

    @property
    def verdict(self) -> str:
        """Return a sentence about the state of the index after the run."""
        if not self.topics:
            return "The archive contains nothing new"
        return "Dry run: nothing was written" if self.dry_run else "The index contains every message in the archive"

    def _figures(self) -> list[tuple[str, str]]:
        counts = (("new messages", self.messages), ("new keys", self.keys), ("topics", len(self.topics)))
        return [*((f"{count:,}", name) for name, count in counts), (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        if not self.topics:
            yield f"the archive {self.archive} contains nothing new"
            return
        verb = "would be indexed" if self.dry_run else "indexed"
        held = f"{quantity(self.messages, 'message')} {verb} under {quantity(self.keys, 'key')} in {self.index}"
        yield f"{held}; {self.seconds:.1f} s"
        rows = [(of.topic, of.messages, of.keys) for of in self.topics]
        yield Table(("<topic", ">messages", ">keys"), rows, "Topics")

    def _plots(self) -> list[Plot]:
        names = [of.topic[:24] for of in self.topics]
        counts = {"messages": [of.messages for of in self.topics], "keys": [of.keys for of in self.topics]}
        return [Bars("New in the index", "messages, keys", names, counts)]


@job(KeyIndexOptions)
def build_key_index(options: KeyIndexOptions) -> KeyIndexReport:
    """Add an archive's new messages to its index.

    :raises OptionError: the directory has no archive.
    :raises SparkSourceError: the archive cannot be read, or the index cannot be written.
    """
    from cometmq.spark.jobs.key_entries import NewMessages

    index, dry_run, on_step = open_place(options.index, options.storage), options.dry_run, options.on_step
    began = SYSTEM_CLOCK.monotonic()
    log = ArchiveLog(options.archive, storage=options.storage)
    log.demand_any()
    runs = _runs(index)
    number = max(runs, default=-1) + 1
    indexed = {of.queue: of.next for of in runs[number - 1].totals} if runs else {}
    totals = log.queues()  # before the files: what comes meanwhile is left to the next run
    ranges = {of.queue: (indexed.get(of.queue, 0), of.next) for of in totals}
    files = [file for file in log.files() if _has_new(file, ranges)]
    topics: tuple[IndexedTopic, ...] = ()
    if files:
        if not dry_run and not runs and local_directory(index) is None:
            check_conditional_writes(index)
        with job_session(options, "cometmq key index") as session:
            on_step("counting messages" if dry_run else f"indexing {quantity(len(files), 'file')} of the archive")
            work = session, NewMessages(log.storage, ranges), _tasks_of(files)
            counts = _count(*work) if dry_run else _write(*work, index, number, totals)
            topics = tuple(
                IndexedTopic(topic, count, counts.keys.get(topic, 0))
                for topic, count in sorted(counts.messages.items())
            )
    return KeyIndexReport(log.url, index.url, dry_run, topics, SYSTEM_CLOCK.monotonic() - began)


def _has_new(file: DataFile, ranges: Ranges) -> bool:
    first, end = ranges.get(file.queue, (0, 0))
    return file.first < end and file.end > first


def _tasks_of(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Divide files into those of each task. A task has as few topics as possible."""
    tasks: list[list[DataFile]] = []
    rows = _TASK_ROWS
    for file in sorted(files, key=lambda file: (file.queue, file.first)):
        if rows >= _TASK_ROWS:
            tasks.append([])
            rows = 0
        tasks[-1].append(file)
        rows += file.rows
    return tasks


def _count(spark: SparkSession, new: NewMessages, tasks: Sequence[Sequence[DataFile]]) -> Counts:
    """Count the new messages and their entries."""
    from cometmq.spark.jobs.key_entries import Counts, count_new

    return Counts.total(run_tasks(spark, tasks, partial(count_new, new), Counts))


def _write(
    spark: SparkSession,
    new: NewMessages,
    tasks: Sequence[Sequence[DataFile]],
    index: Storage,
    number: int,
    totals: list[QueueTotals],
) -> Counts:
    """Write a run, and count its messages and entries.

    :raises ArchiveError: another job has written the run.
    """
    from cometmq.spark.jobs.key_entries import BLOCK_DDL, BUCKETS, Counts, Written, make_blocks, write_buckets

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from make_blocks(new, tasks[task])

    run = f"run={number}"
    rows = sum(file.rows for files in tasks for file in files)
    writers = min(max(rows // _WRITTEN_ROWS, 1), BUCKETS)
    blocks = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, BLOCK_DDL).repartition(writers, "bucket")
    written = collect_results(blocks, partial(write_buckets, index, run, new.queues), Written)
    made = [file for of in written for file in of.files]
    demand_visible(index, ((file.path, file.bytes) for file in made))
    paths: dict[int, list[str]] = {}
    for file in made:
        paths.setdefault(file.bucket, []).append(file.path)
    create_document(index, f"{run}/{_DONE}", _Indexed(totals, paths))
    delete_unnamed(index, run, {f"{run}/{_DONE}", *(file.path for file in made)})
    return Counts.total(of.counts for of in written)


def find_by_key(
    archive: str | Path,
    index: str | Path,
    topic: str,
    key: str,
    *,
    limit: int = 64,
    storage: Mapping[str, str] | None = None,
) -> list[MessageExt]:
    """Return up to ``limit`` archived messages with a key, oldest first. This function needs no Spark session.

    Messages that retention has removed from the archive are left out.

    :param storage: options of the object store, such as ``endpoint``.
    :raises OptionError: the directory has no index.
    :raises ArchiveError: the archive has lost files.
    """
    from cometmq.spark.archives.files import read_message
    from cometmq.spark.jobs.key_entries import bucket_of

    log, indexes = ArchiveLog(archive, storage=storage), open_place(index, storage)
    runs = _runs(indexes)
    if not runs:
        raise OptionError(f"{index} has no key index", next_step="create one: cometmq pipeline key-index")
    bucket = bucket_of(topic, key)
    files = [path for number in sorted(runs) for path in _files_of(indexes, number, runs[number], bucket)]
    places = _places(indexes, files, topic, key, min(limit, MAX_FOUND))
    if not places:
        return []
    files_of, reached = log.files(), log.next_offsets()
    found: list[MessageExt] = []
    for place in places:
        for file in _files_containing(files_of, reached, place):
            rows = read_message(log.storage, file, place["queueOffset"]).to_pylist()
            messages = (MessageExt(record_of(row), 0, row["brokerName"]) for row in rows)
            found += (of for of in messages if key in of.keys or key == of.msg_id)  # else of another archive
    return found


def _places(index: Storage, files: list[str], topic: str, key: str, limit: int) -> list[dict[str, Any]]:
    """Return up to ``limit`` entries of a key in the given files, oldest first. A key may have millions."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    columns = ["topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"]
    wanted = (ds.field("topic") == topic) & (ds.field("key") == key)

    def oldest(parts: list[pa.Table]) -> pa.Table:
        return pa.concat_tables(parts).sort_by("storeTimestamp").slice(0, limit)

    def entries_in(path: str) -> pa.Table | None:
        found: pa.Table | None = None
        file = ds.ParquetFileFormat().make_fragment(index.open_reader(path))
        for batch in file.to_batches(columns=columns, filter=wanted):
            table = pa.Table.from_batches([batch])
            moments = table.column("storeTimestamp").cast(pa.timestamp("us", "UTC"))  # Spark has written nanoseconds
            table = table.set_column(4, "storeTimestamp", moments.cast(pa.int64()))
            found = oldest([table] if found is None else [found, table])
        return found

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        found = [table for table in threads.map(entries_in, files) if table is not None]
    places: list[dict[str, Any]] = oldest(found).to_pylist() if found else []
    return places


def _runs(index: Storage) -> dict[int, _Indexed]:
    """Return the finished runs by their numbers."""
    numbers = sorted(int(match[1]) for name in index.list_directories() if (match := _RUN.fullmatch(name)))

    def indexed(number: int) -> _Indexed | None:
        found = find_document(index, f"run={number}/{_DONE}", _Indexed | list[QueueTotals])
        return _Indexed(found) if isinstance(found, list) else found

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        return {number: run for number, run in zip(numbers, threads.map(indexed, numbers), strict=True) if run}


def _files_of(index: Storage, number: int, run: _Indexed, bucket: int) -> list[str]:
    if run.files is not None:
        return run.files.get(bucket, [])
    there = index.list_objects(f"run={number}/bucket={bucket}")
    return [found.key for found in there if found.key.endswith(".parquet")]


def _files_containing(files: list[DataFile], reached: Offsets, place: dict[str, Any]) -> list[DataFile]:
    """Return the files that may contain a message, or an empty list if retention has removed them."""
    queue, offset = Queue(place["topic"], place["brokerName"], place["queueId"]), place["queueOffset"]
    if offset >= reached.get(queue, 0):
        raise ArchiveError(
            f"the index contains offset {offset} of {queue}, which is not in the archive",
            next_step="check that the index was built from this archive",
        )
    return [file for file in files if file.queue == queue and file.first <= offset < file.end]
