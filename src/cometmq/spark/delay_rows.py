"""Delayed messages as rows: each that waits or waited beside its delivery.

While it waits, a message is a record of ``SCHEDULE_TOPIC_XXXX`` (a delay level) or ``rmq_sys_wheel_timer`` (any
delay); when it is due the broker stores it again in its own topic, with REAL_TOPIC still among its properties. The two
are joined by what delivery does not change. When it was due is exact: for levels the time it was stored and the
level's delay, for any delay what its producer named (TIMER_DELIVER_MS) or the broker reckoned (TIMER_OUT_MS). Only
where a level's waiting record is gone it is reckoned from the born time, by the producer's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.message.names import TIMER_TOPIC
from cometmq.message.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from cometmq.spark.delay_progress import BrokerProgress, timer_position
from cometmq.spark.job_source import MessageSource
from cometmq.spark.timer_files import has_timer_files, read_timer_files
from cometmq.store.timer_position import TimerPosition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROLLS: Final = "TIMER_ROLL_TIMES"
"""How often RocketMQ 5 has stored a message that waits anew; each time is another record."""
_COLUMNS: Final = (
    *("topic", "brokerName", "queueId", "queueOffset", "msgId", "uniqKey", "properties"),
    *("bornTimestamp", "storeTimestamp", "reconsumeTimes", "bodyCrc"),
)
_IDENTITY: Final = ("broker", "topic", "uniqKey", "queueId", "anyDelay", "bornMs", "bodyCrc", "reconsumeTimes")
"""What a waiting record and its delivery have in common; a producer's repeated send has it too, hence ``nth``."""
_WAITS, _DELIVERED = "waits", "delivered"


