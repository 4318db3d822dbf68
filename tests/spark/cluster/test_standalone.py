"""The jobs on a Spark standalone cluster of real processes with three brokers; workers are killed half-way."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import wait_for
from tests.spark.cluster.standalone import PATIENCE_S, Driver, Standalone, driving, with_py_files
from tests.spark.home import class_path, java_command, java_options
from tests.spark.topics import Topics

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import cometmq
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.archives.table import ICEBERG, TableFormat
from cometmq.spark.source.cluster import Cluster as Brokers
from cometmq.spark.source.options import parse_options
from cometmq.testing import SyncCluster

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(3 * PATIENCE_S)]

BROKERS = 3
QUEUES = 2
"""Of a topic, on each broker."""
MESSAGES = 12_000


def commits_in(log: ArchiveLog) -> int:
    if log.format == ICEBERG and not (Path(log.url) / "metadata").is_dir():
        return 0  # its catalog is being made, which two processes cannot do at a time
    last = log.last()
    return 0 if last is None else last.sequence + 1


@pytest.fixture(scope="module")
def brokers() -> Iterator[SyncCluster]:
    """Three brokers."""
    with SyncCluster(BROKERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topic(brokers: SyncCluster) -> str:
    """A topic on all of them; every body is different."""
    brokers.create_topic("orders", QUEUES)
    each = MESSAGES // (BROKERS * QUEUES)
    for at, broker in enumerate(brokers.cluster.brokers):
        topics = Topics(brokers.namesrv_address, broker.address)
        for queue_id in range(QUEUES):
            place = at * QUEUES + queue_id
            topics.send("orders", queue_id, [b"%09d" % (place * each + n) + bytes(91) for n in range(each)])
    return "orders"


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or later, and there is no java on the PATH")
    with Standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(spark_cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver program on it."""
    with driving(spark_cluster, tmp_path_factory.mktemp("driver")) as driver:
        yield driver


def ends(brokers: SyncCluster, topic: str) -> int:
    """Messages that a topic has taken, on all brokers."""
    found = Brokers(parse_options({"namesrvAddr": brokers.namesrv_address, "topic": topic}))
    return sum(held.end for held in found.bounds(found.queues()).values())


def test_the_archive_of_classes_suits_sparks_own_programs() -> None:
    """One that it does not suit starts without it and works twice as much, in silence."""
    command = [str(java_command()), "-Xshare:on", *java_options().split(), "-cp", class_path(), "-version"]
    subprocess.run(command, check=True, capture_output=True)


def test_executors_get_cometmq_as_a_zip(
    spark_cluster: Standalone, brokers: SyncCluster, topic: str, tmp_path: Path
) -> None:
    """``--py-files``, with Pythons that have everything but CometMQ."""
    package = shutil.make_archive(str(tmp_path / "cometmq"), "zip", Path(cometmq.__file__).parent.parent)
    with with_py_files(spark_cluster, tmp_path / "driver", package) as driver:
        driver.call("register")
        found = driver.call("read", namesrv=brokers.namesrv_address, topic=topic)
    assert sum(found["counts"]) == MESSAGES
    assert all("cometmq.zip" in package for package in found["packages"]), found["packages"]


def test_executors_read_all_brokers(driver: Driver, brokers: SyncCluster, topic: str, tmp_path: Path) -> None:
    found = driver.call("read", namesrv=brokers.namesrv_address, topic=topic)
    assert found["counts"] == [MESSAGES // BROKERS] * BROKERS
    assert found["executors"] == 2
    assert found["web"].startswith("http://")
    streamed = driver.call("stream_to_parquet", namesrv=brokers.namesrv_address, topic=topic, place=str(tmp_path))
    assert streamed == MESSAGES


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once", "exactly-once"])
def test_the_sink_writes_every_row_once(driver: Driver, brokers: SyncCluster, topic: str, guarantee: str) -> None:
    brokers.create_topic(guarantee, QUEUES)
    driver.call("sink", namesrv=brokers.namesrv_address, topic=topic, to=guarantee, guarantee=guarantee)
    assert driver.call("count", namesrv=brokers.namesrv_address, topic=guarantee) == [MESSAGES, MESSAGES]


def test_an_archive_whose_worker_is_killed_agrees_with_its_topic(
    driver: Driver, spark_cluster: Standalone, brokers: SyncCluster, topic: str, tmp_path: Path
) -> None:
    """The audit looks at every message. Workers write the same files for all formats, and know of none.

    Drivers commit them: those are killed for each format in ``test_formats.py`` and ``test_log.py``.
    """
    lake, namesrv, name = str(tmp_path / "lake"), brokers.namesrv_address, ICEBERG
    log = ArchiveLog(lake, TableFormat(name))
    checkpoint = str(tmp_path / "checkpoint")
    spark_cluster.replace_workers()
    driver.start("archive", namesrv=namesrv, topic=topic, to=lake, checkpoint=checkpoint, most=1500, table_format=name)
    wait_for(lambda: commits_in(log) >= 2, "two batches are committed", PATIENCE_S)
    spark_cluster.kill_worker()
    committed = commits_in(log)
    report: dict[str, Any] = driver.result()
    assert commits_in(log) > committed, "it was over before the worker was killed"
    assert (report["rows"], report["complete"]) == (MESSAGES, True)
    spark_cluster.replace_workers()

    assert driver.call("audit", namesrv=namesrv, topic=topic, archive=lake) == []


def test_what_was_archived_on_the_cluster_is_sent_again_on_it(
    driver: Driver, brokers: SyncCluster, topic: str, tmp_path: Path
) -> None:
    lake, namesrv = str(tmp_path / "lake"), brokers.namesrv_address
    named = {"checkpoint": str(tmp_path / "checkpoint"), "most": MESSAGES, "table_format": "parquet"}
    assert driver.call("archive", namesrv=namesrv, topic=topic, to=lake, **named)["complete"]
    brokers.create_topic("again", QUEUES)
    sent = driver.call("replay", namesrv=namesrv, archive=lake, ledger=str(tmp_path / "ledger"), to="again")
    assert sent == MESSAGES
    assert driver.call("count", namesrv=namesrv, topic="again") == [MESSAGES, MESSAGES]
    queues = driver.call("skew", namesrv=namesrv, topic="again")
    assert queues == [MESSAGES // (BROKERS * QUEUES)] * (BROKERS * QUEUES)


def test_an_exactly_once_stream_whose_worker_is_killed(
    driver: Driver, spark_cluster: Standalone, brokers: SyncCluster, topic: str, tmp_path: Path
) -> None:
    spark_cluster.replace_workers()
    brokers.create_topic("copied", QUEUES)
    checkpoint = str(tmp_path / "checkpoint")
    driver.start("stream_sink", namesrv=brokers.namesrv_address, topic=topic, to="copied", checkpoint=checkpoint)
    wait_for(lambda: ends(brokers, "copied") > MESSAGES // 4, "a quarter is copied", PATIENCE_S)
    spark_cluster.kill_worker()
    assert ends(brokers, "copied") < MESSAGES, "it was over before the worker was killed"
    driver.result()
    assert driver.call("count", namesrv=brokers.namesrv_address, topic="copied") == [MESSAGES, MESSAGES]
