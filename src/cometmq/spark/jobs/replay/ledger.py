"""A replay's ledger: its identity, its started and finished steps, and each step's plan.

Objects below the ledger's directory or URL, each created once::

    job.json                                   the identity of the replay
    runs/<run, 20 digits>.json                 written when a job opens the ledger
    ended/<run, 20 digits>.json                written when this job has ended, and none of its tasks still sends
    plans/<step, 20 digits>.json               written before the first message of a step is sent
    commits/<step, 20 digits>.json             written after its last message was acknowledged; lists its mapping
    mapping/step=<step>/part-<random>.parquet  the new place of each message that one task has sent
    _lock                                      held while a job runs, in a local directory

A plan contains the archive ranges that its step sends, and the end of each queue in the topic before the step. After a
crash, the step searches for the messages that it has already sent after those ends; it recognises them by their origin.

Two jobs must not send at the same time, since each would search before the other has sent. In a local directory, the
lock refuses a second job. But tasks can outlive a driver that is killed, and a storage has no lock. So a task looks at
least every ``OWNER_SECONDS`` for a later run before it sends, and a job that opens a ledger whose last run has not
ended waits longer than that. A driver that was paused cannot plan or commit a step that a later run has planned.

Ledgers of earlier versions have no runs, and commits that do not list the mapping: it is all files of the step.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as f

from cometmq.archive.commits import QueueTotals
from cometmq.archive.files import DataFile
from cometmq.archive.locks import local_directory, locked
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.ids import index_hash, java_hash
from cometmq.message.properties import SHARDING_KEY
from cometmq.spark.archives.log import ArchiveLog, demand_visible, differing
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.jobs.documents import Series, create_document, find_document
from cometmq.spark.jobs.options import Selection
from cometmq.spark.jobs.task_files import delete_unnamed, unique_path, write_file
from cometmq.spark.records.queues import Mark, OffsetRange, Offsets, Queue, steps_of
from cometmq.storage import Storage, check_conditional_writes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_JOB: Final = "job.json"
OWNER_SECONDS: Final = 2.0
"""Maximum age of a task's knowledge that no other job has opened the ledger."""
TAKE_OVER_SECONDS: Final = 2 * OWNER_SECONDS
"""Time that a job waits for the tasks of a run that has not ended."""


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
    run: int = 0
    """Number of the run that made the plan."""


class QueueSent(msgspec.Struct, frozen=True):
    """The messages that a task has sent to one queue of the topic, or has found there."""

    broker: str
    queue_id: int
    messages: int
    found: int
    """Number of messages that the topic already contained because of a killed run or an unanswered request."""
    first: int
    next: int
    """The first new offset, and the offset after the last message."""


class MappingFile(msgspec.Struct, frozen=True):
    """A task's part of a step's mapping."""

    path: str
    bytes: int
    queues: list[QueueSent]


class StepDone(msgspec.Struct, frozen=True):
    """One finished step, with its counts."""

    step: int
    ranges: list[Range]
    sent: int
    found: int
    """Number of messages that the topic already contained."""
    committed_ms: int
    run: int = 0
    files: list[str] | None = None
    """Paths of the mapping's files; None in ledgers of earlier versions."""


class Run(msgspec.Struct, frozen=True):
    """A job that has opened the ledger."""

    id: str
    """Random text that no other run has."""
    opened_ms: int


@dataclass(frozen=True, slots=True)
class OpenedLedger:
    """A ledger that a job has opened, for its tasks. It can be pickled."""

    storage: Storage
    run: int
    replay_id: str

    def demand_owner(self) -> None:
        """Check that no other job has opened the ledger since.

        :raises ArchiveError: another job has.
        """
        if self.storage.stat(_runs(self.storage).key(self.run + 1)) is not None:
            raise ArchiveError(
                f"another job has opened the ledger {self.storage.url} since; this one sends nothing more",
                next_step="let only one job use a ledger; messages are neither lost nor doubled",
            )


def _runs(storage: Storage) -> Series[Run]:
    return Series(storage, "runs", Run)


