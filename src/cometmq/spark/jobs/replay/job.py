"""The replay job: it sends an archive's messages to a topic, in steps that the next run resumes after a crash.

1. The job divides the archived messages that have not been sent into steps. Before a step sends messages, its plan is
   stored: the archive's ranges, and the end of each queue in the topic.
2. Tasks send each queue's messages in offset order (:mod:`.sender`), and write the mapping: the new offset of each
   message. If there is no rate, each queue in the topic has its own task. If there is a rate, a few tasks share it, and
   each task sends to its queues in turn, so that all queues progress together.
3. The step is marked as done. A killed step is repeated with the same plan. The messages that it has already sent are
   after the planned ends; they are recognised by the origin that every message contains, and are not sent again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from cometmq.client.pace import Pace
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.spark.archives.log import ArchiveLog, read_files
from cometmq.spark.errors import ArchiveError, OptionError, SinkError, SparkSourceError
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.message_source import rows_in
from cometmq.spark.jobs.options import ReplayOptions, Selection
from cometmq.spark.jobs.replay.ledger import (
    MappingFile,
    OpenedLedger,
    Plan,
    QueueSent,
    Range,
    ReplayJob,
    ReplayLedger,
    StepDone,
    TargetEnd,
    files_of,
    ranges_left,
    same_queues,
    select,
    shares_of,
    target_by_key,
    target_by_queue,
    write_mapping,
)
from cometmq.spark.jobs.replay.report import (
    ReplayedStep,
    ReplayReport,
    TranslatedOffset,
    queues_replayed,
    translate,
    write_offsets,
)
from cometmq.spark.jobs.replay.sender import GROUP, MAX_CHUNK_ROWS, SENT_COLUMNS, SENT_DDL, ReplayTask, send_batches
from cometmq.spark.jobs.run import cause_of, collect_results
from cometmq.spark.jobs.task_files import read_table
from cometmq.spark.object_stores import open_place
from cometmq.spark.options import demand_forward
from cometmq.spark.records.queues import OffsetRange, Queue
from cometmq.spark.security_options import server_options
from cometmq.spark.session.environment import driver_session, tasks_at_a_time
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.placing import look_up_route
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

STEP_OFFSETS: Final = 200_000
"""Default minimum number of offsets in a step. A selection may leave out most of their messages."""
STEP_SECONDS: Final = 20
"""Maximum duration of a step if there is a rate and the step has more than the minimum number of offsets. A job that is
asked to stop finishes its current step first.
"""
MOST_STEP_OFFSETS: Final = 500_000
"""Maximum number of offsets in a step. After a crash, a task keeps the offsets of the messages that it has already sent
in memory; each of them takes 300 bytes.
"""


@job(ReplayOptions)
def replay(options: ReplayOptions) -> ReplayReport:
    """Send an archive's messages to a topic, and return the report.

    ``translate_groups`` are consumer groups that continue in the new topic at their position in the old one.

    :raises OptionError: an argument is invalid, the archive does not contain the topic, or the target topic does not
        have the required queues.
    :raises ArchiveError: another job holds the ledger's lock, or the ledger belongs to another replay.
    :raises SparkSourceError: messages could not be sent. Finished steps are kept.
    """
    log = ArchiveLog(options.archive, storage=options.storage)
    topic, to, groups = options.topic, options.to, options.translate_groups
    if topic is None:
        topic = _only_topic(log)
    else:
        log.demand_any((topic,))
    to = to or topic
    if to.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise OptionError(f"{to} belongs to a consumer group", next_step="replay to an ordinary topic")
    groups_namesrv = options.groups_namesrv or options.namesrv
    if groups and (to, groups_namesrv) == (topic, options.namesrv):
        raise OptionError(
            f"the groups already consume topic {to}", next_step="translate offsets only to another topic or cluster"
        )
    servers = server_options(options.namesrv, options.access)
    groups_servers = server_options(
        groups_namesrv, options.access if options.groups_access is None else options.groups_access
    )
    selection = options.selection or Selection()
    demand_forward("since_ms", selection.since_ms, "until_ms", selection.until_ms)
    words = ReplayJob(log.url, topic, options.namesrv, to, options.by_key, options.keep_born_time, selection)
    run = _Run(options, log, words, servers)
    with driver_session(options.spark, options.master, "cometmq replay") as session:
        report = run.dry(session) if options.dry_run else run.wet(session)
        return run.translated(session, report, groups, groups_servers) if groups else report


def target_queues(servers: Mapping[str, str], topic: str) -> tuple[Queue, ...]:
    """Return the queues to which messages are sent.

    :param servers: options for connections to the topic's nameservers.
    :raises OptionError: the topic does not exist, or is not writable.
    :raises UnreachableError: no nameserver answers.
    """
    try:
        return look_up_route(parse_sink_options({**servers, "topic": topic}), topic).queues
    except SinkError as error:
        raise OptionError(error.message, next_step=error.next_step) from error


def _only_topic(log: ArchiveLog) -> str:
    topics = sorted({queue.topic for queue in log.queues()})
    if len(topics) == 1:
        return topics[0]
    if topics:
        raise OptionError(f"the archive contains several topics: {', '.join(topics)}", next_step="choose one")
    raise OptionError(f"{log.url} contains no archive", next_step="create one: cometmq pipeline archive")


def step_of(per_second: float | None) -> int:
    """Return the number of offsets in a step at a given rate. Each step costs Spark about a second."""
    if per_second is None:
        return MOST_STEP_OFFSETS
    return int(min(max(STEP_OFFSETS, per_second * STEP_SECONDS), MOST_STEP_OFFSETS))


class _Run:
    """One run of a replay, which sends the remaining steps."""

    def __init__(self, options: ReplayOptions, log: ArchiveLog, job: ReplayJob, servers: Mapping[str, str]) -> None:
        self._log = log
        self._ledger = ReplayLedger(open_place(options.ledger, options.storage))
        self._job = job
        self._servers = servers
        self._options = options
        self._step_offsets = options.step_offsets or step_of(options.per_second)
        self._began = SYSTEM_CLOCK.monotonic()
        self._counts: dict[int, tuple[int, int, int, int]] = {}
        """Messages, found messages, first and next offset of each queue in the topic."""
        self._files = log.files()
        given = {**servers, "topic": job.to, "pollTimeoutMs": str(options.timeout_ms), "consumerGroup": GROUP}
        self._cluster = Cluster(parse_options(given))
        self._sources = [of.queue for of in log.queues() if of.topic == job.topic and of.next > of.first]
        self._queues = target_queues(servers, job.to)
        self._same_queues = None if job.by_key else same_queues(self._sources, self._queues)

    # What it does -----------------------------------------------------------------------------------

    def dry(self, spark: SparkSession) -> ReplayReport:
        """Count the messages that a run would send."""
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

    def wet(self, spark: SparkSession) -> ReplayReport:
        """Send the messages of all steps."""
        if spark.conf.get("spark.speculation", "false") == "true":
            raise OptionError(
                "spark.speculation runs tasks twice at the same time, which would send messages twice",
                next_step="disable it for this job",
            )
        with self._ledger.opened(self._job, uuid.uuid4().hex[:12], self._log) as opened:
            earlier = self._ledger.steps()
            number = len(earlier)
            self._demand_same_topic(self._ledger.plan_of(number) or self._ledger.plan_of(number - 1))
            done: list[ReplayedStep] = []
            finished = True
            left = ranges_left(self._log.queues(), self._job.topic, earlier, self._step_offsets)
            begun = self._ledger.plan_of(number)
            if begun is not None:
                now_done = self._step(spark, opened, begun, done)
                number += 1
                left = ranges_left(self._log.queues(), self._job.topic, [*earlier, now_done], self._step_offsets)
            for ranges in left:
                if (stop := self._options.stop) is not None and stop.is_set():
                    finished = False
                    break
                self._step(spark, opened, self._planned(opened, number, ranges), done)
                number += 1
            queues = queues_replayed(self._queues, self._counts)
            return self._report(
                opened.replay_id, False, finished, done, queues, sum(step.sent + step.found for step in earlier)
            )

    def _demand_same_topic(self, plan: Plan | None) -> None:
        """Check that the topic has not been deleted and recreated since messages were sent to it."""
        ends = [] if plan is None else plan.ends
        marks = {Queue(self._job.to, of.broker, of.queue_id): of.mark for of in ends if of.mark is not None}
        if changed := self._cluster.changed_queues(marks):
            raise ArchiveError(
                f"{min(changed)} is not the queue that the replay sent to before: topic {self._job.to} was "
                "created again, or its broker lost the end of the queue",
                next_step="use a new ledger to send everything again",
            )

    def _planned(self, opened: OpenedLedger, number: int, ranges: list[Range]) -> Plan:
        bounds = self._cluster.bounds(self._queues)
        marks = self._cluster.marks_before({queue: held.end for queue, held in bounds.items()})
        ends = [TargetEnd(*queue[1:], bounds[queue].end, marks.get(queue)) for queue in self._queues]
        plan = Plan(number, ranges, ends, opened.run)
        self._ledger.write_plan(opened, plan)
        return plan

    def _step(self, spark: SparkSession, opened: OpenedLedger, plan: Plan, done: list[ReplayedStep]) -> StepDone:
        queues = tuple(Queue(self._job.to, end.broker, end.queue_id) for end in plan.ends)
        if queues != self._queues:
            raise ArchiveError(
                f"the queues of {self._job.to} have changed since step {plan.step} began",
                next_step="restore the topic's queues, start all its brokers, and run it again",
            )
        mapping: list[MappingFile] = []
        if (frame := self._selected(spark, plan.ranges)) is not None:
            try:
                mapping = self._sent(spark, frame, opened, plan)
            except Exception as error:
                raise SparkSourceError(
                    cause_of(str(error)), next_step="fix the cause and run it again with the same ledger"
                ) from error
        now_done = self._ledger.write_done(opened, plan, mapping)
        for file in mapping:
            for of in file.queues:
                self._count(of)
        messages, total = now_done.sent + now_done.found, sum(step.messages for step in done)
        seconds = SYSTEM_CLOCK.monotonic() - self._began
        done.append(ReplayedStep(messages, total + messages, seconds, plan.step, now_done.found))
        self._options.on_step(done[-1])
        return now_done

    def _sent(self, spark: SparkSession, frame: DataFrame, opened: OpenedLedger, plan: Plan) -> list[MappingFile]:
        """Send the messages of a step, and return the mapping that the tasks have written."""
        per_second = self._options.per_second
        at_a_time = 1 if per_second is None else tasks_at_a_time(spark)
        shares = shares_of(self._loads(plan.ranges), per_second, at_a_time)
        task = ReplayTask(
            self._servers,
            opened,
            self._queues,
            tuple(end.end for end in plan.ends),
            shares.per_second,
            self._job.keep_born_time,
            self._options.timeout_ms,
        )
        # of the longest queue, before the next has its turn
        in_turn = Pace(per_second).window(MAX_CHUNK_ROWS)
        turns = -(-max(part.end - part.first for part in plan.ranges) // in_turn)
        ordered = (
            frame.withColumn("task", f.array(*map(f.lit, shares.tasks))[f.col("target")])
            .repartitionById(max(shares.tasks) + 1, "task")
            .sortWithinPartitions(f.floor(f.col("progress") * turns), "target", "brokerName", "queueId", "queueOffset")
            .drop("task", "progress")
        )

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[MappingFile]:
            return write_mapping(task.ledger, plan.step, send_batches(task, batches))

        return collect_results(ordered, send, MappingFile)

    def _count(self, of: QueueSent) -> None:
        at = self._queues.index(Queue(self._job.to, of.broker, of.queue_id))
        messages, found, first, end = self._counts.get(at, (0, 0, of.first, 0))
        self._counts[at] = (messages + of.messages, found + of.found, min(first, of.first), max(end, of.next))

    def translated(
        self, spark: SparkSession, report: ReplayReport, groups: Sequence[str], servers: Mapping[str, str]
    ) -> ReplayReport:
        """Translate the groups' offsets, and set them except in a dry run."""
        files = self._ledger.mapping_files()
        mapping = read_table(spark, self._ledger.storage, files, SENT_DDL) if files else None
        found, warnings = translate(spark, mapping, self._job.topic, groups, servers, self._log.next_offsets())
        if not report.dry_run:
            if not report.finished:
                warnings.append("the groups' offsets were not set, since the replay is not complete")
            else:
                write_offsets(self._cluster, self._job.to, found)
        rows = tuple(
            TranslatedOffset(of.group, of.broker, of.queue_id, of.offset, of.note)
            for of in sorted(found, key=lambda of: (of.group, of.broker, of.queue_id))
        )
        return replace(report, translated=rows, warnings=(*report.warnings, *warnings))

    # Parts ------------------------------------------------------------------------------------------

    def _selected(self, spark: SparkSession, ranges: Sequence[Range]) -> DataFrame | None:
        """Return the messages to send from the given ranges, with a column ``target``, or None if no file can contain
        them.
        """
        files = files_of(self._files, self._job.topic, ranges, self._job.selection)
        if not files:
            return None
        frame = read_files(spark, self._log, files)
        parts = [OffsetRange(Queue(self._job.topic, of.broker, of.queue_id), of.first, of.end) for of in ranges]
        chosen = rows_in(select(frame, self._job.topic, self._job.selection), parts, progress="progress")
        target = target_by_key(len(self._queues)) if self._same_queues is None else target_by_queue(self._same_queues)
        return chosen.select("*", target.alias("target")).selectExpr("target", "progress", *SENT_COLUMNS)

    def _loads(self, ranges: Sequence[Range]) -> list[int]:
        """Estimate the number of messages for each queue in the topic. If messages are spread by key, the estimate
        assumes an even distribution.
        """
        loads = [1] * len(self._queues)
        for part in ranges:
            target = (self._same_queues or {}).get(Queue(self._job.topic, part.broker, part.queue_id))
            if target is not None:
                loads[target] += part.end - part.first
        return loads

    def _report(
        self, replay_id: str, dry_run: bool, finished: bool, steps: list[ReplayedStep], queues: Any, earlier: int
    ) -> ReplayReport:
        return ReplayReport(
            archive=self._log.url,
            topic=self._job.topic,
            to=self._job.to,
            ledger=self._ledger.storage.url,
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
    """Join the ranges into one range for each queue."""
    joined: dict[tuple[str, int], Range] = {}
    for part in ranges:
        key = (part.broker, part.queue_id)
        before = joined.get(key)
        joined[key] = part if before is None else Range(*key, before.first, part.end)
    return [joined[key] for key in sorted(joined)]
