"""A key index for an archive. It finds messages that brokers have already deleted, without reading the entire archive.

Layout below the index's directory::

    run=<number>/bucket=<0..63>/part-*.parquet
    run=<number>/_indexed.json

Each run indexes the messages that were archived since the last run. ``_indexed.json`` is written last and contains the
offset up to which each queue is indexed. A killed run does not have this file, so it is overwritten. Rows: topic, key,
broker, queue, queue offset, store time; sorted by topic and key within a bucket, which is the CRC32 of ``topic#key``.
Both KEYS and the unique key are keys, as in a broker's IndexFile.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.archive.commits import QueueTotals
from cometmq.archive.files import DataFile
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.quantity import quantity
from cometmq.spark.archives.log import ArchiveLog, read_files, record_of
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import KeyIndexOptions
from cometmq.spark.jobs.report.parts import Part, Table
from cometmq.spark.jobs.report.plots import Bars, Plot
from cometmq.spark.jobs.report.report import Report
from cometmq.spark.jobs.run import job_session
from cometmq.spark.records.queues import Offsets, Queue
from cometmq.spark.storage import Directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS: Final = 64
_DONE: Final = "_indexed.json"
_RUN: Final = re.compile(rf"run=(\d+)/{_DONE}")
MAX_FOUND: Final = 10_000
"""Maximum number of messages that one lookup returns."""


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
    index, dry_run, on_step = Directory(options.index), options.dry_run, options.on_step
    began = SYSTEM_CLOCK.monotonic()
    log = ArchiveLog(options.archive)
    log.demand_any()
    runs = _runs(index)
    indexed = _indexed_offsets(index, runs)
    totals = log.queues()  # before the files: what comes meanwhile is left to the next run
    files = [file for file in log.files() if file.end > indexed.get(file.queue, 0)]
    topics: tuple[IndexedTopic, ...] = ()
    if files:
        with job_session(options, "cometmq key index") as session:
            messages = _new_messages(session, log, files, totals, indexed)
            entries = _entries(messages)
            if not dry_run:
                run = f"run={len(runs)}"
                target = str(index.path(run))
                on_step(f"indexing {quantity(len(files), 'file')} of the archive")
                _write(entries, target)
                entries = session.read.parquet(target)
            on_step("counting messages and keys")
            topics = _count_topics(messages, entries)
            if not dry_run:
                index.write_json(f"{run}/{_DONE}", totals)
    return KeyIndexReport(log.url, str(options.index), dry_run, topics, SYSTEM_CLOCK.monotonic() - began)


def _new_messages(
    spark: SparkSession, log: ArchiveLog, files: list[DataFile], totals: list[QueueTotals], indexed: Offsets
) -> DataFrame:
    """Return the archived messages that are not indexed yet. Joined files may contain indexed and new messages."""
    from pyspark.sql import functions as f

    limits = [(*of.queue, indexed.get(of.queue, 0), of.next) for of in totals]
    known = spark.createDataFrame(
        limits, "topic string, brokerName string, queueId int, indexedTo bigint, archivedTo bigint"
    )
    return (
        read_files(spark, log, files)
        .join(f.broadcast(known), ["topic", "brokerName", "queueId"])
        .where("queueOffset >= indexedTo AND queueOffset < archivedTo")
    )


def _entries(messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    every = f.array_distinct(f.concat(f.array("uniqKey"), f.split(f.coalesce("keys", f.lit("")), " ")))
    return (
        messages.select("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", every.alias("every"))
        .withColumn("key", f.explode("every"))
        .where("key <> ''")
        .drop("every")
        .withColumn("bucket", f.crc32(f.concat("topic", f.lit("#"), "key").cast("binary")) % BUCKETS)
    )


def _write(entries: DataFrame, target: str) -> None:
    ordered = entries.repartition("bucket").sortWithinPartitions("bucket", "topic", "key")
    ordered.write.partitionBy("bucket").mode("overwrite").parquet(target)


def _count_topics(messages: DataFrame, entries: DataFrame) -> tuple[IndexedTopic, ...]:
    keys: dict[str, int] = dict(entries.groupBy("topic").count().collect())
    found = sorted((topic, count) for topic, count in messages.groupBy("topic").count().collect())
    return tuple(IndexedTopic(topic, count, keys.get(topic, 0)) for topic, count in found)


def find_by_key(archive: str | Path, index: str | Path, topic: str, key: str, *, limit: int = 64) -> list[MessageExt]:
    """Return up to ``limit`` archived messages with a key, oldest first. This function needs no Spark session.

    Messages that retention has removed from the archive are left out.

    :raises OptionError: the directory has no index.
    :raises ArchiveError: the archive has lost files.
    """
    import pyarrow.dataset as ds

    from cometmq.spark.archives.files import read_message

    log, indexes = ArchiveLog(archive), Directory(index)
    runs = _runs(indexes)
    if not runs:
        raise OptionError(f"{index} has no key index", next_step="create one: cometmq pipeline key-index")
    bucket = f"bucket={zlib.crc32(f'{topic}#{key}'.encode()) % BUCKETS}"
    files = [str(indexes.path(name)) for run in runs for name in indexes.names(f"{run}/{bucket}/*.parquet")]
    if not files:
        return []
    wanted = (ds.field("topic") == topic) & (ds.field("key") == key)
    places = ds.dataset(files).to_table(filter=wanted).sort_by("storeTimestamp").slice(0, min(limit, MAX_FOUND))
    files_of, reached = log.files(), log.next_offsets()
    found: list[MessageExt] = []
    for place in places.to_pylist():
        for file in _files_containing(files_of, reached, place):
            rows = read_message(log.storage, file, place["queueOffset"]).to_pylist()
            messages = (MessageExt(record_of(row), 0, row["brokerName"]) for row in rows)
            found += (of for of in messages if key in of.keys or key == of.msg_id)  # else of another archive
    return found


def _runs(index: Directory) -> list[str]:
    """Return the finished runs' directories, in order."""
    found = map(_RUN.fullmatch, index.names(f"run=*/{_DONE}"))
    return [f"run={number}" for number in sorted(int(match[1]) for match in found if match)]


def _indexed_offsets(index: Directory, runs: list[str]) -> Offsets:
    """Return the offset up to which each queue is indexed."""
    totals = index.read_json(f"{runs[-1]}/{_DONE}", list[QueueTotals]) if runs else None
    return {of.queue: of.next for of in totals or ()}


def _files_containing(files: list[DataFile], reached: Offsets, place: dict[str, Any]) -> list[DataFile]:
    """Return the files that may contain a message, or an empty list if retention has removed them."""
    queue, offset = Queue(place["topic"], place["brokerName"], place["queueId"]), place["queueOffset"]
    if offset >= reached.get(queue, 0):
        raise ArchiveError(
            f"the index contains offset {offset} of {queue}, which is not in the archive",
            next_step="check that the index was built from this archive",
        )
    return [file for file in files if file.queue == queue and file.first <= offset < file.end]
