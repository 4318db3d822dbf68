"""FastStream's provider with a cluster: acknowledgements, failures, order, delays, transactions, accounts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage, SetupError, StopConsume
from faststream.security import SASLPlaintext
from tests.helpers.waiting import until
from tests.integrations.damaged import BODY, send_damaged

from cometmq.client import (
    AccessDeniedError,
    Admin,
    BrokerError,
    Message,
    MessageExt,
    Producer,
    RemotingError,
    SimpleConsumer,
    SimpleConsumerConfig,
    TransactionState,
)
from cometmq.client.dead_letters import Selection, read_dead_letters
from cometmq.testing import Cluster
from faststream_cometmq import RocketMQBroker
from faststream_cometmq.annotations import RocketMQMessage
from faststream_cometmq.settlement import PopSettlement


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(broker_keys={"enablePropertyFilter": "true"}) as running:
        yield running


def broker_at(cluster: Cluster, **options: Any) -> RocketMQBroker:
    return RocketMQBroker(cluster.namesrv_address, logger=None, **options)


async def left(cluster: Cluster, group: str, topic: str) -> list[bytes]:
    """What the group has not acknowledged, which comes again within a second after its member is gone."""
    async with SimpleConsumer(group, {topic: "*"}, cluster.namesrv_address) as reader:
        return [message.body for message in await reader.receive(wait_s=2)]


async def dead(cluster: Cluster, group: str) -> list[bytes]:
    async with Admin(cluster.namesrv_address) as admin:
        return [letter.body async for letter in read_dead_letters(admin, group, Selection())]


async def test_messages_are_handled_once_and_acknowledged(cluster: Cluster) -> None:
    broker = broker_at(cluster)
    seen: list[int] = []

    @broker.subscriber("orders")
    async def note(body: int) -> None:
        seen.append(body)

    async with broker:
        await broker.start()
        for number in range(20):
            await broker.publish(number, "orders")
        await until(lambda: len(seen) == 20)
    assert sorted(seen) == list(range(20))
    assert await left(cluster, "faststream-orders", "orders") == []


@pytest.mark.parametrize("options", [{}, {"batch": True}, {"fifo": True}])
async def test_a_message_with_a_damaged_body_is_a_dead_letter(cluster: Cluster, options: dict[str, Any]) -> None:
    broker = broker_at(cluster)
    seen: list[Any] = []

    @broker.subscriber("orders", group="workers", **options)
    async def note(body: Any) -> None:
        seen.append(body)

    await cluster.create_topic("orders", queues=1)
    await send_damaged(cluster, "orders")
    async with broker:
        await broker.publish("whole", "orders")
        await broker.start()
        await until(lambda: bool(seen))
    assert seen == [["whole"]] if options.get("batch") else ["whole"]
    async with Admin(cluster.namesrv_address) as admin:
        letters = [letter async for letter in read_dead_letters(admin, "workers", Selection())]
    assert [letter.stored_body for letter in letters] == [BODY]
    assert await left(cluster, "workers", "orders") == []


async def test_a_damaged_message_does_not_hold_up_a_batch_in_order(cluster: Cluster) -> None:
    """The handler of a batch cannot leave a message out, and the whole queue would wait for it."""
    broker = broker_at(cluster)
    seen: list[list[str]] = []

    @broker.subscriber("orders", group="workers", fifo=True, batch=True, nack_delay_s=0.0)
    async def note(bodies: list[str]) -> None:
        seen.append(bodies)
        if len(seen) < 3:
            raise ValueError("again")

    await cluster.create_topic("orders", queues=1)
    async with broker:
        await broker.publish("one", "orders")
        await send_damaged(cluster, "orders")
        await broker.publish("two", "orders")
        await broker.start()
        await until(lambda: len(seen) == 3)
    assert seen == [["one", "two"]] * 3
    async with Admin(cluster.namesrv_address) as admin:
        letters = [letter async for letter in read_dead_letters(admin, "workers", Selection())]
    assert [letter.stored_body for letter in letters] == [BODY], "it is a dead letter once"
    assert await left(cluster, "workers", "orders") == []


async def test_a_message_that_fails_is_received_again_and_one_that_is_rejected_is_dead(cluster: Cluster) -> None:
    broker, attempts = broker_at(cluster), defaultdict[str, list[int]](list)

    @broker.subscriber("orders", group="workers", nack_delay_s=0.0)
    async def work(body: str, message: RocketMQMessage) -> None:
        attempts[body].append(message.delivery_attempt)
        if body == "poison":
            raise RejectMessage
        if body == "raises" and len(attempts[body]) < 3:
            raise ValueError(body)
        if body == "later" and len(attempts[body]) < 2:
            raise NackMessage(delay=1)

    async with broker:
        await broker.start()
        for body in ("poison", "raises", "later"):
            await broker.publish(body, "orders")
        await until(lambda: len(attempts["raises"]) == 3 and len(attempts["later"]) == 2 and attempts["poison"])
    assert attempts == {"poison": [1], "raises": [1, 2, 3], "later": [1, 2]}
    assert await dead(cluster, "workers") == [b"poison"]
    assert await left(cluster, "workers", "orders") == []


async def test_a_manual_subscriber_settles_itself(cluster: Cluster) -> None:
    broker = broker_at(cluster)
    seen: list[str] = []

    @broker.subscriber("orders", ack_policy=AckPolicy.MANUAL)
    async def work(body: str, message: RocketMQMessage) -> None:
        seen.append(body)
        if len(seen) == 1:
            await message.nack(delay=0)
            return
        await message.ack()
        await message.reject()  # it is settled, so this does nothing

    async with broker:
        await broker.start()
        await broker.publish("1", "orders")
        await until(lambda: len(seen) == 2)
    assert await left(cluster, "faststream-orders", "orders") == []


async def test_batches_are_handled_and_acknowledged_as_a_whole(cluster: Cluster) -> None:
    broker = broker_at(cluster)
    batches: list[list[int]] = []

    @broker.subscriber("orders", batch=True, max_records=8)
    async def note(bodies: list[int]) -> None:
        batches.append(bodies)

    async with broker:
        results = await broker.publish_batch(*range(20), topic="orders")
        assert len(results) == 20
        await broker.start()
        await until(lambda: sum(map(len, batches)) == 20)
    assert max(map(len, batches)) <= 8
    assert sorted(body for batch in batches for body in batch) == list(range(20))
    assert await left(cluster, "faststream-orders", "orders") == []


async def test_the_messages_of_a_group_keep_their_order_also_when_one_fails(cluster: Cluster) -> None:
    broker, seen = broker_at(cluster), defaultdict[str, list[int]](list)

    @broker.subscriber("orders", fifo=True, max_workers=4, nack_delay_s=0.05)
    async def note(body: dict[str, Any], message: RocketMQMessage) -> None:
        if body["number"] == 3 and message.delivery_attempt < 3:
            raise ValueError("not yet")
        if body["number"] == 5:
            raise RejectMessage
        seen[body["customer"]].append(body["number"])

    async with broker:
        await broker.start()
        for number in range(8):
            for customer in "abc":
                await broker.publish({"customer": customer, "number": number}, "orders", message_group=customer)
        await until(lambda: sum(map(len, seen.values())) == 21)
    assert dict(seen) == {customer: [0, 1, 2, 3, 4, 6, 7] for customer in "abc"}
    assert len(await dead(cluster, "faststream-orders")) == 3


async def test_several_messages_are_handled_at_the_same_time(cluster: Cluster) -> None:
    broker, running, most = broker_at(cluster), 0, 0

    @broker.subscriber("orders", max_workers=3)
    async def work(_body: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until(lambda: most == 3)
        running -= 1

    async with broker:
        await broker.start()
        for number in range(6):
            await broker.publish(str(number), "orders")
        await until(lambda: most == 3 and running == 0)
    assert most == 3


@pytest.mark.parametrize("options", [{}, {"fifo": True}, {"fifo": True, "max_workers": 4}])
async def test_what_a_stopped_broker_has_not_handled_is_received_by_another(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    """In order, a handler that went on would keep its queue's lock for a minute."""
    broker, begun = broker_at(cluster, graceful_timeout=0.05), asyncio.Event()

    @broker.subscriber("orders", **options)
    async def work(_body: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with broker:
        await broker.start()
        for number in range(5):
            await broker.publish(str(number), "orders")
        await begun.wait()

    other = broker_at(cluster)
    seen: list[str] = []

    @other.subscriber("orders", **options)
    async def note(body: str) -> None:
        seen.append(body)

    async with other:
        await other.start()
        await until(lambda: len(seen) == 5, timeout_s=20)
    assert sorted(seen) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("settle", [lambda end, rows: end.nack(rows, 0), lambda end, rows: end.reject(rows)])
async def test_a_batch_that_cannot_be_settled_comes_again_as_a_whole(
    cluster: Cluster, settle: Callable[[PopSettlement, Sequence[MessageExt]], Awaitable[None]]
) -> None:
    await cluster.create_topic("orders", queues=1)
    async with Producer("p", cluster.namesrv_address) as producer:
        for number in range(3):
            await producer.send(Message("orders", b"%d" % number))
    config = SimpleConsumerConfig(invisible_s=1, renew_up_to_s=3600, retry_s=0)
    async with SimpleConsumer("workers", {"orders": "*"}, cluster.namesrv_address, config=config) as reader:
        rows = await reader.receive()
        assert len(rows) == 3
        await cluster.kill_broker(0)
        with pytest.raises(RemotingError):
            await settle(PopSettlement(reader, None), rows)
        await cluster.start_broker(0)
        found: list[bytes] = []
        async with SimpleConsumer("workers", {"orders": "*"}, cluster.namesrv_address) as other:
            while len(found) < 3:
                again = await other.receive(wait_s=20)
                assert again, "they are renewed for ever"
                found += [message.body for message in again]
        assert sorted(found) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("options", [{}, {"max_workers": 4}, {"fifo": True}], ids=["one", "many", "fifo"])
async def test_a_handler_can_stop_its_subscriber(cluster: Cluster, options: dict[str, Any]) -> None:
    broker = broker_at(cluster)
    seen: list[str] = []

    @broker.subscriber("orders", **options)
    async def work(body: str) -> None:
        seen.append(body)
        raise StopConsume

    [subscriber] = broker.subscribers
    async with broker:
        await broker.start()
        await broker.publish("1", "orders")
        await until(lambda: seen and not subscriber.running)
        await broker.publish("2", "orders")
    assert seen == ["1"]


async def test_delays_are_held_by_the_broker_and_recalled(cluster: Cluster) -> None:
    broker = broker_at(cluster)
    seen: list[str] = []

    @broker.subscriber("orders")
    async def note(body: str) -> None:
        seen.append(body)

    async with broker:
        await broker.start()
        kept = await broker.publish("kept", "orders", delay=timedelta(days=400))
        soon = await broker.publish("soon", "orders", delay=timedelta(seconds=1))
        assert kept.recall_handle is not None
        assert await broker.recall(kept.recall_handle) == kept.msg_id
        await until(lambda: seen == ["soon"])
        assert soon.recall_handle is not None
        with pytest.raises(BrokerError):
            await broker.recall(soon.recall_handle)


async def test_tags_expressions_and_empty_bodies_pass_the_broker(cluster: Cluster) -> None:
    broker, seen = broker_at(cluster), defaultdict[str, list[Any]](list)

    @broker.subscriber("orders", group="tagged", tags="A || B")
    async def tagged(body: str, message: RocketMQMessage) -> None:
        seen["tagged"].append((body, message.body, message.headers.get("size")))

    @broker.subscriber("orders", group="large", sql="size > 10")
    async def large(body: str) -> None:
        seen["large"].append(body)

    async with broker:
        await broker.start()
        await broker.publish("", "orders", tags="A", headers={"size": "1"})
        await broker.publish("big", "orders", tags="C", headers={"size": "11"})
        await until(lambda: len(seen) == 2)
    assert seen == {"tagged": [("", b"", "1")], "large": ["big"]}


async def test_transactions_commit_roll_back_and_are_asked_for(cluster: Cluster) -> None:
    asked: list[str] = []
    seen: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body.decode())
        return TransactionState.COMMIT

    broker = broker_at(cluster, group="shop", check=check)

    @broker.subscriber("orders")
    async def note(body: str) -> None:
        seen.append(body)

    async def commit(_transaction: str) -> None: ...

    async def roll_back(_transaction: str) -> TransactionState:
        return TransactionState.ROLLBACK

    async def fail(_transaction: str) -> None:
        raise ValueError("the database is gone")

    async with broker:
        await broker.start()
        await broker.publish_in_transaction("committed", "orders", commit)
        await broker.publish_in_transaction("rolled back", "orders", roll_back)
        failed = await broker.publish_in_transaction("unknown", "orders", fail)
        assert failed.state is TransactionState.UNKNOWN
        assert str(failed.error) == "the database is gone"
        await until(lambda: seen == ["committed"])