class ReplayLedger:
    """A replay's ledger in a directory, an object store or on HDFS."""

    def __init__(self, storage: Storage) -> None:
        self.storage: Final = storage
        self._runs = _runs(storage)
        self._ended = Series(storage, "ended", int)
        self._plans = Series(storage, "plans", Plan)
        self._done = Series(storage, "commits", StepDone)

    @contextmanager
    def opened(self, job: ReplayJob, new_id: str, log: ArchiveLog) -> Iterator[OpenedLedger]:
        """Open the ledger for this job. The replay's id is ``new_id`` if the ledger is new.

        :param log: the job's archive.
        :raises ArchiveError: another process holds the lock, or the ledger belongs to another replay or archive.
        :raises UnsafeStorageError: the storage would let two jobs create the same object.
        """
        storage = self.storage
        with locked(storage):
            saved: _SavedJob | None = find_document(storage, _JOB, _SavedJob)
            if saved is None:
                if local_directory(storage) is None:
                    check_conditional_writes(storage)
                marks = [(*queue[1:], mark) for queue, mark in log.marks().items() if queue.topic == job.topic]
                saved = _SavedJob(new_id, job, marks)
                create_document(storage, _JOB, saved)
            elif saved.job != job:
                changed = [name for name in job.__struct_fields__ if getattr(job, name) != getattr(saved.job, name)]
                raise ArchiveError(
                    f"the ledger {storage.url} belongs to another replay: {', '.join(changed)} differ",
                    next_step="use the same options as before to continue, or use a new ledger",
                )
            self._demand_same_archive(log, {Queue(job.topic, broker, of): mark for broker, of, mark in saved.marks})
            number = self._take_over()
            yield OpenedLedger(storage, number, saved.replay_id)
            self._ended.create(number, SYSTEM_CLOCK.now_ms())

    def _take_over(self) -> int:
        """Begin a run. If tasks of the last run may still be sending, wait until they have noticed it."""
        before = self._runs.numbers()
        number = before[-1] + 1 if before else 0
        self._runs.create(number, Run(uuid.uuid4().hex, SYSTEM_CLOCK.now_ms()))
        if before and self._ended.find(before[-1]) is None:
            threading.Event().wait(TAKE_OVER_SECONDS)
        return number

    def _demand_same_archive(self, log: ArchiveLog, marks: Mapping[Queue, Mark]) -> None:
        there = log.marks_at({queue: mark.offset for queue, mark in marks.items()})
        ends = log.next_offsets()
        shorter = [queue for queue, mark in marks.items() if ends.get(queue, 0) <= mark.offset]
        if other := [*differing(marks, there), *shorter]:
            raise ArchiveError(
                f"the archive {log.url} contains different messages of {min(other)} than when the ledger "
                f"{self.storage.url} was created",
                next_step="use a new ledger",
            )

    def plan_of(self, step: int) -> Plan | None:
        """Read the plan of a step that was started."""
        return self._plans.find(step)

    def write_plan(self, opened: OpenedLedger, plan: Plan) -> None:
        """Write a plan. This must be done before any of its messages is sent.

        :raises ArchiveError: another job has opened the ledger, or has planned the step.
        """
        opened.demand_owner()
        self._plans.create(plan.step, plan)

    def write_done(self, opened: OpenedLedger, plan: Plan, mapping: Sequence[MappingFile]) -> StepDone:
        """Mark a step as finished. Files in the step's directory that no task has returned are deleted.

        :raises ArchiveError: another job has finished the step, or the driver does not see a file.
        """
        demand_visible(self.storage, ((file.path, file.bytes) for file in mapping))
        of_queues = [queue for file in mapping for queue in file.queues]
        found = sum(of.found for of in of_queues)
        sent = sum(of.messages for of in of_queues) - found
        files = [file.path for file in mapping]
        done = StepDone(plan.step, plan.ranges, sent, found, SYSTEM_CLOCK.now_ms(), opened.run, files)
        self._done.create(plan.step, done)
        delete_unnamed(self.storage, _mapping(plan.step), files)
        return done

    def steps(self) -> list[StepDone]:
        """Read the finished steps, in order."""
        return self._done.read(self._done.numbers())

    def mapping_files(self) -> list[str]:
        """Return the paths of all files of the mapping of the finished steps."""
        found: list[str] = []
        for step in self.steps():
            if step.files is None:
                there = [item.key for item in self.storage.list_objects(_mapping(step.step))]
                found += (key for key in there if key.endswith(".parquet"))
            else:
                found += step.files
        return found


def _mapping(step: int) -> str:
    return f"mapping/step={step}"


def write_mapping(opened: OpenedLedger, step: int, batches: Iterable[pa.RecordBatch]) -> Iterator[MappingFile]:
    """Write the rows that a task returns to one file, and yield the file, unless there are no rows.

    :param batches: batches with the schema of the mapping, each with messages of one queue in the topic.
    """
    queues: dict[tuple[str, int], QueueSent] = {}

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            key = (batch.column("toBroker")[0].as_py(), batch.column("toQueue")[0].as_py())
            offsets = pc.min_max(batch.column("toOffset")).as_py()
            found = pc.sum(batch.column("found")).as_py()
            before = queues.get(key, QueueSent(*key, 0, 0, offsets["min"], 0))
            queues[key] = QueueSent(
                *key,
                before.messages + batch.num_rows,
                before.found + found,
                min(before.first, offsets["min"]),
                max(before.next, offsets["max"] + 1),
            )
            yield batch

    file = write_file(opened.storage, unique_path(_mapping(step)), counted())
    if file is not None:
        yield MappingFile(file.path, file.bytes, list(queues.values()))


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
