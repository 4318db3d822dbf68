"""The replay job: an archive's messages back into a topic, in steps that a run which died takes up again.

1. What the archive holds and no step has sent is cut into steps. Before a step sends anything, its plan is kept: the
   ranges of the archive, and where each queue of the topic ends.
2. Tasks send (:mod:`~.replay_sender`), one for each queue of the topic, in the order of offsets, and write where each
   message came to stand: the mapping.
3. The step is marked as done. One that was killed is repeated with its plan: what it has sent is found behind the
   ends that the plan names, by the origin in every message, and is not sent again.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.spark.archive import cause_of
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_reader import read_files
from cometmq.spark.cluster import Cluster
from cometmq.spark.environment import driver_session, tasks_at_a_time
from cometmq.spark.errors import ArchiveError, OptionError, SinkError, SparkSourceError
from cometmq.spark.offset_mapping import translate, write_offsets
from cometmq.spark.options import parse_options
from cometmq.spark.queues import OffsetRange, Queue
from cometmq.spark.reach import reach
from cometmq.spark.replay_ledger import Plan, Range, ReplayJob, ReplayLedger, Selection, TargetEnd, ranges_left
from cometmq.spark.replay_messages import SENT_COLUMNS
from cometmq.spark.replay_plan import files_of, same_queues, select, target_by_key, target_by_queue
from cometmq.spark.replay_report import ReplayedStep, ReplayReport, TranslatedOffset, queues_replayed
from cometmq.spark.replay_sender import GROUP, SENT_DDL, ReplayTask, send_batches
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.routes import look_up
from cometmq.spark.within import within

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

STEP_OFFSETS: Final = 200_000
"""Fewest offsets of one step that nobody has asked for: with a narrow selection most of them send nothing."""
STEP_SECONDS: Final = 20
"""How long a step that is sent at a rate may take, beyond the fewest offsets: a stop waits for its end."""
MOST_STEP_OFFSETS: Final = 500_000
"""Most of them: after a crash a task has the places of what its queue has got of the step in memory, 300 bytes each."""
TIMEOUT_MS: Final = 120_000


def replay(
    archive: str | Path,
    namesrv: str,
    ledger: str | Path,
    *,
    topic: str | None = None,
    to: str | None = None,
    selection: Selection | None = None,
    by_key: bool = False,
    per_second: float | None = None,
    keep_born_time: bool = False,
    translate_groups: Sequence[str] = (),
    groups_namesrv: str | None = None,
    access: Mapping[str, str] | None = None,
    groups_access: Mapping[str, str] | None = None,
    dry_run: bool = False,
    step_offsets: int | None = None,
    timeout_ms: int = TIMEOUT_MS,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[ReplayedStep], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> ReplayReport:
    """Send messages of an archive to a topic, and return what was done.

    :param archive: directory of the archive.
    :param namesrv: nameservers of the topic, ``host:port`` separated by ``;``.
    :param ledger: directory that driver and executors share; the same one again goes on where the last run stopped.
    :param topic: which topic of the archive; may be left out where it holds one.
    :param to: topic to send to, which must exist; by default one of the same name.
    :param selection: which messages; all without it.
    :param by_key: choose queues anew by key (order is kept per key), instead of keeping them.
    :param per_second: most messages a second.
    :param keep_born_time: give messages the born time they had, in requests of equal times, which is slower;
        otherwise it is in the property ``REPLAY_ORIGIN``.
    :param translate_groups: consumer groups that go on in the new topic where they are in the old one.
    :param groups_namesrv: nameservers of the brokers where those groups are; ``namesrv`` by default.
    :param access: credentials and TLS, by the options of the source; what they leave open the environment says.
    :param groups_access: those for ``groups_namesrv``, if not ``access``.
    :param dry_run: send nothing and write nothing; count what would be sent.
    :param step_offsets: offsets of the archive in one step; :func:`step_of` the rate, if it is not said.
    :param timeout_ms: how long messages may wait for their acknowledgement.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: called after each step; ``stop``, when set, ends the run after the step under way.
    :raises OptionError: an argument is wrong, the archive has no such topic, or the one to send to does not fit.
    :raises ArchiveError: another job holds the ledger, or it is about another replay.
    :raises SparkSourceError: messages could not be sent; what was done stays.
    """
    log = ArchiveLog(archive)
    if topic is None:
        topic = _only_topic(log)
    else:
        log.demand_any((topic,))
    to = to or topic
    if to.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise OptionError(f"{to} belongs to a consumer group", next_step="replay to an ordinary topic")
    if translate_groups and (to, groups_namesrv or namesrv) == (topic, namesrv):
        raise OptionError(
            f"the groups are in topic {to} already", next_step="translate offsets to another topic or cluster only"
        )
    servers = reach(namesrv, access)
    groups_servers = reach(groups_namesrv or namesrv, access if groups_access is None else groups_access)
    job = ReplayJob(str(log.root), topic, namesrv, to, by_key, keep_born_time, selection or Selection())
    step = step_of(per_second) if step_offsets is None else step_offsets
    run = _Run(log, ReplayLedger(Path(ledger).absolute()), job, servers, per_second, timeout_ms, step, on_step)
    with driver_session(spark, master, "cometmq replay") as session:
        report = run.dry(session) if dry_run else run.wet(session, stop)
        if translate_groups:
            return run.translated(session, report, translate_groups, groups_servers)
        return report


def target_queues(servers: Mapping[str, str], topic: str) -> tuple[Queue, ...]:
    """The queues that messages are to go to.

    :param servers: options that reach the topic's nameservers.
    :raises OptionError: the topic does not exist, or nothing can be written to it.
    :raises UnreachableError: no nameserver answers.
    """
    try:
        return look_up(parse_sink_options({**servers, "topic": topic}), topic).queues
    except SinkError as error:
        raise OptionError(error.message, next_step=error.next_step) from error


def _only_topic(log: ArchiveLog) -> str:
    topics = sorted({queue.topic for queue in log.queues()})
    if len(topics) == 1:
        return topics[0]
    if topics:
        raise OptionError(f"the archive holds several topics: {', '.join(topics)}", next_step="name one")
    raise OptionError(f"{log.root} holds no archive", next_step="make one: cometmq pipeline archive")


def step_of(per_second: float | None) -> int:
    """Offsets of one step at a rate: each step costs Spark about a second, whatever it sends."""
    if per_second is None:
        return MOST_STEP_OFFSETS
    return int(min(max(STEP_OFFSETS, per_second * STEP_SECONDS), MOST_STEP_OFFSETS))


def _counted(mapping: Path) -> tuple[int, int]:
    """Messages of a step that were sent, and that were there already: one column of some files, no job of Spark's."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = found = 0
    for path in mapping.glob("*.parquet"):
        column = pq.read_table(path, columns=["found"]).column("found")
        rows += len(column)
        found += pc.sum(column).as_py() or 0
    return rows - found, found


