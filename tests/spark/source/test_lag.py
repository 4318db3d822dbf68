"""The lag of a query: from its progress, against the brokers, and from its listener."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.waiting import wait_for
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent
from tests.spark.source.reading import PLACE

from cometmq.spark.errors import OptionError, UnreachableError
from cometmq.spark.records.queues import Queue, offsets_to_json
from cometmq.spark.source.lag import Lag, LagListener, QueueLag, lag_between, lag_now, lag_of
from cometmq.spark.source.options import parse_options
from cometmq.spark.source.stream_reader import RocketMQStreamReader

PATIENCE_S = 60.0
ENDS = st.dictionaries(
    st.builds(Queue, st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 9)), st.integers(0, 1 << 40)
)
SOURCE = {
    "description": "RocketMQ",
    "startOffset": None,
    "endOffset": {"v": 1, "from": {}, "queues": {"a": {"x": {"0": 5, "1": 7}}}},
    "latestOffset": {"v": 1, "queues": {"a": {"x": {"0": 9, "1": 7, "2": 2}}}},
    "numInputRows": 12,
    "inputRowsPerSecond": 6.0,
    "processedRowsPerSecond": 4.5,
    "metrics": {},
}


@given(ENDS, ENDS)
def test_sums_are_those_of_the_queues(reached: dict[Queue, int], latest: dict[Queue, int]) -> None:
    lag = lag_between(reached, latest)
    behind = {of.queue: of.behind for of in lag.queues}
    assert behind.keys() == latest.keys()
    assert all(n == max(0, latest[queue] - reached.get(queue, 0)) for queue, n in behind.items())
    assert lag.messages == lag.metrics["offsetsBehindLatest"] == sum(behind.values())
    assert lag.metrics["minOffsetsBehindLatest"] == min(behind.values(), default=0)
    assert lag.metrics["maxOffsetsBehindLatest"] == max(behind.values(), default=0)
    assert lag.metrics["avgOffsetsBehindLatest"] * max(len(behind), 1) == pytest.approx(lag.messages)


@pytest.mark.parametrize("as_text", [True, False])
def test_lag_from_progress(as_text: bool) -> None:
    source = {name: json.dumps(value) if as_text else value for name, value in SOURCE.items()}
    assert lag_of(source) == Lag(
        (
            QueueLag(Queue("a", "x", 0), 5, 9),
            QueueLag(Queue("a", "x", 1), 7, 7),
            QueueLag(Queue("a", "x", 2), 0, 2),
        )
    )
    assert lag_of(source).messages == 6
    assert lag_of({"endOffset": None, "latestOffset": None}).messages == 0


def test_offsets_of_other_sources_have_no_lag() -> None:
    assert lag_of({"endOffset": '{"logOffset": 3}', "latestOffset": None}).queues == ()
    with pytest.raises(OptionError, match="endOffset is not an offset of format rocketmq: '5'"):
        lag_of({"endOffset": "5", "latestOffset": "5"})


def test_lag_against_what_brokers_hold_now(topics: Topics) -> None:
    topic = topics.fill(20, queues=2)
    reached = {Queue(topic, topics.broker_name, 0): 4, Queue(topic, topics.broker_name, 1): 10}
    source = {"endOffset": {"v": 1, "from": {}, "queues": offsets_to_json(reached)}, "latestOffset": None}
    assert [of.behind for of in lag_now(source, topics.namesrv).queues] == [6, 0]
    topics.create(queues=3, name=topic)
    topics.send(topic, 2, [b"new"] * 5)
    assert [of.behind for of in lag_now(source, topics.namesrv).queues] == [6, 0, 5]
    assert lag_now({"endOffset": None}, topics.namesrv).queues == ()


def test_all_of_a_topic_that_was_made_anew_is_unread(topics: Topics) -> None:
    topic = topics.fill(10, queues=1)
    reader = RocketMQStreamReader(
        parse_options({"namesrvAddr": topics.namesrv, "topic": topic, "startingOffsets": "earliest"}), PLACE
    )
    source = {"endOffset": reader.latestOffset(reader.initialOffset(), ReadAllAvailable())}
    assert lag_now(source, topics.namesrv).messages == 0
    topics.make_anew(topic, 25)
    assert lag_now(source, topics.namesrv).messages == 25


def test_lag_is_asked_for_as_the_source_asks(topics: Topics) -> None:
    queue = Queue(topics.create(queues=1), topics.broker_name, 0)
    source = {"endOffset": {"v": 1, "from": {}, "queues": offsets_to_json({queue: 0})}, "latestOffset": None}
    assert lag_now(source, topics.namesrv, {"accessKey": "sales", "secretKey": "zq7-secret"}).messages == 0
    with pytest.raises(OptionError, match="names a missing environment variable: NOT_THERE"):
        lag_now(source, topics.namesrv, {"accessKey": "sales", "secretKeyEnv": "NOT_THERE"})
    with pytest.raises(UnreachableError):  # it speaks no TLS
        lag_now(source, topics.namesrv, {"useTLS": "true"})


def progress(**changed: Any) -> QueryProgressEvent:
    progress = {
        "id": "7c8a5d2e-0000-4000-8000-000000000001",
        "runId": "7c8a5d2e-0000-4000-8000-000000000002",
        "name": 'or"ders',
        "timestamp": "2026-01-31T09:00:00.000Z",
        "batchId": 3,
        "batchDuration": 100,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [SOURCE],
        "sink": {"description": "noop", "numOutputRows": 12, "metrics": {}},
        "numInputRows": 12,
        "inputRowsPerSecond": 6.0,
        "processedRowsPerSecond": 4.5,
        "observedMetrics": {},
    }
    return QueryProgressEvent.fromJson({"progress": progress | changed})


def test_the_listener_keeps_logs_and_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics" / "lag.prom"
    listener = LagListener(file)
    with caplog.at_level(logging.INFO, "cometmq.spark"):
        listener.onQueryProgress(progress())
        listener.onQueryProgress(progress(runId="7c8a5d2e-0000-4000-8000-000000000003", name="other", sources=[]))
    (of,) = listener.queries
    assert (of.name, of.batch_id, of.lag.messages, of.processed_rows_per_second) == ('or"ders', 3, 6, 4.5)
    assert caplog.messages == ['query or"ders, micro-batch 3: 6 messages behind in 3 queues, at most 4; 4 messages/s']
    text = file.read_text()
    assert 'cometmq_spark_offsets_behind{broker="x",query="or\\"ders",queue="0",topic="a"} 4\n' in text
    assert 'cometmq_spark_processed_rows_per_second{query="or\\"ders"} 4.5\n' in text
    ended = {"id": str(progress().progress.id), "runId": str(progress().progress.runId), "exception": None}
    listener.onQueryTerminated(QueryTerminatedEvent.fromJson(ended | {"errorClassOnException": None}))
    assert listener.queries == ()
    assert "or" not in file.read_text().replace("# HELP", "").partition("{")[2]


def test_a_file_that_cannot_be_written_stops_no_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "lag.prom").mkdir()
    LagListener(tmp_path / "lag.prom").onQueryProgress(progress())
    assert "the lag cannot be written to" in caplog.text


@pytest.mark.spark
def test_a_session_tells_the_listener(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill(100, queues=2)
    listener = LagListener(tmp_path / "lag.prom")
    spark.streams.addListener(listener)
    try:
        query = (
            spark.readStream.format("rocketmq")
            .option("namesrvAddr", topics.namesrv)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .schema("queueId int")
            .load()
            .writeStream.format("noop")
            .queryName("watched")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            wait_for(lambda: [of.name for of in listener.queries] == ["watched"], "the query is listened to")
            (of,) = listener.queries
            assert (len(of.lag.queues), of.lag.messages) == (2, 0)
            assert lag_now(query.lastProgress["sources"][0], topics.namesrv).messages == 0
        finally:
            query.stop()
        wait_for(lambda: listener.queries == (), "its end is seen")
    finally:
        spark.streams.removeListener(listener)
