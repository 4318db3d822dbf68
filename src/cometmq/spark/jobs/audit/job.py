"""The audit job: it checks that the produced, stored, consumed and archived messages of a topic agree, per queue and
minute.

Every message is compared, but without its body. Spark counts the messages; the driver receives aggregates
(:mod:`.frames`) and the first disagreements of each kind. Each check yields disagreements and notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f

from cometmq.archive.files import topic_directory
from cometmq.clock import SYSTEM_CLOCK
from cometmq.quantity import are, quantity
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import ArchiveError
from cometmq.spark.jobs.audit.frames import (
    QUEUE,
    archived_frame,
    counted,
    gaps_in,
    lateness,
    minutes_of,
    not_deleted,
    produced_frame,
    spans,
    stored_frame,
)
from cometmq.spark.jobs.audit.report import AuditReport, Disagreement, Parties
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import AuditOptions
from cometmq.spark.jobs.report.parts import moment
from cometmq.spark.jobs.run import open_new_place, persisted
from cometmq.spark.jobs.task_files import write_new_table
from cometmq.spark.records.queues import Queue
from cometmq.spark.security_options import server_options
from cometmq.spark.session.environment import driver_session
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.offsets import demand_topics
from cometmq.spark.source.options import parse_options
from cometmq.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@job(AuditOptions)
def audit(options: AuditOptions) -> AuditReport:
    """Compare the produced, stored, consumed and archived messages of a topic.

    :raises OptionError: the topic does not exist, the directory contains no archive of the topic, a name is invalid, or
        ``detail`` already exists.
    :raises ArchiveError: the archive has lost files.
    """
    topic = options.topic
    detail = open_new_place(options.detail, options.storage)
    servers = server_options(options.namesrv, options.access)
    reading = parse_options({**servers, "topic": topic})
    cluster = Cluster(reading)
    queues = cluster.queues()
    demand_topics(reading, queues)
    log = None if options.archive is None else _log_of(options, options.archive)
    # Groups and the archive's log, then brokers: the first two can only be behind what is asked after them.
    consumed = {group: cluster.committed_offsets(queues, group) for group in options.groups}
    with driver_session(options.spark, options.master, "cometmq audit") as session:
        totals = {} if log is None else {of.queue: of for of in log.queues() if of.topic == topic}
        bounds = cluster.bounds(queues)
        parties = Parties(topic, bounds, {queue: held.first for queue, held in bounds.items()}, totals, consumed)
        return _Audit(options, session, cluster, servers, parties, log, detail).run()


def _log_of(options: AuditOptions, archive: str | Path) -> ArchiveLog:
    log, topic = ArchiveLog(archive, storage=options.storage), options.topic
    log.demand_any((topic,))
    there = {found.key for found in log.storage.list_objects(topic_directory(topic))}
    for file in log.files():
        if file.topic == topic and file.path not in there:
            raise ArchiveError(f"the archive {log.url} has lost {file.path}", next_step="restore it from a backup")
    return log


class _Audit:
    """One audit. Messages that arrive after the audit has started are left out."""

    def __init__(
        self,
        options: AuditOptions,
        spark: SparkSession,
        cluster: Cluster,
        servers: Mapping[str, str],
        parties: Parties,
        log: ArchiveLog | None,
        detail: Storage | None,
    ) -> None:
        self._began = SYSTEM_CLOCK.monotonic()
        self._options = options
        self._spark = spark
        self._cluster = cluster
        self._servers = servers
        self._parties = parties
        self._log = log
        self._detail = detail
        self._found: list[Disagreement | Note] = []

    def run(self) -> AuditReport:
        """Count the messages, run all checks, and return the report."""
        log, parties = self._log, self._parties
        with persisted(stored_frame(self._spark, self._servers, parties.topic, parties.bounds)) as stored:
            if log is None:
                return self._compared(stored, None)
            with persisted(archived_frame(self._spark, log, parties.topic)) as archived:
                return self._compared(stored, archived)

    def _compared(self, stored: DataFrame, archived: DataFrame | None) -> AuditReport:
        options = self._options
        held = self._parties.held
        options.on_step(f"counting {held:,} stored and {self._parties.archived:,} archived messages")
        if stored.count() < held:
            self._leave_out_deleted()
        parties = self._parties
        with persisted(minutes_of(self._spark, stored, archived, parties.limits())) as minutes:
            if self._detail is not None:
                write_new_table(minutes, self._detail)
            counts = counted(minutes, parties.topic)
            options.on_step("comparing")
            self._found += stored_offsets(parties, stored, counts)
            self._found += group_offsets(parties)
            if archived is not None and self._log is not None:
                self._found += other_lives(parties, self._cluster.changed_queues(self._log.marks()))
                self._found += coverage(parties)
                self._found += archived_offsets(parties, archived, counts)
                self._found += minute_by_minute(parties, minutes)
            self._found += unique_keys(stored, allowed=options.allow_duplicates)
            produced = self._produced(stored, archived)
            over_time = spans(minutes)
        return AuditReport(
            topic=parties.topic,
            archive=None if self._log is None else self._log.url,
            groups=tuple(parties.consumed),
            produced=produced,
            queues=parties.queues(counts),
            spans=over_time,
            lateness=lateness(stored, archived),
            disagreements=tuple(found for found in self._found if isinstance(found, Disagreement)),
            notes=tuple(found.text for found in self._found if isinstance(found, Note)),
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )

    def _leave_out_deleted(self) -> None:
        """Exclude messages that retention deleted while the audit was reading."""
        self._parties = self._parties.without_deleted(self._cluster.bounds(self._parties.bounds))
        taken = self._parties.deleted()
        if any(taken):
            text = (
                f"{quantity(sum(taken), 'message')} of {quantity(sum(map(bool, taken)), 'queue')} expired while they "
                "were read: brokers deleted them, and those not read before are left out"
            )
            self._found.append(Note(text))

    def _produced(self, stored: DataFrame, archived: DataFrame | None) -> int | None:
        """Check the sends in the trace topic. Return the number of sends, or None if the topic has no traces."""
        trace_topic = self._options.trace_topic
        if not Cluster(parse_options({**self._servers, "topic": trace_topic})).queues():
            return None
        columns = ("uniqKey", "bornTimestamp", "storeTimestamp")
        there = stored.select(*columns)
        known = not_deleted(stored, self._parties.held_from).select(*columns)
        if archived is not None:
            there, known = (frame.union(archived.select(*columns)) for frame in (there, known))
        with persisted(produced_frame(self._spark, self._servers, trace_topic, self._parties.topic)) as produced:
            count = produced.count()
            if count:
                self._found += acknowledged(produced, there, known)
            return count or None


FIRST: Final = 5
"""Maximum number of disagreements of each kind that a report lists."""
_SAID_BY_COMMITS: Final = "see gaps in the archive's commits: messages may have been deleted before they could be read"


class Note(NamedTuple):
    """A remark that is not a disagreement."""

    text: str


Findings = Iterator[Disagreement | Note]


def stored_offsets(parties: Parties, stored: DataFrame, counted: Mapping[Queue, Any]) -> Findings:
    """Check that each queue's offsets have no gaps."""
    bad = []
    for queue, held in sorted(parties.bounds.items()):
        row = counted.get(queue)
        there = row["stored"] if row is not None else 0
        if there == held.end - held.first:
            continue
        held_from = parties.held_from[queue]
        bad.append((queue.broker, queue.queue_id, held_from))
        ends = (held.end, held.end)
        if row is not None and there:
            ends = (row["storedFirst"], row["storedLast"] + 1)
        for first, end in ((held_from, ends[0]), (max(ends[1], held_from), held.end)):
            if first < end:
                yield Disagreement(
                    f"{queue}: the broker reports offsets {first:,} to {end:,}, but returns none of these messages",
                    "read its log (cometmq doctor, then pipeline rebuild --dry-run on its store)",
                )
    if bad:
        for broker, queue_id, first, end in gaps_in(stored, bad, FIRST):
            yield Disagreement(
                f"{Queue(parties.topic, broker, queue_id)}: offsets {first:,} to {end:,} are missing on the broker",
                "compare its consume queues with its log: cometmq pipeline rebuild --dry-run",
            )


