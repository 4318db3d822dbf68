"""Source and archive against real Apache RocketMQ: the same code, the same counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable
from tests.interop.systems import System, deploy, start_broker
from tests.spark.sinking import rows_of, sink, stored
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from cometmq.spark.archives.log import read_archive
from cometmq.spark.errors import SinkError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.delay.job import delay
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.records.decode import Records
from cometmq.spark.records.queues import OffsetRange
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.fetch import Fetcher
from cometmq.spark.source.options import parse_options

pytestmark = [pytest.mark.spark, pytest.mark.interop]

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """A nameserver and a broker of Apache's."""
    try:
        running = deploy(System.APACHE, tmp_path_factory.mktemp("apache"))
    except ToolMissingError as problem:
        unavailable(problem)
    yield Topics(running.address, running.broker.address)
    running.close()


def test_a_task_that_dies_is_repeated_on_apache(apache: Topics) -> None:
    """First of all in this broker: it makes its index file then, and finds nothing for as long as that takes."""
    topic = apache.create(queues=3)
    bodies = [{"body": b"%06d" % number} for number in range(3000)]

    def dying() -> Iterator[Any]:
        yield rows_of(bodies[:1700])
        raise RuntimeError

    with pytest.raises(RuntimeError):
        sink(apache, topic, dying(), deliveryGuarantee="effectively-once")
    sink(apache, topic, [rows_of(bodies[:1000]), rows_of(bodies[1000:])], deliveryGuarantee="effectively-once")
    found = [[record.body for record in records] for records in stored(apache, topic, 3)]
    assert sorted(body for queue in found for body in queue) == [row["body"] for row in bodies]
    assert all(queue == sorted(queue) for queue in found)


def test_batch_stream_and_archive_agree_with_what_was_sent(spark: Any, apache: Topics, tmp_path: Path) -> None:
    topic = apache.fill(6000, queues=3, size=300)
    expected = sorted(b"%09d" % number for number in range(6000))
    frame = spark.read.format("rocketmq").option("namesrvAddr", apache.namesrv).option("topic", topic).load()
    assert sorted(bytes(row.body)[:9] for row in frame.select("body").collect()) == expected
    moment = frame.agg({"storeTimestamp": "min"}).collect()[0][0]
    later = (
        spark.read.format("rocketmq")
        .option("namesrvAddr", apache.namesrv)
        .option("topic", topic)
        .option("startingTimestamp", str(round(moment.timestamp() * 1000) + 1))
        .load()
    )
    assert later.count() == frame.where(frame.storeTimestamp > moment).count()

    to, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    first = archive(apache.namesrv, topic, to, checkpoint, max_offsets_per_trigger=2000, spark=spark)
    assert (first.rows, first.batches) == (6000, 4)  # 666 of each queue, three times, and what is left
    apache.send(topic, 2, [b"%09d" % number for number in range(6000, 6005)])
    second = archive(apache.namesrv, topic, to, checkpoint, spark=spark)
    assert (second.rows, second.total_rows, second.complete) == (5, 6005, True)
    archived = read_archive(spark, to)
    assert archived.select("queueId", "queueOffset").distinct().count() == 6005
    assert sorted(bytes(row.body)[:9] for row in archived.select("body").collect())[:6000] == expected


def test_apache_tells_how_large_messages_are(apache: Topics) -> None:
    """Without a message being read: its consume queues know."""
    topic = apache.create(queues=2)
    apache.send(topic, 0, [bytes(100)] * 40)
    apache.send(topic, 1, [bytes(10_000)] * 40)
    cluster = Cluster(parse_options({"namesrvAddr": apache.namesrv, "topic": topic}))
    small, large = cluster.sized_ranges([OffsetRange(queue, 0, 40) for queue in cluster.queues()])[::3]
    assert small.mean_bytes == pytest.approx(250, abs=60)
    assert large.mean_bytes == pytest.approx(10_150, abs=60)
    assert cluster.record_sizes([(large.part.queue, 1000, 16)]) == [None]


def test_a_slave_of_apache_is_read(apache: Topics, tmp_path: Path) -> None:
    """Its messages come from its master within some seconds, which a reader waits."""
    topic = apache.fill(300, queues=1)
    options = parse_options(
        {"namesrvAddr": apache.namesrv, "topic": topic, "readFrom": "slave", "pollTimeoutMs": "60000"}
    )
    with start_broker(System.APACHE, tmp_path, apache.namesrv, {"brokerRole": "SLAVE", "brokerId": "1"}) as slave:
        cluster = Cluster(options)
        (queue,) = cluster.queues()
        assert cluster.address_of(queue) == slave.address

        chunks = Fetcher(options).fetch([OffsetRange(queue, 0, 300)])
        assert sum(len(Records(chunk.data)) for chunk in chunks) == 300


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once"])
def test_the_sink_writes_to_apache(spark: Any, apache: Topics, guarantee: str) -> None:
    topic = apache.create(queues=3)
    frame = spark.range(0, 5000, 1, 2).selectExpr(
        "format_string('%09d', id) AS body",
        "'TagA' AS tags",
        "array(concat('key-', id)) AS keys",
        "if(id % 2 = 0, concat('order-', id % 9), null) AS shardingKey",
        "map('n', cast(id AS string)) AS properties",
    )
    options = {"namesrvAddr": apache.namesrv, "topic": topic, "deliveryGuarantee": guarantee, "producerId": topic}
    for _ in range(2):  # as after a failure: the second time adds nothing with effectively-once
        frame.write.format("rocketmq").mode("append").options(**options).save()
    read = spark.read.format("rocketmq").options(namesrvAddr=apache.namesrv, topic=topic).load().collect()
    assert len(read) == (5000 if guarantee == "effectively-once" else 10_000)
    assert {bytes(row.body) for row in read} == {b"%09d" % number for number in range(5000)}
    assert len({row.uniqKey for row in read}) == 5000
    row = next(row for row in read if row.keys == "key-10")
    assert (row.tags, row.properties["n"], row.properties["__SHARDINGKEY"]) == ("TagA", "10", "order-1")


