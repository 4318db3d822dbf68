"""The messages of each party in an audit as Spark frames, and the aggregates that the driver receives.

Each party's columns are ``brokerName``, ``queueId``, ``queueOffset``, ``uniqKey``, ``bornTimestamp``,
``storeTimestamp``; the archive's frame also has ``archivedTimestamp``, the time of the commit that added the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from cometmq.client.blocking.offsets import Bounds
from cometmq.message.trace_record import FIELD_SEPARATOR, RECORD_SEPARATOR
from cometmq.spark.archives.log import ArchiveLog, read_files
from cometmq.spark.jobs.audit.report import Lateness, Span
from cometmq.spark.records.columns import MAX_TIME_MS
from cometmq.spark.records.queues import Queue, offsets_to_json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

QUEUE: Final = ("brokerName", "queueId")
PLACE: Final = ("brokerName", "queueId", "minute")
_SCHEMA: Final = (
    "brokerName string, queueId int, queueOffset bigint, uniqKey string, bornTimestamp timestamp, "
    "storeTimestamp timestamp"
)
_COLUMNS: Final = [field.split()[0] for field in _SCHEMA.split(", ")]


def stored_frame(
    spark: SparkSession, servers: Mapping[str, str], topic: str, bounds: Mapping[Queue, Bounds]
) -> DataFrame:
    """Return the messages within ``bounds`` that are still on the brokers. Deleted messages are left out.

    :param servers: options for connections to the brokers.
    """
    first = offsets_to_json({queue: held.first for queue, held in bounds.items()})
    end = offsets_to_json({queue: held.end for queue, held in bounds.items()})
    return (
        spark.read.format("rocketmq")
        .options(**servers)
        .option("topic", topic)
        .option("startingOffsets", json.dumps(first))
        .option("endingOffsets", json.dumps(end))
        .option("failOnDataLoss", "false")
        .schema(_SCHEMA)
        .load()
    )


def not_deleted(stored: DataFrame, held_from: Mapping[Queue, int]) -> DataFrame:
    """Return the messages that were still on the brokers after the read. Some earlier messages may be missing.

    :param held_from: first offset of each queue that was not deleted during the read.
    """
    rows = [(queue.broker, queue.queue_id, first) for queue, first in held_from.items()]
    limits = stored.sparkSession.createDataFrame(rows, "brokerName string, queueId int, heldFrom bigint")
    return stored.join(f.broadcast(limits), list(QUEUE)).where("queueOffset >= heldFrom")


def archived_frame(spark: SparkSession, log: ArchiveLog, topic: str) -> DataFrame:
    """Return a topic's messages in an archive."""
    files = [file for file in log.files() if file.topic == topic]
    if not files:
        return spark.createDataFrame([], f"{_SCHEMA}, archivedTimestamp timestamp")
    times = spark.createDataFrame(
        [(file.path.rpartition("/")[2], file.committed_ms or None) for file in files], "file string, committed bigint"
    )
    rows = read_files(spark, log, files, name="file").select(*_COLUMNS, "file")
    return rows.join(f.broadcast(times), "file", "left").select(
        *_COLUMNS, f.timestamp_millis("committed").alias("archivedTimestamp")
    )


def produced_frame(spark: SparkSession, servers: Mapping[str, str], trace_topic: str, topic: str) -> DataFrame:
    """Return the sends that the trace topic records: ``uniqKey`` and the first ``producedTimestamp``.

    Brokers do not check the contents of the trace topic, so impossible times become null.
    """
    bodies = (
        spark.read.format("rocketmq")
        .options(**servers)
        .option("topic", trace_topic)
        .option("failOnDataLoss", "false")
        .schema("body binary")
        .load()
    )
    records = bodies.select(f.explode(f.split(f.decode("body", "UTF-8"), RECORD_SEPARATOR)).alias("record"))
    fields = records.select(f.split("record", FIELD_SEPARATOR).alias("at"))
    time_ms = f.get("at", f.lit(1)).try_cast("bigint")
    known_ms = f.when(time_ms.between(0, MAX_TIME_MS), time_ms)
    return (
        fields.where((f.get("at", f.lit(0)) == "Pub") & (f.get("at", f.lit(4)) == topic))
        .where(f.get("at", f.lit(13)) == "true")
        .groupBy(f.get("at", f.lit(5)).alias("uniqKey"))
        .agg(f.min(f.timestamp_millis(known_ms)).alias("producedTimestamp"))
    )


