"""The pages about messages that wait: delayed ones, and those of open transactions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.helpers.consoles import Surfer
from tests.helpers.waiting import wait_for

from cometmq.client import TransactionProducer, TransactionState
from cometmq.message.message import Message
from cometmq.testing import Cluster
from cometmq.testing.sync import SyncCluster

BROKERS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    """A broker that gives a transaction up after the first round of checks."""
    keys = {"transactionTimeOut": "100", "transactionCheckInterval": "50", "transactionCheckMax": "1"}
    with SyncCluster(BROKERS, broker_keys=keys) as running:
        running.create_topic("later", 1)
        running.create_topic("transfers", 1)
        yield running


def test_empty_pages_say_that_nothing_waits_and_how_to_send_something(surfer: Surfer) -> None:
    page = surfer.get("/delayed")
    assert "No message is waiting for delivery." in page.words
    assert "cometmq produce greetings --delay 10m" in page.words
    page = surfer.get("/transactions")
    assert "No transaction is open" in page.words
    assert "No transaction was given up." in page.words


def test_a_delayed_message_is_listed_with_its_time_and_recalled_after_a_preview(
    surfer: Surfer, cluster: SyncCluster
) -> None:
    kept = cluster.send(Message("later", b"kept", delay=timedelta(hours=2))).msg_id
    gone = cluster.send(Message("later", b"gone", delay=timedelta(minutes=30))).msg_id
    wait_for(lambda: gone in surfer.get("/delayed?topic=later").text, "both are listed")
    page = surfer.get("/delayed?topic=later")
    assert page.words.index(gone) < page.words.index(kept), "in the order of their times"
    assert kept not in surfer.get("/delayed?topic=transfers").text

    row = next(row for row in page.text.split("<tr>") if gone in row)
    fields = dict(re.findall(r'name="(broker|topic|due|id)" value="([^"]*)"', row))
    plan = surfer.post("/delayed/recall", **fields)
    assert "The message will never be delivered." in plan.words
    assert gone in surfer.get("/delayed").text, "the preview changes nothing"
    assert f"Message {gone} is recalled." in surfer.change("/delayed/recall", **fields).words
    assert surfer.audit("message.recall", gone)[0]["outcome"] == "done"
    wait_for(lambda: gone not in surfer.get("/delayed?topic=later").text, "it does not wait any more")
    assert kept in surfer.get("/delayed?topic=later").text
    again = surfer.post("/delayed/recall", **fields)
    assert (again.status, "is no longer waiting" in again.words) == (404, True)


def allow_more_checks(cluster: Cluster) -> None:
    """Leave a producer all its time to answer."""
    for number in range(BROKERS):
        live = cluster.broker(number).live
        live.replace(replace(live.current, transaction_check_max=1_000))


def test_an_undecided_transaction_is_open_then_given_up_and_checked_again_on_demand(
    surfer: Surfer, cluster: SyncCluster
) -> None:
    states = [TransactionState.UNKNOWN]

    async def begin() -> tuple[TransactionProducer, str]:
        made = TransactionProducer(
            "bank", lambda *_: None, lambda _: states[-1], instance=cluster.cluster.client_instance()
        )
        await made.start()
        return made, (await made.send_in_transaction(Message("transfers", b"100"))).msg_id

    producer, transaction = cluster.call(begin())
    try:
        page = surfer.get("/transactions?group=bank")
        assert transaction in page.text
        assert transaction not in surfer.get("/transactions?group=other").text
        wait_for(lambda: "Check again" in surfer.get("/transactions").words, "it is given up")
        assert "No transaction is open" in surfer.get("/transactions").words
        found = re.search(r'name="id" value="([^"]+)"', surfer.get("/transactions").text)
        assert found is not None
        states.append(TransactionState.COMMIT)
        cluster.run(allow_more_checks)
        with cluster.inbox("transfers", group="readers") as inbox:
            page = surfer.change("/transactions/resume", id=found[1])
            assert f"The producers of {transaction} will be asked." in page.words
            assert inbox.expect(1)[0].body == b"100"
        assert surfer.audit("transaction.resume", transaction)[0]["outcome"] == "done"
    finally:
        cluster.call(producer.close())


@pytest.mark.parametrize("name", ["7F00000100002A9F0000000000000000", "", "<b>"])
def test_only_transactions_that_were_given_up_are_checked_again(surfer: Surfer, name: str) -> None:
    page = surfer.post("/transactions/resume", id=name)
    assert (page.status, "confirmed" in page.text) == (400, False)
