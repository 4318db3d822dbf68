"""Our client with a broker of Apache RocketMQ 5: any delay, transactions; CometMQ opens the store it leaves behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from tests.helpers.waiting import answered
from tests.interop.clients import PATIENCE_S
from tests.interop.conftest import _deploy
from tests.interop.systems import Deployment, System

from cometmq.client import (
    Admin,
    BrokerError,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PullStatus,
    TransactionProducer,
    TransactionState,
)
from cometmq.remoting.codes import ResponseCode

pytestmark = pytest.mark.interop

HOUR = timedelta(hours=1)
EARLY_MS, LATE_MS = 1_000, 30_000
"""Apache 5 rounds to the whole second before, and a busy test machine is late."""


@pytest.fixture(scope="module")
def apache5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A broker of Apache RocketMQ 5."""
    deployment = _deploy(System.APACHE5, tmp_path_factory.mktemp("apache5"))
    yield deployment
    deployment.close()


async def read(address: str, topic: str, count: int) -> list[MessageExt]:
    """The messages of a topic, in the order of each queue: waits until so many are there."""
    found: list[MessageExt] = []
    async with PullConsumer("reader", address) as consumer, asyncio.timeout(PATIENCE_S):
        (queue,) = await consumer.queues(topic)
        while len(found) < count:
            result = await consumer.pull(queue, len(found), max_messages=32, wait_s=10.0)
            found += result.messages
    return found


async def waits(admin: Admin, broker: str, topic: str) -> int:
    metrics = (await admin.waiting(broker)).get(topic)
    return metrics.count if metrics is not None else 0


async def becomes(admin: Admin, broker: str, topic: str, count: int) -> None:
    """Wait until so many messages wait; Apache counts a moment after the answer."""

    async def has_become() -> bool:
        return await waits(admin, broker, topic) == count

    await answered(has_become, timeout_s=PATIENCE_S)


async def test_our_messages_wait_there_and_come_when_due(apache5: Deployment) -> None:
    broker = apache5.broker.address
    async with Admin(apache5.address) as admin, Producer("interop", apache5.address) as producer:
        await admin.create_topic("Waits", queues=1)
        await producer.send(Message("Waits", b"much later", delay=HOUR))
        for number in range(3):
            await producer.send(Message("Waits", b"%d" % number, delay=timedelta(seconds=2)))
        await becomes(admin, broker, "Waits", 4)
        with pytest.raises(BrokerError) as refused:
            await admin.waiting_messages(broker)
        assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        messages = await read(apache5.address, "Waits", 3)
        await becomes(admin, broker, "Waits", 1)
    assert sorted(message.body for message in messages) == [b"0", b"1", b"2"]
    for message in messages:
        assert -EARLY_MS <= message.store_timestamp - message.born_timestamp - 2_000 <= LATE_MS


async def test_our_transactions_end_there_as_we_say(apache5: Deployment) -> None:
    states = {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK}
    async with (
        Admin(apache5.address) as admin,
        TransactionProducer(
            "bank",
            lambda message, _arg, _id: states[message.body],
            lambda _message: TransactionState.UNKNOWN,
            apache5.address,
        ) as producer,
    ):
        await admin.create_topic("Paid", queues=1)
        for body, state in [(b"no", states[b"no"]), (b"yes", states[b"yes"])]:
            result = await producer.send_in_transaction(Message("Paid", body), None)
            assert (result.state, result.confirmed) == (state, True)
        await producer.send(Message("Paid", b"end"))
        bodies = [message.body for message in await read(apache5.address, "Paid", 2)]
    assert sorted(bodies) == [b"end", b"yes"]


async def test_what_waits_in_its_store_comes_here_once(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(System.APACHE5, System.COMETMQ)
    async with Admin(deployment.address) as admin, Producer("interop", deployment.address) as producer:
        await admin.create_topic("Moves", queues=1)
        for number in range(20):
            await producer.send(Message("Moves", b"there %d" % number, delay=timedelta(seconds=1)))
            await producer.send(Message("Moves", b"here %d" % number, delay=timedelta(seconds=20)))
        await producer.send(Message("Moves", b"much later", delay=HOUR))
        assert all(message.body.startswith(b"there") for message in await read(deployment.address, "Moves", 20))
        await becomes(admin, deployment.broker.address, "Moves", 21)
    await asyncio.to_thread(deployment.broker.stop)
    await asyncio.to_thread(deployment.start_again, System.COMETMQ)
    messages = await read(deployment.address, "Moves", 40)
    async with Admin(deployment.address) as admin, PullConsumer("reader", deployment.address) as consumer:
        await becomes(admin, deployment.broker.address, "Moves", 1)
        (queue,) = await consumer.queues("Moves")
        assert (await consumer.pull(queue, 40)).status is PullStatus.NO_NEW_MSG, "nothing comes twice"
    times = Counter(message.body for message in messages)
    assert times == Counter(b"%s %d" % (where, number) for where in (b"there", b"here") for number in range(20))
