"""The archive job. It writes topics to a table of Parquet files, Delta Lake or Iceberg exactly once, and it can be
resumed.

A streaming query plans offsets, which are stored in Spark's checkpoint. Its tasks write files (:mod:`.writer`), and the
driver commits them (:mod:`cometmq.spark.archives.log`). In a Spark Connect session, Spark runs the callback for each
micro-batch in a process that its server has started. That process passes commits to the job as files in the archive's
storage, which both processes share.

A crash can happen

* before the commit: Spark repeats the batch with the same offsets, and its tasks write other files;
* after the commit, before Spark's own commit: Spark repeats the batch; tasks and driver detect that it is committed,
  and skip it;
* together with the loss of the checkpoint: a new checkpoint continues where the archive's last commit ends;
* before Spark has written the offsets of the first batch: the job moves the incomplete checkpoint aside and starts the
  query again from the same offsets (:mod:`.checkpoint`).
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.archive.commits import Commit, Covered
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.options.forms import DURATION
from cometmq.spark.archives.log import ArchiveLog, demand_same_queues
from cometmq.spark.errors import ArchiveError, SparkSourceError
from cometmq.spark.jobs.archive.body_columns import settle_columns
from cometmq.spark.jobs.archive.checkpoint import STARTING_OFFSETS, Checkpoint, demand_file_system
from cometmq.spark.jobs.archive.report import ArchiveReport, ArchiveRun, dry_run_report
from cometmq.spark.jobs.archive.writer import (
    Manifest,
    OpenedArchive,
    commit_manifests,
    source_for,
)
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import ArchiveOptions
from cometmq.spark.jobs.run import cause_of
from cometmq.spark.object_stores import parse_storage, storage_options
from cometmq.spark.options import parse_option
from cometmq.spark.records.body_columns.formats import Bodies
from cometmq.spark.records.queues import OffsetRange, Offsets, offsets_to_json
from cometmq.spark.security_options import server_options
from cometmq.spark.session.environment import driver_session, is_connect
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.offsets import demand_topics, kept_starting_offsets_in, resolve_start
from cometmq.spark.source.options import EARLIEST, LATEST, SourceOptions, parse_options
from cometmq.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AVAILABLE_NOW: Final = "availableNow"
POLL_INTERVAL: Final = "1s"
"""Interval at which the job polls for commits."""
_NO_LIMIT: Final = str(10**18 - 1)
_POLL_SECONDS: Final = 1
_INTERVAL: Final = replace(DURATION, words=f"{AVAILABLE_NOW} or an interval such as 30s, 5m or 1h", minimum=1)


@job(ArchiveOptions)
def archive(options: ArchiveOptions) -> ArchiveReport:
    """Archive topics into a directory and return the report.

    :raises OptionError: an argument is invalid, or a topic does not exist.
    :raises ArchiveError: another job holds the archive, or the archive was continued with another checkpoint.
    :raises SparkSourceError: the query failed; committed messages are kept.
    """
    return run_archive(options)


@dataclass(frozen=True)
class TableWork:
    """The work of a run in addition to an archive of messages."""

    bodies: Bodies | None = None
    """The way in which bodies become columns."""
    of_topic: str | None = None
    """Topic whose messages are kept, also those in dead letter and delay topics, which need not exist yet."""
    beside: Callable[[SparkSession, ArchiveLog, ArchiveRun], AbstractContextManager[object]] | None = None
    """Work beside the query, from its start to its end."""


def run_archive(options: ArchiveOptions, work: TableWork = TableWork()) -> ArchiveReport:
    """Archive topics, with columns that are decoded from bodies.

    :raises CometMQError: see :func:`archive`.
    """
    trigger = options.trigger
    named = [options.topics] if isinstance(options.topics, str) else list(options.topics)
    servers = server_options(options.namesrv, options.access)
    given = {**servers, "startingOffsets": options.starting_offsets, **(options.options or {})}
    if named:
        given["topic"] = ",".join(named)
    if options.max_offsets_per_trigger is not None:
        given.setdefault("maxOffsetsPerTrigger", str(options.max_offsets_per_trigger))
    if options.commit_bytes is not None:
        given.setdefault("maxBytesPerTrigger", options.commit_bytes)
    if options.commit_interval is not None:
        given["minOffsetsPerTrigger"] = given.get("maxOffsetsPerTrigger", _NO_LIMIT)
        given["maxTriggerDelay"] = options.commit_interval
        trigger = POLL_INTERVAL if trigger == AVAILABLE_NOW else trigger
    if given.get("startingTimestamp") and options.starting_offsets == EARLIEST:  # the default
        del given["startingOffsets"]
    parse_options(given)
    timing = _timing(trigger)
    log = ArchiveLog(options.to, options.table_format, storage=options.storage)
    _demand_columns(log, work.bodies)
    demand_same_queues(log.url, Cluster(parse_options(given)).changed_queues(log.marks()))
    if options.dry_run:
        began = SYSTEM_CLOCK.monotonic()
        return dry_run_report(log, _count_new(given, log.next_offsets()), seconds=SYSTEM_CLOCK.monotonic() - began)
    with log.locked(), _checkpoint(options) as checkpoint:
        checkpoint.set_aside_dead_start()
        continuation = _continuation(log, checkpoint)
        if continuation:
            given.pop("startingTimestamp", None)
        given |= continuation
        needed = given if work.of_topic is None else given | {"topic": work.of_topic}
        _demand_sources(parse_options(needed), is_new=not continuation and checkpoint.last_committed_batch() is None)
        if not continuation and not checkpoint.has_begun() and parse_options(given).starting_offsets != EARLIEST:
            # so that a start that dies leaves nothing out
            place = log.storage if options.checkpoint is None else checkpoint.storage
            given["startingOffsets"] = kept_starting_offsets_in(place, STARTING_OFFSETS, given)
        with driver_session(options.spark, options.master, "cometmq archive") as session:
            demand_file_system(session, str(checkpoint))
            run = _Run(session, log, checkpoint, given, options, work)
            return run.run(timing, options.stop)


def _demand_columns(log: ArchiveLog, bodies: Bodies | None) -> None:
    """Check that this job can fill the columns of the table.

    :raises OptionError: a column has another type.
    :raises ArchiveError: the table has columns that are decoded from bodies, and the job decodes none.
    """
    columns = log.body_columns()
    if bodies is not None:
        bodies.columns(columns)
    elif columns:
        raise ArchiveError(
            f"{log.url} is a table with columns that are decoded from bodies",
            next_step="continue it with cometmq pipeline table",
        )


@contextmanager
def _checkpoint(options: ArchiveOptions) -> Iterator[Checkpoint]:
    """Yield the checkpoint of the query. By default, it ends with the run: the archive has all offsets and batches."""
    if options.checkpoint is not None:
        yield Checkpoint(options.checkpoint, options.storage)
        return
    with tempfile.TemporaryDirectory(prefix="cometmq-archive-", ignore_cleanup_errors=True) as temporary:
        yield Checkpoint(Path(temporary) / "checkpoint")


def _demand_sources(options: SourceOptions, *, is_new: bool) -> None:
    """Check nameservers and topics before starting Spark, which takes several seconds.

    :raises UnreachableError: no nameserver answers.
    :raises OptionError: a topic of a new archive does not exist.
    """
    queues = Cluster(options).queues()
    if is_new:
        demand_topics(options, queues)


def _count_new(given: Mapping[str, str], archived: Offsets) -> dict[OffsetRange, int]:
    """Count the messages in each queue that are on the brokers but not in the archive."""
    options = parse_options(given)
    cluster = Cluster(options)
    queues = cluster.queues()
    demand_topics(options, queues)
    bounds = cluster.bounds(queues)
    begin = resolve_start(options, cluster, bounds, LATEST) | archived
    parts = [OffsetRange(queue, max(begin[queue], held.first), held.end) for queue, held in bounds.items()]
    return {part: len(part) for part in parts}


def _timing(trigger: str) -> dict[str, Any]:
    """Return the arguments for Spark's ``trigger``."""
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    return {"processingTime": f"{parse_option('trigger', _INTERVAL, trigger)} milliseconds"}


