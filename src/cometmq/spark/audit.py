"""The audit job: whether what was produced, stored, consumed and archived of a topic agrees, per queue and minute.

Every message is looked at, its body never. Spark counts; what comes to the driver is a row for each queue, the first
disagreements of each kind, and curves of at most some hundred points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import TRACE_TOPIC
from cometmq.quantity import are, quantity
from cometmq.spark.archive_commit import QueueTotals
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.audit_frames import QUEUE, archived_frame, gaps_in, minutes_of, produced_frame, stored_frame, took
from cometmq.spark.audit_report import AuditReport, Disagreement, Lateness, QueueAudit, Span, moment
from cometmq.spark.cluster import Cluster
from cometmq.spark.environment import driver_session
from cometmq.spark.errors import ArchiveError
from cometmq.spark.group_offsets import committed_offsets
from cometmq.spark.job_source import kept, new_directory
from cometmq.spark.options import parse_options
from cometmq.spark.queues import Queue
from cometmq.spark.reach import reach
from cometmq.spark.readers import demand_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPANS: Final = 240
"""Points of the curves that come to the driver."""
FIRST: Final = 5
"""Disagreements told of each kind."""
_MINUTE_S: Final = 60
_SAID_BY_COMMITS: Final = "the commits of the archive (gaps) say whether they were gone before they could be read"


def audit(
    namesrv: str,
    topic: str,
    *,
    archive: str | Path | None = None,
    groups: Sequence[str] = (),
    trace_topic: str = TRACE_TOPIC,
    allow_duplicates: bool = False,
    detail: str | Path | None = None,
    access: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Compare what is said of a topic.

    :param namesrv: nameservers of the topic, ``host:port`` separated by ``;``.
    :param archive: directory of an archive of it; without one only the brokers are looked at.
    :param groups: consumer groups whose offsets are looked at.
    :param trace_topic: where producers tell what they sent; left out where there is nothing about the topic.
    :param allow_duplicates: unique keys that are stored twice are noted, and do not count as a disagreement.
    :param detail: directory for the counts of every queue and minute, as Parquet; it must not be there yet.
    :param access: credentials and TLS, by the options of the source; what they leave open the environment says.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: told what is being done.
    :raises OptionError: the topic does not exist, there is no archive of it in the directory, a name is wrong, or
        ``detail`` is there.
    :raises ArchiveError: files that the archive names are lost.
    """
    counts = new_directory(detail)
    servers = reach(namesrv, access)
    options = parse_options({**servers, "topic": topic})
    cluster = Cluster(options)
    queues = cluster.queues()
    demand_topics(options, queues)
    log = None if archive is None else _log_of(Path(archive).absolute(), topic)
    # Groups, then brokers, then the archive's log: each can only be behind the next one that is asked.
    consumed = {group: committed_offsets(cluster, queues, group) for group in groups}
    with driver_session(spark, master, "cometmq audit") as session:
        work = _Audit(session, cluster, servers, topic, queues, log, consumed, on_step)
        return work.run(trace_topic, allow_duplicates, counts)


def _log_of(directory: Path, topic: str) -> ArchiveLog:
    log = ArchiveLog(directory)
    log.demand_any((topic,))
    for file in log.files():
        if file.topic == topic and not (log.root / file.path).is_file():
            raise ArchiveError(f"the archive {directory} has lost {file.path}", next_step="restore it from a backup")
    return log


