"""Transaction producers of Java and Go, and stores with open transactions that go from one system to the other.

(The Node client ali-ons and the C++ client inside the Python package rocketmq have none.)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.helpers.waiting import answered, wait_for
from tests.interop import probe
from tests.interop.clients import PATIENCE_S, Client, Series
from tests.interop.commands import Running
from tests.interop.conftest import _deploy, wanted_systems
from tests.interop.systems import BOTH, Deployment, System

from cometmq.client import Admin, Message, MessageExt, PullConsumer, TransactionProducer, TransactionState

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]

QUICK = {"transactionTimeOut": "300", "transactionCheckInterval": "1000"}
"""Asks about transactions every second."""
SLOW = {"transactionTimeOut": "300", "transactionCheckInterval": "3600000"}
"""Asks about nothing while a test lasts."""

PRODUCERS = ["java4", "java4-binary", "java5", "go"]


@pytest.fixture(scope="module", params=wanted_systems(), ids=lambda system: system.value)
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A broker that asks about transactions soon, every second."""
    deployment = _deploy(request.param, tmp_path_factory.mktemp("transactions"), None, **QUICK)
    yield deployment
    deployment.close()


@pytest.fixture
def topic(quick: Deployment, java: Client, request: pytest.FixtureRequest) -> str:
    """A new topic of four queues."""
    name = f"Tx{abs(hash(request.node.name)) % 10**9}"
    java.create_topic(quick.address, quick.broker.address, name)
    return name


def bodies(series: Series, *indices: int) -> list[str]:
    return sorted(hashlib.sha256(series.body_at(index)).hexdigest() for index in indices)


def delivered(java: Client, address: str, topic: str, expect: int = 0) -> list[str]:
    """The messages that consumers can read."""
    return sorted(event["bodySha256"] for event in java.read_topic(address, topic, expect))


def wait_delivered(address: str, topic: str, count: int) -> None:
    """Wait until consumers can read so many messages."""
    wait_for(lambda: probe.readable(address, topic) >= count, f"{count} messages of {topic} are delivered", PATIENCE_S)


def checks(running: Running) -> list[str]:
    """The transactions that a producer was asked about, in turn; Java gives such a message its offset id as msgId."""
    return [event["properties"]["UNIQ_KEY"] for event in running.named("checked")]


def asked_about(running: Running) -> set[str]:
    return set(checks(running))


def is_sent(running: Running) -> None:
    running.wait_until(lambda: bool(running.named("waiting")), PATIENCE_S, "everything is sent")


@pytest.mark.parametrize("name", PRODUCERS)
def test_what_is_committed_is_delivered_and_what_is_rolled_back_is_not(
    quick: Deployment, clients: GetClient, java: Client, topic: str, group: str, name: str
) -> None:
    series = Series(topic, 7, body="tx", keys="order-{i}", tags=("paid",))
    states = "commit,rollback,commit,rollback,commit,rollback,unknown"
    running = clients(name).start_transacting(quick.address, series, group, states=states)
    is_sent(running)
    wait_delivered(quick.address, topic, 3)
    keys_of = {event["index"]: event["msgId"] for event in running.named("sent")}
    running.wait_until(lambda: checks(running).count(keys_of[6]) >= 2, PATIENCE_S, "the open one is asked about")
    running.stop()
    messages = java.read_topic(quick.address, topic, 3)
    assert sorted(event["bodySha256"] for event in messages) == bodies(series, 0, 2, 4)
    assert {event["msgId"] for event in messages} == {keys_of[index] for index in (0, 2, 4)}
    for event in messages:
        properties = event["properties"]
        assert properties["TRAN_MSG"] == "true"
        assert properties["PGROUP"] == group
        assert properties["REAL_TOPIC"] == topic
        assert properties["REAL_QID"] == str(event["queueId"])
        assert event["sysFlag"] & 0xC == 8
        assert event["tags"] == "paid"
    asked = checks(running)  # a client that a busy machine holds up may be asked before it has answered, never after
    assert set(asked[asked.index(keys_of[6]) :]) == {keys_of[6]}


@pytest.mark.parametrize("answer", ["commit", "rollback"])
@pytest.mark.parametrize("name", PRODUCERS)
def test_what_is_unknown_is_asked_about(
    quick: Deployment, clients: GetClient, java: Client, topic: str, group: str, name: str, answer: str
) -> None:
    series = Series(topic, 3, body="tx", keys="order-{i}")
    running = clients(name).start_transacting(quick.address, series, group, states="unknown", answer=answer)
    is_sent(running)
    asked = {event["msgId"] for event in running.named("sent")}
    running.wait_until(lambda: asked_about(running) == asked, PATIENCE_S, "all are asked about")
    if answer == "commit":
        wait_delivered(quick.address, topic, 3)
    last = Series(topic, 1, 100, body="last")
    clients("java4").produce(quick.address, last)
    running.stop()
    expected = bodies(series, 0, 1, 2) if answer == "commit" else []
    assert delivered(java, quick.address, topic, len(expected) + 1) == sorted(expected + bodies(last, 100))
    for event in running.named("checked"):
        assert event["topic"] == topic
        assert int(event["properties"]["TRANSACTION_CHECK_TIMES"]) >= 1


