"""The trace job: it measures how long messages take from their producers to each consumer group, and finds slow
consumers.

It reads the records of a trace topic (:mod:`cometmq.message.trace_record`), joins them in Spark into one row for each
message and consumer group (produced, acknowledged, every consumption), and returns only totals. On request, the joined
rows are written to Parquet.

A record with impossible numbers (for example a time after the year 9999, or a cost of more than 24 days) is skipped,
and so is anything that is not a record. Brokers do not check what clients write to the trace topic, and one impossible
record must not stop a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as f

from cometmq.client.trace.reader import MessageWay, way_from
from cometmq.clock import SYSTEM_CLOCK
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.hosts import parse_address
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord, decode_trace
from cometmq.quantity import quantity
from cometmq.spark.jobs.columns import percentiles
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import TraceOptions
from cometmq.spark.jobs.report.parts import Part, Table, TextOnly
from cometmq.spark.jobs.report.plots import Bars, Plot, Spans, bars
from cometmq.spark.jobs.report.report import FAILED, Report
from cometmq.spark.jobs.run import job_session, open_new_place, persisted
from cometmq.spark.jobs.task_files import write_new_table
from cometmq.spark.records.columns import MAX_TIME_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of messages from one topic to one consumer group, in ms."""

    topic: str
    group: str
    messages: int
    consumed: int
    """Number of messages that were consumed successfully at least once."""
    retried: int
    """Number of messages that the group received more than once."""
    wait_p50: int | None
    """Time from the producer's acknowledgement until a listener is first called."""
    wait_p99: int | None
    p50: int | None
    """Time from sending until the first successful call ends, or None if no call was successful."""
    p90: int | None
    p99: int | None
    max: int | None


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """One consumer, identified by group and host, with the duration of its listener calls per message, in ms."""

    group: str
    host: str
    calls: int
    failed: int
    p50: int
    p99: int
    max: int


