"""Consumers of a master and its slave: where they read, and where they keep offsets while the master is away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cometmq.client import Admin, Message, MessageQueue, Producer, PullConsumer, RouteNotFoundError, SendStatus
from cometmq.testing import Cluster, VirtualClock, wait_until

TOPIC = "Followed"
QUEUE = MessageQueue(TOPIC, "broker-0", 0)
COUNT = 40
PULLED_AT_ONCE = 32


@asynccontextmanager
async def replicated(**keys: str) -> AsyncIterator[Cluster]:
    """A master with some messages, all of which its slave has."""
    async with Cluster(slaves=1, clock=VirtualClock(), broker_keys={"brokerRole": "SYNC_MASTER", **keys}) as cluster:
        await cluster.create_topic(TOPIC, queues=1)
        async with Producer("producers", instance=cluster.client_instance()) as producer:
            assert await wait_until(cluster.clock, cluster.has_replicated, 60)
            for number in range(COUNT):
                assert (await producer.send(Message(TOPIC, b"%d" % number))).status is SendStatus.SEND_OK
        slave = cluster.slave()
        assert await wait_until(cluster.clock, lambda: slave.topics.get(TOPIC), 60)
        yield cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with replicated() as cluster:
        yield cluster


async def test_a_group_goes_on_at_the_slave_while_the_master_is_away(cluster: Cluster) -> None:
    async with cluster.inbox(TOPIC, group="followers") as inbox:
        await inbox.expect(COUNT)
    slave = cluster.slave()
    assert await wait_until(cluster.clock, lambda: slave.offsets.query("followers", TOPIC, 0) == COUNT, 60)
    await cluster.kill_broker(0)
    async with cluster.inbox(TOPIC, group="late") as inbox:
        await inbox.expect(COUNT)
        assert await wait_until(cluster.clock, lambda: slave.offsets.query("late", TOPIC, 0) == COUNT, 60)
    async with cluster.inbox(TOPIC, group="followers") as inbox:
        await inbox.expect_none(30)


async def test_offsets_are_those_of_the_slave_while_the_master_is_away(cluster: Cluster) -> None:
    async with PullConsumer("pullers", instance=cluster.client_instance()) as consumer:
        await consumer.commit(QUEUE, 7)
        await cluster.kill_broker(0)
        assert await consumer.queues(TOPIC)
        assert (await consumer.offsets.min(QUEUE), await consumer.offsets.max(QUEUE)) == (0, COUNT)
        await consumer.commit(QUEUE, 9)
        assert await consumer.committed(QUEUE) == 9
        await cluster.stop_slave()
        assert await wait_until(cluster.clock, lambda: not cluster.has_topic(TOPIC), 200)
        with pytest.raises(RouteNotFoundError):
            await consumer.committed(MessageQueue(TOPIC, "broker-9", 0))


async def test_messages_are_found_at_the_slave_while_the_master_is_away(cluster: Cluster) -> None:
    async with Producer("producers", instance=cluster.client_instance()) as producer:
        sent = await producer.send(Message(TOPIC, b"wanted", keys=("red", "blue")))
        assert sent.status is SendStatus.SEND_OK
    await cluster.kill_broker(0)
    async with Admin(instance=cluster.client_instance()) as admin:
        by_key = await admin.query_message(TOPIC, "blue")
        by_id = await admin.message_by_id(sent.msg_id, TOPIC)
    assert [message.body for message in (*by_key, by_id)] == [b"wanted", b"wanted"]


async def test_a_consumer_far_behind_is_sent_to_the_slave_and_reads_on_there() -> None:
    keys = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}
    async with replicated(**keys, maxTransferCountOnMessageInMemory=str(PULLED_AT_ONCE)) as cluster:
        async with cluster.inbox(TOPIC) as inbox:
            messages = await inbox.expect(COUNT)
        assert [message.body for message in messages] == [b"%d" % number for number in range(COUNT)]
        of_master, of_slave = cluster.broker(0).stats.get_messages, cluster.slave().stats.get_messages
        assert (of_master, of_slave) == (PULLED_AT_ONCE, COUNT - PULLED_AT_ONCE)


async def test_how_far_slaves_are_is_told(cluster: Cluster) -> None:
    async with Admin(instance=cluster.client_instance()) as admin:
        status = await admin.ha_status(cluster.broker(0).address)
    (slave,) = status.ha_connection_info
    assert (status.in_sync_slave_nums, slave.in_sync, slave.diff) == (1, True, 0)
