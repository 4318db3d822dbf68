"""The source in a real Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.spark.records.columns import COLUMNS
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.lag import lag_now, lag_of
from cometmq.spark.source.options import parse_options

pytestmark = pytest.mark.spark


def load(spark: Any, topics: Topics, topic: str, **options: Any) -> Any:
    reader = spark.read.format("rocketmq").option("namesrvAddr", topics.namesrv).option("topic", topic)
    return reader.options(**options)


def test_a_batch_has_every_column_and_every_message(spark: Any, topics: Topics) -> None:
    topic = topics.create(queues=2)
    topics.send(topic, 0, [b"zero %d" % n for n in range(700)], "KEYS\x01k1 k2\x02TAGS\x01A\x02UNIQ_KEY\x01u\x02x\x01y")
    topics.send(topic, 1, [b"one %d" % n for n in range(300)], "")
    frame = load(spark, topics, topic).load()
    assert frame.columns == [column.name for column in COLUMNS if column.default]
    rows = frame.orderBy("queueId", "queueOffset").collect()
    assert [bytes(row.body) for row in rows] == [
        *(b"zero %d" % n for n in range(700)),
        *(b"one %d" % n for n in range(300)),
    ]
    first, other = rows[0], rows[-1]
    assert (first.topic, first.brokerName, first.tags, first.keys, first.uniqKey) == (
        topic,
        "broker-a",
        "A",
        "k1 k2",
        "u",
    )
    assert first.properties["x"] == "y"
    assert (other.tags, other.keys, other.uniqKey, other.queueOffset) == (None, None, None, 299)
    assert len(first.msgId) == 32
    assert first.storeHost == topics.broker
    assert first.storeTimestamp >= first.bornTimestamp


def sentences(error: Exception) -> list[str]:
    """What a person sees of an error, without Spark's ids and states."""
    return str(error).split("\n SQLSTATE")[0].splitlines()


def test_an_error_of_ours_is_one_sentence_without_a_traceback(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """As far as PySpark lets us: before it stands which of its steps has failed."""
    topic = topics.fill(1, queues=1)
    reader = load(spark, topics, topic)
    with pytest.raises(Exception, match=r"Failed to create Python data source instance: .*OptionError") as typo:
        reader.option("startingOffset", "earliest").load()
    with pytest.raises(Exception, match=r"Failed to initialize Python data source reader: .*OptionError") as batch:
        load(spark, topics, topic, commitGroup="g").load().collect()
    with pytest.raises(Exception, match=r"read partitions: .*OptionError.* has topic nosuch") as absent:
        load(spark, topics, "nosuch").load().collect()
    sink = spark.range(1).selectExpr("'x' AS valu").write.format("rocketmq").mode("append")
    with pytest.raises(Exception, match=r"OptionError.*did you mean value") as column:
        sink.options(namesrvAddr=topics.namesrv, topic=topic).save()
    ending = spark.readStream.format("rocketmq").options(namesrvAddr=topics.namesrv, topic=topic, pushFilters="true")
    with pytest.raises(Exception, match="OptionError: option pushFilters is only allowed for batches") as stream:
        ending.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    for error in (typo, batch, absent, column, stream):
        [line] = sentences(error.value)
        assert "Traceback" not in line
    with pytest.raises(Exception, match="Traceback") as own:  # a fault that is not ours keeps its trace
        spark.range(1).selectExpr("1 AS a").mapInPandas(lambda _: 1 / 0, "a int").collect()
    assert "ZeroDivisionError" in str(own.value)


def test_assigned_queues_alone_are_read_by_batch_and_stream(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill(300, queues=3)
    base = spark.read.format("rocketmq").option("namesrvAddr", topics.namesrv)
    by_topic = base.option("assign", json.dumps({topic: [0, 2]})).load()
    assert {row.queueId for row in by_topic.select("queueId").distinct().collect()} == {0, 2}
    assert by_topic.count() == 200
    of_broker = base.option("assign", json.dumps({topic: {"broker-a": [1]}})).load()
    assert [row.queueId for row in of_broker.select("queueId").distinct().collect()] == [1]
    with pytest.raises(Exception, match=f"option assign names {topic}/broker-a/7, which no registered broker has"):
        base.option("assign", json.dumps({topic: {"broker-a": [7]}})).load().count()

    stream = spark.readStream.format("rocketmq").options(namesrvAddr=topics.namesrv, startingOffsets="earliest")
    assigned = stream.option("assign", json.dumps({topic: [2]})).load().select("queueId")

    def run() -> Any:
        writer = assigned.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    run()
    topics.send(topic, 0, [b"not read"], "")
    topics.send(topic, 2, [b"read"], "")
    source = run().lastProgress["sources"][0]
    assert [row.queueId for row in spark.read.parquet(str(tmp_path / "rows")).collect()] == [2] * 101
    assert (lag_of(source).messages, lag_now(source, topics.namesrv).messages) == (0, 0)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("pushed", ["false", "true"])
def test_a_schema_is_a_projection_and_filters_work_with_the_setting_on_and_off(
    spark: Any, topics: Topics, pushed: str, asked: bool
) -> None:
    """The rows are the same; where it is asked for and the setting is on, less is read: one partition of four."""
    topic = topics.fill(400, queues=4)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        source = load(spark, topics, topic, minPartitions=4, pushFilters=asked)
        source = source.schema("storeTimestamp timestamp, queueOffset bigint, queueId int")
        frame = source.load()
        assert frame.columns == ["storeTimestamp", "queueOffset", "queueId"]
        found = frame.where("queueId in (1, 3) and queueOffset >= 10 and queueOffset < 12 and queueId != 1")
        assert [(row.queueId, row.queueOffset) for row in found.collect()] == [(3, 10), (3, 11)]
        one = frame.where("queueId = 2 and queueOffset = 7")
        assert one.rdd.getNumPartitions() == (1 if asked and pushed == "true" else 4)
        everything = source.load() if asked else frame
        assert everything.count() == 400
        moment = everything.agg({"storeTimestamp": "max"}).collect()[0][0]
        assert frame.where(frame.storeTimestamp > moment).count() == 0
        assert frame.where(frame.storeTimestamp <= moment).count() == 400
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_the_body_stays_away_where_it_is_not_wanted(spark: Any, topics: Topics) -> None:
    frame = load(spark, topics, topics.fill(10), includeBody="false").load()
    assert "body" not in frame.columns
    assert frame.count() == 10


def test_sql_can_name_the_source(spark: Any, topics: Topics) -> None:
    topic = topics.fill(10, queues=2)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW fromtopic USING rocketmq "
        f"OPTIONS (namesrvAddr '{topics.namesrv}', topic '{topic}')"
    )
    found = spark.sql("SELECT queueId, count(*) AS n FROM fromtopic GROUP BY queueId ORDER BY queueId").collect()
    assert [(row.queueId, row.n) for row in found] == [(0, 5), (1, 5)]


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"startOffset": "earliest"}, None, "did you mean startingOffsets"),
        ({}, "queueOfset bigint", "did you mean queueOffset"),
        ({}, "queueOffset int", "queueOffset of the rocketmq source is bigint, not int"),
    ],
)
def test_wrong_use_is_told_in_words(
    spark: Any, topics: Topics, options: dict[str, str], schema: str | None, message: str
) -> None:
    reader = load(spark, topics, "any", **options)
    with pytest.raises(Exception, match=message):
        (reader.schema(schema) if schema else reader).load().count()


