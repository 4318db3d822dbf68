"""The trace job: how long messages took from their producers to each consumer group, and who is slow.

It reads the records of a trace topic (:mod:`cometmq.message.trace_record`), joins them in Spark
(:mod:`~.trace_rows`), and hands back sums only; the joined rows go to Parquet where that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.trace_reader import MessageWay, way_from
from cometmq.clock import SYSTEM_CLOCK
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.names import TRACE_TOPIC
from cometmq.quantity import quantity
from cometmq.spark.job_source import MessageSource, job_session, kept, new_directory
from cometmq.spark.trace_report import Latency, SlowConsumer, TraceReport
from cometmq.spark.trace_rows import MESSAGE_COLUMNS, decoded, joined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

TOP: Final = 10
_ACCURACY: Final = 10_000
"""Of ``percentile_approx``: ranks are right to one in so many."""


def trace(
    source: MessageSource,
    *,
    trace_topic: str = TRACE_TOPIC,
    to: str | Path | None = None,
    message_id: str | None = None,
    top: int = TOP,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    on_step: Callable[[str], object] = lambda _: None,
) -> TraceReport:
    """Join a trace topic and return what it tells.

    :param source: brokers, or an archive that holds the trace topic.
    :param to: directory for the joined rows as Parquet; it must not be there yet.
    :param message_id: also find the way of this message, by the client's id (unique key).
    :param top: how many slow consumers to name.
    :param spark: session to use; without one a session on ``master`` is made, and stopped at the end.
    :param on_step: told what the job begins to do.
    :raises OptionError: an argument is wrong, or there is no such topic.
    :raises SparkSourceError: the topic cannot be read.
    """
    source.queues((trace_topic,))
    target = new_directory(to)
    began = SYSTEM_CLOCK.monotonic()
    with job_session(spark, master, "cometmq trace") as session:
        on_step(f"joining the records of {trace_topic}")
        messages = source.read(session, (trace_topic,), MESSAGE_COLUMNS)
        with kept(joined(decoded(messages))) as rows:
            sent, unconsumed = _counts(rows)
            on_step(f"measuring {quantity(sent, 'message')}")
            latencies, slow, histogram = _latencies(rows), _slow(rows, top), _histogram(rows)
            if target is not None:
                on_step(f"writing rows to {target}")
                rows.write.parquet(str(target))
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
            written_to=None if target is None else str(target),
            way=None if message_id is None else _way(messages, message_id),
            seconds=SYSTEM_CLOCK.monotonic() - began,
        )


def _counts(rows: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as f

    [counted] = rows.agg(f.count_distinct("msgId"), f.count_if(f.isnull("consumerGroup"))).collect()
    return counted[0], counted[1]


def _percentiles(column: str, ranks: tuple[float, ...]) -> Any:
    from pyspark.sql import functions as f

    return f.percentile_approx(column, list(ranks), _ACCURACY)


def _latencies(rows: DataFrame) -> tuple[Latency, ...]:
    from pyspark.sql import functions as f

    found = (
        rows.where("topic IS NOT NULL AND consumerGroup IS NOT NULL")
        .groupBy("topic", "consumerGroup")
        .agg(
            f.count("*").alias("messages"),
            f.count_if("consumed").alias("consumed"),
            f.count_if(f.col("attempts") > 1).alias("retried"),
            _percentiles("waitMs", (0.5, 0.99)).alias("waits"),
            _percentiles("latencyMs", (0.5, 0.9, 0.99)).alias("latencies"),
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
    from pyspark.sql import functions as f

    found = (
        rows.select("consumerGroup", f.inline("calls"))
        .where("costMs IS NOT NULL")
        .groupBy("consumerGroup", "host")
        .agg(
            f.count("*").alias("calls"),
            f.count_if(~f.col("success")).alias("failed"),
            _percentiles("costMs", (0.5, 0.99)).alias("costs"),
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
    from pyspark.sql import functions as f

    power = f.floor(f.log2(f.greatest("latencyMs", f.lit(1)))).alias("power")
    counts: dict[int, int] = dict(rows.where("latencyMs IS NOT NULL").groupBy(power).count().collect())
    return tuple((1 << at, counts.get(at, 0)) for at in range(min(counts, default=0), max(counts, default=-1) + 1))


def _way(messages: DataFrame, message_id: str) -> MessageWay:
    from pyspark.sql import functions as f

    mention = f.contains(f.col("body"), f.lit(message_id.encode()))
    found = messages.where(mention).limit(MAX_QUERY_MESSAGES).collect()
    return way_from(message_id, ((bytes(row.body), row.bornHost) for row in found))