def minutes_of(
    spark: SparkSession,
    stored: DataFrame,
    archived: DataFrame | None,
    limits: list[tuple[str, int, int, int, int, int, int]],
) -> DataFrame:
    """Count both parties' messages per queue and minute of store time in one pass, and find the greatest delays.

    :param limits: for each queue: broker and number; the offsets ``first`` and ``end`` between which both parties
        should have the same messages; an offset and a time in ms (messages before both of them were removed from the
        archive); and the offset up to which all groups have consumed.
    """
    nothing = f.lit(None).cast("timestamp").alias("archivedTimestamp")
    every = stored.select(*_COLUMNS, nothing, f.lit(True).alias("isStored"))
    if archived is not None:
        every = every.unionByName(archived.select(*_COLUMNS, "archivedTimestamp", f.lit(False).alias("isStored")))
    known = spark.createDataFrame(
        limits,
        "brokerName string, queueId int, bothFrom bigint, bothTo bigint, expiredTo bigint, expiredMs bigint, "
        "consumedTo bigint",
    )
    is_stored = f.col("isStored")
    both = f.expr(
        "queueOffset >= bothFrom AND queueOffset < bothTo "
        "AND NOT (queueOffset < expiredTo AND unix_millis(storeTimestamp) < expiredMs)"
    )
    content = f.xxhash64("queueOffset", "uniqKey", "storeTimestamp")

    def offset(which: Column, pick: Any) -> Column:
        chosen: Column = pick(f.when(which, f.col("queueOffset")))
        return chosen

    return (
        every.join(f.broadcast(known), list(QUEUE), "left")
        .withColumn("minute", f.date_trunc("minute", "storeTimestamp"))
        .groupBy(*PLACE)
        .agg(
            f.count_if(is_stored).alias("stored"),
            f.count_if(~is_stored).alias("archived"),
            f.count_if(is_stored & both).alias("storedBoth"),
            f.count_if(~is_stored & both).alias("archivedBoth"),
            f.bit_xor(f.when(is_stored & both, content)).alias("storedContent"),
            f.bit_xor(f.when(~is_stored & both, content)).alias("archivedContent"),
            f.count_if(is_stored & (f.col("queueOffset") < f.col("consumedTo"))).alias("consumed"),
            f.max(f.when(is_stored, f.expr(took("bornTimestamp", "storeTimestamp")))).alias("storedLateMs"),
            f.max(f.expr(took("storeTimestamp", "archivedTimestamp"))).alias("archivedLateMs"),
            offset(is_stored, f.min).alias("storedFirst"),
            offset(is_stored, f.max).alias("storedLast"),
            offset(~is_stored, f.min).alias("archivedFirst"),
            offset(~is_stored, f.max).alias("archivedLast"),
        )
    )


def took(begin: str, end: str) -> str:
    """Return a Spark SQL expression for the time between two columns, in ms."""
    return f"unix_millis({end}) - unix_millis({begin})"


def gaps_in(frame: DataFrame, queues: list[tuple[str, int, int]], most: int) -> list[tuple[str, int, int, int]]:
    """Return the first gaps in a party's offsets, each as broker, queue, first and end.

    :param queues: broker, number, and the first offset after which no message should be missing.
    """
    chosen = frame.sparkSession.createDataFrame(queues, "brokerName string, queueId int, since bigint")
    before = f.lag("queueOffset").over(Window.partitionBy(*QUEUE).orderBy("queueOffset"))
    rows = (
        frame.join(f.broadcast(chosen), list(QUEUE))
        .withColumn("before", before)
        .where("before IS NOT NULL")
        .withColumn("missing", f.expr("greatest(before + 1, since)"))
        .where("queueOffset > missing")
        .orderBy(*QUEUE, "queueOffset")
        .limit(most)
        .collect()
    )
    return [(row["brokerName"], row["queueId"], row["missing"], row["queueOffset"]) for row in rows]


SPANS: Final = 240
"""Maximum number of points on a curve."""
_MINUTE_S: Final = 60


def counted(minutes: DataFrame, topic: str) -> dict[Queue, Any]:
    """Return the count and the first and last offsets of each queue's messages for both parties."""
    rows = minutes.groupBy(*QUEUE).agg(
        f.sum("stored").alias("stored"),
        f.sum("archived").alias("archived"),
        f.min("storedFirst").alias("storedFirst"),
        f.max("storedLast").alias("storedLast"),
        f.min("archivedFirst").alias("archivedFirst"),
        f.max("archivedLast").alias("archivedLast"),
    )
    return {Queue(topic, row["brokerName"], row["queueId"]): row for row in rows.collect()}


def spans(minutes: DataFrame) -> tuple[Span, ...]:
    """Count messages by interval of store time."""
    at = f.unix_timestamp("minute")
    edges = minutes.agg(f.min(at).alias("first"), f.max(at).alias("last")).collect()[0]
    if edges["first"] is None:
        return ()
    width = -(-(edges["last"] - edges["first"] + _MINUTE_S) // (SPANS * _MINUTE_S)) * _MINUTE_S
    sums = [f.sum(name) for name in ("stored", "archived", "consumed")]
    rows = minutes.groupBy(f.floor((at - edges["first"]) / width)).agg(*sums).collect()
    found = {number: counts for number, *counts in rows}
    return tuple(
        Span((edges["first"] + number * width) * 1000, *found.get(number, (0, 0, 0)))
        for number in range(max(found) + 1)
    )


def lateness(stored: DataFrame, archived: DataFrame | None) -> tuple[Lateness, ...]:
    """Measure how long it took to store messages, and to archive them."""
    ways = [("born → stored", stored, "bornTimestamp", "storeTimestamp")]
    if archived is not None:
        ways.append(("stored → archived", archived, "storeTimestamp", "archivedTimestamp"))
    found = []
    for way, frame, begin, end in ways:
        late = took(begin, end)
        row = frame.selectExpr(f"percentile_approx({late}, array(0.5, 0.99)) AS q", f"max({late}) AS m").first()
        assert row is not None
        if row["m"] is not None:
            found.append(Lateness(way, int(row["q"][0]), int(row["q"][1]), int(row["m"])))
    return tuple(found)
