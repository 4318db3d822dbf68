"""Failures while a query runs: expired messages, a broker that is killed, bodies that cannot be unpacked, a full
disk, a second query on a checkpoint. Each is told in words or healed, and nothing is lost or doubled in silence."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import wait_for
from tests.spark.lake_files import opened
from tests.spark.sinking import stored
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow.parquet as pq

from cometmq.message.sysflag import COMPRESSED
from cometmq.spark.archives.log import read_archive
from cometmq.spark.errors import BadBodyError, DataLossError, SparkSourceError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.writer import write_ranges
from cometmq.spark.records.decode import Records
from cometmq.spark.records.queues import OffsetRange, Queue
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.fetch import Fetcher
from cometmq.spark.source.options import SourceOptions, parse_options
from cometmq.testing import ProcessCluster, SyncCluster

PATIENCE_S = 60.0


def source_of(namesrv: str, topic: str, **more: str) -> SourceOptions:
    return parse_options({"namesrvAddr": namesrv, "topic": topic, "pollTimeoutMs": "60000"} | more)


def offsets(fetcher: Fetcher, part: OffsetRange) -> list[int]:
    return [offset for chunk in fetcher.fetch([part]) for offset in Records(chunk.data).queue_offsets.tolist()]


def test_a_broker_that_was_restarted_since_is_asked_where_groups_are() -> None:
    """Over a new connection: the one from before is of no more use."""
    with SyncCluster() as cluster:
        cluster.create_topic("orders", 1)
        brokers = Cluster(source_of(cluster.namesrv_address, "orders"))
        (queue,) = brokers.queues()
        brokers.commit_offsets("readers", {queue: 0})
        assert brokers.committed_offsets([queue], "readers") == {queue: 0}
        cluster.restart_broker(0)
        assert brokers.committed_offsets([queue], "readers") == {queue: 0}


def test_messages_that_expired_after_a_batch_was_planned() -> None:
    """They are named; without failOnDataLoss what is left is read, and what is not is known."""
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    keys = {"mappedFileSizeCommitLog": "65536", "fileReservedTime": "0", "deleteWhen": hours}
    with SyncCluster(broker_keys=keys | {"cleanResourceInterval": "100", "flushIntervalCommitLog": "50"}) as cluster:
        cluster.create_topic("orders", 1)
        topics = Topics(cluster.namesrv_address, cluster.run(lambda inner: inner.broker(0).address))
        topics.send("orders", 0, [bytes(100)] * 2000)
        options = source_of(cluster.namesrv_address, "orders")
        brokers = Cluster(options)
        (queue,) = brokers.queues()
        planned = OffsetRange(queue, 0, 2000)
        wait_for(lambda: brokers.bounds([queue])[queue].first > 1000, "the first half has expired", PATIENCE_S)
        with pytest.raises(DataLossError, match=r"\[0, .*cannot be read: they were deleted .*failOnDataLoss"):
            offsets(Fetcher(options), planned)
        tolerant = Fetcher(source_of(cluster.namesrv_address, "orders", failOnDataLoss="false"))
        found = offsets(tolerant, planned)
        assert found == list(range(found[0], 2000))
        assert tolerant.lost == [OffsetRange(queue, 0, found[0])]


@pytest.mark.crash
def test_a_broker_that_is_killed_while_it_is_read(tmp_path: Path) -> None:
    with ProcessCluster(data=tmp_path) as cluster:
        topics = Topics(cluster.namesrv_address, cluster.broker_addresses[0])
        topic = topics.create(queues=1)
        topics.send(topic, 0, [bytes(2000)] * 20_000)
        options = source_of(cluster.namesrv_address, topic)
        (queue,) = Cluster(options).queues()
        chunks = Fetcher(options).fetch([OffsetRange(queue, 0, 20_000)])
        found = Records(next(chunks).data).queue_offsets.tolist()
        cluster.kill_broker(0)
        cluster.start_broker(0)
        for chunk in chunks:
            found += Records(chunk.data).queue_offsets.tolist()
        assert found == list(range(20_000))


def test_a_body_that_cannot_be_unpacked(topics: Topics, tmp_path: Path) -> None:
    """A task of the archive stops and says what to do; with badBodies=null it stores the body as it was, counts it, and
    writes its place and the reason."""
    topic = topics.fill(50, queues=1)
    topics.send_one(topic, 0, b"no zlib at all", sys_flag=COMPRESSED)
    part = OffsetRange(Queue(topic, topics.broker_name, 0), 0, 51)
    with pytest.raises(BadBodyError, match=rf"offset 50 of {topic}@broker-a:0 cannot be decompressed.*badBodies"):
        list(write_ranges(source_of(topics.namesrv, topic), [part], opened(tmp_path)))
    aside = {"badBodies": "null", "badRecordsPath": str(tmp_path / "bad")}
    for _ in range(2):  # a task that is repeated tells the same once
        found = list(write_ranges(source_of(topics.namesrv, topic, **aside), [part], opened(tmp_path)))
    (file,) = (manifest.file for manifest in found if manifest.file is not None)
    assert (file.rows, file.bad_bodies) == (51, 1)
    last = pq.read_table(tmp_path / file.path, columns=["body", "storedBody"]).slice(50).to_pylist()
    assert last == [{"body": None, "storedBody": b"no zlib at all"}]
    (told,) = [json.loads(line) for name in (tmp_path / "bad").iterdir() for line in name.read_text().splitlines()]
    assert told.pop("reason")
    assert told == {"topic": topic, "brokerName": "broker-a", "queueId": 0, "queueOffset": 50}


def test_a_task_of_the_archive_tells_nothing_before_its_files_are_on_the_disk(
    topics: Topics, tmp_path: Path, flushed: set[int]
) -> None:
    topic = topics.fill(60, queues=3)
    parts = [OffsetRange(Queue(topic, topics.broker_name, queue_id), 0, 20) for queue_id in range(3)]
    next(write_ranges(source_of(topics.namesrv, topic), parts, opened(tmp_path)))
    files = [path.stat().st_ino for path in tmp_path.rglob("*.parquet")]
    assert len(files) == 3
    assert flushed >= set(files)


@pytest.mark.spark
def test_a_full_disk_under_the_archive(spark: Any, topics: Topics, small_disk: Path, tmp_path: Path) -> None:
    """Committed files stay; with room the same command goes on, and every message is there once."""
    topic = topics.create(queues=1)
    topics.send(topic, 0, [os.urandom(100_000) for _ in range(30)])
    to, checkpoint = small_disk / "lake", tmp_path / "checkpoint"
    options = {"maxBytesPerTrigger": "400k"}
    with pytest.raises(SparkSourceError, match=r"(?i)no space left on device"):
        archive(topics.namesrv, topic, to, checkpoint, spark=spark, options=options)
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    report = archive(topics.namesrv, topic, to, checkpoint, spark=spark, options=options)
    assert (report.finished, report.total_rows) == (True, 30)
    rows = read_archive(spark, to).select("queueOffset").collect()
    assert sorted(row.queueOffset for row in rows) == list(range(30))


@pytest.mark.spark
def test_a_second_query_on_a_checkpoint_takes_over(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Spark stops the first one; together they have copied every message once."""
    topic, target = topics.fill(3000, queues=2), topics.create(queues=2)

    def start(**timing: Any) -> Any:
        frame = spark.readStream.format("rocketmq").options(
            namesrvAddr=topics.namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=500
        )
        writer = frame.load().select("body").writeStream.format("rocketmq")
        writer = writer.options(namesrvAddr=topics.namesrv, topic=target, deliveryGuarantee="exactly-once")
        return writer.option("checkpointLocation", str(tmp_path)).trigger(**timing).start()

    first = start(processingTime="0 seconds")
    queues = [Queue(target, topics.broker_name, number) for number in range(2)]
    brokers = Cluster(source_of(topics.namesrv, target))
    wait_for(
        lambda: sum(of.end for of in brokers.bounds(queues).values()) > 0, "the first query has begun", 2 * PATIENCE_S
    )
    second = start(availableNow=True)
    assert second.awaitTermination(120)
    assert not first.isActive
    found = sorted(record.body[:9] for records in stored(topics, target, 2) for record in records)
    assert found == [b"%09d" % number for number in range(3000)]