async def test_a_transaction_needs_somebody_who_answers(cluster: Cluster) -> None:
    async def work(_transaction: str) -> None: ...

    async with broker_at(cluster) as broker:
        with pytest.raises(SetupError, match="pass check="):
            await broker.publish_in_transaction("1", "orders", work)


async def test_requests_are_those_of_rocketmq(cluster: Cluster) -> None:
    broker = broker_at(cluster)

    @broker.subscriber("prices")
    async def price(body: str) -> dict[str, str]:
        return {"price of": body}

    async with broker, Producer("java", cluster.namesrv_address) as foreign:
        await broker.start()
        answer = await broker.request("apple", "prices", timeout=10, headers={"x": "y"}, correlation_id="c")
        assert (await answer.decode(), answer.correlation_id) == ({"price of": "apple"}, "c")
        reply = await foreign.request(Message("prices", b"pear"), timeout_s=10)
        assert reply.body == b'{"price of":"pear"}'
        with pytest.raises(TimeoutError):
            await broker.request("nobody", "silence", timeout=0.2)


async def test_members_of_a_group_that_read_different_topics_are_refused(cluster: Cluster) -> None:
    broker = broker_at(cluster)
    for topic in ("orders", "returns"):

        @broker.subscriber(topic, group="shop")
        async def note(_body: str) -> None: ...

    async with broker:
        with pytest.raises(SetupError, match="members must agree"):
            await broker.start()


