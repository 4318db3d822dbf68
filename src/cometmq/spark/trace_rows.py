"""Trace topic → one row for each message and consumer group: produced, acknowledged, every consumption.

A record whose numbers cannot be (a time after the year 9999, a cost of more than 24 days) is passed over, as is what
is no record: nobody checks what clients write into the trace topic, and one such record must not end a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cometmq.message.hosts import parse_address
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord, decode_trace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MESSAGE_COLUMNS: Final = ("body", "bornHost")
"""Columns of a trace message that are needed."""
RECORD_DDL: Final = (
    "kind string, msgId string, timeMs bigint, groupName string, topic string, tags string, keys string, "
    "storeHost string, bodyBytes bigint, costMs bigint, success boolean, host string, requestId string, "
    "retryTimes bigint, contextCode bigint, state string"
)
MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_MAX_NUMBER: Final = (1 << 31) - 1
_RECORDS_AT_ONCE: Final = 10_000
"""Records of one Arrow batch; bounds a worker's memory to a few MB."""


def decoded(messages: DataFrame) -> DataFrame:
    """The records of trace messages, one row each; ``messages`` has :data:`MESSAGE_COLUMNS`."""
    return messages.mapInArrow(_decode, RECORD_DDL)


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    kinds = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (part.split(" ") for part in RECORD_DDL.split(", "))])
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for body, host in zip(batch.column("body"), batch.column("bornHost"), strict=True):
            for record in decode_trace(body.as_py() or b""):
                row = _row(record, host.as_py() or "")
                if row is not None:
                    rows.append(row)
            if len(rows) >= _RECORDS_AT_ONCE:
                yield pa.RecordBatch.from_pylist(rows, schema)
                rows = []
    yield pa.RecordBatch.from_pylist(rows, schema)


def _row(record: TraceRecord, born_host: str) -> dict[str, Any] | None:
    told: dict[str, Any] = {"kind": type(record).__name__, "msgId": record.msg_id, "groupName": record.group}
    told |= {"timeMs": record.time_ms}
    match record:
        case Pub():
            told |= {"topic": record.topic, "tags": record.tags, "keys": record.keys, "storeHost": record.store_host}
            told |= {"bodyBytes": record.body_bytes, "costMs": record.cost_ms, "success": record.success}
        case SubBefore():
            told |= {"requestId": record.request_id, "retryTimes": record.retry_times}
        case SubAfter():
            told |= {"requestId": record.request_id, "costMs": record.cost_ms, "success": record.success}
            told |= {"contextCode": record.context_code}
        case EndTransaction():
            told |= {"topic": record.topic, "storeHost": record.store_host, "state": record.transaction_state}
    if not isinstance(record, Pub | SubBefore) or record.client_host is None:
        told["host"] = parse_address(born_host)[0] if born_host else None
    else:
        told["host"] = record.client_host
    if not 0 <= (told["timeMs"] or 0) <= MAX_TIME_MS:
        return None
    numbers = (told.get(name) or 0 for name in ("bodyBytes", "costMs", "retryTimes", "contextCode"))
    return told if all(-_MAX_NUMBER <= number <= _MAX_NUMBER for number in numbers) else None


def joined(records: DataFrame) -> DataFrame:
    """One row for each message and consumer group; a message that nobody has consumed has one without a group.

    Records that stand twice in the topic count once: a send is known by its time, a call by its request id.
    """
    from pyspark.sql import functions as f

    sent = (
        records.where("kind = 'Pub'")
        .groupBy("msgId")
        .agg(
            *(f.min_by(name, "timeMs").alias(name) for name in ("topic", "tags", "keys", "bodyBytes")),
            f.min_by("groupName", "timeMs").alias("producerGroup"),
            f.min_by("host", "timeMs").alias("producerHost"),
            f.max_by("storeHost", "timeMs").alias("storeHost"),
            f.size(f.collect_set("timeMs")).alias("sends"),
            f.min("timeMs").alias("producedMs"),
            f.max(f.expr("timeMs + costMs")).alias("acknowledgedMs"),
        )
    )
    ended = (
        records.where("kind = 'EndTransaction'")
        .groupBy("msgId")
        .agg(f.max_by("state", "timeMs").alias("transactionState"))
    )
    begins = f.col("kind") == "SubBefore"
    calls = (
        records.where("kind in ('SubBefore', 'SubAfter')")
        .groupBy("msgId", "requestId")
        .agg(
            f.coalesce(f.max("groupName"), f.lit("")).alias("consumerGroup"),
            f.min(f.when(begins, f.col("timeMs"))).alias("begunMs"),
            f.coalesce(f.max(f.when(begins, f.col("host"))), f.max("host")).alias("host"),
            *(f.max(name).alias(name) for name in ("costMs", "success", "contextCode", "retryTimes")),
        )
    )
    call = f.struct(
        f.timestamp_millis("begunMs").alias("begunAt"), "costMs", "success", "contextCode", "retryTimes", "host"
    )
    groups = calls.groupBy("msgId", "consumerGroup").agg(
        f.count("*").alias("attempts"),
        f.max("retryTimes").alias("retries"),
        f.coalesce(f.bool_or("success"), f.lit(False)).alias("consumed"),
        f.sum("costMs").alias("consumeMs"),
        f.min("begunMs").alias("firstConsumeMs"),
        f.min(f.when(f.col("success"), f.expr("begunMs + costMs"))).alias("consumedMs"),
        f.sort_array(f.collect_list(call)).alias("calls"),
    )
    rows = sent.join(ended, "msgId", "left").join(groups, "msgId", "full_outer")
    moments = ("produced", "acknowledged", "firstConsume", "consumed")
    return rows.select(
        "msgId",
        *("topic", "tags", "keys", "bodyBytes", "producerGroup", "producerHost", "storeHost", "sends"),
        "transactionState",
        *(f.timestamp_millis(f"{name}Ms").alias(f"{name}At") for name in moments),
        *("consumerGroup", "attempts", "retries", "consumed", "consumeMs"),
        f.expr("acknowledgedMs - producedMs").alias("sendMs"),
        f.expr("firstConsumeMs - acknowledgedMs").alias("waitMs"),
        f.expr("consumedMs - producedMs").alias("latencyMs"),
        "calls",
    )
