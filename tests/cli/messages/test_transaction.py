"""cometmq transaction."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq.client import Message, MessageExt, TransactionState
from cometmq.client.sync import SyncTransactionProducer
from cometmq.testing import ProcessCluster


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


def test_a_transaction_that_was_given_up_is_resumed() -> None:
    soon = {"transactionCheckMax": "1", "transactionTimeOut": "0", "transactionCheckInterval": "200"}
    knows: list[str] = []

    def check_later(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if message.msg_id in knows else TransactionState.UNKNOWN

    with (
        ProcessCluster(broker_keys=soon) as running,
        SyncTransactionProducer("bank", execute, check_later, running.namesrv_address) as producer,
    ):
        cometmq = CommandLine(running.namesrv_address)
        sent = producer.send_in_transaction(Message("transfers", b"paid"), TransactionState.UNKNOWN)
        read = ("consume", "TRANS_CHECK_MAX_TIME_TOPIC", "--from-beginning", "--until-end", "-o", "jsonl")

        def is_given_up() -> bool:
            kept = cometmq(*read)
            return kept.code == 0 and [row["msg_id"] for row in kept.lines()] == [sent.msg_id]

        wait_for(is_given_up, "it is given up", 60)
        knows.append(sent.msg_id)
        partly = cometmq("transaction", "resume", sent.msg_id, "nonsense")
        assert partly.code == 3
        assert f"{sent.msg_id}: its producers will be asked" in partly.err
        assert "nonsense: invalid offset message id" in partly.err
        paid = ("consume", "transfers", "--from-beginning", "--until-end")
        wait_for(lambda: cometmq(*paid).out == "paid\n", "it is committed", 60)
        over = cometmq("transaction", "resume", sent.msg_id)
        assert over.code == 1
        assert "resumed before" in over.err
