"""Sends rows as a task of the sink does, without Spark, and reads back what the broker has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from tests.spark.topics import Topics

from cometmq.client.queries import pull_header
from cometmq.message.record import StoredRecord, iter_records
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.encoding import TaskIdentity
from cometmq.spark.sink.options import parse_sink_options
from cometmq.spark.sink.writer import SinkCommit, SinkPlan, write_rows

SINK_TYPES = {
    "body": pa.binary(),
    "value": pa.string(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "shardingKey": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "delayLevel": pa.int32(),
    "delayMs": pa.int64(),
    "deliverAt": pa.timestamp("us", tz="UTC"),
    "priority": pa.int32(),
    "ttlMs": pa.int64(),
}


def rows_of(rows: Sequence[dict[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    """Rows as Spark hands them over; columns are those of the first row."""
    schema = pa.schema([(name, types.get(name, SINK_TYPES[name])) for name in rows[0]])
    return pa.RecordBatch.from_pylist(list(rows), schema)


def sink_plan(topics: Topics, topic: str | None, **options: Any) -> SinkPlan:
    """The parts that the driver would hand to its tasks."""
    given = {"namesrvAddr": topics.namesrv, "sendTimeoutMs": "20000"} | {n: str(v) for n, v in options.items()}
    if topic is not None:
        given["topic"] = topic
    return SinkPlan(parse_sink_options(given), None)


def sink(
    topics: Topics,
    topic: str | None,
    batches: Iterable[pa.RecordBatch],
    partition: int = 0,
    *,
    job: str = "job",
    batch: int = 0,
    **options: Any,
) -> SinkCommit:
    """Run one task."""
    return write_rows(sink_plan(topics, topic, **options), TaskIdentity(job, batch, partition), batches)


def stored(topics: Topics, topic: str, queues: int) -> list[list[StoredRecord]]:
    """All messages of each queue of a topic, in their order."""
    found: list[list[StoredRecord]] = []
    with BlockingConnection(topics.broker, 60) as connection:
        for queue_id in range(queues):
            records: list[StoredRecord] = []
            queue = Queue(topic, topics.broker_name, queue_id)
            while True:
                header = pull_header(queue, len(records), 1024, "sink-tests")
                answer = connection.invoke(RequestCode.PULL_MESSAGE, header)
                if answer.code != ResponseCode.SUCCESS:
                    break
                records += iter_records(answer.body)
            found.append(records)
    return found