def shown(topics: Topics, topic: str, group: str) -> dict[int, int]:
    """The offsets of a group, as its brokers have them for all tools."""
    cluster = Cluster(parse_options({"namesrvAddr": topics.namesrv, "topic": topic}))
    return {queue.queue_id: at for queue, at in cluster.committed_offsets(cluster.queues(), group).items()}


@pytest.mark.timeout(600)
def test_a_stream_goes_on_after_a_restart(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Two runs on one checkpoint, a rate limit, and a queue that appears in between: every message once.

    The group that is shown how far the query is knows of the last micro-batch of each run too.
    """
    topic = topics.fill(1000, queues=2)
    group = f"shown-{topic}"
    found: list[tuple[int, int]] = []
    batches: list[int] = []

    def take(frame: Any, batch_id: int) -> None:
        rows = frame.collect()
        batches.append(len(rows))
        found.extend((row.queueId, row.queueOffset) for row in rows)

    def run() -> Any:
        stream = (
            spark.readStream.format("rocketmq")
            .option("namesrvAddr", topics.namesrv)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 400)
            .option("commitGroup", group)
            .schema("queueId int, queueOffset bigint")
            .load()
        )
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
        return query

    query = run()
    assert batches == [400, 400, 200]
    sources = [progress["sources"][0] for progress in query.recentProgress]
    assert lag_of(sources[0]).messages == 600
    metrics = json.loads(sources[0]["latestOffset"])["metrics"]
    assert metrics.pop("messages") == 400
    assert metrics.pop("bytes") > 400 * 90, "more than the fixed part of each record"
    [(broker, latency_ms)] = metrics.pop("brokerLatencyMs").items()
    assert broker == "broker-a"
    assert 0 < latency_ms < 60_000
    assert (
        metrics
        == lag_of(sources[0]).metrics
        == {
            "minOffsetsBehindLatest": 300,
            "maxOffsetsBehindLatest": 300,
            "avgOffsetsBehindLatest": 300.0,
            "offsetsBehindLatest": 600,
        }
    )
    # What the page says of PySpark 4.3; when these fail, its metrics and its real-time trigger can be used.
    assert sources[0]["metrics"] == {}
    assert not query.lastProgress["sink"].get("metrics")
    live = spark.readStream.format("rocketmq").options(namesrvAddr=topics.namesrv, topic=topic).load()
    with pytest.raises(Exception, match=r"REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED|RealTime|REAL_TIME"):
        live.writeStream.format("console").outputMode("update").trigger(realTime="5 minutes").start().awaitTermination()
    assert shown(topics, topic, group) == {0: 500, 1: 500}
    topics.create(queues=3, name=topic)
    topics.send(topic, 0, [b"x"] * 7)
    topics.send(topic, 2, [b"x"] * 5)
    run()
    assert shown(topics, topic, group) == {0: 507, 1: 500, 2: 5}
    assert sorted(found) == [(queue, offset) for queue, end in ((0, 507), (1, 500), (2, 5)) for offset in range(end)]


def test_limits_follow_the_trigger(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """``once`` reads all in one batch, ``availableNow`` all in batches within the limits."""
    topic = topics.create(queues=1)
    limits = {"minOffsetsPerTrigger": 30, "maxOffsetsPerTrigger": 30, "maxBytesPerTrigger": "20k"}

    def batches(trigger: dict[str, bool]) -> list[int]:
        rows = spark.readStream.format("rocketmq").options(namesrvAddr=topics.namesrv, topic=topic, **limits)
        started = (
            rows.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "-".join(trigger)))
            .trigger(**trigger)
            .start()
        )
        started.awaitTermination()
        return [progress["numInputRows"] for progress in started.recentProgress if progress["numInputRows"]]

    for first in (40, 10):
        topics.send(topic, 0, [bytes(1000)] * first)
        assert batches({"once": True}) == [first]
        limited = batches({"availableNow": True})
        assert (sum(limited), len(limited) > 1) == (first, first == 40)