def group_offsets(parties: Parties) -> Findings:
    """Check that the groups' offsets are within the range of offsets on the brokers."""
    for group, offsets in parties.consumed.items():
        if not offsets:
            yield Note(f"group {group} has no offsets in this topic")
        for queue, offset in sorted(offsets.items()):
            held = parties.bounds[queue]
            if offset > held.end:
                yield Disagreement(
                    f"{queue}: group {group} has consumed up to {offset:,}, and the queue ends at {held.end:,}",
                    "check whether the topic was recreated or the broker lost the end of the queue; then move the "
                    "group "
                    "with cometmq group reset",
                )
            elif offset < held.first:
                yield Disagreement(
                    f"{queue}: {quantity(held.first - offset, 'message')} were deleted before group {group} had "
                    "consumed them",
                    "an archive may contain them: see cometmq pipeline replay",
                )


def other_lives(parties: Parties, changed: Iterable[Queue]) -> Findings:
    """Check that no queue has been recreated since it was archived."""
    for queue in sorted(changed):
        if queue in parties.bounds:
            yield Disagreement(
                f"{queue} is not the archived queue: its topic was recreated, or the broker lost the end of the queue",
                "archive it into another directory; this archive keeps the earlier messages",
            )


def coverage(parties: Parties) -> Findings:
    """Check that no queue has a gap between the archive and the broker."""
    late = 0
    for queue in sorted({*parties.bounds, *parties.totals}):
        held, of = parties.bounds.get(queue), parties.totals.get(queue)
        if held is None and of is not None:
            yield Disagreement(
                f"{queue} is in the archive, but on no broker", "check whether a broker is down: cometmq cluster"
            )
        elif held is not None and of is None:
            late += held.end - held.first
        elif held is not None and of is not None and of.next > held.end:
            yield Disagreement(
                f"{queue}: the archive goes up to {of.next:,}, and the queue ends at {held.end:,}",
                "check whether the topic was recreated or the broker lost the end of the queue; then archive it into "
                "another directory",
            )
        elif held is not None and of is not None:
            held_from = parties.held_from[queue]
            if held_from > of.next:
                yield Disagreement(
                    f"{queue}: offsets {of.next:,} to {held_from:,} were deleted before they were archived",
                    "archive more often, or keep messages longer (fileReservedTime)",
                )
            late += held.end - max(held_from, of.next)
    if late:
        yield Note(f"{quantity(late, 'message')} {are(late)} not archived yet")


