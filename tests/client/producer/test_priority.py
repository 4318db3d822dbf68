"""Priorities from our client: the queue of a message, what is refused before it is sent, and what is read back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from cometmq.client import Admin, Message, Producer, SendStatus, TransactionProducer, TransactionState
from cometmq.client.errors import IllegalMessageError
from cometmq.client.sync import SyncProducer
from cometmq.message.message import MessageExt
from cometmq.message.properties import PRIORITY
from cometmq.testing import Cluster, SyncCluster, VirtualClock

WRONG = [-1, 2**31, "3", 1.0, True]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(clock=VirtualClock(1_800_000_000_000)) as cluster:
        await cluster.create_topic("Levels", message_type="PRIORITY")
        yield cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("p", cluster.namesrv_address) as producer:
        yield producer


async def read(cluster: Cluster) -> list[tuple[bytes, int, int | None]]:
    """Return body, queue and priority of each message."""
    async with cluster.inbox("Levels") as inbox:
        messages: list[MessageExt] = await inbox.expect(count(cluster))
    return sorted((message.body, message.queue_id, message.priority) for message in messages)


def count(cluster: Cluster) -> int:
    return sum(queue.max_offset() for queue in cluster.broker(0).store.queues()["Levels"].values())


async def test_a_message_is_stored_in_the_queue_of_its_priority(cluster: Cluster, producer: Producer) -> None:
    for number, priority in enumerate((0, 3, 99, None)):
        sent = await producer.send(Message("Levels", b"%d" % number, tags="a", priority=priority))
        assert sent.status is SendStatus.SEND_OK
        if priority is not None:
            assert sent.queue.queue_id == min(priority, 3)
    assert [(body, priority) for body, _, priority in await read(cluster)] == [
        (b"0", 0),
        (b"1", 3),
        (b"2", 99),
        (b"3", None),
    ]


async def test_a_list_with_priorities_is_sent_to_their_queues(cluster: Cluster, producer: Producer) -> None:
    messages = [Message("Levels", b"%d" % n, priority=n if n < 3 else None) for n in range(6)]
    results = await producer.send_batch(messages)
    assert [result.queue.queue_id for result in results[:3]] == [0, 1, 2]
    assert len({result.queue.queue_id for result in results[3:]}) == 1
    assert [row[:2] for row in await read(cluster)][:3] == [(b"0", 0), (b"1", 1), (b"2", 2)]


async def test_delayed_and_transactional_messages_keep_theirs(cluster: Cluster, producer: Producer) -> None:
    def commit(*_: object) -> TransactionState:
        return TransactionState.COMMIT

    await producer.send(Message("Levels", b"late", priority=2, delay=timedelta(seconds=1)))
    async with TransactionProducer("tp", commit, commit, cluster.namesrv_address) as transactions:
        await transactions.send_in_transaction(Message("Levels", b"committed", priority=3), None)
    assert isinstance(cluster.clock, VirtualClock)
    await cluster.clock.skip(2)
    assert await read(cluster) == [(b"committed", 3, 3), (b"late", 2, 2)]


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_priority_is_told_when_the_message_is_made_and_before_it_is_sent(
    producer: Producer, wrong: Any
) -> None:
    with pytest.raises(ValueError, match="must be greater than or equal to 0"):
        Message("Levels", b"x", priority=wrong)
    message = Message("Levels", b"x")
    message.priority = wrong
    with pytest.raises(IllegalMessageError, match="must be greater than or equal to 0") as refused:
        await producer.send(message)
    assert refused.value.next_step == "use a whole number from 0 to 2147483647"
    with pytest.raises(IllegalMessageError, match="reserved"):
        await producer.send(Message("Levels", b"x", properties={PRIORITY: "1"}))


async def test_the_type_of_a_topic_is_made_and_kept(cluster: Cluster) -> None:
    async with Admin(cluster.namesrv_address) as admin:
        await admin.create_topic("Fifo", queues=1, message_type="FIFO")
        await admin.create_topic("Fifo", queues=2)
        configs = await admin.topic_configs(f"127.0.0.1:{cluster.broker(0).server.port}")
    assert configs["Levels"].attributes == {"message.type": "PRIORITY"}
    assert (configs["Fifo"].attributes, configs["Fifo"].read_queue_nums) == ({"message.type": "FIFO"}, 2)


def test_blocking_clients_have_priorities() -> None:
    with SyncCluster() as cluster:
        cluster.create_topic("Levels", message_type="PRIORITY")
        with SyncProducer("p", cluster.namesrv_address) as producer:
            assert producer.send(Message("Levels", b"x", priority=1)).queue.queue_id == 1