async def test_an_account_and_tls_are_those_of_faststream() -> None:
    sender = {
        "accessKey": "shopkeeper",
        "secretKey": "shop-secret",
        "defaultTopicPerm": "PUB|SUB",
        "defaultGroupPerm": "SUB",
    }
    async with Cluster(accounts=[sender], tls=True) as cluster:
        tls = cluster.security.tls
        seen: list[str] = []
        broker = broker_at(cluster, security=SASLPlaintext("shopkeeper", "shop-secret"), tls=tls, topic_queues=0)
        await cluster.create_topic("orders", 1)

        @broker.subscriber("orders")
        async def note(body: str) -> None:
            seen.append(body)

        async with broker:
            assert await broker.ping(5)
            await broker.start()
            await broker.publish("1", "orders")
            await until(lambda: seen == ["1"])

        stranger = broker_at(cluster, security=SASLPlaintext("shopkeeper", "wrong"), tls=tls)
        async with stranger:
            with pytest.raises(AccessDeniedError):
                await stranger.publish("2", "orders")
            stranger.subscriber("orders")(note)
            with pytest.raises(AccessDeniedError):
                await stranger.start()


async def test_a_broker_without_servers_says_so() -> None:
    async with RocketMQBroker("127.0.0.1:1", logger=None) as broker:
        assert not await broker.ping(1)
