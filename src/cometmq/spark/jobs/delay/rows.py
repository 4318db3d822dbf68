"""Delayed messages as rows: each waiting record joined with its delivery.

A waiting message is a record in ``SCHEDULE_TOPIC_XXXX`` (delay levels) or ``rmq_sys_wheel_timer`` (arbitrary delays).
When the message is due, the broker stores it again in its own topic and keeps the property REAL_TOPIC. The two records
are joined by the fields that delivery does not change. The due time is exact: for delay levels, it is the store time
plus the level's delay. For arbitrary delays, it is the time that the producer set (TIMER_DELIVER_MS) or the broker
computed (TIMER_OUT_MS). If the waiting record of a level was deleted, the due time is computed from the born time,
which is taken from the producer's clock.

A message whose delay exceeds the log's retention is stored only in ``comet/timer`` (:mod:`cometmq.store.timer.log`).
One Spark task reads each day's files, hour by hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from cometmq.checksum import crc32
from cometmq.message.hosts import encode_host
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
    join_properties,
)
from cometmq.message.record import encode_record
from cometmq.spark.jobs.columns import property_of
from cometmq.spark.jobs.delay.progress import BrokerProgress, timer_position
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.records.columns import BY_NAME, arrow_schema
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.session.environment import tasks_at_a_time
from cometmq.spark.store.place import StorePlace
from cometmq.store.disk import Disk
from cometmq.store.timer.day import DAY_MS, OpenFiles, TimerDay, day_number_of
from cometmq.store.timer.log import FOREVER_MS
from cometmq.store.timer.position import Delivered, TimerPosition
from cometmq.store.timer.unit import Units

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

ROLLS: Final = "TIMER_ROLL_TIMES"
"""Property in which RocketMQ 5 counts how often it has stored a waiting message again. Each time, it writes another
record.
"""
_COLUMNS: Final = (
    *("topic", "brokerName", "queueId", "queueOffset", "msgId", "uniqKey", "properties"),
    *("bornTimestamp", "storeTimestamp", "reconsumeTimes", "bodyCrc"),
)
_IDENTITY: Final = ("broker", "topic", "uniqKey", "queueId", "anyDelay", "bornMs", "bodyCrc", "reconsumeTimes")
"""Columns that are equal in a waiting record and its delivery. They are also equal in repeated sends, so the column
``nth`` numbers those sends.
"""
_WAITS, _DELIVERED = "waits", "delivered"


def delayed_rows(
    spark: SparkSession,
    source: MessageSource,
    topics: Sequence[str],
    waiting_topics: Sequence[str],
    progress: Sequence[BrokerProgress],
) -> DataFrame:
    """One row for each delayed message.

    Columns: ``broker``, ``topic`` (the original topic), ``queueId``, ``anyDelay``, ``level`` (0 for an arbitrary
    delay), ``uniqKey``, ``dueMs``, ``byBorn`` (true if ``dueMs`` was computed from the born time), ``deliveredMs``,
    ``deliveredId`` (both null if the message is not delivered), ``waitingId``, ``waitingOffset`` (null if the waiting
    record was deleted).

    :param topics: topics from which deliveries are read; waiting messages are read for all topics.
    :param waiting_topics: the existing topics that contain waiting messages.
    """
    waiting = _waiting(_waiting_records(spark, source, waiting_topics), progress)
    delivered = _delivered(source.read(spark, topics, _COLUMNS), progress)
    # All windows below partition further by the columns used here, so the rows are shuffled only once.
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


def _number(name: str) -> Column:
    return property_of(name).try_cast("bigint")


def _wanted_ms() -> Column:
    """Return the due time of a message with an arbitrary delay: the time that its producer set, if there is one."""
    names_a_delay = property_of(TIMER_DELAY_SEC).isNotNull() | property_of(TIMER_DELAY_MS).isNotNull()
    return f.coalesce(f.when(~names_a_delay, _number(TIMER_DELIVER_MS)), _number(TIMER_OUT_MS))


def _delay_ms(level: Column, progress: Sequence[BrokerProgress]) -> Column:
    """Return a level's delay on the row's broker, or null if the broker does not have that level."""
    delay = f.lit(None).cast("bigint")
    for delays in {of.delays_ms for of in progress}:
        brokers = [of.broker for of in progress if of.delays_ms == delays]
        table = f.array(*(f.lit(ms).cast("bigint") for ms in delays))
        delay = f.when(f.col("brokerName").isin(brokers), f.get(table, level - 1)).otherwise(delay)
    return delay


def _side(
    side: str, topic: Column, queue_id: Column, any_delay: Column, level: Column, due: dict[str, Column]
) -> list[Column]:
    """Return the columns from both sides of the join. ``due`` is the due time, exact or computed from the born time."""
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
    any_delay, level = f.col("topic") == TIMER_TOPIC, f.col("queueId") + 1
    by_level = f.unix_millis("storeTimestamp") + _delay_ms(level, progress)
    recalls = property_of(TIMER_DEL_UNIQKEY)
    # ``<topic>+<unique key>``; brokers before 5.3.2 write only the unique key.
    prefix = f.concat(property_of(REAL_TOPIC), f.lit("+"))
    recalled_key = f.when(
        f.startswith(recalls, prefix), f.substring(recalls, f.length(prefix) + 1, f.length(recalls))
    ).otherwise(recalls)
    due = {"dueMs": f.when(any_delay, _wanted_ms()).otherwise(by_level)}
    return records.select(
        *_side(_WAITS, property_of(REAL_TOPIC), property_of(REAL_QID).try_cast("int"), any_delay, level, due),
        f.coalesce(recalled_key, "uniqKey", f.lit("")).alias("uniqKey"),
        recalls.isNotNull().alias("recall"),
        f.coalesce(_number(ROLLS), f.lit(0)).alias("rolls"),
    )


def _waiting_records(spark: SparkSession, source: MessageSource, topics: Sequence[str]) -> DataFrame:
    everything = replace(source, begin_ms=None)  # what was sent before may be due now
    store = None if source.store is None else source.open_store()
    if store is None or not has_timer_files(store):
        return everything.read(spark, topics, _COLUMNS) if topics else _nothing(spark)
    position = timer_position(store) or TimerPosition()
    records = read_timer_files(spark, store, source.broker_name, position, _COLUMNS)
    if topics:
        records = everything.read(spark, topics, _COLUMNS).unionByName(records)
    # Most of these messages are also in the log, with the same offset. A log that has lost its end has assigned some
    # offsets twice.
    place = ("topic", "queueId", "queueOffset")
    whole = f.max(property_of(REAL_TOPIC).isNotNull()).over(Window.partitionBy(*place))
    once = records.dropDuplicates([*place, "uniqKey", "bornTimestamp", "bodyCrc"]).withColumn("whole", whole)
    return once.where(property_of(REAL_TOPIC).isNotNull() | ~f.col("whole")).drop("whole")


def _nothing(spark: SparkSession) -> DataFrame:
    from cometmq.spark.records.columns import BY_NAME

    return spark.createDataFrame([], ", ".join(f"{name} {BY_NAME[name].type}" for name in _COLUMNS))


def _delivered(messages: DataFrame, progress: Sequence[BrokerProgress]) -> DataFrame:
    level = property_of(DELAY).try_cast("int")
    has_level = f.coalesce(level > 0, f.lit(False))
    # If an application forwarded a message with all its properties, these may still name another topic.
    delayed = (property_of(REAL_TOPIC) == f.col("topic")) & (has_level | _number(TIMER_OUT_MS).isNotNull())
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


_WINDOW_MS: Final = 3_600_000
"""Length of the period whose due messages are read together, at 56 bytes each, …"""
_BLOCK_BYTES: Final = 8 * 1024 * 1024
"""… and maximum number of record bytes that are decoded together. A single record may be larger."""
_TIMER: Final = "comet/timer"
_NOBODY: Final = encode_host("0.0.0.0", 0)


def has_timer_files(store: StorePlace) -> bool:
    """Return True if this store has ever contained a message with an arbitrary delay."""
    return bool(store.small_files(_TIMER))


def read_timer_files(
    spark: SparkSession, store: StorePlace, broker: str, position: TimerPosition, columns: Sequence[str]
) -> DataFrame:
    """Yield the messages in the timer log that were not delivered when ``position`` was saved.

    Each message's queue offset is its offset in ``rmq_sys_wheel_timer``. If a message's record is damaged, only the due
    time is set.
    """
    files: dict[int, list[str]] = {}
    for name in store.small_files(_TIMER):
        if (number := day_number_of(Path(name))) is not None:
            files.setdefault(number, []).append(name)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("day").to_pylist():
                with store.at_hand(*files[number]) as root:
                    yield from _read_day(root / _TIMER, number, broker, position, columns)

    ddl = ", ".join(f"{name} {BY_NAME[name].type}" for name in columns)
    frame = spark.createDataFrame([(number,) for number in sorted(files)], "day int")
    return frame.repartition(max(1, min(len(files), tasks_at_a_time(spark)))).mapInArrow(read, ddl)


def _read_day(
    directory: Path, number: int, broker: str, position: TimerPosition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    day = TimerDay(directory, number, Disk(), OpenFiles(1))
    day.recover(position.days.get(number))
    day.lost = [(of.days[number], of.serial, of.added) for of in position.lost if number in of.days]
    if not day.count:
        return
    delivered = Delivered(position, {})
    schema = arrow_schema(columns)
    with day.data_path.open("rb") as data:
        for low_ms in range(day.start_ms, day.start_ms + DAY_MS, _WINDOW_MS):
            units = day.units(low_ms, low_ms + _WINDOW_MS, FOREVER_MS)
            for records in _records(data, delivered.left(units)):
                yield from decode(records, schema, broker_name=broker)


def _records(data: Any, units: Units) -> Iterator[Records]:
    gathered: list[bytes] = []
    size = 0
    for unit in units:
        data.seek(int(unit["at"]))
        record = data.read(int(unit["size"]))
        if crc32(record) != unit["crc"]:
            record = _damaged(int(unit["serial"]), int(unit["due"]))
        gathered.append(record)
        size += len(record)
        if size >= _BLOCK_BYTES:
            yield Records(b"".join(gathered))
            gathered, size = [], 0
    if gathered:
        yield Records(b"".join(gathered))


def _damaged(serial: int, due_ms: int) -> bytes:
    return encode_record(
        topic=TIMER_TOPIC,
        queue_id=0,
        queue_offset=serial,
        physical_offset=0,
        body=b"",
        properties_text=join_properties({TIMER_OUT_MS: str(due_ms)}),
        born_timestamp=0,
        born_host=_NOBODY,
        store_timestamp=0,
        store_host=_NOBODY,
    )
