"""cometmq transaction list."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.conftest import CommandLine

from cometmq.client import Message, MessageExt, TransactionState
from cometmq.client.sync import SyncTransactionProducer

pytestmark = pytest.mark.xdist_group("cli-administration")


def execute(message: Message, arg: Any, transaction_id: str) -> TransactionState:
    return TransactionState(arg)


def check(message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


def test_open_transactions_are_listed(cometmq: CommandLine) -> None:
    assert cometmq("transaction", "list", "-o", "json").json() == []
    sent = {}
    for group in ("bank", "shop"):
        with SyncTransactionProducer(group, execute, check, cometmq.namesrv) as producer:
            producer.send_in_transaction(Message("transfers", b"x"), TransactionState.COMMIT)
            sent[group] = producer.send_in_transaction(Message("transfers", b"x"), TransactionState.UNKNOWN)
    rows = {row["group"]: row for row in cometmq("transaction", "list", "-o", "json").json()}
    assert {group: row["transaction_id"] for group, row in rows.items()} == {
        group: result.msg_id for group, result in sent.items()
    }
    assert rows["bank"]["topic"] == "transfers"
    assert rows["bank"]["queue_id"] == sent["bank"].queue.queue_id
    assert rows["bank"]["check_times"] == 0
    assert 0 <= rows["bank"]["age_s"] < 60
    (row,) = cometmq("transaction", "list", "--group", "shop", "-o", "jsonl").lines()
    assert row["group"] == "shop"
    assert len(cometmq("transaction", "list", "--limit", "1", "-o", "jsonl").lines()) == 1
    shown = cometmq("transaction", "list").out
    assert sent["bank"].msg_id in shown


def test_wrong_use_is_told(cometmq: CommandLine) -> None:
    wrong = cometmq("transaction", "list", "--group", "no group")
    assert wrong.code == 2
    assert "no group" in wrong.err
