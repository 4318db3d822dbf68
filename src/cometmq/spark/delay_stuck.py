"""Why messages are stuck, as far as brokers or a store's files tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cometmq.spark.delay_progress import BrokerProgress
from cometmq.spark.delay_report import Reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def with_reasons(stuck: DataFrame, progress: Sequence[BrokerProgress]) -> DataFrame:
    """Rows of :func:`~.delay_rows.delayed_rows` that are stuck, with column ``reason``.

    :param stuck: also has ``seenMs``, null where the topic is not there.
    """
    from pyspark.sql import functions as f

    reached = {f"{of.broker}/{level}": offset for of in progress for level, offset in of.reached.items()}
    until = {of.broker: of.timer_until_ms for of in progress if of.timer_until_ms is not None}
    without = [of.broker for of in progress if of.has_timer is False]
    next_offset = looked_up(reached, f.concat_ws("/", "broker", "level"))
    timer_until_ms = looked_up(until, f.col("broker"))
    any_delay = f.col("anyDelay")
    ahead = f.when(any_delay, f.col("dueMs") > timer_until_ms).otherwise(f.col("waitingOffset") >= next_offset)
    reason = (
        f.when((f.col("topic") == "") | (f.col("queueId") < 0), Reason.NOWHERE)
        .when(any_delay & f.col("broker").isin(without), Reason.NO_TIMER)
        .when(ahead, Reason.NOT_REACHED)
        .when(f.isnull("seenMs"), Reason.NO_TOPIC)
        .when(ahead.isNotNull(), Reason.PASSED)
        .otherwise(Reason.UNKNOWN)
    )
    return stuck.withColumn("reason", reason)


def looked_up(table: Mapping[str, int], key: Column) -> Column:
    """The number that a table has for a key, null where it has none; the expression is flat, however long it is."""
    from pyspark.sql import functions as f

    if not table:
        return f.lit(None).cast("bigint")
    entries = [f.lit(part) for name, value in table.items() for part in (name, value)]
    return f.try_element_at(f.create_map(*entries), key).cast("bigint")
