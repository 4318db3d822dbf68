"""Life times from our client: what is checked before it is sent, and what consumers see."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.contents import topic_bodies

from cometmq.client import Admin, Message, Producer, PullConsumer, TransactionProducer, TransactionState
from cometmq.client.admin.several import chosen_masters
from cometmq.client.dead_letters import Ledger, Outcome, read_dead_letters, resend
from cometmq.client.errors import IllegalMessageError
from cometmq.client.sync import SyncProducer
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import TopicConfig
from cometmq.testing import Cluster, SyncCluster, VirtualClock

NOW_MS = 1_800_000_000_000


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(clock=VirtualClock(NOW_MS)) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("p", cluster.namesrv_address) as producer:
        yield producer


def clock_of(cluster: Cluster) -> VirtualClock:
    assert isinstance(cluster.clock, VirtualClock)
    return cluster.clock


async def message_at(cluster: Cluster, topic: str) -> MessageExt:
    """The only message of a topic, as tools see it."""
    async with PullConsumer("TOOLS_CONSUMER", cluster.namesrv_address) as consumer:
        for queue in await consumer.queues(topic):
            result = await consumer.pull(queue, 0)
            if result.messages:
                return result.messages[0]
    raise AssertionError(f"{topic} is empty")


@pytest.mark.parametrize(
    "ttl", [timedelta(0), timedelta(microseconds=999), timedelta(seconds=-1), timedelta(days=36_525)]
)
async def test_a_life_time_that_makes_no_sense_is_not_sent(producer: Producer, ttl: timedelta) -> None:
    with pytest.raises(ValueError, match="is not a life time: use one millisecond to ten years"):
        Message("t", b"x", ttl=ttl)
    changed = Message("t", b"x", ttl=timedelta(seconds=1))
    changed.ttl = ttl
    with pytest.raises(IllegalMessageError, match="use one millisecond to ten years"):
        await producer.send(changed)


async def commit(_message: Message, _argument: Any, _transaction_id: str) -> TransactionState:
    return TransactionState.COMMIT


async def unknown(_message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN


async def test_each_way_of_sending_keeps_the_life_time(cluster: Cluster, producer: Producer) -> None:
    await producer.send(Message("one", b"x", ttl=timedelta(seconds=5)))
    await producer.send_batch([Message("batch", b"x", ttl=timedelta(seconds=6))] * 2)
    await producer.send(Message("later", b"x", delay=timedelta(seconds=1), ttl=timedelta(seconds=7)))
    async with TransactionProducer("tp", commit, unknown, cluster.namesrv_address) as transactions:
        await transactions.send(Message("tx", b"x", ttl=timedelta(seconds=8)))
    await clock_of(cluster).skip(1)
    ends = {topic: (await message_at(cluster, topic)).expires_at for topic in ("one", "batch", "later", "tx")}
    start = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC)
    seconds = {topic: round((end - start).total_seconds()) for topic, end in ends.items() if end is not None}
    assert seconds == {"one": 5, "batch": 6, "later": 8, "tx": 8}


async def test_consumers_get_living_messages_and_tools_get_all(cluster: Cluster, producer: Producer) -> None:
    queue = (await producer.queues("t"))[0]
    for number in range(100):
        ttl = None if number in (3, 97) else timedelta(seconds=10)
        await producer.send(Message("t", b"%d" % number, ttl=ttl), queue=queue)
    await clock_of(cluster).skip(10)
    async with cluster.inbox("t", group="g") as inbox:
        assert [message.body for message in await inbox.expect(2)] == [b"3", b"97"]
        assert [message.expires_at for message in inbox.messages] == [None, None]
        await inbox.expect_none(1)
    broker = cluster.brokers[0]
    assert broker.offsets.query("g", "t", queue.queue_id) == 100
    assert len(await topic_bodies(cluster.namesrv_address, "t")) == 100


async def test_an_expired_dead_letter_is_sent_again_with_a_new_life(
    cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    clock = clock_of(cluster)
    async with Admin(cluster.namesrv_address) as admin:
        (address,) = (await chosen_masters(admin, None, None)).values()
        await admin.put_topic(TopicConfig(topic_name="t"), address, attribute_change="+expired.messages=dead-letter")
        await producer.send(Message("t", b"x", keys=["k"], properties={"p": "v"}, ttl=timedelta(seconds=10)))
        await clock.skip(10)
        async with cluster.inbox("t", group="g") as inbox:
            await inbox.expect_none(2)
            (letter,) = [letter async for letter in read_dead_letters(admin, "g")]
            assert letter.properties["COMETMQ_DEAD_REASON"] == "expired"
            outcomes = []
            with Ledger(tmp_path / "ledger") as ledger:
                found = read_dead_letters(admin, "g")
                await resend(admin, found, ledger, lambda _letter, outcome, why: outcomes.append((outcome, why)))
            assert outcomes == [(Outcome.SENT, "")]
            (again,) = await inbox.expect(1)
        assert (again.body, again.keys, again.properties["p"]) == (b"x", ("k",), "v")
        assert "COMETMQ_DEAD_REASON" not in again.properties
        assert again.expires_at is not None
        assert again.expires_at.timestamp() * 1000 == again.store_timestamp + 10_000


def test_the_blocking_producer_sends_life_times() -> None:
    with SyncCluster() as cluster, SyncProducer("p", cluster.namesrv_address) as producer:
        producer.send(Message("t", b"x", ttl=timedelta(seconds=50)))
        with cluster.inbox("t") as inbox:
            (message,) = inbox.expect(1)
        assert message.expires_at is not None
        assert message.properties["COMETMQ_TTL_MS"] == "50000"