def archived_offsets(parties: Parties, archived: DataFrame, counted: Mapping[Queue, Any]) -> Findings:
    """Check that the archive's files contain the messages that its log states, each offset once."""
    bad = []
    for queue, of in sorted(parties.totals.items()):
        row = counted.get(queue)
        there = row["archived"] if row else 0
        if there != of.rows:
            yield Disagreement(
                f"{queue}: the archive's log lists {quantity(of.rows, 'message')}, but its files contain {there:,}",
                "restore the archive's files from a backup",
            )
        if there != of.next - of.first:
            bad.append((queue.broker, queue.queue_id, of.expired_to))
            ends = (of.next, of.next)
            if row is not None and there:
                ends = (row["archivedFirst"], row["archivedLast"] + 1)
            for first, end in ((of.first, ends[0]), (ends[1], of.next)):
                if first < end:
                    yield Disagreement(
                        f"{queue}: offsets {first:,} to {end:,} are missing in the archive", _SAID_BY_COMMITS
                    )
        if of.expired_to:
            yield Note(
                f"{queue}: retention has removed messages stored before {moment(of.expired_before_ms, 'm')} UTC, "
                f"up to offset {of.expired_to:,}; the archive is checked for gaps from there on"
            )
    for broker, queue_id, first, end in gaps_in(archived, bad, FIRST) if bad else ():
        yield Disagreement(
            f"{Queue(parties.topic, broker, queue_id)}: offsets {first:,} to {end:,} are missing in the archive",
            _SAID_BY_COMMITS,
        )
    twice = archived.groupBy(*QUEUE, "queueOffset").count().where("count > 1")
    for row in twice.orderBy(*QUEUE, "queueOffset").limit(FIRST).collect():
        yield Disagreement(
            f"{Queue(parties.topic, row['brokerName'], row['queueId'])}: offset {row['queueOffset']:,} is in the "
            f"archive {row['count']} times",
            "restore the archive from a backup; report a bug",
        )


