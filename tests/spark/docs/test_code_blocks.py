"""The code blocks of the pages about Spark run as printed; all share one session, in place of one for each command."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.helpers.code_blocks import ROOT, Runner, blocks_of

from cometmq.cli.main import root
from cometmq.client import ConsumeFromWhere, Message, ProducerConfig, PushConfig
from cometmq.client.sync import SyncProducer, SyncPushConsumer
from cometmq.testing import SyncCluster

pytestmark = pytest.mark.spark

PAGES = [
    "docs/archive.md",
    "docs/mask.md",
    "docs/tables.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("spark*.md"))),
]
JOBS = ("run", "audit.job", "replay.job", "archive.job")


def command(words: list[str], source: bytes) -> str:
    done = CliRunner().invoke(root, words, input=source)
    assert done.exit_code == 0, f"cometmq {' '.join(words)}: {done.output}{done.exception!r}"
    return done.output


@pytest.fixture
def shared_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The session that jobs of commands use."""

    @contextlib.contextmanager
    def session(*_: object) -> Iterator[Any]:
        yield spark

    for module in JOBS:
        monkeypatch.setattr(f"cometmq.spark.jobs.{module}.driver_session", session)
    monkeypatch.setattr("cometmq.spark.jobs.run.tasks_at_a_time", lambda _: 0)
    monkeypatch.setattr("cometmq.spark.jobs.run._LEAST_TASKS", 2)  # as the session has it
    return spark


def fill(cluster: SyncCluster) -> None:
    """Send what readers of these pages have in their topics, and consume some of it."""
    for topic in ("orders", "payments", "reminders", "paid", "avro"):
        cluster.create_topic(topic, queues=1)
    for number in range(20):
        body = {"userId": f"user-{number % 3}", "items": [{"address": "Main Street 1"}]}
        key = f"order-{4700 + number}"
        cluster.send(Message("orders", value=body, keys=[key], tags="paid" if number % 2 else "created"))
    traced = ProducerConfig(enable_msg_trace=True)
    with SyncProducer("shop", cluster.namesrv_address, config=traced) as producer:
        producer.send(Message("payments", b"0"))
    cluster.send(Message("payments", b"1", tags="paid"))
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = SyncPushConsumer("billing", namesrv=cluster.namesrv_address, config=config)
    consumer.subscribe("orders")
    with consumer:
        for number, message in zip(range(20), consumer, strict=False):
            if number == 0:
                message.reject()
            message.ack()


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_as_printed(page: str, shared_session: Any, tmp_path: Path) -> None:
    spark = shared_session
    for place in ("lake", "data/checkpoints", "backup", "var/lib/node_exporter"):
        (tmp_path / place).mkdir(parents=True)
    data = tmp_path / "cluster"
    with SyncCluster(data=data) as cluster:
        fill(cluster)
    shutil.copytree(data / "broker-0", tmp_path / "backup" / "store")
    with SyncCluster(data=data) as cluster:
        runner = Runner(tmp_path, cluster.namesrv_address, command, spark=spark)
        blocks = blocks_of(page)
        for block in sorted(blocks, key=lambda block: block.file is None):
            if block.language in ("console", "python") or block.file is not None:
                runner.run(block)
                for query in spark.streams.active:
                    query.processAllAvailable()
                    query.stop()