class _Run:
    """One run of a replay."""

    def __init__(
        self,
        log: ArchiveLog,
        ledger: ReplayLedger,
        job: ReplayJob,
        servers: Mapping[str, str],
        per_second: float | None,
        timeout_ms: int,
        step_offsets: int,
        on_step: Callable[[ReplayedStep], None],
    ) -> None:
        self._log = log
        self._ledger = ledger
        self._job = job
        self._servers = servers
        self._per_second = per_second
        self._timeout_ms = timeout_ms
        self._step_offsets = step_offsets
        self._on_step = on_step
        self._began = SYSTEM_CLOCK.monotonic()
        self._files = log.files()
        given = {**servers, "topic": job.to, "pollTimeoutMs": str(timeout_ms), "consumerGroup": GROUP}
        self._cluster = Cluster(parse_options(given))
        self._sources = [
            Queue(of.topic, of.broker, of.queue_id)
            for of in log.queues()
            if of.topic == job.topic and of.next > of.first
        ]
        self._queues = target_queues(servers, job.to)
        self._kept = None if job.by_key else same_queues(self._sources, self._queues)

    # What it does -----------------------------------------------------------------------------------

    def dry(self, spark: SparkSession) -> ReplayReport:
        """Count what would be sent."""
        steps = self._ledger.steps()
        ranges = [
            Range(part.broker, part.queue_id, part.first, part.end)
            for left in ranges_left(self._log.queues(), self._job.topic, steps, self._step_offsets)
            for part in left
        ]
        counted = {}
        if (frame := self._selected(spark, _joined(ranges))) is not None:
            rows = frame.groupBy("target").count().collect()
            counted = {row["target"]: (row["count"], 0, None, None) for row in rows}
        return self._report(
            "", True, True, [], queues_replayed(self._queues, counted), sum(s.sent + s.found for s in steps)
        )

    def wet(self, spark: SparkSession, stop: threading.Event | None) -> ReplayReport:
        """Send."""
        if spark.conf.get("spark.speculation", "false") == "true":
            raise OptionError(
                "spark.speculation runs a task twice at a time, and messages would be sent twice",
                next_step="switch it off for this job",
            )
        with self._ledger.opened(self._job, uuid.uuid4().hex[:12]) as replay_id:
            earlier = self._ledger.steps()
            number = len(earlier)
            done: list[ReplayedStep] = []
            finished = True
            left = ranges_left(self._log.queues(), self._job.topic, earlier, self._step_offsets)
            begun = self._ledger.plan_of(number)
            if begun is not None:
                self._step(spark, replay_id, begun, done)
                number += 1
                left = ranges_left(self._log.queues(), self._job.topic, self._ledger.steps(), self._step_offsets)
            for ranges in left:
                if stop is not None and stop.is_set():
                    finished = False
                    break
                self._step(spark, replay_id, self._planned(number, ranges), done)
                number += 1
            queues = self._queues_of(spark, range(len(earlier), number))
            return self._report(
                replay_id, False, finished, done, queues, sum(step.sent + step.found for step in earlier)
            )

    def _planned(self, number: int, ranges: list[Range]) -> Plan:
        bounds = self._cluster.bounds(self._queues)
        ends = [TargetEnd(queue.broker, queue.queue_id, bounds[queue].end) for queue in self._queues]
        plan = Plan(number, ranges, ends)
        self._ledger.write_plan(plan)
        return plan

    def _step(self, spark: SparkSession, replay_id: str, plan: Plan, done: list[ReplayedStep]) -> None:
        queues = tuple(Queue(self._job.to, end.broker, end.queue_id) for end in plan.ends)
        if queues != self._queues:
            raise ArchiveError(
                f"the queues of {self._job.to} have changed since step {plan.step} was begun",
                next_step="give the topic the queues it had, all brokers up, and run it again",
            )
        sent = found = 0
        if (frame := self._selected(spark, plan.ranges)) is not None:
            tasks = min(len(queues), tasks_at_a_time(spark))
            task = ReplayTask(
                self._servers,
                replay_id,
                queues,
                tuple(end.end for end in plan.ends),
                None if self._per_second is None else self._per_second / tasks,
                self._job.keep_born_time,
                self._timeout_ms,
            )

            def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return send_batches(task, batches)

            ordered = frame.repartitionById(len(queues), "target").sortWithinPartitions(
                "target", "brokerName", "queueId", "queueOffset"
            )
            mapping = str(self._ledger.mapping_of(plan.step))
            try:
                ordered.mapInArrow(send, SENT_DDL).write.mode("overwrite").parquet(mapping)
                sent, found = _counted(self._ledger.mapping_of(plan.step))
            except Exception as error:
                raise SparkSourceError(
                    cause_of(str(error)), next_step="run it again with the same ledger when that is mended"
                ) from error
        self._ledger.write_done(plan, sent, found)
        total = sum(step.messages for step in done) + sent + found
        done.append(ReplayedStep(plan.step, sent + found, found, total, SYSTEM_CLOCK.monotonic() - self._began))
        self._on_step(done[-1])

    def translated(
        self, spark: SparkSession, report: ReplayReport, groups: Sequence[str], servers: Mapping[str, str]
    ) -> ReplayReport:
        """Translate the offsets of groups, and set them unless it is a dry run."""
        from dataclasses import replace

        mappings = [path for path in self._ledger.mappings() if Path(path).is_dir()]
        found, warnings = translate(spark, mappings, self._job.topic, groups, servers, self._log.next_offsets())
        if not report.dry_run:
            if not report.finished:
                warnings.append("offsets of groups were not set, since the replay is not at its end")
            else:
                write_offsets(self._cluster, self._job.to, found)
        rows = tuple(
            TranslatedOffset(of.group, of.broker, of.queue_id, of.offset, of.note)
            for of in sorted(found, key=lambda of: (of.group, of.broker, of.queue_id))
        )
        return replace(report, translated=rows, warnings=(*report.warnings, *warnings))

    # Parts ------------------------------------------------------------------------------------------

    def _selected(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame | None:
        """What is to be sent of some ranges, with column ``target``; ``None`` where that is surely nothing."""
        files = files_of(self._files, self._job.topic, ranges, self._job.selection)
        if not files:
            return None
        frame = read_files(spark, self._log.root, files)
        parts = [OffsetRange(Queue(self._job.topic, of.broker, of.queue_id), of.first, of.end) for of in ranges]
        chosen = within(select(frame, self._job.topic, self._job.selection), parts)
        target = target_by_key(len(self._queues)) if self._kept is None else target_by_queue(self._kept)
        return chosen.select("*", target.alias("target")).selectExpr("target", *SENT_COLUMNS)

    def _queues_of(self, spark: SparkSession, steps: range) -> Any:
        from pyspark.sql import functions as f

        paths = [str(self._ledger.mapping_of(step)) for step in steps if self._ledger.mapping_of(step).is_dir()]
        if not paths:
            return ()
        rows = (
            spark.read.schema(SENT_DDL)
            .parquet(*paths)
            .groupBy("toBroker", "toQueue")
            .agg(
                f.count("*").alias("messages"),
                f.count_if("found").alias("found"),
                f.min("toOffset").alias("first"),
                f.max("toOffset").alias("last"),
            )
            .collect()
        )
        index = {(queue.broker, queue.queue_id): at for at, queue in enumerate(self._queues)}
        counts = {
            index[row["toBroker"], row["toQueue"]]: (row["messages"], row["found"], row["first"], row["last"] + 1)
            for row in rows
        }
        return queues_replayed(self._queues, counts)

    def _report(
        self, replay_id: str, dry_run: bool, finished: bool, steps: list[ReplayedStep], queues: Any, earlier: int
    ) -> ReplayReport:
        return ReplayReport(
            archive=str(self._log.root),
            topic=self._job.topic,
            to=self._job.to,
            ledger=str(self._ledger.root),
            replay_id=replay_id,
            dry_run=dry_run,
            finished=finished,
            messages=sum(of.messages for of in queues),
            found=sum(of.found for of in queues),
            earlier=earlier,
            steps=tuple(steps),
            queues=queues,
            translated=(),
            warnings=(),
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """One range for each queue, from its first to its last."""
    joined: dict[tuple[str, int], Range] = {}
    for part in ranges:
        key = (part.broker, part.queue_id)
        before = joined.get(key)
        joined[key] = part if before is None else Range(*key, before.first, part.end)
    return [joined[key] for key in sorted(joined)]
