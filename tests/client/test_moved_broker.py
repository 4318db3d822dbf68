"""A broker that is back at another address is found at the first failure, not at the next question for routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.client import (
    ClientInstance,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.route.table import SEEK_S
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.client import ClientRpcHook
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, VirtualClock, wait_until
from cometmq.testing.ports import free_port

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUE = MessageQueue("orders", "broker-0", 0)
SOON_S = 10.0
"""More than a reader's pause after a failure and two looks for the broker, less than the time between questions."""


@pytest.fixture
async def moved(cluster: Cluster) -> AsyncIterator[list[Broker]]:
    """The broker at its second address, once :func:`move` was called."""
    brokers: list[Broker] = []
    yield brokers
    for broker in brokers:
        await broker.stop()


async def move(cluster: Cluster, brokers: list[Broker]) -> str:
    await cluster.stop_broker(0)
    port = free_port("127.0.0.1")
    broker = Broker(cluster._configured(0, port, cluster.store_root(0), {}), clock=cluster.clock)
    brokers.append(broker)
    await broker.start()
    return f"127.0.0.1:{port}"


async def sent(cluster: Cluster, brokers: list[Broker], body: bytes) -> None:
    """Send by a client that knows the new address only."""
    async with Producer("other", cluster.namesrv_address) as other:
        await other.send(Message("orders", body))


async def test_a_producer_sends_to_the_new_address(cluster: Cluster, clock: VirtualClock, moved: list[Broker]) -> None:
    instance = ClientInstance(cluster.namesrv_address, clock=clock)
    async with Producer("p", instance=instance) as producer:
        await producer.send(Message("orders", b"1"))
        new = await move(cluster, moved)
        await clock.run_until(producer.send(Message("orders", b"2")), SOON_S)
        assert instance.routes.brokers.addresses == {new}


async def test_a_topic_that_nobody_has_written_to_yet_is_sent_to_the_new_master(clock: VirtualClock) -> None:
    """The nameserver does not know the topic, so its brokers come from the route of the default topic."""
    async with Cluster(slaves=1, clock=clock) as cluster:
        assert await wait_until(clock, cluster.has_replicated, 60)
        async with Producer("p", instance=cluster.client_instance()) as producer:
            await producer.queues("known-before")
            await cluster.kill_broker(0)
            await clock.run_for(1)
            waiting = asyncio.create_task(producer.send(Message("known-after", b"2")))
            await clock.run_for(0.2)
            await cluster.promote_slave()
            await clock.run_until(producer.send(Message("known-before", b"1")), SOON_S)
            await clock.run_until(waiting, SOON_S)


async def test_consumers_read_and_are_known_at_the_new_address(
    cluster: Cluster, clock: VirtualClock, moved: list[Broker]
) -> None:
    got: list[bytes] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        got.extend(message.body for message in messages)

    push_config = PushConfig(consume_from_where=FIRST)
    pushed = ClientInstance(cluster.namesrv_address, clock=clock)
    pulled = ClientInstance(cluster.namesrv_address, clock=clock)
    push = PushConsumer("push", listener=listen, config=push_config, instance=pushed)
    lite = LitePullConsumer("lite", config=LitePullConfig(consume_from_where=FIRST), instance=pulled)
    await push.subscribe("orders")
    async with push, lite:
        await lite.subscribe("orders")
        await sent(cluster, moved, b"1")
        await clock.run_for(2)
        assert got == [b"1"]
        assert [one.body for one in await clock.run_until(lite.poll(1), 2)] == [b"1"]
        new = await move(cluster, moved)
        await sent(cluster, moved, b"2")
        await clock.run_for(SOON_S)
        assert got == [b"1", b"2"]
        assert [one.body for one in await clock.run_until(lite.poll(1), 2)] == [b"2"]
        assert new in pushed._heard, "heartbeats follow"
        assert new in pulled._heard


async def test_a_pull_of_ones_own_fails_once(cluster: Cluster, clock: VirtualClock, moved: list[Broker]) -> None:
    instance = ClientInstance(cluster.namesrv_address, clock=clock)
    async with PullConsumer("g", instance=instance) as consumer:
        await consumer.pull(QUEUE, 0)
        await move(cluster, moved)
        for _ in range(3):
            try:
                await consumer.pull(QUEUE, 0)
                break
            except CometMQError:
                await clock.run_for(SOON_S / 3)
        else:
            pytest.fail("the new address was not found")


async def test_many_failures_ask_the_nameserver_once(cluster: Cluster, clock: VirtualClock) -> None:
    asked: list[str] = []

    def before(_: str, request: RemotingCommand) -> None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            asked.append(request.ext_fields["topic"])

    instance = ClientInstance(cluster.namesrv_address, clock=clock, hooks=[ClientRpcHook(before=before)])
    async with Producer("p", instance=instance) as producer:
        await producer.send(Message("orders", b"1"))
        (address,) = instance.routes.brokers.addresses
        await clock.run_for(2)  # the periodic question of the start is over
        for _ in range(2):
            asked.clear()
            for _ in range(50):
                for listener in instance.remoting.on_failure:
                    listener(address)
            await clock.run_for(SEEK_S)
            assert asked == ["orders"]


async def test_a_broker_that_is_away_for_a_moment_keeps_its_queues_at_consumers(clock: VirtualClock) -> None:
    """The nameserver forgets it at once; its queues would be left, and what is being consumed would come again."""
    taken: list[bytes] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        taken.extend(message.body for message in messages)
        await clock.sleep(45)

    async with Cluster(brokers=2, clock=clock) as cluster:
        await cluster.create_topic("both", queues=1)
        config = PushConfig(consume_from_where=FIRST)
        consumer = PushConsumer("workers", listen, config=config, instance=cluster.client_instance())
        await consumer.subscribe("both")
        async with Producer("p", instance=cluster.client_instance()) as producer, consumer:
            queues = await producer.queues("both")
            for queue in queues:
                await producer.send(Message("both", queue.broker_name.encode()), queue=queue)
            await clock.run_until(until(lambda: len(taken) == 2), 30)
            await cluster.kill_broker(0)
            await cluster.start_broker(0)
            await clock.run_for(60)
    assert sorted(taken) == [b"broker-0", b"broker-1"]