def _continuation(log: ArchiveLog, checkpoint: Checkpoint) -> dict[str, str]:
    """Return options that make a new query continue where the archive ends. An existing query uses its checkpoint.

    :raises ArchiveError: checkpoint and archive do not belong together.
    """
    last, query_id = log.last(), checkpoint.query_id()
    archived = None if query_id is None else log.last_batch_of(query_id)
    committed = checkpoint.last_committed_batch()
    if committed is not None and (archived is None or archived < committed):
        raise ArchiveError(
            f"the checkpoint {checkpoint} has batches that {log.url} does not hold",
            next_step="use the directory that the checkpoint was created with, or a new checkpoint",
        )
    if last is not None and archived is not None and query_id != last.query_id:
        raise ArchiveError(
            f"the archive {log.url} was last written from another checkpoint than {checkpoint}",
            next_step="use that checkpoint, or a new one, which continues where the archive ends",
        )
    if last is None or archived is not None or not last.queues:
        return {}
    return {"startingOffsets": json.dumps(offsets_to_json(log.next_offsets()))}


class _Run:
    """One run of the archive query."""

    def __init__(
        self,
        spark: SparkSession,
        log: ArchiveLog,
        checkpoint: Checkpoint,
        options: Mapping[str, str],
        job: ArchiveOptions,
        work: TableWork,
    ) -> None:
        self._spark = spark
        self._work = work
        self._opened = OpenedArchive.of(log, work.bodies, work.of_topic)
        self._log = log
        self._checkpoint = checkpoint
        self._options = options
        self._bad_records_options = parse_storage(
            storage_options(options.get("badRecordsPath", ""), job.storage, spark=spark)
        )
        self._done = ArchiveRun(log, job.on_batch)
        self._mailbox = CommitMailbox(log.storage)
        self._elsewhere = is_connect(spark)
        on_commit = self._mailbox.post if self._elsewhere else self._done.add_commit
        self._commits = BatchCommits(self._opened, checkpoint, on_commit)
        self._failure: Exception | None = None

    def run(self, timing: Mapping[str, Any], stop: threading.Event | None) -> ArchiveReport:
        from pyspark.errors import PySparkException, StreamingQueryException

        if self._elsewhere:
            self._mailbox.clear()
        source = source_for(self._opened, self._bad_records_options)
        self._spark.dataSource.register(source)
        writer = (
            self._spark.readStream.format(source.name())
            .options(**self._options)
            .load()
            .writeStream.foreachBatch(self._commits if self._elsewhere else self._commit)
            .option("checkpointLocation", str(self._checkpoint))
            .queryName(f"archive {self._log.url}")
            .trigger(**timing)
        )
        try:
            query = writer.start()
        except PySparkException as error:
            raise self._query_error(error) from error
        stopped = False
        beside = self._work.beside
        try:
            with nullcontext() if beside is None else beside(self._spark, self._log, self._done):
                while not query.awaitTermination(_POLL_SECONDS):
                    self._collect()
                    if stop is not None and stop.is_set():
                        stopped = True
                        query.stop()
                self._collect()
        except KeyboardInterrupt:
            stopped = True
            query.stop()
        except StreamingQueryException as error:
            if isinstance(self._failure, CometMQError):
                raise self._failure from error
            if self._failure is not None:
                raise SparkSourceError(
                    f"a batch could not be committed: {self._failure}",
                    next_step="fix the cause and run the job again; messages that were already committed are not lost",
                ) from self._failure
            raise self._query_error(error) from error
        self._collect()
        return self._done.report(finished=not stopped or "availableNow" not in timing)

    def _query_error(self, error: Exception) -> SparkSourceError:
        """Return the error with Spark's message. If the error is about the checkpoint, it also states how to replace
        the checkpoint.
        """
        cause = cause_of(str(error))
        if str(self._checkpoint) not in cause:
            return SparkSourceError(cause)
        return SparkSourceError(
            cause, next_step="name a new --checkpoint instead: the archive goes on where its last commit ends"
        )

    def _collect(self) -> None:
        if self._elsewhere:
            for commit in self._mailbox.collect():
                self._done.add_commit(commit)

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._commits(frame, batch_id, self._done.add_read)
        except (OSError, CometMQError) as error:  # Spark would only hand on its text
            self._failure = error
            raise


