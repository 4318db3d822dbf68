"""The archive job: topics → a table of Parquet files, Delta Lake or Iceberg, exactly once, going on where it stopped.

A streaming query plans offsets (kept in Spark's checkpoint), its tasks write files (:mod:`~.archive_writer`), and
the driver commits them (:mod:`~.archive_log`). Whatever point a crash comes at:

* before the commit: Spark repeats the batch with the same offsets; the files get the same names again;
* after the commit, before Spark's own: Spark repeats the batch, tasks and driver see that it is committed and skip it;
* the checkpoint is lost: a new one goes on where the archive's last commit ends;
* before Spark has written the offsets of the first batch: what it left is set aside, and the query begins anew where
  it would have begun (:mod:`~.checkpoint`, :mod:`~.starting_offsets`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.spark.archive_batches import BatchCommits, ToldCommits
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_report import ArchivedBatch, ArchiveReport, ArchiveRun, expected
from cometmq.spark.archive_table import TableFormat, format_of
from cometmq.spark.archive_writer import FORMAT, PATH_OPTION, ArchiveWriterSource
from cometmq.spark.checkpoint import has_begun, last_committed_batch, query_id_of, set_aside_dead_start
from cometmq.spark.cluster import Cluster
from cometmq.spark.environment import driver_session, is_connect
from cometmq.spark.errors import ArchiveError, OptionError, SparkSourceError
from cometmq.spark.options import EARLIEST, LATEST, SourceOptions, parse_options
from cometmq.spark.queues import OffsetRange, Offsets, offsets_to_json
from cometmq.spark.reach import reach
from cometmq.spark.readers import demand_topics, resolve_start
from cometmq.spark.starting_offsets import kept_starting_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AVAILABLE_NOW: Final = "availableNow"
COMMIT_ROWS: Final = 1_000_000
"""Messages of one commit: a few seconds to repeat after a crash."""
COMMIT_BYTES: Final = "2g"
"""Bytes of one commit, for large messages."""
LOOKED_EVERY: Final = "1s"
"""How often the queues are looked at while messages wait for their commit."""
STARTING_OFFSETS: Final = "_starting_offsets.json"
"""File of a checkpoint with where its first start was to begin."""
_NEVER_SO_MANY: Final = str(10**18 - 1)
_POLL_SECONDS: Final = 1
_MOST_SAID: Final = 1000
"""Characters of Spark's words about a failure; some of its errors hold whole plans."""
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def archive(
    namesrv: str,
    topics: str | Sequence[str],
    to: str | Path,
    checkpoint: str | Path,
    *,
    table_format: TableFormat | str | None = None,
    trigger: str = AVAILABLE_NOW,
    commit_interval: str | None = None,
    starting_offsets: str = "earliest",
    max_offsets_per_trigger: int | None = COMMIT_ROWS,
    commit_bytes: str | None = COMMIT_BYTES,
    options: Mapping[str, str] | None = None,
    access: Mapping[str, str] | None = None,
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_batch: Callable[[ArchivedBatch], None] | None = None,
    stop: threading.Event | None = None,
) -> ArchiveReport:
    """Archive topics into ``to`` and return what was done.

    :param namesrv: nameservers, ``host:port`` separated by ``;``.
    :param topics: their names; empty if ``options`` has ``subscribePattern``.
    :param to: directory that driver and executors share.
    :param checkpoint: directory of Spark's checkpoint; where it is new and the archive is not, the job goes on
        where the archive ends.
    :param table_format: of an archive that is not there yet: ``parquet``, ``delta`` or ``iceberg``, or more in a
        :class:`~cometmq.spark.archive_table.TableFormat`.
    :param trigger: ``availableNow`` to stop at what is there now, or an interval such as ``30s`` to go on until
        ``stop`` is set or Ctrl-C comes.
    :param commit_interval: go on until stopped, and commit when messages have waited so long, such as ``5m``, or
        when as many are there as one commit may hold. Then ``trigger`` says how often to look, every second if it
        is left as it is.
    :param starting_offsets: for queues that are not in the archive yet.
    :param max_offsets_per_trigger: most messages in one batch, and so in one commit.
    :param commit_bytes: about the most bytes of records in one commit, such as ``64m``.
    :param options: more options of the rocketmq source.
    :param access: credentials and TLS, by the options of the source; what they leave open the environment says.
    :param dry_run: write nothing and need no Spark; count what the queues hold and the archive does not.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_batch: called after each commit.
    :raises OptionError: an argument is wrong, or a topic is not there.
    :raises ArchiveError: another job holds the archive, or another checkpoint has continued it.
    :raises SparkSourceError: the query failed; what was committed stays.
    """
    named = [topics] if isinstance(topics, str) else list(topics)
    given = {**reach(namesrv, access), "startingOffsets": starting_offsets, **(options or {})}
    if named:
        given["topic"] = ",".join(named)
    if max_offsets_per_trigger is not None:
        given.setdefault("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
    if commit_bytes is not None:
        given.setdefault("maxBytesPerTrigger", commit_bytes)
    if commit_interval is not None:
        given["minOffsetsPerTrigger"] = given.get("maxOffsetsPerTrigger", _NEVER_SO_MANY)
        given["maxTriggerDelay"] = commit_interval
        trigger = LOOKED_EVERY if trigger == AVAILABLE_NOW else trigger
    if given.get("startingTimestamp"):
        del given["startingOffsets"]
    parse_options(given)
    timing = _timing(trigger)
    wanted = format_of(table_format)
    log = ArchiveLog(to, wanted)
    if dry_run:
        began = SYSTEM_CLOCK.monotonic()
        return expected(log, _new_at(given, log.next_offsets()), seconds=SYSTEM_CLOCK.monotonic() - began)
    with log.locked():
        set_aside_dead_start(checkpoint)
        continuation = _continuation(log, checkpoint)
        if continuation:
            given.pop("startingTimestamp", None)
        given |= continuation
        _demand_what_is_read(parse_options(given), is_new=not continuation and last_committed_batch(checkpoint) is None)
        if not continuation and not has_begun(checkpoint) and parse_options(given).starting_offsets != EARLIEST:
            given |= _fixed(given, Path(checkpoint) / STARTING_OFFSETS)
        with driver_session(spark, master, "cometmq archive") as session:
            return _Run(session, log, wanted, Path(checkpoint).absolute(), given, on_batch).run(timing, stop)


def _demand_what_is_read(options: SourceOptions, *, is_new: bool) -> None:
    """Ask the nameservers before Spark is started, which takes seconds.

    :raises UnreachableError: none answers.
    :raises OptionError: a new archive is to have a topic that is nowhere.
    """
    queues = Cluster(options).queues()
    if is_new:
        demand_topics(options, queues)


def _fixed(given: dict[str, str], kept_in: Path) -> dict[str, str]:
    """Where the first start that was ever made begins, so that one that dies leaves nothing out."""
    return {"startingOffsets": kept_starting_offsets(kept_in, given)}


def _new_at(given: Mapping[str, str], archived: Offsets) -> dict[OffsetRange, int]:
    """What brokers hold of each queue and the archive does not."""
    options = parse_options(given)
    cluster = Cluster(options)
    queues = cluster.queues()
    demand_topics(options, queues)
    bounds = cluster.bounds(queues)
    begin = resolve_start(options, cluster, bounds, LATEST) | archived
    parts = [OffsetRange(queue, max(begin[queue], held.first), held.end) for queue, held in bounds.items()]
    return {part: len(part) for part in parts}


def _timing(trigger: str) -> dict[str, Any]:
    """Arguments of Spark's ``trigger``."""
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    match = re.fullmatch(r"(\d{1,9}) ?(ms|s|m|h)", trigger)
    if match is None or int(match[1]) == 0:
        raise OptionError(f"trigger {trigger!r} is neither {AVAILABLE_NOW} nor an interval such as 30s, 5m or 1h")
    return {"processingTime": f"{match[1]} {_UNITS[match[2]]}"}


def _continuation(log: ArchiveLog, checkpoint: str | Path) -> dict[str, str]:
    """Options that make a new query go on where the archive ends; an old one has its checkpoint for that.

    :raises ArchiveError: checkpoint and archive do not belong together.
    """
    last, query_id = log.last(), query_id_of(checkpoint)
    archived = None if query_id is None else log.last_batch_of(query_id)
    committed = last_committed_batch(checkpoint)
    if committed is not None and (archived is None or archived < committed):
        raise ArchiveError(
            f"the checkpoint {checkpoint} has batches that {log.root} does not hold",
            next_step="use the directory that the checkpoint was made with, or a new checkpoint",
        )
    if last is not None and archived is not None and query_id != last.query_id:
        raise ArchiveError(
            f"the archive {log.root} was last written from another checkpoint than {checkpoint}",
            next_step="use that one, or a new one, which goes on where the archive ends",
        )
    if last is None or archived is not None or not last.queues:
        return {}
    return {"startingOffsets": json.dumps(offsets_to_json(log.next_offsets()))}


class _Run:
    """One run of the query."""

    def __init__(
        self,
        spark: SparkSession,
        log: ArchiveLog,
        wanted: TableFormat | None,
        checkpoint: Path,
        options: Mapping[str, str],
        on_batch: Callable[[ArchivedBatch], None] | None,
    ) -> None:
        self._spark = spark
        self._log = log
        self._checkpoint = checkpoint
        self._options = options
        self._done = ArchiveRun(log, on_batch)
        self._told = ToldCommits(log.root)
        self._elsewhere = is_connect(spark)
        tell = self._told.tell if self._elsewhere else self._done.committed
        self._commits = BatchCommits(log.root, wanted, checkpoint, tell)
        self._failure: Exception | None = None

    def run(self, timing: Mapping[str, Any], stop: threading.Event | None) -> ArchiveReport:
        from pyspark.errors import PySparkException, StreamingQueryException

        self._told.clear()
        self._spark.dataSource.register(ArchiveWriterSource)
        frame = self._spark.readStream.format(FORMAT).options(**{PATH_OPTION: str(self._log.root), **self._options})
        writer = (
            frame.load()
            .writeStream.foreachBatch(self._commits if self._elsewhere else self._commit)
            .option("checkpointLocation", str(self._checkpoint))
            .queryName(f"archive {self._log.root}")
            .trigger(**timing)
        )
        try:
            query = writer.start()
        except PySparkException as error:
            raise self._failed(error) from error
        stopped = False
        try:
            while not query.awaitTermination(_POLL_SECONDS):
                self._hear()
                if stop is not None and stop.is_set():
                    stopped = True
                    query.stop()
        except KeyboardInterrupt:
            stopped = True
            query.stop()
        except StreamingQueryException as error:
            if isinstance(self._failure, CometMQError):
                raise self._failure from error
            if self._failure is not None:
                raise SparkSourceError(
                    f"a batch could not be committed: {self._failure}",
                    next_step="run it again when that is mended; nothing that was committed is lost",
                ) from self._failure
            raise self._failed(error) from error
        self._hear()
        self._told.clear()
        return self._done.report(finished=not stopped or "availableNow" not in timing)

    def _failed(self, error: Exception) -> SparkSourceError:
        """Spark's words; where they are of the checkpoint, what can always be done without it."""
        cause = cause_of(str(error))
        if str(self._checkpoint) not in cause:
            return SparkSourceError(cause)
        return SparkSourceError(
            cause, next_step="name a new --checkpoint instead: the archive goes on where its last commit ends"
        )

    def _hear(self) -> None:
        for commit in self._told.heard():
            self._done.committed(commit)

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._commits(frame, batch_id)
        except (OSError, CometMQError) as error:  # Spark would only hand on its text
            self._failure = error
            raise


def cause_of(text: str) -> str:
    """Find in what Spark says about a failed query our own sentence, the last Python error, or all that it says.

    That is what stands before the query's state and stack traces, without the query's ids; its last sentence often
    is what to do.
    """
    for pattern in (r"^\s*cometmq\.[\w.]+Error: (.+)$", r"^\s*(\w[\w.]*Error: .+)$"):
        if found := re.findall(pattern, text, re.MULTILINE):
            return str(found[-1])
    said = re.split(r"^(?:=== |JVM stacktrace|Traceback|\s+at )", text.strip(), maxsplit=1, flags=re.MULTILINE)[0]
    said = re.sub(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: (?=.)", "", said)
    said = " ".join(re.sub(r"\s*SQLSTATE: \w{5}\b", "", said).split())
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"
