"""``cometmq dlq``: list, read, export, resend, and what goes wrong with them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq.client import ConsumeFromWhere, Message, PushConfig
from cometmq.client.consumer.listener import Retry
from cometmq.client.sync import SyncProducer, SyncPushConsumer


@pytest.fixture(scope="module")
def group(cometmq: CommandLine) -> str:
    """A group that gave up three messages."""
    cometmq("topic", "create", "orders")
    with SyncProducer("application", cometmq.namesrv) as producer:
        for body in (b"\xff\x00", b"two", b"three"):
            producer.send(Message("orders", body, tags="a" if body == b"two" else "b", keys=["k"]))
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = SyncPushConsumer("workers", lambda _: Retry(delay_level=-1), cometmq.namesrv, config=config)
    consumer.subscribe("orders")
    with consumer:
        wait_for(lambda: len(cometmq("dlq", "read", "workers", "-o", "jsonl").lines()) == 3, "all are given up")
    return "workers"


def test_dead_letters_are_listed_and_read(cometmq: CommandLine, group: str) -> None:
    (listed,) = cometmq("dlq", "list", "-o", "json").json()
    assert (listed["group"], listed["count"]) == (group, 3)
    (row,) = cometmq("dlq", "read", group, "--tag", "a", "-o", "json").json()
    assert (row["origin_topic"], row["body"], row["keys"]) == ("orders", "two", ["k"])
    assert len(cometmq("dlq", "read", group, "--max", "2", "-o", "jsonl").lines()) == 2
    assert "Failures" in cometmq("dlq", "read", group).out


def test_an_export_has_everything(cometmq: CommandLine, group: str, tmp_path: Path) -> None:
    printed = cometmq("dlq", "export", group, "--origin-topic", "orders")
    assert (printed.code, printed.err.strip()) == (0, "Dead letters of workers exported: 3")
    rows = printed.lines()
    assert {base64.b64decode(row["body_base64"]) for row in rows} == {b"\xff\x00", b"two", b"three"}
    assert {row["properties"]["RETRY_TOPIC"] for row in rows} == {"orders"}
    assert cometmq("dlq", "export", group, "--to", str(tmp_path / "out")).code == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 3


def test_they_are_sent_again_once(cometmq: CommandLine, group: str, tmp_path: Path) -> None:
    ledger = ("--ledger", str(tmp_path / "ledger"))
    assert cometmq("dlq", "resend", group, *ledger).code == 2
    tried = cometmq("dlq", "resend", group, "--all", "--dry-run", *ledger)
    assert (tried.code, len(tried.lines())) == (0, 3)
    assert not (tmp_path / "ledger").exists()
    (row,) = cometmq("dlq", "read", group, "--tag", "a", "-o", "json").json()
    one = cometmq("dlq", "resend", group, "--id", row["offset_msg_id"], *ledger)
    assert (one.code, one.err.strip()) == (0, "Dead letters of workers sent again: 1")
    rest = cometmq("dlq", "resend", group, "--all", "--rate", "100", *ledger)
    assert (rest.code, rest.err.strip()) == (0, "Dead letters of workers sent again: 2, sent earlier: 1")


def test_exit_codes_tell_what_was_not_sent(cometmq: CommandLine, group: str, tmp_path: Path) -> None:
    ledger = ("--ledger", str(tmp_path / "ledger"))
    cometmq("dlq", "resend", group, "--tag", "a", *ledger)
    cometmq("topic", "delete", "orders", "--yes")
    failed = cometmq("dlq", "resend", group, "--all", *ledger)
    assert failed.code == 3, failed.err
    assert "failed: 2 (repeat" in failed.err
    assert cometmq("dlq", "resend", group, "--all", "--ledger", str(tmp_path / "other")).code == 1
    assert cometmq("dlq", "read", "../x").code == 2
