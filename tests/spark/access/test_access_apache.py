"""Source, sink and jobs with credentials and TLS, against real Apache RocketMQ that asks for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.interop.access import secured
from tests.interop.access.secured import BILLING, OPERATORS, Secured
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable
from tests.interop.systems import System

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from pyspark.errors import PySparkException

from cometmq.client import Security
from cometmq.client.dead_letters import Selection
from cometmq.client.pace import Pace
from cometmq.client.sync import SyncAdmin
from cometmq.errors import CometMQError
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.jobs.archive.job import archive
from cometmq.spark.jobs.audit.job import audit
from cometmq.spark.jobs.audit.report import AuditReport
from cometmq.spark.jobs.dead_letters import dead_letters, send_again
from cometmq.spark.jobs.delay.job import delay
from cometmq.spark.jobs.mask.job import MaskReport, mask_to_topic
from cometmq.spark.jobs.mask_rules import rules_from_options
from cometmq.spark.jobs.message_source import MessageSource
from cometmq.spark.jobs.replay.job import replay
from cometmq.spark.jobs.replay.ledger import OpenedLedger
from cometmq.spark.jobs.replay.sender import Origin, QueueSender, ReplayTask, Resent, TaskSender
from cometmq.spark.jobs.skew import skew
from cometmq.spark.jobs.trace import trace
from cometmq.spark.records.queues import Queue
from cometmq.storage import open_storage

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
        (wrong, "Check signature failed", "does not belong to this access key"),
        ({**wrong, "deliveryGuarantee": "effectively-once"}, "Check signature failed", "does not belong to"),
        ({**options, "tlsTrustCertPath": options["tlsCertPath"], "topic": "Orders"}, "was not accepted", "trust_cert"),
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


def test_a_replay_takes_them_from_the_environment(
    server: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    queue, ledger = Queue("Orders", "broker-a", 0), OpenedLedger(open_storage(tmp_path), 0, "replay-1")
    task = ReplayTask({"namesrvAddr": server.address}, ledger, (queue,), (0,), None, False, 60_000)
    message = Resent(Origin("old", 0, 7), 1, 0, 0, b"replayed", b"")
    with pytest.raises(SparkSourceError, match="No accessKey is configured"):
        QueueSender(task, 0, Pace(None), TaskSender(task))
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", BILLING.access_key)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", BILLING.secret_key)
    with closing(TaskSender(task)) as links:
        ((origin, _, found),) = QueueSender(task, 0, Pace(None), links).send([message])
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


def test_every_job_takes_them_as_options(
    spark: Any, server: Secured, options: dict[str, str], event_log: Path, tmp_path: Path
) -> None:
    """And none goes without; where a job talks to two clusters, each has an account of its own."""
    write(spark, {"topic": "Orders", **options})
    reader = {name: value for name, value in options.items() if name != "namesrvAddr"}
    operator = {**reader, "secretKey": OPERATORS.secret_key, "accessKey": OPERATORS.access_key}
    del operator["secretKeyFile"]
    dead = "%DLQ%billing"
    with SyncAdmin(server.address, security=Security(OPERATORS)) as admin:
        admin.create_topic(dead, queues=1)
    rules = rules_from_options(["tags=drop"], not_json="drop")

    def copied(source: MessageSource, to: dict[str, str]) -> MaskReport:
        work = tmp_path / "work"
        return mask_to_topic(source, "Orders", rules, work, server.address, "Closed", to_access=to, spark=spark)

    def audited(access: dict[str, str]) -> AuditReport:
        return audit(server.address, "Orders", groups=["billing"], access=access, spark=spark)

    def sent_again(access: dict[str, str]) -> Any:
        return send_again(server.address, ["billing"], Selection(), ledgers=tmp_path, access=access)

    def translated(access: dict[str, str]) -> Any:
        named: dict[str, Any] = {"to": "Closed", "translate_groups": ["billing"], "groups_namesrv": server.address}
        return replay(
            tmp_path / "work" / "archive",
            server.address,
            tmp_path / "ledger",
            access=operator,
            groups_access=access,
            dry_run=True,
            spark=spark,
            **named,
        )

    anybody, billing, operators = (MessageSource(server.address, access=access) for access in ({}, reader, operator))
    for job in (
        lambda: skew(anybody, "Orders", spark=spark),
        lambda: trace(anybody, trace_topic="Orders", spark=spark),
        lambda: delay(anybody, ["Orders"], spark=spark),
        lambda: dead_letters(anybody, ["billing"], spark=spark),
        lambda: copied(anybody, operator),
        lambda: copied(billing, {}),
        lambda: audited({}),
        lambda: sent_again({}),
    ):
        with pytest.raises(CometMQError, match="No accessKey is configured"):
            job()
    assert skew(billing, "Orders", spark=spark).topics[0].messages >= 50
    assert trace(billing, trace_topic="Orders", spark=spark).latencies == ()
    assert delay(operators, ["Orders"], spark=spark).stuck == 0
    assert dead_letters(operators, ["billing"], spark=spark).groups == ()
    assert [of.failed for of in sent_again(operator)] == [0]
    copy = copied(billing, operator)
    assert copy.replayed is not None
    assert copy.total == sum(of.messages for of in copy.replayed.queues) >= 50
    report = audited(operator)
    assert report.agrees
    with pytest.raises(SparkSourceError, match="No accessKey is configured"):
        translated({})
    assert "nothing is replayed yet, so offsets cannot be translated" in translated(operator).warnings
    secret = OPERATORS.secret_key
    texts = [repr(operators), str(copy), copy.render(), str(report), report.render()]
    assert [text for text in texts if secret in text] == []
    files = [file for directory in (tmp_path, event_log) for file in directory.rglob("*") if file.is_file()]
    assert [file for file in files if secret.encode() in file.read_bytes()] == []


def environment(server: Secured) -> dict[str, str]:
    return {
        "ROCKETMQ_TLS_ENABLE": "true",
        "ROCKETMQ_TLS_TRUST_CERT_PATH": server.trust_cert_path,
        "ROCKETMQ_TLS_CERT_PATH": server.cert_path,
        "ROCKETMQ_TLS_KEY_PATH": server.key_path,
    }
