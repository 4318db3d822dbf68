"""The writers that Spark calls, for batches and streams, and one task of a write.

Spark creates a writer on the driver and sends it to the tasks; ``commit`` and ``abort`` run on another copy of it.
Consumers see a message as soon as its broker has stored it, so ``commit`` has nothing to publish and ``abort`` has
nothing to undo.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cometmq.spark.errors import OptionError, sentence_first
from cometmq.spark.records.worker_memory import lasting_worker
from cometmq.spark.sink.encoding import TaskIdentity, encode_rows, parts_of, task_attempt, task_identity
from cometmq.spark.sink.options import Guarantee, SinkOptions, check_sink_schema, parse_sink_options
from cometmq.spark.sink.placing import Placing, Routes, WriteRoute, look_up_route

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from cometmq.spark.sink.delivery import RowSelection

log = logging.getLogger("cometmq.spark")


class _TaskWriter:
    """The part of a writer that runs in tasks."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one task.

        :raises SinkError: see :func:`write_rows`.
        """
        identity = task_identity(self._plan.producer, streaming=self._plan.streaming)
        with lasting_worker():
            return write_rows(self._plan, identity, iterator, attempt=task_attempt())


class RocketMQWriter(_TaskWriter, DataSourceArrowWriter):
    """Writes a batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the totals of the finished write."""
        _log("batch written: %s", summary(messages))


class RocketMQStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Log the totals of the finished write."""
        _log("micro-batch %d written: %s", batchId, summary(messages))


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> RocketMQWriter:
    """Create the writer for ``df.write``.

    :raises OptionError: an option or a column is invalid, or the mode is ``overwrite``.
    :raises SinkError: the topic in option ``topic`` is not writable.
    """
    if overwrite:
        raise OptionError("messages cannot be overwritten", next_step="use .mode('append')")
    return RocketMQWriter(_plan(given, schema, streaming=False))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> RocketMQStreamWriter:
    """Create the writer for ``df.writeStream``.

    :raises OptionError: see :func:`batch_writer`; or the output mode is ``complete``.
    :raises SinkError: see :func:`batch_writer`.
    """
    if overwrite:
        raise OptionError("messages cannot be overwritten", next_step="use .outputMode('append')")
    return RocketMQStreamWriter(_plan(given, schema, streaming=True))


def _log(line: str, *values: object) -> None:
    """Log one line at level INFO. Spark's Python workers drop it unless a level is set."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    log.info(line, *values)


def _plan(given: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkPlan:
    options = parse_sink_options(given)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_sink_schema(fields, topic_given=options.topic is not None, guarantee=options.guarantee)
    routes = {} if options.topic is None else {options.topic: look_up_route(options, options.topic)}
    producer = options.producer_id if streaming else options.producer_id or uuid.uuid4().hex
    return SinkPlan(options, producer, streaming, routes)


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):
    """The totals of one task, in which every message was acknowledged."""

    messages: int
    bytes: int
    """Number of bytes in bodies and properties."""
    requests: int
    repeated: int
    """Number of requests that were resent."""
    already_stored: int = 0
    """Number of messages that an earlier attempt had already stored."""


@dataclass(frozen=True)
class SinkPlan:
    """The description of a write that the driver sends to its tasks."""

    options: SinkOptions
    producer: str | None
    """Id of a batch write. A stream's tasks look up their query's id themselves."""
    streaming: bool = False
    routes: dict[str, WriteRoute] = field(default_factory=dict)
    """Routes that were looked up when the write was planned."""


def write_rows(
    plan: SinkPlan, identity: TaskIdentity, batches: Iterable[pa.RecordBatch], *, attempt: int = 0
) -> SinkCommit:
    """Send the rows of one task. Return when all rows are acknowledged.

    :param attempt: number of this attempt, starting at 0.
    :raises SinkError: a row cannot be sent, or a broker rejects or does not acknowledge messages.
    """
    from cometmq.spark.sink.delivery import Delivery

    selection = _selection(plan.options, identity, attempt)
    routes = Routes(plan.options, plan.routes, selection.choose_queues)
    placing = Placing(plan.options, routes, identity.partition)
    delivery = Delivery(plan.options, routes, selection)
    row = 0
    try:
        for batch in batches:
            for part in parts_of(batch):
                for chunk in placing.chunks(encode_rows(part, row, identity, plan.options)):
                    delivery.deliver(chunk)
                row += part.num_rows
        done = delivery.finish()
        selection.finish()
    except Exception:
        delivery.await_answers()
        raise
    finally:
        delivery.close()
    return SinkCommit(done.messages, done.bytes, done.requests, done.repeated, delivery.already_stored)


def _selection(options: SinkOptions, identity: TaskIdentity, attempt: int) -> RowSelection:
    from cometmq.spark.sink.delivery import RowSelection
    from cometmq.spark.sink.effectively_once import EffectivelyOnce
    from cometmq.spark.sink.exactly_once import ExactlyOnce

    if options.guarantee is Guarantee.EXACTLY_ONCE:
        return ExactlyOnce(options, identity)
    if options.guarantee is Guarantee.EFFECTIVELY_ONCE:
        return EffectivelyOnce(options, identity, attempt)
    return RowSelection()


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return one line with the totals of all tasks in a write."""
    commits = [message for message in messages if isinstance(message, SinkCommit)]
    repeated = sum(commit.repeated for commit in commits)
    already_stored = sum(commit.already_stored for commit in commits)
    return (
        f"{sum(commit.messages for commit in commits)} messages, {sum(commit.bytes for commit in commits)} bytes "
        f"in {sum(commit.requests for commit in commits)} requests of {len(commits)} tasks"
        + (f", {repeated} requests resent" if repeated else "")
        + (f", {already_stored} messages were already stored" if already_stored else "")
    )
