"""A replay's ledger: its identity, its started and finished steps, and each step's plan.

Layout below the ledger's directory::

    job.json                              the identity of the replay; never changes
    plans/<step, 20 digits>.json          written before the first message of a step is sent
    commits/<step, 20 digits>.json        written after its last message was acknowledged
    mapping/step=<step>/*.parquet         the new place of each message of the step
    _lock                                 held while a job runs

A plan contains the archive ranges that its step sends, and the end of each queue in the topic before the step. After a
crash, the step searches for the messages that it has already sent after those ends; it recognises them by their origin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as f

from cometmq.archive.commits import QueueTotals
from cometmq.archive.files import DataFile
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.ids import index_hash, java_hash
from cometmq.message.properties import SHARDING_KEY
from cometmq.spark.archives.log import ArchiveLog, differing
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.options import Selection
from cometmq.spark.records.queues import Mark, OffsetRange, Offsets, Queue, steps_of
from cometmq.spark.storage import Directory, NumberedFiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAPPING: Final = "mapping"
_JOB: Final = "job.json"


class ReplayJob(msgspec.Struct, frozen=True):
    """A replay's identity. A run with different options needs another ledger."""

    archive: str
    topic: str
    namesrv: str
    to: str
    by_key: bool
    keep_born_time: bool
    selection: Selection


class _SavedJob(msgspec.Struct, frozen=True):
    replay_id: str
    job: ReplayJob
    marks: list[tuple[str, int, Mark]] = []
    """For each queue, by broker and queue number: a message that was in the archive when the replay began."""


class Range(msgspec.Struct, frozen=True):
    """A queue's offsets in the archive: ``first <= offset < end``."""

    broker: str
    queue_id: int
    first: int
    end: int


class TargetEnd(msgspec.Struct, frozen=True):
    """The end of a queue in the topic."""

    broker: str
    queue_id: int
    end: int
    mark: Mark | None = None
    """Mark of the last message before the end, which later identifies the queue."""


class Plan(msgspec.Struct, frozen=True):
    """The plan for one step."""

    step: int
    ranges: list[Range]
    ends: list[TargetEnd]
    """Ends of the writable queues. The list index is the queue's number."""


class StepDone(msgspec.Struct, frozen=True):
    """One finished step, with its counts."""

    step: int
    ranges: list[Range]
    sent: int
    found: int
    """Number of messages that the topic already contained because of a killed run or an unanswered request."""
    committed_ms: int


