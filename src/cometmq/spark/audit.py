"""The audit job: whether what was produced, stored, consumed and archived of a topic agrees, per queue and minute.

Every message is looked at, its body never. Spark counts; what comes to the driver are sums (:mod:`~.audit_sums`), and
the first disagreements of each kind (:mod:`~.audit_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import TRACE_TOPIC
from cometmq.quantity import quantity
from cometmq.spark import audit_checks as checks
from cometmq.spark import audit_sums as sums
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.audit_checks import Note
from cometmq.spark.audit_frames import archived_frame, minutes_of, not_deleted, produced_frame, stored_frame
from cometmq.spark.audit_parties import Parties
from cometmq.spark.audit_report import AuditReport, Disagreement
from cometmq.spark.cluster import Cluster
from cometmq.spark.environment import driver_session
from cometmq.spark.errors import ArchiveError
from cometmq.spark.group_offsets import committed_offsets
from cometmq.spark.job_source import kept, new_directory
from cometmq.spark.options import parse_options
from cometmq.spark.reach import reach
from cometmq.spark.readers import demand_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    # Groups and the archive's log, then brokers: the first two can only be behind what is asked after them.
    consumed = {group: committed_offsets(cluster, queues, group) for group in groups}
    with driver_session(spark, master, "cometmq audit") as session:
        totals = {} if log is None else {of.queue: of for of in log.queues() if of.topic == topic}
        bounds = cluster.bounds(queues)
        parties = Parties(topic, bounds, {queue: held.first for queue, held in bounds.items()}, totals, consumed)
        return _Audit(session, cluster, servers, parties, log, on_step).run(trace_topic, allow_duplicates, counts)


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
        parties: Parties,
        log: ArchiveLog | None,
        on_step: Callable[[str], None],
    ) -> None:
        self._began = SYSTEM_CLOCK.monotonic()
        self._spark = spark
        self._cluster = cluster
        self._servers = servers
        self._parties = parties
        self._log = log
        self._on_step = on_step
        self._found: list[Disagreement | Note] = []

    def run(self, trace_topic: str, allow_duplicates: bool, detail: Path | None) -> AuditReport:
        """Count and compare."""
        log, parties = self._log, self._parties
        with kept(stored_frame(self._spark, self._servers, parties.topic, parties.bounds)) as stored:
            if log is None:
                return self._compared(stored, None, trace_topic, allow_duplicates, detail)
            with kept(archived_frame(self._spark, log, parties.topic)) as archived:
                return self._compared(stored, archived, trace_topic, allow_duplicates, detail)

    def _compared(
        self,
        stored: DataFrame,
        archived: DataFrame | None,
        trace_topic: str,
        allow_duplicates: bool,
        detail: Path | None,
    ) -> AuditReport:
        held = self._parties.held
        self._on_step(f"counting {held:,} stored and {self._parties.archived:,} archived messages")
        if stored.count() < held:
            self._leave_out_deleted()
        parties = self._parties
        with kept(minutes_of(self._spark, stored, archived, parties.limits())) as minutes:
            if detail is not None:
                minutes.write.parquet(str(detail))
            counts = sums.counted(minutes, parties.topic)
            self._on_step("comparing")
            self._found += checks.stored_offsets(parties, stored, counts)
            self._found += checks.group_offsets(parties)
            if archived is not None:
                self._found += checks.reach(parties)
                self._found += checks.archived_offsets(parties, archived, counts)
                self._found += checks.minute_by_minute(parties, minutes)
            self._found += checks.unique_keys(stored, allowed=allow_duplicates)
            produced = self._produced(stored, archived, trace_topic)
            spans = sums.spans(minutes)
        return AuditReport(
            topic=parties.topic,
            archive=None if self._log is None else str(self._log.root),
            groups=tuple(parties.consumed),
            produced=produced,
            queues=parties.queues(counts),
            spans=spans,
            lateness=sums.lateness(stored, archived),
            disagreements=tuple(found for found in self._found if isinstance(found, Disagreement)),
            notes=tuple(found.told for found in self._found if isinstance(found, Note)),
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )

    def _leave_out_deleted(self) -> None:
        """What retention took while the audit read is not looked for."""
        self._parties = self._parties.without_deleted(self._cluster.bounds(self._parties.bounds))
        taken = self._parties.deleted()
        if any(taken):
            told = (
                f"{quantity(sum(taken), 'message')} of {quantity(sum(map(bool, taken)), 'queue')} expired while they "
                "were read: brokers deleted them, and those that were not read before are left out"
            )
            self._found.append(Note(told))

    def _produced(self, stored: DataFrame, archived: DataFrame | None, trace_topic: str) -> int | None:
        """How many messages producers say they have sent, ``None`` where nothing is told; all of them are there."""
        if not Cluster(parse_options({**self._servers, "topic": trace_topic})).queues():
            return None
        columns = ("uniqKey", "bornTimestamp", "storeTimestamp")
        there = stored.select(*columns)
        known = not_deleted(stored, self._parties.kept_from).select(*columns)
        if archived is not None:
            there, known = (frame.union(archived.select(*columns)) for frame in (there, known))
        with kept(produced_frame(self._spark, self._servers, trace_topic, self._parties.topic)) as produced:
            count = produced.count()
            if count:
                self._found += checks.acknowledged(produced, there, known)
            return count or None
