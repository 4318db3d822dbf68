"""Through Spark Connect: source, sink, streams and jobs, where the driver is another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.session.connecting import connect_server, connected
from tests.spark.sinking import stored
from tests.spark.store_files import write_store
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
pytest.importorskip("grpc_status", reason="grpcio-status is not installed (pip install cometmq[connect])")

from pyspark.errors import PySparkException

from cometmq.client.dead_letters import Selection
from cometmq.spark.archives.log import read_archive
from cometmq.spark.bodies import as_text
from cometmq.spark.errors import OptionError, SparkSourceError
from cometmq.spark.jobs.archive.from_store import archive_store
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.archive.report import ArchivedBatch
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.dead_letters import dead_letters
from cometmq.spark.jobs.delay.job import delay
from cometmq.spark.jobs.key_index import build_key_index, find_by_key
from cometmq.spark.jobs.mask.job import mask
from cometmq.spark.jobs.mask_rules import rules_from_options
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.rebuild.job import rebuild
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.jobs.skew import skew
from cometmq.spark.jobs.table.job import fresh_table
from cometmq.spark.jobs.trace import trace
from cometmq.spark.session.environment import connect_session
from cometmq.testing import free_port

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="module")
def remote(server: str) -> Iterator[Any]:
    """A session on it."""
    with connected(server) as session:
        yield session


@pytest.mark.parametrize("place", ["127.0.0.1:{port}", "127.0.0.1:port", "no-such-host.invalid"])
def test_a_server_that_is_not_there_is_told_at_once_and_no_token(place: str) -> None:
    there = place.format(port=free_port())
    with pytest.raises(SparkSourceError, match="no Spark Connect session at") as told:
        connect_session(f"sc://{there}/;token=secret")
    assert (there in str(told.value), "secret" in str(told.value)) == (True, False)


def source(remote: Any, topics: Topics, **options: Any) -> Any:
    return remote.read.format("rocketmq").options(namesrvAddr=topics.namesrv, **options)


def numbers(topics: Topics, topic: str, queues: int) -> list[int]:
    return sorted(int(record.body[:9]) for queue in stored(topics, topic, queues) for record in queue)


@pytest.mark.parametrize("narrowed", ["true", "false"])
def test_a_batch_with_filters_and_chosen_columns(remote: Any, topics: Topics, narrowed: str) -> None:
    topic = topics.fill(100, queues=2)
    topics.send(topic, 1, [b"000000100 other"], "TAGS\x01TagB\x02KEYS\x01k\x02")
    remote.conf.set("spark.sql.python.filterPushdown.enabled", narrowed)
    frame = source(remote, topics, topic=topic).schema("queueId int, queueOffset bigint, body binary").load()
    assert frame.columns == ["queueId", "queueOffset", "body"]
    rows = frame.where("queueId = 1 AND queueOffset >= 40").select("queueOffset", as_text("body").alias("text"))
    assert sorted((row[0], int(row[1][:9])) for row in rows.collect()) == [
        *((offset, 2 * offset + 1) for offset in range(40, 50)),
        (50, 100),
    ]
    tagged = source(remote, topics, topic=topic, tags="TagB").load().select("keys", "topic").collect()
    assert [tuple(row) for row in tagged] == [("k", topic)]


def test_an_error_reaches_the_client_with_its_next_step(remote: Any, topics: Topics) -> None:
    for frame in (source(remote, topics, topicc="orders"), source(remote, topics, topic="orders", pullBatchSizes=5)):
        with pytest.raises(PySparkException, match=r"did you mean (topic|pullBatchSize)"):
            frame.load().collect()
    rows = remote.createDataFrame([(b"x",)], "body binary").write.format("rocketmq").mode("append")
    with pytest.raises(PySparkException, match="did you mean deliveryGuarantee"):
        rows.options(namesrvAddr=topics.namesrv, topic="orders", deliveryGuarante="x").save()


def test_a_stream_goes_on_from_its_checkpoint(remote: Any, topics: Topics, tmp_path: Path) -> None:
    """From a topic to Parquet, and from there by another stream to a topic."""
    topic, copy = topics.fill(200, queues=2), topics.create(1)
    rows = (
        remote.readStream.format("rocketmq")
        .options(namesrvAddr=topics.namesrv, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=150)
        .schema("body binary, queueOffset bigint")
        .load()
    )
    files = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    sends = rows.select("body").writeStream.format("rocketmq")
    sends = sends.options(namesrvAddr=topics.namesrv, topic=copy, deliveryGuarantee="exactly-once")
    for later, (name, target) in enumerate((("files", files), ("files", files), ("sends", sends))):
        if later == 1:
            topics.send(topic, 0, [b"%09d" % number for number in range(200, 210)])
        query = target.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        assert query.exception() is None
    found = remote.read.parquet(str(tmp_path / "rows")).select("body").collect()
    assert sorted(int(row.body[:9]) for row in found) == numbers(topics, copy, 1) == list(range(210))


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once", "exactly-once"])
def test_rows_are_sent_with_each_guarantee(remote: Any, topics: Topics, guarantee: str) -> None:
    topic = topics.create(2)
    rows = remote.range(300).selectExpr("format_string('%09d', id) AS value", "concat('k', id % 3) AS keys")
    sink = rows.write.format("rocketmq").mode("append").options(namesrvAddr=topics.namesrv, topic=topic)
    sink.option("deliveryGuarantee", guarantee).save()
    assert numbers(topics, topic, 2) == list(range(300))


def test_jobs_that_look_into_messages(remote: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fill(60, queues=2)
    topics.send(topic, 0, [json.dumps({"phone": "0123"}).encode()], "KEYS\x01k\x02")
    brokers = MessageSource(topics.namesrv)
    assert skew(brokers, [topic], spark=remote).topics[0].messages == 61
    assert trace(brokers, trace_topic=topic, spark=remote).latencies == ()
    assert delay(brokers, [topic], spark=remote).stuck == 0
    with pytest.raises(OptionError, match="has no topic %DLQ%nobody"):
        dead_letters(brokers, ["nobody"], selection=Selection(), spark=remote)
    dead = topics.create(1, "%DLQ%connect")
    topics.send(dead, 0, [b"dead"] * 3)
    assert [of.letters for of in dead_letters(brokers, ["connect"], spark=remote).groups] == [3]
    report = audit(topics.namesrv, topic, spark=remote)
    assert (report.agrees, sum(of.stored or 0 for of in report.queues)) == (True, 61)

    rules = rules_from_options(["$.phone=mask:0:1"])
    copy = mask(brokers, topic, rules, tmp_path / "copy", spark=remote)
    assert (copy.total, copy.values, copy.apart) == (1, {"$.phone": 1}, {"its body is not JSON": 60})
    with pytest.raises(SparkSourceError, match="cannot be masked: its body is not JSON"):
        mask(brokers, topic, rules_from_options(["$.a=drop"], not_json="fail"), tmp_path / "other", spark=remote)


def test_jobs_on_stores_and_archives(remote: Any, topics: Topics, tmp_path: Path) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    write_store(store, 90, body=lambda number: b"%09d" % number)
    assert rebuild(store, dry_run=True, spark=remote).messages == 90
    assert archive_store(store, lake, broker_name="old", spark=remote).rows == 90
    assert build_key_index(lake, tmp_path / "index", spark=remote) is not None
    assert [found.body for found in find_by_key(lake, tmp_path / "index", "T", "k7")] == [b"000000007"]
    copy = topics.create(3)
    done = replay(lake, topics.namesrv, tmp_path / "ledger", to=copy, per_second=10_000.0, spark=remote)
    assert (done.messages, numbers(topics, copy, 3)) == (90, list(range(90)))


def test_topics_are_archived(remote: Any, topics: Topics, tmp_path: Path) -> None:
    """The server makes the commits, and passes them on to the job."""
    topic, lake = topics.fill(300, queues=2), tmp_path / "lake"
    given: dict[str, Any] = {"table_format": "delta", "max_offsets_per_trigger": 150, "spark": remote}
    batches: list[ArchivedBatch] = []
    first = archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", on_batch=batches.append, **given)
    assert (first.rows, first.batches, first.complete) == (300, len(batches), True)
    assert [of.total for of in batches][-1] == 300
    assert len(batches) >= 2
    topics.send(topic, 0, [b"000000300"])
    again = archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", **given)
    assert (again.rows, again.total_rows) == (1, 301)
    found = read_archive(remote, lake).select("body").collect()
    assert sorted(int(row.body[:9]) for row in found) == list(range(301))
    assert not list(lake.glob("_told*"))


def test_a_table_is_kept_fresh(remote: Any, topics: Topics, tmp_path: Path) -> None:
    """The server decides on new columns, and writes the files with them again."""
    topic, lake = topics.create(1), tmp_path / "lake"
    given: dict[str, Any] = {"schema": "id bigint", "once": True, "spark": remote}
    for number in range(2):
        topics.send(topic, 0, [b'{"id": %d, "f%d": "x"}' % (number, number)])
        done = fresh_table(topic, topics.namesrv, lake, **given)
    assert (done.rows, done.total_rows, done.committed_behind, done.files_joined) == (1, 2, 0, 2)
    rows = read_archive(remote, lake).select("id", "f0", "f1").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, "x", None), (1, None, "x")]


def test_what_hinders_the_server_from_committing_is_told(remote: Any, topics: Topics, tmp_path: Path) -> None:
    topic, lake = topics.fill(10, queues=1), tmp_path / "lake"
    (lake / "_commit_lock").mkdir(parents=True)
    with pytest.raises(SparkSourceError, match="Is a directory"):
        archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", spark=remote)
    (lake / "_commit_lock").rmdir()
    assert archive(topics.namesrv, topic, lake, tmp_path / "checkpoint", spark=remote).rows == 10


def test_a_server_is_the_master_of_a_command(server: str, topics: Topics) -> None:
    topic = topics.fill(20, queues=2)
    words = ["pipeline", "skew", "-n", topics.namesrv, "--topic", topic, "--master", server, "-o", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
    program = "from cometmq.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *words], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["topics"][0]["messages"] == 20