def test_apache_is_refused_where_it_cannot_keep_the_promise(apache: Topics) -> None:
    topic = apache.create(queues=1)
    with pytest.raises(SinkError, match=r"does not support producer sequences.*\(use CometMQ brokers"):
        sink(apache, topic, [rows_of([{"body": b"x"}])], deliveryGuarantee="exactly-once")
    assert stored(apache, topic, 1) == [[]]


def test_a_replay_into_apache_keeps_queues_and_order_and_an_audit_agrees(
    spark: Any, apache: Topics, tmp_path: Path
) -> None:
    """Again as if the first run had been killed before its step was marked: nothing is there twice."""
    topic, copy = apache.fill(3000, queues=3, size=300), apache.create(3)
    archive(apache.namesrv, topic, tmp_path / "lake", tmp_path / "checkpoint", spark=spark)
    first = replay(tmp_path / "lake", apache.namesrv, tmp_path / "ledger", to=copy, spark=spark)
    assert (first.messages, first.found, first.complete) == (3000, 0, True)
    for commit in (tmp_path / "ledger" / "commits").iterdir():
        commit.unlink()  # as if it had been killed here
    second = replay(tmp_path / "lake", apache.namesrv, tmp_path / "ledger", to=copy, spark=spark)
    assert (second.messages, second.found) == (3000, 3000)
    assert [[record.body for record in queue] for queue in stored(apache, copy, 3)] == [
        [record.body for record in queue] for queue in stored(apache, topic, 3)
    ]
    for audited in (
        audit(apache.namesrv, topic, archive=tmp_path / "lake", spark=spark),
        audit(apache.namesrv, copy, spark=spark),
    ):
        assert audited.disagreements == ()
        assert sum(of.stored or 0 for of in audited.queues) == 3000


def test_delays_of_apache_are_measured_and_what_waits_is_seen(spark: Any, apache: Topics) -> None:
    topic = apache.create(queues=1)
    for number in range(3):
        apache.send_one(topic, 0, b"soon", f"DELAY\x011\x02UNIQ_KEY\x01{topic}{number}")
    apache.send_one(topic, 0, b"later", "DELAY\x0118")
    apache.await_messages(topic, 0, 3)
    report = delay(MessageSource(apache.namesrv), [topic], spark=spark)
    assert (report.delivered, report.by_born, report.waiting, report.stuck) == (3, 0, 1, 0)
    assert [(of.name, of.messages, of.early) for of in report.levels] == [("1", 3, 0)]
    [waits] = report.waiting_topics
    assert waits.first_due_ms - report.at_ms > 7_000_000


def test_any_delays_of_apache_5_are_measured_too(spark: Any, tmp_path: Path) -> None:
    try:
        running = deploy(System.APACHE5, tmp_path)
    except ToolMissingError as problem:
        unavailable(problem)
    try:
        apache5 = Topics(running.address, running.broker.address)
        topic = apache5.create(queues=1)
        began = time.monotonic()
        apache5.send_one(topic, 0, b"later", "TIMER_DELAY_SEC\x0186400")
        apache5.send_one(topic, 0, b"level", "DELAY\x011")
        # A message that is due when it comes is stored at once: its time is later than it takes to send these.
        due_ms = time.time_ns() // 1_000_000 + 2500 + round(10_000 * (time.monotonic() - began))
        for number in range(3):
            apache5.send_one(topic, 0, b"soon", f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{topic}{number}")
        apache5.await_messages(topic, 0, 4)
        apache5.await_waiting(topic, 1)
        report = delay(MessageSource(apache5.namesrv), [topic], spark=spark)
    finally:
        running.close()
    # It lets nobody read what waits with any delay, and only counts it.
    assert (report.delivered, report.by_born, report.waiting, report.is_stuck) == (4, 0, 0, False)
    assert any("rmq_sys_wheel_timer" in note for note in report.notes)
    assert {of.name: of.messages for of in report.levels} == {"any": 3, "1": 1}
    [of_any] = [of for of in report.levels if of.name == "any"]
    assert of_any.p50 > -1000  # it rounds down to the second before
    assert [(of.topic, of.messages) for of in report.timer_counts] == [(topic, 1)]
