"""Source, sink and archive with credentials and TLS, against real Apache RocketMQ that asks for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop import secured
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable
from tests.interop.secured import BILLING, OPERATORS, Secured
from tests.interop.systems import System

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.errors import PySparkException

from cometmq.client import Security
from cometmq.client.sync import SyncAdmin
from cometmq.spark.archive import archive
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.queues import Queue
from cometmq.spark.replay_messages import Origin, Resent
from cometmq.spark.replay_sender import Pace, QueueSender, ReplayTask

pytestmark = [pytest.mark.spark, pytest.mark.interop]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Apache 4.9 with the topics Orders, ReadOnly and Closed."""
    try:
        server = secured.deploy(System.APACHE, tmp_path_factory.mktemp("secured"))
    except ToolMissingError as problem:
        unavailable(problem)
    with SyncAdmin(server.address, security=Security(OPERATORS)) as admin:
        for topic in ("Orders", "ReadOnly", "Closed"):
            admin.create_topic(topic, queues=1)
    yield server
    server.deployment.close()


@pytest.fixture
def options(server: Secured, tmp_path: Path) -> dict[str, str]:
    """Of an account that may send to and read Orders."""
    secret = tmp_path / "secret"
    secret.write_text(BILLING.secret_key)
    return {
        "namesrvAddr": server.address,
        "accessKey": BILLING.access_key,
        "secretKeyFile": str(secret),
        "useTLS": "true",
        "tlsTrustCertPath": server.trust_cert_path,
        "tlsCertPath": server.cert_path,
        "tlsKeyPath": server.key_path,
    }


def write(spark: Any, options: dict[str, str]) -> None:
    frame = spark.createDataFrame([(f"row {number}".encode(),) for number in range(50)], "body binary")
    frame.coalesce(1).write.format("rocketmq").mode("append").options(**options).save()


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once"])
def test_rows_are_sent_and_read_with_an_account_over_tls(spark: Any, options: dict[str, str], guarantee: str) -> None:
    reader = spark.read.format("rocketmq").options(topic="Orders", **options)
    before = reader.load().count()
    write(spark, {"topic": "Orders", "deliveryGuarantee": guarantee, **options})
    assert reader.load().count() == before + 50


def test_a_refusal_is_told_with_its_next_step(spark: Any, options: dict[str, str]) -> None:
    account = {name: value for name, value in options.items() if name != "secretKeyFile"}
    wrong = {**account, "secretKey": "another-secret", "topic": "Orders"}
    alone = {"compressionType": "zlib", "compressMsgBodyOverHowmuch": "1"}  # Apache lets every batch in
    for given, words, step in (
        ({**options, **alone, "topic": "Closed"}, "No default permission for topic:Closed", "topicPerms"),
        (wrong, "Check signature failed", "not the one of this access key"),
        ({**wrong, "deliveryGuarantee": "effectively-once"}, "Check signature failed", "not the one of"),
        ({**options, "tlsTrustCertPath": options["tlsCertPath"], "topic": "Orders"}, "is not accepted", "trust_cert"),
    ):
        with pytest.raises(PySparkException, match=words) as refused:
            write(spark, given)
        assert step in str(refused.value)
        assert "another-secret" not in str(refused.value)
        assert BILLING.secret_key not in str(refused.value)
    read = {**options, "topic": "Orders", "consumerGroup": "strangers"}
    frame = spark.read.format("rocketmq").options(**read).load()
    with pytest.raises(PySparkException, match="No default permission for group:strangers") as refused:
        frame.collect()
    assert "groupPerms" in str(refused.value)


def test_a_replay_takes_them_from_the_environment(server: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    queue = Queue("Orders", "broker-a", 0)
    task = ReplayTask(server.address, "replay-1", (queue,), (0,), None, False, 60_000)
    message = Resent(Origin("old", 0, 7), 1, 0, 0, b"replayed", b"")
    with pytest.raises(SparkSourceError, match="No accessKey is configured"):
        QueueSender(task, 0, Pace(None))
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", BILLING.access_key)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", BILLING.secret_key)
    sender = QueueSender(task, 0, Pace(None))
    ((origin, _, found),) = sender.send([message])
    sender.close()
    assert (origin, found) == (message.origin, False)


def test_an_archive_takes_them_as_options(spark: Any, options: dict[str, str], tmp_path: Path) -> None:
    write(spark, {"topic": "Orders", **options})
    namesrv = options.pop("namesrvAddr")
    to, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    report = archive(namesrv, "Orders", to, checkpoint, options=options, spark=spark)
    assert report.rows >= 50
    secret = BILLING.secret_key.encode()
    files = [file for directory in (to, checkpoint) for file in directory.rglob("*") if file.is_file()]
    assert [file for file in files if secret in file.read_bytes()] == []


def environment(server: Secured) -> dict[str, str]:
    return {
        "ROCKETMQ_TLS_ENABLE": "true",
        "ROCKETMQ_TLS_TRUST_CERT_PATH": server.trust_cert_path,
        "ROCKETMQ_TLS_CERT_PATH": server.cert_path,
        "ROCKETMQ_TLS_KEY_PATH": server.key_path,
    }
