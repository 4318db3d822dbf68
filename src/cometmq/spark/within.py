"""Rows of some ranges of offsets, by a join with a small table.

A condition for each queue would be a deep tree, at which Spark's planner runs out of stack from about a thousand
queues on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cometmq.spark.queues import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE: Final = ["topic", "brokerName", "queueId"]


def within(frame: DataFrame, ranges: Iterable[OffsetRange]) -> DataFrame:
    """The rows of ranges that do not overlap, in the order that they have within their partitions."""
    from pyspark.sql import functions as f

    table = [(*part.queue, part.first, part.end) for part in ranges]
    wanted = frame.sparkSession.createDataFrame(
        table, "topic string, brokerName string, queueId int, rangeFirst bigint, rangeEnd bigint"
    )
    found = frame.join(f.broadcast(wanted), _PLACE).where("queueOffset >= rangeFirst AND queueOffset < rangeEnd")
    return found.select(*frame.columns)