@dataclass(frozen=True)
class TraceReport(Report):
    """Latencies and slow consumers, computed from a trace topic."""

    TITLE = "Message traces of {0.source}"

    source: str
    trace_topic: str
    messages: int
    unconsumed: int
    """Number of sent messages for which the trace contains no consumption."""
    latencies: tuple[Latency, ...]
    """Pairs of topic and group, most messages first."""
    slow: tuple[SlowConsumer, ...]
    """Consumers sorted by p99 duration, slowest first."""
    histogram: tuple[tuple[int, int], ...]
    """Histogram of the end-to-end time: pairs of a bucket's smallest value in ms and its number of messages. A bucket
    ends below twice its smallest value.
    """
    written_to: str | None
    """Directory that contains the joined rows."""
    way: MessageWay | None
    """Trace of the requested message."""
    seconds: float

    @property
    def exit_code(self) -> int:
        """Return exit code 1 if the requested message has no trace."""
        return FAILED if self.way is not None and not self.way.is_known else 0

    @property
    def verdict(self) -> str:
        """Return a sentence about the slowest topic and group, or about a requested message without a trace."""
        if self.exit_code:
            return "No trace names this message"
        known = [of for of in self.latencies if of.p99 is not None]
        if not known:
            return f"{quantity(self.messages, 'message')}, none with a traced consumption"
        slowest = max(known, key=lambda of: of.p99 or 0)
        return f"Slowest: group {slowest.group} on {slowest.topic}, 99 % within {slowest.p99:,} ms"

    def _figures(self) -> list[tuple[str, str]]:
        counts = (("messages", self.messages), ("without a traced consumption", self.unconsumed))
        return [*((f"{count:,}", name) for name, count in counts), (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        yield (
            f"{quantity(self.messages, 'message')} in {self.trace_topic} of {self.source}, {self.unconsumed:,} of them "
            f"with no traced consumption; {self.seconds:.1f} s"
        )
        if self.latencies:
            yield TextOnly("sent to consumed, ms:")
            yield Table(
                ("<topic", "<group", ">messages", ">retried", ">wait p50", ">p50", ">p90", ">p99", ">max"),
                [
                    (of.topic, of.group, of.messages, of.retried, of.wait_p50, of.p50, of.p90, of.p99, of.max)
                    for of in self.latencies
                ],
                "Sent to consumed, ms",
            )
        if self.slow:
            yield TextOnly("slowest consumers, ms of a call for each message:")
            yield Table(
                ("<group", "<host", ">calls", ">failed", ">p50", ">p99", ">max"),
                [(of.group, of.host, of.calls, of.failed, of.p50, of.p99, of.max) for of in self.slow],
                "Slowest consumers, ms of a call for each message",
            )
        if self.written_to is not None:
            yield f"\njoined rows are in {self.written_to}"

    def _plots(self) -> list[Plot]:
        drawn = [of for of in self.latencies if of.p99 is not None][:_DRAWN]
        ranks = {rank: [getattr(of, rank) for of in drawn] for rank in ("p50", "p90", "p99")}
        costs = {rank: [getattr(of, rank) for of in self.slow] for rank in ("p50", "p99")}
        plots: list[Plot] = [
            bars("Sent to consumed, from … ms on", "messages", ((f"{least:,}", n) for least, n in self.histogram)),
            Bars("Latency by topic and group", "ms", [f"{of.topic}\n{of.group}" for of in drawn], ranks),
            Bars("Slowest consumers", "ms of a call", [f"{of.group}\n{of.host}" for of in self.slow], costs),
        ]
        if self.way is not None and self.way.is_known:
            plots.append(_waterfall(self.way))
        return plots


def _waterfall(way: MessageWay) -> Spans:
    steps = [(sent.time_ms, f"sent {sent.group}", sent.cost_ms) for sent, _ in way.sends]
    for ended, _ in way.transaction_ends:
        word = "checked" if ended.from_transaction_check else "ended"
        steps.append((ended.time_ms, f"{word} {ended.group}", 0))
    calls = [(call.begun_at_ms, f"consumed {call.group}", call.cost_ms or 0) for call in way.consumptions]
    timed = sorted(
        ((at, name, took) for at, name, took in (*steps, *calls) if at is not None), key=lambda step: step[0]
    )
    begins = [at - timed[0][0] for at, _, _ in timed]
    names, lengths = [name for _, name, _ in timed], [took for _, _, took in timed]
    return Spans(f"The way of {way.msg_id}", "ms since it was sent", names, begins, lengths)


MESSAGE_COLUMNS: Final = ("body", "bornHost")
"""Columns that the job reads from a trace message."""
RECORD_DDL: Final = (
    "kind string, msgId string, timeMs bigint, groupName string, topic string, tags string, keys string, "
    "storeHost string, bodyBytes bigint, costMs bigint, success boolean, host string, requestId string, "
    "retryTimes bigint, contextCode bigint, state string"
)
_MAX_NUMBER: Final = (1 << 31) - 1
_RECORDS_AT_ONCE: Final = 10_000
"""Number of records in one Arrow batch, which limits a worker's memory to a few MB."""


def decoded(messages: DataFrame) -> DataFrame:
    """Return the records in trace messages, one row per record. ``messages`` must have :data:`MESSAGE_COLUMNS`."""
    return messages.mapInArrow(_decode, RECORD_DDL)


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
    row: dict[str, Any] = {"kind": type(record).__name__, "msgId": record.msg_id, "groupName": record.group}
    row |= {"timeMs": record.time_ms}
    match record:
        case Pub():
            row |= {"topic": record.topic, "tags": record.tags, "keys": record.keys, "storeHost": record.store_host}
            row |= {"bodyBytes": record.body_bytes, "costMs": record.cost_ms, "success": record.success}
        case SubBefore():
            row |= {"requestId": record.request_id, "retryTimes": record.retry_times}
        case SubAfter():
            row |= {"requestId": record.request_id, "costMs": record.cost_ms, "success": record.success}
            row |= {"contextCode": record.context_code}
        case EndTransaction():
            row |= {"topic": record.topic, "storeHost": record.store_host, "state": record.transaction_state}
    if not isinstance(record, Pub | SubBefore) or record.client_host is None:
        row["host"] = parse_address(born_host)[0] if born_host else None
    else:
        row["host"] = record.client_host
    if not 0 <= (row["timeMs"] or 0) <= MAX_TIME_MS:
        return None
    numbers = (row.get(name) or 0 for name in ("bodyBytes", "costMs", "retryTimes", "contextCode"))
    return row if all(-_MAX_NUMBER <= number <= _MAX_NUMBER for number in numbers) else None


def joined(records: DataFrame) -> DataFrame:
    """Return one row for each message and consumer group. An unconsumed message has one row without a group.

    Duplicate records count once: a send is identified by its time, and a call by its request id.
    """
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


_DRAWN: Final = 12
"""Maximum number of topic and group pairs in the latency plot."""


@job(TraceOptions)
def trace(options: TraceOptions) -> TraceReport:
    """Join a trace topic and return its latencies.

    :raises OptionError: an argument is invalid, or the topic does not exist.
    :raises SparkSourceError: the topic cannot be read.
    """
    source, trace_topic, on_step = options.source, options.trace_topic, options.on_step
    message_id = options.message_id
    source.queues((trace_topic,))
    target = open_new_place(options.to, source.storage)
    began = SYSTEM_CLOCK.monotonic()
    with job_session(options, "cometmq trace") as session:
        on_step(f"joining the records of {trace_topic}")
        messages = source.read(session, (trace_topic,), MESSAGE_COLUMNS)
        with persisted(joined(decoded(messages))) as rows:
            sent, unconsumed = _counts(rows)
            on_step(f"measuring {quantity(sent, 'message')}")
            latencies, slow, histogram = _latencies(rows), _slow(rows, options.top), _histogram(rows)
            if target is not None:
                on_step(f"writing rows to {target.url}")
                write_new_table(rows, target)
        if message_id is not None:
            on_step(f"looking for the way of {message_id}")
        return TraceReport(
            source=str(source),
            trace_topic=trace_topic,
            messages=sent,
            unconsumed=unconsumed,
            latencies=latencies,
            slow=slow,
            histogram=histogram,
            written_to=None if target is None else target.url,
            way=None if message_id is None else _way(messages, message_id),
            seconds=SYSTEM_CLOCK.monotonic() - began,
        )


def _counts(rows: DataFrame) -> tuple[int, int]:
    [counted] = rows.agg(f.count_distinct("msgId"), f.count_if(f.isnull("consumerGroup"))).collect()
    return counted[0], counted[1]


def _latencies(rows: DataFrame) -> tuple[Latency, ...]:
    found = (
        rows.where("topic IS NOT NULL AND consumerGroup IS NOT NULL")
        .groupBy("topic", "consumerGroup")
        .agg(
            f.count("*").alias("messages"),
            f.count_if("consumed").alias("consumed"),
            f.count_if(f.col("attempts") > 1).alias("retried"),
            percentiles("waitMs", (0.5, 0.99)).alias("waits"),
            percentiles("latencyMs", (0.5, 0.9, 0.99)).alias("latencies"),
            f.max("latencyMs").alias("longest"),
        )
        .orderBy(f.desc("messages"), "topic", "consumerGroup")
        .collect()
    )
    return tuple(_latency(row) for row in found)


def _latency(row: Row) -> Latency:
    wait_p50, wait_p99 = row.waits or (None, None)
    p50, p90, p99 = row.latencies or (None, None, None)
    return Latency(
        topic=row.topic,
        group=row.consumerGroup,
        messages=row.messages,
        consumed=row.consumed,
        retried=row.retried,
        wait_p50=wait_p50,
        wait_p99=wait_p99,
        p50=p50,
        p90=p90,
        p99=p99,
        max=row.longest,
    )


def _slow(rows: DataFrame, top: int) -> tuple[SlowConsumer, ...]:
    found = (
        rows.select("consumerGroup", f.inline("calls"))
        .where("costMs IS NOT NULL")
        .groupBy("consumerGroup", "host")
        .agg(
            f.count("*").alias("calls"),
            f.count_if(~f.col("success")).alias("failed"),
            percentiles("costMs", (0.5, 0.99)).alias("costs"),
            f.max("costMs").alias("longest"),
        )
        .orderBy(f.desc(f.col("costs")[1]), f.desc("longest"), "consumerGroup", "host")
        .limit(top)
        .collect()
    )
    return tuple(
        SlowConsumer(
            group=row.consumerGroup,
            host=row.host or "",
            calls=row.calls,
            failed=row.failed,
            p50=row.costs[0],
            p99=row.costs[1],
            max=row.longest,
        )
        for row in found
    )


def _histogram(rows: DataFrame) -> tuple[tuple[int, int], ...]:
    power = f.floor(f.log2(f.greatest("latencyMs", f.lit(1)))).alias("power")
    counts: dict[int, int] = dict(rows.where("latencyMs IS NOT NULL").groupBy(power).count().collect())
    return tuple((1 << at, counts.get(at, 0)) for at in range(min(counts, default=0), max(counts, default=-1) + 1))


def _way(messages: DataFrame, message_id: str) -> MessageWay:
    mention = f.contains(f.col("body"), f.lit(message_id.encode()))
    found = messages.where(mention).limit(MAX_QUERY_MESSAGES).collect()
    return way_from(message_id, ((bytes(row.body), row.bornHost) for row in found))
