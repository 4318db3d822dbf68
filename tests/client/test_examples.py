from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.helpers.examples import EXAMPLES, run
from tests.interop.systems import Deployment, System

from cometmq.client import LitePullConfig, ProducerConfig, PushConfig, SimpleConsumerConfig, TransactionConfig, errors
from cometmq.client.sync import SyncAdmin
from cometmq.testing import SyncCluster


def test_the_examples_run_as_written(server: Deployment, tmp_path: Path) -> None:
    with SyncAdmin(server.address) as admin:
        admin.create_topic("orders", queues=4)
        before = sum(row.max_offset for row in admin.topic_stats("orders").offset_table.values())
    produced = run("producer.py", tmp_path, server.address)
    assert "100 messages in 4 queues" in produced
    assert len(set(re.findall(r"(?:paid|packed|sent): queue (\d)", produced))) == 1
    total = before + 104
    consumed = run("consumer.py", tmp_path, server.address, str(total))
    assert len(consumed.splitlines()) == total
    assert f"{total} messages" in run("broadcast.py", tmp_path, server.address, str(total))
    assert list(tmp_path.glob(".rocketmq_offsets/*@DEFAULT/order-cache/offsets.json"))
    polled = run("lite_pull.py", tmp_path, server.address)
    assert f"{total} messages in 4 queues" in polled
    assert "queue 0 again" in polled
    hooked = run("hooks.py", tmp_path, server.address)
    assert "sent 1 to audited" in hooked
    assert "refused: a hook rejected this message: passwords do not belong" in hooked
    assert "consumed 1: CONSUME_SUCCESS" in hooked
    traced = run("trace.py", tmp_path, server.address)
    assert "sender on 127.0.0.1 sent it to" in traced
    assert "courier on 127.0.0.1 had it for" in traced
    transacted = run("transaction.py", tmp_path, server.address)
    assert "70: COMMIT, the broker knows: True" in transacted
    assert "70: ROLLBACK, the broker knows: True" in transacted
    assert "alice has 30, bob has 70" in transacted
    delayed = run("delay.py", tmp_path, server.address)
    assert re.search(r"now after 0\.\d s\nlater after [123]\.\d s", delayed), delayed
    retried = run("retry.py", tmp_path, server.address)
    assert "attempt 2 of bill 7\ngiven up: bill 7 of bills-" in retried
    assert "sent: bill 7" in retried
    assert retried.endswith("taken\n")
    assert "10000 messages in" in run("batch.py", tmp_path, server.address)
    administered = run("admin.py", tmp_path, server.address)
    assert "found again: a parcel" in administered
    assert "parcel-service has 1 to do" in administered
    assert "parcel-service has 0 to do" in administered


def test_the_example_of_any_delay(server: Deployment, tmp_path: Path) -> None:
    if server.broker.system is System.APACHE:  # 4.9 knows delay levels only
        with pytest.raises(AssertionError, match="would deliver the message immediately"):
            run("any_delay.py", tmp_path, server.address)
    else:
        delayed = run("any_delay.py", tmp_path, server.address).splitlines()
        assert [line.partition(":")[0] for line in delayed] == ["in a second", "in four seconds"]


def test_the_example_of_priorities(tmp_path: Path) -> None:
    with SyncCluster() as cluster:
        shown = run("priority.py", tmp_path, cluster.namesrv_address).splitlines()
    assert shown == ["weekly report: level 0", "invoice: level 1", "disk is full: level 3", "outage: level 3"]


def test_the_example_of_lite_topics(tmp_path: Path) -> None:
    with SyncCluster() as cluster:
        shown = run("lite_topics.py", tmp_path, cluster.namesrv_address).splitlines()
    assert shown == [f"{word} (session-1)" for word in ("once", "upon", "a", "time")]


def test_the_example_of_simple_consumers(tmp_path: Path) -> None:
    with SyncCluster() as cluster:
        shown = run("simple_consumer.py", tmp_path, cluster.namesrv_address).splitlines()
    assert shown == ["job 7 failed, again in a second", "10 jobs are done"]


def test_the_example_of_producer_retries(tmp_path: Path) -> None:
    both, failed, *others = run("producer_retries.py", tmp_path).splitlines()
    assert re.fullmatch(r"\d+ at broker-[01], \d+ at broker-[01]", both), both
    assert failed.startswith("an attempt at broker-1 failed")
    assert "20 at broker-0" in others
    assert others[-1].startswith("not stored, after ")


def test_the_page_of_transactions_names_every_option_with_its_default() -> None:
    page = (EXAMPLES.parent / "docs" / "transactions.md").read_text()
    for option in dataclasses.fields(TransactionConfig)[len(dataclasses.fields(ProducerConfig)) :]:
        assert f"`{option.name}` ({option.default})" in page


def test_the_page_names_every_option_with_its_default() -> None:
    page = (EXAMPLES.parent / "docs" / "client.md").read_text()
    for kind in (ProducerConfig, PushConfig, LitePullConfig, SimpleConsumerConfig):
        for option in dataclasses.fields(kind):
            assert re.search(rf"^\| `{option.name}` \|", page, re.MULTILINE), option.name
    configs = (ProducerConfig(), PushConfig(), LitePullConfig(), SimpleConsumerConfig())
    for config in configs:
        for name, value in dataclasses.asdict(config).items():
            if type(value) in (int, float) and not name.endswith("bytes_for_queue") and name != "pull_threshold_bytes":
                assert re.search(rf"^\| `{name}` \|[^|]*\| {value:.12g}", page.replace(",", ""), re.MULTILINE), name


def test_the_page_names_every_error() -> None:
    page = (EXAMPLES.parent / "docs" / "client.md").read_text()
    for name in errors.__all__:
        if name not in ("ClientError", "RemotingError"):
            assert f"| `{name}`" in page
