"""An orderly consumer that is closed while a call runs: the lock of its queue stays as long as the order needs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.client.consumer.ordered_group import TOPIC, OrderedGroup
from tests.helpers.waiting import real_time, until

from cometmq.client import ClientInstance, ConsumeFromWhere, Message, MessageExt, MessageQueue, PushConfig, PushConsumer
from cometmq.testing import Cluster


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared instance", "own instance"])
async def test_a_member_that_leaves_while_a_call_runs_keeps_its_lock_until_the_call_has_ended(is_shared: bool) -> None:
    async with OrderedGroup(queues=1) as group:
        held, begun = asyncio.Event(), asyncio.Event()

        async def listener(messages: Sequence[MessageExt]) -> None:
            begun.set()
            while not held.is_set():
                with suppress(asyncio.CancelledError):
                    await held.wait()

        instance = ClientInstance(group.cluster.namesrv_address, client_id="leaving", clock=group.clock)
        consumer = PushConsumer(group.name, listener, config=group.config, instance=instance)
        await consumer.subscribe(TOPIC)
        if is_shared:
            instance.acquire()
        await group.send(3)
        await group.until_done(consumer.start())
        await group.until_done(begun.wait())
        await group.until_done(consumer.close())
        next_one = await group.join()
        await group.pass_time(20)
        locks = group.cluster.broker(0).locks
        queue = MessageQueue(TOPIC, "broker-0", 0)
        assert locks.holder(group.name, queue) == "leaving"
        assert not group.begun[0]
        held.set()
        await group.pass_time(2)
        assert locks.holder(group.name, queue) == next_one.name
        await group.all_done(30)
        if is_shared:
            await group.until_done(instance.release())


async def test_a_call_that_hangs_is_cancelled_by_a_close_which_then_gives_the_queue_to_others() -> None:
    """The other member waited for up to 60 s."""
    async with OrderedGroup(queues=1) as group:
        begun, cleaned = asyncio.Event(), asyncio.Event()

        async def listener(messages: Sequence[MessageExt]) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.set()

        instance = ClientInstance(group.cluster.namesrv_address, client_id="leaving", clock=group.clock)
        consumer = PushConsumer(group.name, listener, config=group.config, instance=instance)
        await consumer.subscribe(TOPIC)
        await group.send(3)
        await group.until_done(consumer.start())
        await group.until_done(begun.wait())
        next_one = await group.join()
        closing = group.clock.monotonic()
        await group.until_done(consumer.close())
        assert cleaned.is_set()
        assert group.clock.monotonic() - closing <= group.config.handover_wait_s + 1
        assert not instance.remoting.connections
        await group.pass_time(2)
        holder = group.cluster.broker(0).locks.holder(group.name, MessageQueue(TOPIC, "broker-0", 0))
        assert holder == next_one.name
        await group.all_done(5)


async def test_a_call_that_never_ends_keeps_its_queue_for_a_minute() -> None:
    async with OrderedGroup(queues=1) as group:
        begun, ends = asyncio.Event(), asyncio.Event()

        async def listener(messages: Sequence[MessageExt]) -> None:
            begun.set()
            while not ends.is_set():
                with suppress(asyncio.CancelledError):
                    await ends.wait()

        instance = ClientInstance(group.cluster.namesrv_address, client_id="leaving", clock=group.clock)
        consumer = PushConsumer(group.name, listener, config=group.config, instance=instance)
        await consumer.subscribe(TOPIC)
        await group.send(3)
        await group.until_done(consumer.start())
        await group.until_done(begun.wait())
        await group.until_done(consumer.close())
        next_one = await group.join()
        await group.pass_time(62)
        holder = group.cluster.broker(0).locks.holder(group.name, MessageQueue(TOPIC, "broker-0", 0))
        assert holder == next_one.name
        assert not instance.remoting.connections
        ends.set()
        await group.all_done(30)


async def test_a_call_in_a_thread_keeps_its_queue_until_it_has_ended_and_no_longer() -> None:
    """In real time, since the clock of a test does not move while a thread works."""
    begun, goes_on = threading.Event(), threading.Event()
    taken: list[int] = []

    def hang(_messages: Sequence[MessageExt]) -> None:
        begun.set()
        goes_on.wait()

    async def take(messages: Sequence[MessageExt]) -> None:
        taken.extend(message.queue_offset for message in messages)

    async with Cluster() as cluster:
        await cluster.create_topic(TOPIC, queues=1)
        await cluster.send(Message(TOPIC, b"0"))
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        config = PushConfig(orderly=True, consume_from_where=first, rebalance_interval_s=2.0, handover_wait_s=0.0)
        instances = [ClientInstance(cluster.namesrv_address, client_id=name) for name in ("leaving", "next")]
        leaving = PushConsumer("G", hang, config=config, instance=instances[0])
        await leaving.subscribe(TOPIC)
        await leaving.start()
        locks, queue = cluster.broker(0).locks, MessageQueue(TOPIC, "broker-0", 0)
        try:
            await until(begun.is_set)
            await leaving.close()
            assert instances[0].remoting.connections
            following = PushConsumer("G", take, config=config, instance=instances[1])
            await following.subscribe(TOPIC)
            async with following:
                await real_time(0.5)
                assert locks.holder("G", queue) == "leaving"
                assert not taken
                goes_on.set()
                await until(lambda: taken == [0], timeout_s=20)
                assert locks.holder("G", queue) == "next"
                await until(lambda: not instances[0].remoting.connections)
        finally:
            goes_on.set()
