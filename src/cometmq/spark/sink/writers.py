"""What Spark calls to write: a writer for batches and one for streams.

Spark makes a writer on the driver and sends it to the tasks; ``commit`` and ``abort`` run on another copy of it.
Messages are visible to consumers as soon as their broker has them, so neither has anything to publish or to take back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cometmq.spark.errors import OptionError
from cometmq.spark.sink.columns import check_sink_schema
from cometmq.spark.sink.identity import task_attempt, task_identity
from cometmq.spark.sink.options import SinkOptions, parse_sink_options
from cometmq.spark.sink.routes import look_up
from cometmq.spark.sink.task import SinkCommit, SinkPlan, summary, write_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("cometmq.spark")


class RocketMQWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one task.

        :raises SinkError: as :func:`~cometmq.spark.sink.task.write_rows`.
        """
        identity = task_identity(self._plan.producer, streaming=self._plan.streaming)
        return write_rows(self._plan, identity, iterator, attempt=task_attempt())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Tell in the log what was sent."""
        _tell("batch written: %s", summary(messages))


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one task.

        :raises SinkError: as :func:`~cometmq.spark.sink.task.write_rows`.
        """
        identity = task_identity(self._plan.producer, streaming=self._plan.streaming)
        return write_rows(self._plan, identity, iterator, attempt=task_attempt())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Tell in the log what was sent."""
        _tell("micro-batch %d written: %s", batchId, summary(messages))


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> RocketMQWriter:
    """Make the writer of ``df.write``.

    :raises OptionError: an option or a column is wrong, or the mode is ``overwrite``.
    :raises SinkError: option ``topic`` names one that cannot be written to.
    """
    if overwrite:
        raise OptionError("messages cannot be overwritten", next_step="use .mode('append')")
    options = _checked(given, schema)
    return RocketMQWriter(_plan(options, options.producer_id or uuid.uuid4().hex, streaming=False))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> RocketMQStreamWriter:
    """Make the writer of ``df.writeStream``.

    :raises OptionError: an option or a column is wrong, or the output mode is ``complete``.
    :raises SinkError: option ``topic`` names one that cannot be written to.
    """
    if overwrite:
        raise OptionError("messages cannot be overwritten", next_step="use .outputMode('append')")
    options = _checked(given, schema)
    return RocketMQStreamWriter(_plan(options, options.producer_id, streaming=True))


def _tell(line: str, *values: object) -> None:
    """One line at level INFO, which Spark's Python workers drop unless somebody sets a level."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    log.info(line, *values)


def _checked(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    options = parse_sink_options(given)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    check_sink_schema(fields, topic_given=options.topic is not None, guarantee=options.guarantee)
    return options


def _plan(options: SinkOptions, producer: str | None, *, streaming: bool) -> SinkPlan:
    routes = {} if options.topic is None else {options.topic: look_up(options, options.topic)}
    return SinkPlan(options, producer, streaming, routes)