def minute_by_minute(parties: Parties, minutes: DataFrame) -> Findings:
    """Check that both parties have the same messages in every minute, within the offsets that both have."""
    rows = (
        minutes.where("storedBoth != archivedBoth OR NOT storedContent <=> archivedContent")
        .orderBy("minute", *QUEUE)
        .limit(FIRST)
        .select(*QUEUE, "storedBoth", "archivedBoth", f.unix_millis("minute").alias("at"))
        .collect()
    )
    for row in rows:
        queue = Queue(parties.topic, row["brokerName"], row["queueId"])
        counts = (row["storedBoth"], row["archivedBoth"])
        text = "the counts are equal, but the messages differ" if counts[0] == counts[1] else "the counts differ"
        yield Disagreement(
            f"{queue}, {moment(row['at'], 'm')} UTC: {counts[0]:,} stored and {counts[1]:,} archived, {text}",
            "compare the two by queueOffset and uniqKey: spark.read.format('rocketmq') and read_archive",
        )


def unique_keys(stored: DataFrame, *, allowed: bool) -> Findings:
    """Check that each unique key is stored once. If copies are allowed, add a note instead."""
    twice = stored.where("uniqKey IS NOT NULL").groupBy("uniqKey").agg(f.count("*").alias("times"))
    twice = twice.where("times > 1")
    sums = twice.agg(f.count("*").alias("keys"), f.sum(f.col("times") - 1).alias("copies")).collect()[0]
    if not sums["keys"]:
        return
    first = ", ".join(row["uniqKey"] for row in twice.orderBy("uniqKey").limit(FIRST).collect())
    text = (
        f"{quantity(sums['keys'], 'unique key')} {are(sums['keys'])} stored more than once "
        f"({sums['copies']:,} {'copy' if sums['copies'] == 1 else 'copies'}): {first}"
    )
    if allowed:
        yield Note(text)
    else:
        yield Disagreement(
            text,
            "producers that resend after a failure create copies; accept them with --allow-duplicates",
        )


def acknowledged(produced: DataFrame, there: DataFrame, known: DataFrame) -> Findings:
    """Check that every message whose send was traced is stored or archived.

    :param produced: the result of :func:`.frames.produced_frame`.
    :param there: stored or archived messages, with ``uniqKey``.
    :param known: messages in ``there`` starting at the offsets from which all queues are complete, with their times.
    """
    since = known.selectExpr("unix_millis(greatest(min(bornTimestamp), min(storeTimestamp))) AS since").collect()[0][0]
    missing = produced.join(there, "uniqKey", "left_anti")
    if since is not None:
        missing = missing.where(f.unix_millis("producedTimestamp") >= since)
    lost = missing.count()
    if lost:
        first = missing.orderBy("producedTimestamp", "uniqKey").limit(FIRST).collect()
        yield Disagreement(
            f"{quantity(lost, 'message')} that producers had acknowledged {are(lost)} neither stored nor archived: "
            + ", ".join(row["uniqKey"] for row in first),
            "trace one of them with cometmq message trace, and check whether a broker lost its disk",
        )