def delayed_rows(
    spark: SparkSession,
    source: MessageSource,
    topics: Sequence[str],
    waiting_topics: Sequence[str],
    progress: Sequence[BrokerProgress],
) -> DataFrame:
    """One row for each delayed message.

    Columns: ``broker``, ``topic`` (of its own), ``queueId``, ``anyDelay``, ``level`` (0 for any delay), ``uniqKey``,
    ``dueMs``, ``byBorn`` (that is reckoned from the born time), ``deliveredMs``, ``deliveredId`` (both null: not
    delivered), ``waitingId``, ``waitingOffset`` (null: that record is gone).

    :param topics: whose deliveries are read; what waits is of every topic.
    :param waiting_topics: which of the two topics where messages wait there are.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    waiting = _waiting(_waiting_records(spark, source, waiting_topics), progress)
    delivered = _delivered(source.read(spark, topics, _COLUMNS), progress)
    # All windows below divide further by what the rows are dealt by here: they are shuffled once.
    rows = waiting.unionByName(delivered).repartition("broker", "topic", "uniqKey")
    recalled = f.max("recall").over(Window.partitionBy("broker", "topic", "uniqKey", "outMs"))
    rows = rows.withColumn("recalled", recalled).where(
        ~f.col("recall") & ((f.col("side") == _DELIVERED) | ~f.col("recalled"))
    )
    same = Window.partitionBy(*_IDENTITY, "side")
    rows = rows.withColumn("lastRoll", f.max("rolls").over(same)).where("rolls = lastRoll")
    rows = rows.withColumn("nth", f.row_number().over(same.orderBy("storedMs", "offset")))

    def of(side: str, column: str) -> Column:
        return f.max(f.when(f.col("side") == side, f.col(column)))

    pairs = rows.groupBy(*_IDENTITY, "nth").agg(
        f.max("level").alias("level"),
        f.max("dueMs").alias("exactMs"),
        f.max("bornDueMs").alias("bornDueMs"),
        of(_DELIVERED, "storedMs").alias("deliveredMs"),
        of(_DELIVERED, "msgId").alias("deliveredId"),
        of(_WAITS, "msgId").alias("waitingId"),
        of(_WAITS, "offset").alias("waitingOffset"),
    )
    return pairs.select(
        *("broker", "topic", "queueId", "anyDelay", "level", "uniqKey"),
        f.coalesce("exactMs", "bornDueMs").alias("dueMs"),
        (f.isnull("exactMs") & f.isnotnull("bornDueMs")).alias("byBorn"),
        *("deliveredMs", "deliveredId", "waitingId", "waitingOffset"),
    )


def _told(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.try_element_at("properties", f.lit(name))


def _number(name: str) -> Column:
    return _told(name).try_cast("bigint")


def _wanted_ms() -> Column:
    """When a message with any delay is due: what its producer named counts, where it named a time."""
    from pyspark.sql import functions as f

    names_a_delay = _told(TIMER_DELAY_SEC).isNotNull() | _told(TIMER_DELAY_MS).isNotNull()
    return f.coalesce(f.when(~names_a_delay, _number(TIMER_DELIVER_MS)), _number(TIMER_OUT_MS))


def _delay_ms(level: Column, progress: Sequence[BrokerProgress]) -> Column:
    """The delay of a level at the broker of the row; null where it has no such level."""
    from pyspark.sql import functions as f

    delay = f.lit(None).cast("bigint")
    for delays in {of.delays_ms for of in progress}:
        brokers = [of.broker for of in progress if of.delays_ms == delays]
        table = f.array(*(f.lit(ms).cast("bigint") for ms in delays))
        delay = f.when(f.col("brokerName").isin(brokers), f.get(table, level - 1)).otherwise(delay)
    return delay


def _side(
    side: str, topic: Column, queue_id: Column, any_delay: Column, level: Column, due: dict[str, Column]
) -> list[Column]:
    """The columns that both sides have; ``due`` names when a message is due, exactly or by its born time."""
    from pyspark.sql import functions as f

    return [
        f.lit(side).alias("side"),
        f.col("brokerName").alias("broker"),
        f.coalesce(topic, f.lit("")).alias("topic"),
        f.coalesce(queue_id, f.lit(-1)).alias("queueId"),
        any_delay.alias("anyDelay"),
        f.unix_millis("bornTimestamp").alias("bornMs"),
        f.col("bodyCrc"),
        f.col("reconsumeTimes"),
        f.when(any_delay, f.lit(0)).otherwise(level).alias("level"),
        f.unix_millis("storeTimestamp").alias("storedMs"),
        f.col("queueOffset").alias("offset"),
        f.col("msgId"),
        _number(TIMER_OUT_MS).alias("outMs"),
        *(due.get(name, f.lit(None).cast("bigint")).alias(name) for name in ("dueMs", "bornDueMs")),
    ]


def _waiting(records: DataFrame, progress: Sequence[BrokerProgress]) -> DataFrame:
    from pyspark.sql import functions as f

    any_delay, level = f.col("topic") == TIMER_TOPIC, f.col("queueId") + 1
    by_level = f.unix_millis("storeTimestamp") + _delay_ms(level, progress)
    recalls = _told(TIMER_DEL_UNIQKEY)
    # ``<topic>+<unique key>``; brokers before 5.3.2 give the unique key only.
    prefix = f.concat(_told(REAL_TOPIC), f.lit("+"))
    recalled_key = f.when(
        f.startswith(recalls, prefix), f.substring(recalls, f.length(prefix) + 1, f.length(recalls))
    ).otherwise(recalls)
    due = {"dueMs": f.when(any_delay, _wanted_ms()).otherwise(by_level)}
    return records.select(
        *_side(_WAITS, _told(REAL_TOPIC), _told(REAL_QID).try_cast("int"), any_delay, level, due),
        f.coalesce(recalled_key, "uniqKey", f.lit("")).alias("uniqKey"),
        recalls.isNotNull().alias("recall"),
        f.coalesce(_number(ROLLS), f.lit(0)).alias("rolls"),
    )


def _waiting_records(spark: SparkSession, source: MessageSource, topics: Sequence[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    everything = replace(source, begin_ms=None)  # what was sent before may be due now
    if source.store is None or not has_timer_files(source.store):
        return everything.read(spark, topics, _COLUMNS) if topics else _nothing(spark)
    position = timer_position(source.store) or TimerPosition()
    records = read_timer_files(spark, source.store, source.broker_name, position, _COLUMNS)
    if topics:
        records = everything.read(spark, topics, _COLUMNS).unionByName(records)
    # Most of them stand in the log as well, with the same offset; a log that has lost its end gave some offsets again.
    place = ("topic", "queueId", "queueOffset")
    whole = f.max(_told(REAL_TOPIC).isNotNull()).over(Window.partitionBy(*place))
    once = records.dropDuplicates([*place, "uniqKey", "bornTimestamp", "bodyCrc"]).withColumn("whole", whole)
    return once.where(_told(REAL_TOPIC).isNotNull() | ~f.col("whole")).drop("whole")


def _nothing(spark: SparkSession) -> DataFrame:
    from cometmq.spark.columns import BY_NAME

    return spark.createDataFrame([], ", ".join(f"{name} {BY_NAME[name].type}" for name in _COLUMNS))


def _delivered(messages: DataFrame, progress: Sequence[BrokerProgress]) -> DataFrame:
    from pyspark.sql import functions as f

    level = _told(DELAY).try_cast("int")
    has_level = f.coalesce(level > 0, f.lit(False))
    # Properties of an earlier life, of a message that was sent on with them, tell of another topic.
    delayed = (_told(REAL_TOPIC) == f.col("topic")) & (has_level | _number(TIMER_OUT_MS).isNotNull())
    by_born = f.unix_millis("bornTimestamp") + _delay_ms(level, progress)
    due = {
        "dueMs": f.when(~has_level, _wanted_ms()),
        "bornDueMs": f.when(has_level & (f.col("reconsumeTimes") == 0), by_born),
    }
    return messages.where(delayed).select(
        *_side(_DELIVERED, f.col("topic"), f.col("queueId"), ~has_level, level, due),
        f.coalesce("uniqKey", f.lit("")).alias("uniqKey"),
        f.lit(False).alias("recall"),
        f.lit(0).cast("bigint").alias("rolls"),
    )