class ReplayLedger:
    """A replay's ledger in a directory."""

    def __init__(self, root: str | Path) -> None:
        self.directory = Directory(root)
        self._plans = NumberedFiles(self.directory, "plans", Plan)
        self._done = NumberedFiles(self.directory, "commits", StepDone)

    @contextmanager
    def opened(self, job: ReplayJob, new_id: str, log: ArchiveLog) -> Iterator[str]:
        """Lock the ledger for this job, and yield its replay's id, which is ``new_id`` if the ledger is new.

        :param log: the job's archive.
        :raises ArchiveError: another process holds the lock, or the ledger belongs to another replay or archive.
        """
        with self.directory.locked():
            saved = self.directory.read_json(_JOB, _SavedJob)
            if saved is None:
                marks = [(*queue[1:], mark) for queue, mark in log.marks().items() if queue.topic == job.topic]
                saved = _SavedJob(new_id, job, marks)
                self.directory.write_json(_JOB, saved, indented=True)
            elif saved.job != job:
                changed = [name for name in job.__struct_fields__ if getattr(job, name) != getattr(saved.job, name)]
                raise ArchiveError(
                    f"the ledger {self.directory} belongs to another replay: {', '.join(changed)} differ",
                    next_step="use the same options as before to continue, or use a new ledger",
                )
            self._demand_same_archive(log, {Queue(job.topic, broker, of): mark for broker, of, mark in saved.marks})
            yield saved.replay_id

    def _demand_same_archive(self, log: ArchiveLog, marks: Mapping[Queue, Mark]) -> None:
        there = log.marks_at({queue: mark.offset for queue, mark in marks.items()})
        ends = log.next_offsets()
        shorter = [queue for queue, mark in marks.items() if ends.get(queue, 0) <= mark.offset]
        if other := [*differing(marks, there), *shorter]:
            raise ArchiveError(
                f"the archive {log.url} contains different messages of {min(other)} than when the ledger "
                f"{self.directory} was "
                "created",
                next_step="use a new ledger",
            )

    def plan_of(self, step: int) -> Plan | None:
        """Read the plan of a step that was started."""
        return self._plans.find(step)

    def write_plan(self, plan: Plan) -> None:
        """Write a plan. This must be done before any of its messages is sent."""
        self._plans.write(plan.step, plan)

    def write_done(self, plan: Plan, sent: int, found: int) -> None:
        """Mark a step as finished."""
        done = StepDone(plan.step, plan.ranges, sent, found, SYSTEM_CLOCK.now_ms())
        self._done.write(plan.step, done)

    def steps(self) -> list[StepDone]:
        """Read the finished steps, in order."""
        return [self._done.read(step) for step in self._done.numbers()]

    def mapping_of(self, step: int) -> str:
        """Return the path at which Spark writes a step's mapping."""
        return str(self.directory.path(_mapping(step)))

    def mappings(self, steps: Iterable[int] | None = None) -> list[str]:
        """Return the paths of the mappings of the given steps or, by default, of all finished steps. A step that sent
        no messages has no mapping.
        """
        wanted = self._done.numbers() if steps is None else steps
        return [self.mapping_of(step) for step in wanted if self.directory.exists(_mapping(step))]

    def count_sent(self, step: int) -> tuple[int, int]:
        """Count in a step's mapping the messages that were sent, and the messages that the topic already contained.

        This function does not need Spark.
        """
        rows = found = 0
        for name in self.directory.names(f"{_mapping(step)}/*.parquet"):
            column = pq.read_table(self.directory.path(name), columns=["found"]).column("found")
            rows += len(column)
            found += pc.sum(column).as_py() or 0
        return rows - found, found


def _mapping(step: int) -> str:
    return f"{MAPPING}/step={step}"


def ranges_left(
    queues: Iterable[QueueTotals], topic: str, done: Iterable[StepDone], most: int
) -> Iterator[list[Range]]:
    """Divide a topic's unsent messages into steps of about ``most`` offsets.

    Each step takes an equal share of every queue, in offset order.
    """
    reached: Offsets = {}
    for step in done:
        for sent in step.ranges:
            reached[Queue(topic, sent.broker, sent.queue_id)] = sent.end
    waiting = [
        OffsetRange(of.queue, max(of.first, reached.get(of.queue, 0)), of.next) for of in queues if of.topic == topic
    ]
    for parts in steps_of(sorted(waiting, key=lambda part: part.queue), most):
        yield [Range(part.queue.broker, part.queue.queue_id, part.first, part.end) for part in parts]


_SEPARATOR: Final = "\x01"
TASK_PER_SECOND: Final = 20_000
"""Number of messages per second that one task can always send. If the rate is higher, several tasks share it."""


def select(frame: DataFrame, topic: str, selection: Selection) -> DataFrame:
    """Return an archive's rows that match a selection.

    :raises OptionError: the selection's predicate is not a valid Spark SQL expression on the archive's columns.
    """
    frame = frame.where(f.col("topic") == topic)
    if selection.since_ms is not None:
        frame = frame.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(selection.since_ms)))
    if selection.until_ms is not None:
        frame = frame.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(selection.until_ms)))
    if selection.tags:
        frame = frame.where(f.col("tags").isin(list(selection.tags)))
    if selection.keys:
        keys = list(selection.keys)
        named = f.arrays_overlap(f.split("keys", " "), f.array(*map(f.lit, keys)))
        frame = frame.where(f.coalesce(named, f.lit(False)) | f.col("uniqKey").isin(keys))
    if selection.where is not None:
        try:
            frame = frame.where(selection.where)
            frame.schema  # noqa: B018 (Spark looks at the predicate now)
        except (AnalysisException, ParseException) as error:
            raise OptionError(
                f"invalid predicate {selection.where!r}: {str(error).strip().splitlines()[0]}",
                next_step="write Spark SQL on the columns of an archive, as in \"tags = 'paid' AND queueId < 2\"",
            ) from error
    return frame


