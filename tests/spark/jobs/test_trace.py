"""The trace job: rows, latencies, slow consumers and the way of a message, from the records of clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.spark.conftest import RunExample
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.cli.jobs.pipeline import command
from cometmq.client import ConsumeFromWhere, Message, MessageExt, Producer, ProducerConfig, PushConfig, PushConsumer
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord, encode_trace
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.trace import trace

pytestmark = pytest.mark.spark

PATIENCE_S = 600
"""For a Spark driver of its own; twenty are enough on an idle machine."""
T0 = 1_800_000_000_000


def pub(msg_id: str, at_ms: int, *, topic: str = "orders", cost_ms: int = 2) -> Pub:
    return Pub(
        time_ms=T0 + at_ms,
        region="DefaultRegion",
        group="shop",
        topic=topic,
        msg_id=msg_id,
        tags="paid",
        keys="k",
        store_host="127.0.0.1:10911",
        body_bytes=10,
        cost_ms=cost_ms,
        msg_type=0,
        offset_msg_id="00",
        success=True,
    )


def call(
    msg_id: str, request: str, at_ms: int, cost_ms: int, *, group: str = "till", ok: bool = True, retry: int = 0
) -> tuple[SubBefore, SubAfter]:
    before = SubBefore(
        time_ms=T0 + at_ms,
        region=None,
        group=group,
        request_id=request,
        msg_id=msg_id,
        retry_times=retry,
        keys="k",
    )
    after = SubAfter(
        request_id=request, msg_id=msg_id, cost_ms=cost_ms, success=ok, keys="k", context_code=0 if ok else 2
    )
    return before, after


def told(topics: Topics, *messages: Sequence[TraceRecord]) -> str:
    """A new trace topic with these trace messages."""
    topic = topics.create(1)
    topics.send(topic, 0, ["".join(map(encode_trace, records)).encode() for records in messages])
    return topic


def test_one_row_for_each_message_and_group(spark: Any, topics: Topics, tmp_path: Path) -> None:
    ended = EndTransaction(
        time_ms=T0 + 4,
        region=None,
        group="shop",
        topic="orders",
        msg_id="B",
        tags=None,
        keys=None,
        store_host="127.0.0.1:10911",
        msg_type=2,
        transaction_id="t",
        transaction_state="COMMIT_MESSAGE",
        from_transaction_check=False,
    )
    first: list[TraceRecord] = [pub("A", 0), *call("A", "r1", 5, 10, ok=False), *call("A", "r3", 9, 1, group="audit")]
    second: list[TraceRecord] = [*call("A", "r2", 10_000, 20, retry=1), pub("B", 3), ended, call("C", "r4", 50, 1)[1]]
    topic = told(topics, first, second, first)  # a trace message that stands there twice counts once
    source = MessageSource(topics.namesrv)
    report = trace(source, trace_topic=topic, to=tmp_path / "rows", spark=spark)

    rows = {(row.msgId, row.consumerGroup): row for row in spark.read.parquet(str(tmp_path / "rows")).collect()}
    assert rows.keys() == {("A", "till"), ("A", "audit"), ("B", None), ("C", "")}
    till = rows["A", "till"]
    assert (till.topic, till.tags, till.producerGroup, till.storeHost) == ("orders", "paid", "shop", "127.0.0.1:10911")
    assert (till.sends, till.attempts, till.retries, till.consumed, till.consumeMs) == (1, 2, 1, True, 30)
    assert (till.sendMs, till.waitMs, till.latencyMs) == (2, 3, 10_020)
    assert [(of.costMs, of.success, of.contextCode, of.retryTimes) for of in till.calls] == [
        (10, False, 2, 0),
        (20, True, 0, 1),
    ]
    assert rows["B", None].transactionState == "COMMIT_MESSAGE"

    assert (report.messages, report.unconsumed) == (3, 1)
    measured = {of.group: of for of in report.latencies}
    assert measured.keys() == {"till", "audit"}
    assert (measured["till"].p50, measured["till"].max, measured["till"].retried) == (10_020, 10_020, 1)
    assert (measured["audit"].messages, measured["audit"].p99, measured["audit"].wait_p50) == (1, 10, 7)
    assert report.histogram[0] == (8, 1)
    assert report.histogram[-1] == (8192, 1)
    assert "10,020" in report.render()
    with pytest.raises(OptionError, match="already exists"):
        trace(source, trace_topic=topic, to=tmp_path / "rows", spark=spark)


def test_the_slowest_come_first_and_what_is_no_record_is_passed_over(spark: Any, topics: Topics) -> None:
    quick = [
        record for n in range(50) for record in (pub(f"Q{n}", n), *call(f"Q{n}", f"q{n}", n + 5, 3, group="quick"))
    ]
    slow = [
        record
        for n in range(50)
        for record in (pub(f"S{n}", n), *call(f"S{n}", f"s{n}", n + 5, 100 + n, group="slow", ok=n % 10 != 0))
    ]
    impossible: list[TraceRecord] = [
        pub("X", 1 << 62),
        pub("Y", 0, cost_ms=1 << 40),
        *call("Z", "z", 1 << 70, 1, group="never")[:1],
    ]
    topic = told(topics, quick, slow, impossible)
    topics.send(topic, 0, [b"\xff\x01\x02no record", b"Pub\x01\x02"])
    report = trace(MessageSource(topics.namesrv), trace_topic=topic, top=1, spark=spark)
    [slowest] = report.slow
    assert (slowest.group, slowest.calls, slowest.failed, slowest.max) == ("slow", 50, 5, 149)
    assert report.messages == 100
    assert {of.group: (of.messages, of.consumed) for of in report.latencies} == {"quick": (50, 50), "slow": (50, 45)}


async def _send_and_consume(namesrv: str, topic: str, trace_topic: str) -> list[str]:
    done = asyncio.Event()
    seen: list[str] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.msg_id for message in messages)
        if len(seen) == 5:
            done.set()

    traced = ProducerConfig(enable_msg_trace=True, customized_trace_topic=trace_topic)
    async with Producer("shop", namesrv, config=traced) as producer:
        sent = [await producer.send(Message(topic, b"%d" % number)) for number in range(5)]
    config = PushConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        enable_msg_trace=True,
        customized_trace_topic=trace_topic,
    )
    consumer = PushConsumer(f"G-{topic}", listener, namesrv, config=config)
    await consumer.subscribe(topic)
    async with consumer, asyncio.timeout(60):
        await done.wait()
    return [result.msg_id for result in sent]


def test_what_clients_told_is_shown_by_the_command_from_brokers_and_from_an_archive(
    spark: Any, run_example: RunExample, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, trace_topic = topics.create(2), topics.create(1)
    ids = asyncio.run(_send_and_consume(topics.namesrv, topic, trace_topic))
    monkeypatch.setattr("cometmq.spark.session.environment.local_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    page = tmp_path / "report.html"
    wanted = ["trace", "--trace-topic", trace_topic, "--message", ids[2]]
    live = CliRunner().invoke(
        command,
        [*wanted, "-n", topics.namesrv, "--report", str(page)],
        catch_exceptions=False,
    )
    assert "Trace of" in live.stdout
    assert f"G-{topic}" in live.stdout
    assert "measuring 5 messages" in live.stderr
    assert ids[2] in page.read_text()
    said = run_example("look_into.py", topics.namesrv, trace_topic)
    assert f"G-{topic} had 5 of 5 messages of {topic}" in said
    archive(topics.namesrv, trace_topic, tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
    old = CliRunner().invoke(command, [*wanted, "--archive", str(tmp_path / "lake"), "-o", "json"])
    seen = json.loads(old.stdout)
    assert (seen["messages"], seen["unconsumed"]) == (5, 0)
    assert [of["consumed"] for of in seen["latencies"]] == [5]
    assert [of["group"] for of in seen["way"]["consumptions"]] == [f"G-{topic}"]
    unknown = CliRunner().invoke(
        command,
        ["trace", "--archive", str(tmp_path / "lake"), "--trace-topic", trace_topic, "--message", "AC01"],
        standalone_mode=False,
    )
    assert unknown.return_value == 1
    assert "has no trace of AC01" in unknown.stderr


def test_a_trace_topic_that_is_not_there_is_wrong_use(topics: Topics) -> None:
    with pytest.raises(click.UsageError, match="has no topic no-such-trace"):
        CliRunner().invoke(
            command,
            ["trace", "-n", topics.namesrv, "--trace-topic", "no-such-trace"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    with pytest.raises(OptionError, match="source to read is missing"):
        trace(MessageSource())