class BatchCommits:
    """The function that Spark calls with each micro-batch. The function can be pickled.

    :param on_commit: called with each commit, in the process that commits.
    """

    def __init__(
        self,
        archive: OpenedArchive,
        checkpoint: Checkpoint,
        on_commit: Callable[[Commit], None],
    ) -> None:
        self._given = (archive, checkpoint, on_commit)
        self._checkpoint = checkpoint
        self._on_commit = on_commit

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments, since a catalog's connections cannot leave their process."""
        return BatchCommits, self._given

    @cached_property
    def _log(self) -> ArchiveLog:
        return self._given[0].open_log()

    def __call__(
        self, frame: DataFrame, batch_id: int, on_read: Callable[[list[Covered]], object] = lambda _: None
    ) -> None:
        """Commit the files that a batch's tasks have written, unless the batch is already committed.

        :param on_read: called with what the tasks have read, before the commit.
        :raises ArchiveError: the batch overlaps archived offsets.
        """
        query_id = self._checkpoint.query_id()
        assert query_id is not None, "Spark writes the checkpoint's metadata before the first batch"
        manifests = [msgspec.json.decode(row[0], type=Manifest) for row in frame.collect()]
        on_read([of.covered for of in manifests if of.covered])
        settled = settle_columns(frame.sparkSession, self._log, self._given[0], manifests)
        commit = commit_manifests(self._log, query_id, batch_id, settled.manifests, settled.columns)
        self._log.storage.delete(settled.replaced)
        if commit is not None:
            self._on_commit(commit)


_MAILBOX: Final = "_told"
"""Archive directory for commits that have not been passed to the job yet."""


class CommitMailbox:
    """Passes commits as objects from the process that runs the batches to the job's process."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def clear(self) -> None:
        """Delete commits that a killed run did not read."""
        self._storage.delete(self._keys())

    def post(self, commit: Commit) -> None:
        """Pass a commit to the job."""
        self._storage.put(f"{_MAILBOX}/{commit.sequence:020d}.json", msgspec.json.encode(commit))

    def collect(self) -> Iterator[Commit]:
        """Read the commits in order, and delete them."""
        for key in self._keys():
            yield msgspec.json.decode(self._storage.read(key), type=Commit)
            self._storage.delete([key])

    def _keys(self) -> list[str]:
        return sorted(found.key for found in self._storage.list_objects(_MAILBOX))