def files_of(files: Iterable[DataFile], topic: str, ranges: Sequence[Range], selection: Selection) -> list[DataFile]:
    """Return the files that may contain selected messages within the given ranges."""
    by_queue = {(part.broker, part.queue_id): part for part in ranges}
    found = []
    for file in files:
        part = by_queue.get((file.broker, file.queue_id))
        if part is None or file.topic != topic or file.end <= part.first or part.end <= file.first:
            continue
        if selection.since_ms is not None and file.max_store_ms < selection.since_ms:
            continue
        if selection.until_ms is not None and file.min_store_ms >= selection.until_ms:
            continue
        found.append(file)
    return found


def same_queues(sources: Iterable[Queue], targets: Sequence[Queue]) -> dict[Queue, int]:
    """Map each archived queue to the index of the target queue with the same number on the broker with the same name,
    or on the only broker.

    :raises OptionError: the topic lacks a queue.
    """
    sources = sorted(sources)
    index = {(target.broker, target.queue_id): at for at, target in enumerate(targets)}
    brokers = {target.broker for target in targets}
    alone = next(iter(brokers)) if len(brokers) == 1 and len({source.broker for source in sources}) == 1 else None
    found = {}
    for source in sources:
        at = index.get((source.broker, source.queue_id))
        if at is None and alone is not None:
            at = index.get((alone, source.queue_id))
        if at is None:
            raise OptionError(
                f"topic {targets[0].topic} has no queue for {source}",
                next_step=f"give it as many queues on as many brokers ({', '.join(sorted(brokers))} there), or "
                "spread messages with --by-key",
            )
        found[source] = at
    return found


def target_by_queue(targets: dict[Queue, int]) -> Column:
    """Return a column with each row's target, for messages that keep their queues."""
    pairs: list[Any] = []
    for source, at in targets.items():
        pairs += [f.lit(f"{source.broker}{_SEPARATOR}{source.queue_id}"), f.lit(at)]
    place = f.concat("brokerName", f.lit(_SEPARATOR), f.col("queueId").cast("string"))
    return f.create_map(*pairs)[place].cast("int")


class Shares(NamedTuple):
    """For each target, the number of the task that sends to it. For each task, its rate in messages per second."""

    tasks: tuple[int, ...]
    per_second: tuple[float, ...] | None


def shares_of(loads: Sequence[int], per_second: float | None, at_a_time: int) -> Shares:
    """Assign targets to tasks. Without a rate, each target has one task; with a rate, as few tasks as possible share
    it.

    The tasks' shares add up to the rate and are proportional to their loads, so that all tasks finish at the same time.
    A single task keeps to the rate whatever the distribution of messages.

    :param loads: estimated number of messages for each target.
    :param at_a_time: number of tasks that run at the same time; a waiting task would leave its share unused.
    """
    if per_second is None:
        return Shares(tuple(range(len(loads))), None)
    tasks = min(at_a_time, len(loads), math.ceil(per_second / TASK_PER_SECOND))
    held = [0] * tasks
    dealt = [0] * len(loads)
    for target in sorted(range(len(loads)), key=lambda at: -loads[at]):
        dealt[target] = task = held.index(min(held))
        held[task] += loads[target]
    total = sum(held)
    return Shares(tuple(dealt), tuple(per_second * held[task] / total for task in dealt))


def target_by_key(queues: int) -> Column:
    """Return a column with each row's target. It is chosen by the sharding key; if there is none, by the first key,
    then the unique key, then the position.

    The target is the queue that Java's ``SelectMessageQueueByHash`` chooses for that string.
    """

    def chosen(key: str) -> int:
        return index_hash(java_hash(key)) % queues

    first_key = f.nullif(f.get(f.split("keys", " "), f.lit(0)), f.lit(""))
    place = f.concat_ws("/", "brokerName", "queueId", "queueOffset")
    key = f.coalesce(f.col("properties")[SHARDING_KEY], first_key, "uniqKey", place)
    return f.udf(chosen, "int", useArrow=True)(key)