class _Audit:
    """One audit; what comes after it has begun is left out."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        servers: Mapping[str, str],
        topic: str,
        queues: Sequence[Queue],
        log: ArchiveLog | None,
        consumed: Mapping[str, Mapping[Queue, int]],
        on_step: Callable[[str], None],
    ) -> None:
        self._began = SYSTEM_CLOCK.monotonic()
        self._spark = spark
        self._cluster = cluster
        self._servers = servers
        self._topic = topic
        self._log = log
        self._consumed = consumed
        self._on_step = on_step
        self._totals: dict[Queue, QueueTotals] = {}
        if log is not None:
            mine = [of for of in log.queues() if of.topic == topic]
            self._totals = {of.queue: of for of in mine}
        self._bounds = cluster.bounds(queues)
        self._kept_from = {queue: held.first for queue, held in self._bounds.items()}
        """First offset that the broker did not delete while it was being read."""
        self._found: list[Disagreement] = []
        self._notes: list[str] = []

    def run(self, trace_topic: str, allow_duplicates: bool, detail: Path | None) -> AuditReport:
        """Count and compare."""
        log = self._log
        with kept(stored_frame(self._spark, self._servers, self._topic, self._bounds)) as stored:
            if log is None:
                return self._compared(stored, None, trace_topic, allow_duplicates, detail)
            with kept(archived_frame(self._spark, log, self._topic)) as archived:
                return self._compared(stored, archived, trace_topic, allow_duplicates, detail)

    def _compared(
        self,
        stored: DataFrame,
        archived: DataFrame | None,
        trace_topic: str,
        allow_duplicates: bool,
        detail: Path | None,
    ) -> AuditReport:
        held = sum(held.end - held.first for held in self._bounds.values())
        self._on_step(
            f"counting {held:,} stored and {sum(of.rows for of in self._totals.values()):,} archived messages"
        )
        if stored.count() < held:
            self._leave_out_deleted()
        with kept(minutes_of(self._spark, stored, archived, self._limits())) as minutes:
            if detail is not None:
                minutes.write.parquet(str(detail))
            counted = self._counted(minutes)
            self._on_step("comparing")
            self._check_stored(stored, counted)
            self._check_groups()
            if archived is not None:
                self._check_reach()
                self._check_archived(archived, counted)
                self._check_minutes(minutes)
            self._check_unique_keys(stored, allow_duplicates)
            produced = self._check_produced(stored, archived, trace_topic)
            spans = self._spans(minutes)
        return AuditReport(
            topic=self._topic,
            archive=None if self._log is None else str(self._log.root),
            groups=tuple(self._consumed),
            produced=produced,
            queues=self._queues(counted),
            spans=spans,
            lateness=self._lateness(stored, archived),
            disagreements=tuple(self._found),
            notes=tuple(self._notes),
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )

    def _leave_out_deleted(self) -> None:
        """What retention took while the audit read is not looked for."""
        for queue, held in self._cluster.bounds(self._bounds).items():
            self._kept_from[queue] = min(max(held.first, self._bounds[queue].first), self._bounds[queue].end)
        taken = [self._kept_from[queue] - held.first for queue, held in self._bounds.items()]
        if any(taken):
            self._notes.append(
                f"{quantity(sum(taken), 'message')} of {quantity(sum(map(bool, taken)), 'queue')} expired while they "
                "were read: brokers deleted them, and those that were not read before are left out"
            )

    def _not_deleted(self, stored: DataFrame) -> DataFrame:
        """What brokers still held when it had been read: the rest is there of some queues, and of others not."""
        from pyspark.sql import functions as f

        rows = [(queue.broker, queue.queue_id, first) for queue, first in self._kept_from.items()]
        limits = self._spark.createDataFrame(rows, "brokerName string, queueId int, keptFrom bigint")
        return stored.join(f.broadcast(limits), list(QUEUE)).where("queueOffset >= keptFrom")

    # Counting ---------------------------------------------------------------------------------------

    def _limits(self) -> list[tuple[str, int, int, int, int, int, int]]:
        limits = []
        for queue, held in self._bounds.items():
            of = self._totals.get(queue)
            first, end = (0, 0) if of is None else (max(self._kept_from[queue], of.first), min(held.end, of.next))
            expired = (0, 0) if of is None else (of.expired_to, of.expired_before_ms)
            reached = [offsets.get(queue, 0) for offsets in self._consumed.values()]
            limits.append((queue.broker, queue.queue_id, first, max(first, end), *expired, min(reached, default=0)))
        return limits

    def _counted(self, minutes: DataFrame) -> dict[Queue, Any]:
        from pyspark.sql import functions as f

        rows = minutes.groupBy(*QUEUE).agg(
            f.sum("stored").alias("stored"),
            f.sum("archived").alias("archived"),
            f.min("storedFirst").alias("storedFirst"),
            f.max("storedLast").alias("storedLast"),
            f.min("archivedFirst").alias("archivedFirst"),
            f.max("archivedLast").alias("archivedLast"),
        )
        return {Queue(self._topic, row["brokerName"], row["queueId"]): row for row in rows.collect()}

    def _queues(self, counted: Mapping[Queue, Any]) -> tuple[QueueAudit, ...]:
        found = []
        for queue in sorted({*self._bounds, *self._totals}):
            held, of, row = self._bounds.get(queue), self._totals.get(queue), counted.get(queue)
            found.append(
                QueueAudit(
                    broker=queue.broker,
                    queue_id=queue.queue_id,
                    first=None if held is None else held.first,
                    end=None if held is None else held.end,
                    stored=None if held is None else (row["stored"] if row else 0),
                    archived=None if of is None else (row["archived"] if row else 0),
                    archived_from=None if of is None else of.first,
                    archived_to=None if of is None else of.next,
                    consumed={g: offsets[queue] for g, offsets in self._consumed.items() if queue in offsets},
                )
            )
        return tuple(found)

    def _spans(self, minutes: DataFrame) -> tuple[Span, ...]:
        from pyspark.sql import functions as f

        at = f.unix_timestamp("minute")
        edges = minutes.agg(f.min(at).alias("first"), f.max(at).alias("last")).collect()[0]
        if edges["first"] is None:
            return ()
        width = -(-(edges["last"] - edges["first"] + _MINUTE_S) // (SPANS * _MINUTE_S)) * _MINUTE_S
        sums = [f.sum(name) for name in ("stored", "archived", "consumed")]
        rows = minutes.groupBy(f.floor((at - edges["first"]) / width)).agg(*sums).collect()
        found = {number: counts for number, *counts in rows}
        return tuple(
            Span((edges["first"] + number * width) * 1000, *found.get(number, (0, 0, 0)))
            for number in range(max(found) + 1)
        )

    def _lateness(self, stored: DataFrame, archived: DataFrame | None) -> tuple[Lateness, ...]:
        ways = [("born → stored", stored, "bornTimestamp", "storeTimestamp")]
        if archived is not None:
            ways.append(("stored → archived", archived, "storeTimestamp", "archivedTimestamp"))
        found = []
        for way, frame, begin, end in ways:
            late = took(begin, end)
            row = frame.selectExpr(f"percentile_approx({late}, array(0.5, 0.99)) AS q", f"max({late}) AS m").first()
            assert row is not None
            if row["m"] is not None:
                found.append(Lateness(way, int(row["q"][0]), int(row["q"][1]), int(row["m"])))
        return tuple(found)

    # Comparing --------------------------------------------------------------------------------------

    def _differ(self, what: str, next_step: str) -> None:
        self._found.append(Disagreement(what, next_step))

    def _check_stored(self, stored: DataFrame, counted: Mapping[Queue, Any]) -> None:
        """Offsets of a queue follow each other."""
        bad = []
        for queue, held in sorted(self._bounds.items()):
            row = counted.get(queue)
            there = row["stored"] if row is not None else 0
            if there == held.end - held.first:
                continue
            kept_from = self._kept_from[queue]
            bad.append((queue.broker, queue.queue_id, kept_from))
            ends = (held.end, held.end)
            if row is not None and there:
                ends = (row["storedFirst"], row["storedLast"] + 1)
            for first, end in ((kept_from, ends[0]), (max(ends[1], kept_from), held.end)):
                if first < end:
                    self._differ(
                        f"{queue}: the broker says it holds offsets {first:,} to {end:,}, and hands on none of them",
                        "read its log (cometmq doctor, then pipeline rebuild --dry-run on its store)",
                    )
        if bad:
            for broker, queue_id, first, end in gaps_in(stored, bad, FIRST):
                self._differ(
                    f"{Queue(self._topic, broker, queue_id)}: offsets {first:,} to {end:,} are missing at the broker",
                    "compare its consume queues with its log: cometmq pipeline rebuild --dry-run",
                )

    def _check_groups(self) -> None:
        """Groups stand within what the broker holds."""
        for group, offsets in self._consumed.items():
            if not offsets:
                self._notes.append(f"group {group} has no offsets in this topic")
            for queue, offset in sorted(offsets.items()):
                held = self._bounds[queue]
                if offset > held.end:
                    self._differ(
                        f"{queue}: group {group} has consumed up to {offset:,}, and the queue ends at {held.end:,}",
                        "was the topic made anew, or did the broker lose its end? cometmq group reset-offset",
                    )
                elif offset < held.first:
                    self._differ(
                        f"{queue}: {quantity(held.first - offset, 'message')} went before group {group} had consumed "
                        "them",
                        "an archive may hold them: cometmq pipeline replay",
                    )

    def _check_reach(self) -> None:
        """Archive and broker meet."""
        late = 0
        for queue in sorted({*self._bounds, *self._totals}):
            held, of = self._bounds.get(queue), self._totals.get(queue)
            if held is None and of is not None:
                self._differ(f"{queue} is in the archive, and no broker has it", "is a broker away? cometmq cluster")
            elif held is not None and of is None:
                late += held.end - held.first
            elif held is not None and of is not None and of.next > held.end:
                self._differ(
                    f"{queue}: the archive goes up to {of.next:,}, and the queue ends at {held.end:,}",
                    "was the topic made anew, or did the broker lose its end? archive it into another directory",
                )
            elif held is not None and of is not None:
                kept_from = self._kept_from[queue]
                if kept_from > of.next:
                    self._differ(
                        f"{queue}: offsets {of.next:,} to {kept_from:,} went before they were archived",
                        "archive more often, or keep messages longer (fileReservedTime)",
                    )
                late += held.end - max(kept_from, of.next)
        if late:
            self._notes.append(f"{quantity(late, 'message')} {are(late)} not archived yet")

    def _check_archived(self, archived: DataFrame, counted: Mapping[Queue, Any]) -> None:
        """The archive's files hold what its log says, each offset once."""
        bad = []
        for queue, of in sorted(self._totals.items()):
            row = counted.get(queue)
            there = row["archived"] if row else 0
            if there != of.rows:
                self._differ(
                    f"{queue}: the archive's log counts {quantity(of.rows, 'message')}, its files hold {there:,}",
                    "restore the archive's files from a backup",
                )
            if there != of.next - of.first:
                bad.append((queue.broker, queue.queue_id, of.expired_to))
                ends = (of.next, of.next)
                if row is not None and there:
                    ends = (row["archivedFirst"], row["archivedLast"] + 1)
                for first, end in ((of.first, ends[0]), (ends[1], of.next)):
                    if first < end:
                        self._differ(
                            f"{queue}: offsets {first:,} to {end:,} are missing in the archive", _SAID_BY_COMMITS
                        )
            if of.expired_to:
                self._notes.append(
                    f"{queue}: retention has taken out what was stored before {moment(of.expired_before_ms)}, up to "
                    f"offset {of.expired_to:,}; the archive is looked at for gaps from there on"
                )
        for broker, queue_id, first, end in gaps_in(archived, bad, FIRST) if bad else ():
            self._differ(
                f"{Queue(self._topic, broker, queue_id)}: offsets {first:,} to {end:,} are missing in the archive",
                _SAID_BY_COMMITS,
            )
        twice = archived.groupBy(*QUEUE, "queueOffset").count().where("count > 1")
        for row in twice.orderBy(*QUEUE, "queueOffset").limit(FIRST).collect():
            self._differ(
                f"{Queue(self._topic, row['brokerName'], row['queueId'])}: offset {row['queueOffset']:,} is in the "
                f"archive {row['count']} times",
                "restore the archive from a backup; report a bug",
            )

    def _check_minutes(self, minutes: DataFrame) -> None:
        """Where both hold a stretch of a queue, every minute of it has the same messages."""
        from pyspark.sql import functions as f

        rows = (
            minutes.where("storedBoth != archivedBoth OR NOT storedContent <=> archivedContent")
            .orderBy("minute", *QUEUE)
            .limit(FIRST)
            .select(*QUEUE, "storedBoth", "archivedBoth", f.unix_millis("minute").alias("at"))
            .collect()
        )
        for row in rows:
            queue = Queue(self._topic, row["brokerName"], row["queueId"])
            counts = (row["storedBoth"], row["archivedBoth"])
            told = "as many, but not the same messages" if counts[0] == counts[1] else "not the same"
            self._differ(
                f"{queue}, {moment(row['at'])}: {counts[0]:,} stored and {counts[1]:,} archived, {told}",
                "compare the two by queueOffset and uniqKey: spark.read.format('rocketmq') and read_archive",
            )

    def _check_unique_keys(self, stored: DataFrame, allowed: bool) -> None:
        from pyspark.sql import functions as f

        twice = stored.where("uniqKey IS NOT NULL").groupBy("uniqKey").agg(f.count("*").alias("times"))
        twice = twice.where("times > 1")
        sums = twice.agg(f.count("*").alias("keys"), f.sum(f.col("times") - 1).alias("copies")).collect()[0]
        if not sums["keys"]:
            return
        first = ", ".join(row["uniqKey"] for row in twice.orderBy("uniqKey").limit(FIRST).collect())
        told = (
            f"{quantity(sums['keys'], 'unique key')} {are(sums['keys'])} stored more than once "
            f"({sums['copies']:,} {'copy' if sums['copies'] == 1 else 'copies'}): {first}"
        )
        if allowed:
            self._notes.append(told)
        else:
            self._differ(
                told,
                "producers that send again after a failure make copies; --allow-duplicates takes them for normal",
            )

    def _check_produced(self, stored: DataFrame, archived: DataFrame | None, trace_topic: str) -> int | None:
        """What producers say they have sent is stored, or archived; gives how many messages that are."""
        from pyspark.sql import functions as f

        if not Cluster(parse_options({**self._servers, "topic": trace_topic})).queues():
            return None
        columns = ("uniqKey", "bornTimestamp", "storeTimestamp")
        there, known = stored.select(*columns), self._not_deleted(stored).select(*columns)
        if archived is not None:
            there, known = (frame.union(archived.select(*columns)) for frame in (there, known))
        with kept(produced_frame(self._spark, self._servers, trace_topic, self._topic)) as produced:
            count = produced.count()
            if not count:
                return None
            since = known.selectExpr(
                "unix_millis(greatest(min(bornTimestamp), min(storeTimestamp))) AS since"
            ).collect()[0]["since"]
            missing = produced.join(there, "uniqKey", "left_anti")
            if since is not None:
                missing = missing.where(f.unix_millis("producedTimestamp") >= since)
            lost = missing.count()
            if lost:
                first = missing.orderBy("producedTimestamp", "uniqKey").limit(FIRST).collect()
                self._differ(
                    f"{quantity(lost, 'message')} that producers had acknowledged {are(lost)} neither stored nor "
                    "archived: " + ", ".join(row["uniqKey"] for row in first),
                    "see what became of one: cometmq message trace; did a broker lose its disk?",
                )
            return count