@pytest.mark.parametrize(("gone", "stays"), [("java4", "java5"), ("go", "java4"), ("java5", "go")])
def test_another_producer_of_the_group_answers(
    quick: Deployment, clients: GetClient, java: Client, topic: str, group: str, gone: str, stays: str
) -> None:
    series = Series(topic, 2, body="tx")
    first = clients(gone).start_transacting(quick.address, series, group, states="unknown", answer="unknown")
    is_sent(first)
    first.stop()
    own = Series(topic, 1, 50, body="own")
    second = clients(stays).start_transacting(quick.address, own, group, states="rollback", answer="commit")
    wait_delivered(quick.address, topic, 2)
    second.stop()
    assert delivered(java, quick.address, topic, 2) == bodies(series, 0, 1)
    assert asked_about(second) == {event["msgId"] for event in first.named("sent")}


# --- what was given up -----------------------------------------------------------------------
@pytest.mark.parametrize("system", BOTH, ids=lambda system: system.value)
async def test_a_transaction_that_was_given_up_is_resumed(
    deploy: Callable[..., Deployment], java: Client, system: System
) -> None:
    """By Java's administration client at our broker, and by ours at Apache's."""
    deployment = deploy(system, **QUICK, transactionCheckMax="1")
    address, kept_in = deployment.address, "TRANS_CHECK_MAX_TIME_TOPIC"
    knows: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if message.msg_id in knows else TransactionState.UNKNOWN

    async with (
        Admin(address) as admin,
        PullConsumer("reader", address) as consumer,
        TransactionProducer("bank", lambda *_: TransactionState.UNKNOWN, check, address) as producer,
    ):

        async def only_message(topic: str) -> MessageExt:
            await answered(lambda: asyncio.to_thread(probe.topic_routed, address, topic), timeout_s=PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                (queue,) = await consumer.queues(topic)
                while not (result := await consumer.pull(queue, 0, wait_s=10.0)).messages:
                    pass
            return result.messages[0]

        await admin.create_topic("ResumedTx", queues=1)
        sent = await producer.send_in_transaction(Message("ResumedTx", b"paid"), None)
        kept = await only_message(kept_in)
        assert kept.msg_id == sent.msg_id
        knows.append(kept.msg_id)
        if system is System.COMETMQ:
            named = {"topic": kept_in, "id": kept.offset_msg_id}
            (answer,) = await asyncio.to_thread(lambda: java.admin(address, "resume-check", **named))
            assert answer["value"] is True
        else:
            await admin.resume_transaction(kept.offset_msg_id)
        paid = await only_message("ResumedTx")
        assert (paid.msg_id, paid.body) == (sent.msg_id, b"paid")


# --- stores that change systems --------------------------------------------------------------
@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", BOTH, ids=lambda system: f"{system.value}-first")
def test_open_transactions_go_from_one_system_to_the_other(
    deploy: Callable[..., Deployment], java: Client, clients: GetClient, group: str, first: System, polite: bool
) -> None:
    second = System.COMETMQ if first is System.APACHE else System.APACHE
    topic = "SwapTx"
    deployment = deploy(first, namesrv=System.APACHE, autoCreateTopicEnable="false", **SLOW)
    java.create_topic(deployment.address, deployment.broker.address, topic)
    series = Series(topic, 9, body="tx", keys="order-{i}")
    running = java.start_transacting(deployment.address, series, group, states="commit,rollback,unknown")
    is_sent(running)
    wait_delivered(deployment.address, topic, 3)
    running.stop()
    tables = Path(deployment.broker.directory) / "store" / "comet" / "tables"  # Apache's broker does not read them
    wait_for(lambda: not list(tables.glob("topics.*.journal")), "topics.json is whole", 30)
    deployment.broker.stop() if polite else deployment.broker.kill()

    # The producer's own message, which it rolls back at once, is too young to be asked about.
    deployment.settings.update(QUICK | {"transactionTimeOut": "5000"})
    deployment.start_again(second)
    own = Series(topic, 1, 50, body="own")
    answering = java.start_transacting(deployment.address, own, group, states="rollback", answer="commit")
    wait_delivered(deployment.address, topic, 6)
    unknown = {event["msgId"] for event in running.named("sent") if event["index"] in (2, 5, 8)}
    answering.stop()
    assert asked_about(answering) == unknown
    expected = bodies(series, 0, 2, 3, 5, 6, 8)
    assert delivered(java, deployment.address, topic, 6) == expected

    deployment.broker.stop() if polite else deployment.broker.kill()
    deployment.start_again(first)
    again = java.start_transacting(
        deployment.address, Series(topic, 1, 70, body="again"), group, states="unknown", answer="commit"
    )
    wait_delivered(deployment.address, topic, 7)
    again.stop()
    assert asked_about(again) == {event["msgId"] for event in again.named("sent")}
    assert len(delivered(java, deployment.address, topic, 7)) == 7
