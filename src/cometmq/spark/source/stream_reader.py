"""The reader behind ``spark.readStream``.

Theory of operation. For each micro-batch, Spark's driver calls ``latestOffset``, writes the answer to the checkpoint's
offset log, calls ``partitions`` for the ranges up to that offset, runs their tasks, and writes the commit log. After a
crash, it repeats the last batch in the offset log. So a batch must depend only on its end offset, whatever the queues
contain at that time: an offset contains both ends of its batch, ``{"v": 1, "from": …, "queues": …, "marks": …}``, and
each end names every queue. A batch begins where the previous batch ended; a new queue begins at its first message. The
marks are the last messages of the batch, which identify the queues later (:mod:`.lives`).

The first batch: if a query fails in its first batch and is restarted, Spark asks for the initial offset again. An
offset that is resolved at that time would be later, so messages in between would be skipped. So the initial offset is
always the same symbol, which ``latestOffset`` resolves by the options. The first answer of ``latestOffset`` always
differs from the symbol, so that Spark stores it even if there is nothing to read.

Faults. A nameserver or broker that does not answer delays the stream: its queues keep their offsets, and other queues
continue. Only the first batch and a run with ``availableNow`` fail, since they would otherwise leave out the messages
of that server. A queue that its broker no longer has, and messages that were deleted before they were read, are lost:
``failOnDataLoss`` decides between DataLossError and a warning. Only a master proves a loss: while only a slave is
registered, the stream waits for the messages that the slave lacks.

Limits. ``Trigger.Once`` reads everything in one batch: Spark then passes ReadAllAvailable in place of the reader's
default limit, so the default is ReadMaxRows if any limit is set. ``Trigger.AvailableNow`` keeps the limits, and does
not wait for further messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cometmq.client.blocking.cluster import Patience
from cometmq.client.blocking.offsets import Bounds
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.remoting.blocking import BlockingConnectionError
from cometmq.spark.errors import DataLossError, OptionError, SparkSourceError, UnreachableError, sentence_first
from cometmq.spark.records.queues import (
    Mark,
    Marks,
    OffsetRange,
    Offsets,
    OffsetsJson,
    Queue,
    marks_from_json,
    marks_to_json,
    offsets_from_json,
    offsets_to_json,
)
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.lag import ASSIGNED, lag_between
from cometmq.spark.source.lives import continue_reading, lost_queues
from cometmq.spark.source.offsets import demand_topics, resolve_start
from cometmq.spark.source.options import LATEST, SourceOptions, demand_stream
from cometmq.spark.source.planning import SizedRange, limit_bytes, limit_messages
from cometmq.spark.source.reader import RangePartition, divide_into_partitions, read_ranges

VERSION: Final = 1
INITIAL: Final = {"v": VERSION, "initial": "options"}
LIFE_CHECK_SECONDS: Final = 10.0
"""Interval at which queues without new messages are checked, since they may have been recreated."""
_PAUSE_SECONDS: Final = 0.5
_NO_LIMIT: Final = 10**18

log = logging.getLogger("cometmq.spark")


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues batch by batch. The driver has one reader per query."""

    def __init__(self, options: SourceOptions, schema: StructType, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Check the options.

        :raises OptionError: an option is not allowed for a stream.
        """
        demand_stream(options)
        self._options = options
        self._schema = schema
        self._cluster = Cluster(options)
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        self._reached: Offsets = {}
        self._planned: dict[str, Any] | None = None
        """The end offset that the last poll chose (None if there were no new messages) …"""
        self._pieces: list[SizedRange] = []
        """… and the ranges of its micro-batch with their sizes."""
        self._committed: OffsetsJson = {}
        """The offsets that were last committed to ``commitGroup``."""
        self._clock = clock
        self._planned_at = clock.monotonic()
        self._full_check_at = clock.monotonic()

    # Offsets --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's names here and below)
        """Return the symbol that represents the start described by the options."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxOffsetsPerTrigger`` as a limit, or an unreachable limit if only other limits are set."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        is_limited = options.max_bytes_per_trigger is not None or options.min_offsets_per_trigger > 1
        return ReadMaxRows(_NO_LIMIT) if is_limited else ReadAllAvailable()

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let this run end at the current ends of the queues."""
        queues = self._cluster.queues()
        self._demand_topics(queues)
        bounds = self._cluster.bounds(queues)
        self._target = {queue: held.end for queue, held in bounds.items()}

    def _demand_topics(self, queues: Iterable[Queue]) -> None:
        """Check that every topic has readable queues."""
        demand_topics(self._options, queues)

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Choose the end of the next batch. Return ``start`` itself if there are no new messages.

        :raises DataLossError: messages after ``start`` are lost and ``failOnDataLoss`` is true.
        :raises SparkSourceError: the query is starting, and no broker has one of its topics.
        :raises UnreachableError: the query is starting or uses ``availableNow``, and no server answers.
        """
        self._commit_to_group(start)
        try:
            chosen = self._plan_batch(start, limit)
            self._planned = None if chosen is start else chosen
            self._pieces = [] if chosen is start else self._cluster.sized_ranges(self.ranges(chosen))
        except UnreachableError as error:
            if self._target is not None or not self._latest:
                raise
            log.warning("%s; the stream waits", error.message)
            return start
        self._reached = offsets_from_json(chosen["queues"])
        return chosen

    def _commit_to_group(self, done: dict[str, Any]) -> None:
        """Commit the query's offsets to the group ``commitGroup``. Reading uses only the checkpoint.

        Spark calls a reader's ``commit`` only when the next batch is planned, so offsets are committed here: everything
        up to the start of the batch that is being planned has been processed. After a failure, the next batch retries
        the commit.
        """
        group = self._options.commit_group
        if group is None or _is_initial(done) or done["queues"] == self._committed:
            return
        try:
            self._cluster.commit_offsets(group, offsets_from_json(done["queues"]), alone=True)
            self._committed = done["queues"]
        except (SparkSourceError, BlockingConnectionError) as error:
            log.warning("group %s does not get the offsets of the query: %s", group, error)

    def _plan_batch(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        first = _is_initial(start)
        bounds, begin, marks = self._resolve_begin(None if first else start)
        end = dict(begin)
        for queue, held in bounds.items():
            available = held.end if self._target is None else min(held.end, self._target.get(queue, begin[queue]))
            end[queue] = max(available, begin[queue])
        if isinstance(limit, ReadMaxRows):
            if not first and self._waits_for_more(begin, end, bounds):
                return start
            end = limit_messages(begin, end, limit.max_rows)
            if (most_bytes := self._options.max_bytes_per_trigger) is not None:
                end = limit_bytes(begin, end, self._cluster.mean_sizes(begin, bounds), most_bytes)
        if not first and begin == end and offsets_to_json(end) == start["queues"]:
            return start
        self._planned_at = self._clock.monotonic()
        # A mark is kept until reading passes it: the new mark of a queue that was not checked may be from a recreated
        # queue.
        passed = [queue for queue in bounds if queue not in marks or marks[queue].offset != end[queue] - 1]
        marks |= self._cluster.marks_before({queue: end[queue] for queue in passed})
        offset = {
            "v": VERSION,
            "from": offsets_to_json(begin),
            "queues": offsets_to_json(end),
            "marks": marks_to_json(marks),
        }
        return offset if self._options.assign is None else offset | {ASSIGNED: True}

    def _resolve_begin(self, start: dict[str, Any] | None) -> tuple[dict[Queue, Bounds], Offsets, dict[Queue, Mark]]:
        """Return the readable offsets, the offsets at which reading begins, and the known marks for these queues.

        :param start: start of the batch; None for the first batch.
        """
        if start is None:
            queues = self._cluster.queues()
            self._demand_topics(queues)
            bounds = self._query_bounds(queues, on_silent=None)
            return bounds, resolve_start(self._options, self._cluster, bounds, LATEST), {}
        reached, marks = offsets_from_json(start["queues"]), marks_from_json(start.get("marks", {}))
        patience = Patience(self._clock, self._options.poll_timeout_s, _PAUSE_SECONDS)
        while True:
            queues = self._cluster.queues()
            bounds = self._query_bounds(queues, on_silent=_warn if self._target is None else None)
            for queue in self._deleted_queues(reached.keys() - set(queues)):
                del reached[queue]
            changed = self._cluster.changed_lives(self._marks_to_check(bounds, reached, marks), bounds)
            found = continue_reading(self._options, self._cluster, bounds, reached, changed)
            if found.doubtful:
                self._full_check_at = self._clock.monotonic()
            if not found.doubtful or self._target is None or not patience.again():
                break
        self._report_doubtful(found.doubtful)
        bounds = {queue: held for queue, held in bounds.items() if queue not in found.doubtful}
        self._report_absent(reached.keys() - bounds.keys() - found.doubtful)
        begin = reached | found.offsets
        return bounds, begin, {queue: mark for queue, mark in marks.items() if queue in begin.keys() - changed}

    def _query_bounds(
        self, queues: list[Queue], on_silent: Callable[[CometMQError], None] | None
    ) -> dict[Queue, Bounds]:
        bounds = self._cluster.bounds(queues, on_silent=on_silent)
        self._latest = {queue: held.end for queue, held in bounds.items()}
        return bounds

    def _waits_for_more(self, begin: Offsets, end: Offsets, bounds: Mapping[Queue, Bounds]) -> bool:
        """Return True if the next batch waits for more messages (``minOffsetsPerTrigger``, ``maxTriggerDelay``).

        A batch that ``maxBytesPerTrigger`` fills never waits for more messages.
        """
        options = self._options
        if options.min_offsets_per_trigger <= 1 or self._target is not None:
            return False
        waited_s = self._clock.monotonic() - self._planned_at
        held = sum(last - begin[queue] for queue, last in end.items())
        if held >= options.min_offsets_per_trigger or waited_s >= options.max_trigger_delay_s:
            return False
        most_bytes = options.max_bytes_per_trigger
        if most_bytes is None or not held:
            return True
        means = self._cluster.mean_sizes(begin, bounds)
        return sum((last - begin[queue]) * means.get(queue, 0.0) for queue, last in end.items()) < most_bytes

    def _marks_to_check(self, bounds: Mapping[Queue, Bounds], reached: Offsets, marks: Marks) -> Marks:
        """Return the marks to check: usually those of queues with new messages, and at intervals those of all queues.

        An idle query polls many times per second. If a queue was recreated and soon contains as many messages as
        before, this is detected slightly later.
        """
        now = self._clock.monotonic()
        checks_all = now >= self._full_check_at
        if checks_all:
            self._full_check_at = now + LIFE_CHECK_SECONDS
        return {
            queue: mark
            for queue, mark in marks.items()
            if queue in bounds and queue in reached and (checks_all or bounds[queue].end != reached[queue])
        }

    def _report_doubtful(self, doubtful: frozenset[Queue]) -> None:
        """Warn about queues in which a slave is behind the offsets that were read, or fail if the run ends with this
        batch.
        """
        if not doubtful:
            return
        what = (
            f"no master of {min(doubtful)} is registered, and its slave lacks messages already read from "
            f"{len(doubtful)} queues"
        )
        if self._target is not None:
            raise UnreachableError(what, next_step="start the master, or raise option pollTimeoutMs")
        log.warning("%s; the stream waits for them", what)

    def _deleted_queues(self, unrouted: set[Queue]) -> list[Queue]:
        """Return the queues in the last batch that a registered master no longer has. Their remaining messages are
        lost.
        """
        here = self._cluster.masters() if unrouted else frozenset()
        gone = sorted(queue for queue in unrouted if queue.broker in here)
        if gone:
            what = f"{len(gone)} queues no longer exist on their brokers, or are not readable, starting with {gone[0]}"
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    what,
                    next_step="check whether the topic was deleted, or is no longer requested; option "
                    "failOnDataLoss=false skips them, and reads a topic that is created again from its beginning",
                )
            log.warning("%s; continuing without them", what)
        return gone

    def _report_absent(self, absent: set[Queue]) -> None:
        """Warn about queues in the last batch whose broker is not registered. These queues keep their offsets."""
        if not absent:
            return
        what = f"{len(absent)} queues are on brokers that are not registered, starting with {min(absent)}"
        if self._target is not None and self._options.fail_on_data_loss:
            raise DataLossError(what, next_step="start the broker, or set failOnDataLoss=false to continue without it")
        log.warning("%s; the stream waits for them", what)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the queues' ends at the last poll, and figures about the micro-batch chosen at that time.

        This is the only way for a Python source to add figures to the query's progress.
        """
        if not self._latest:
            return None
        metrics = {
            **lag_between(self._reached, self._latest).metrics,
            "messages": sum(len(piece.part) for piece in self._pieces),
            "bytes": round(sum(piece.size for piece in self._pieces)),
            "brokerLatencyMs": dict(sorted(self._cluster.latency_ms.items())),
        }
        return {"v": VERSION, "queues": offsets_to_json(self._latest), "metrics": metrics}

    def stop(self) -> None:
        """Do nothing: idle connections close automatically."""

    # Reading --------------------------------------------------------------------------------------

    def ranges(self, end: dict[str, Any]) -> list[OffsetRange]:
        """List a batch's ranges, which its end offset contains."""
        begin = offsets_from_json(end["from"])
        ends = offsets_from_json(end["queues"])
        return [OffsetRange(queue, begin[queue], ends[queue]) for queue in sorted(ends)]

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a batch into Spark partitions."""
        _check_version(end)
        marks = marks_from_json(end.get("marks", {}))
        if end == self._planned:
            return divide_into_partitions(self._options, self._pieces, marks)
        ranges = [part for part in self.ranges(end) if len(part)]  # for a batch in the checkpoint that is repeated
        queues = {part.queue for part in ranges}
        lost = lost_queues(self._options, self._cluster, queues, marks)
        lost |= set(self._deleted_queues(queues.difference(self._cluster.queues())))
        ranges = [part for part in ranges if part.queue not in lost]
        return divide_into_partitions(self._options, self._cluster.sized_ranges(ranges), marks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Pull and decode one partition."""
        assert isinstance(partition, RangePartition)
        with sentence_first():
            yield from read_ranges(self._options, self._schema, partition.ranges, partition.marks)


class WrongStreamReader(DataSourceStreamReader):
    """A reader with invalid options, which raises the error when it is first used."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    @sentence_first()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        raise self._error

    @sentence_first()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    @sentence_first()
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        raise self._error


def _warn(error: CometMQError) -> None:
    log.warning("%s", error)


def _is_initial(offset: dict[str, Any]) -> bool:
    _check_version(offset)
    return "initial" in offset


def _check_version(offset: dict[str, Any]) -> None:
    if offset.get("v") != VERSION:
        raise SparkSourceError(
            f"the checkpoint contains an offset of version {offset.get('v')}, but this source writes version {VERSION}",
            next_step="check that the checkpoint belongs to this source, and to this version of CometMQ or an "
            "older one",
        )
