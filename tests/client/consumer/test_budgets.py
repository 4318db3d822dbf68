"""Queues whose messages wait hold their own share of a consumer's memory, never that of a queue that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.helpers.waiting import until

from cometmq.client import (
    ConsumeFromWhere,
    ConsumeResult,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.consumer.assignment import Assignment
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.client.consumer.subscription import ALL, TAG, subscription
from cometmq.message.message import split_records
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import Cluster, VirtualClock

QUEUES = 8
MESSAGES = 20
"""In each queue, of 1 kB."""
SMALL = 4096
"""Bytes that a consumer may hold: the messages of one queue are more than all may hold together."""
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def filled(cluster: Cluster, tags: str | None = None) -> list[MessageQueue]:
    await cluster.create_topic("full", queues=QUEUES)
    queues = [MessageQueue("full", cluster.broker(0).config.broker_name, number) for number in range(QUEUES)]
    async with Producer("p", instance=cluster.client_instance()) as producer:
        for queue in queues:
            for _ in range(MESSAGES):
                await producer.send(Message("full", bytes(1024), tags=tags), queue=queue)
    return queues


async def test_seven_paused_queues_of_eight_do_not_stop_the_last_one(cluster: Cluster) -> None:
    queues = await filled(cluster)
    config = LitePullConfig(consume_from_where=FIRST, pull_threshold_bytes=SMALL, pull_batch_size=4)
    async with LitePullConsumer("paused", config=config, instance=cluster.client_instance()) as consumer:
        await consumer.assign(queues)
        consumer.pause(queues[1:])
        got: list[MessageExt] = []
        while len(got) < MESSAGES:
            messages = await asyncio.wait_for(consumer.poll(60.0), 10)
            got += messages
        assert [message.queue_id for message in got] == [0] * MESSAGES
        consumer.resume(queues)
        while len(got) < QUEUES * MESSAGES:
            got += await asyncio.wait_for(consumer.poll(60.0), 10)
        assert len({(message.queue_id, message.queue_offset) for message in got}) == QUEUES * MESSAGES


async def test_seventeen_paused_queues_with_the_defaults_leave_room_for_one_more(cluster: Cluster) -> None:
    await cluster.send(Message("orders", b"one"))
    raw = await read_raw(cluster)
    config = LitePullConfig()
    budget = Budget(config.pull_threshold_bytes)
    wanted = subscription("orders", ALL, TAG, 0)
    paused = [Assignment(config, budget, asyncio.Event(), wanted) for _ in range(17)]
    for one in paused:
        one.take(Chunk(split_records(raw), 1, config.pull_threshold_bytes_for_queue))
    free = Assignment(config, budget, asyncio.Event(), wanted)
    await asyncio.wait_for(free.room(), 1)
    free.take(Chunk(split_records(raw), 1, 1024))
    await asyncio.wait_for(free.room(), 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(paused[0].room(), 0.01)


async def read_raw(cluster: Cluster) -> bytes:
    async with PullConsumer("raw", instance=cluster.client_instance()) as consumer:
        queue = (await consumer.queues("orders"))[0]
        return (await consumer.pull_raw(queue, 0)).body


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_queues_that_are_consumed_slowly_do_not_stop_another(
    cluster: Cluster, clock: VirtualClock, orderly: bool
) -> None:
    await filled(cluster)
    go_on = asyncio.Event()
    seen: set[tuple[int, int]] = set()

    async def listen(messages: Sequence[MessageExt]) -> None:
        (message,) = messages
        if message.queue_id:
            await go_on.wait()
        seen.add((message.queue_id, message.queue_offset))

    config = PushConfig(
        consume_from_where=FIRST,
        pull_threshold_bytes=SMALL,
        pull_batch_size=2,
        pull_threshold_for_queue=2,
        orderly=orderly,
    )
    consumer = PushConsumer("slow", listen, config=config, instance=cluster.client_instance())
    await consumer.subscribe("full")
    async with consumer:
        await until(lambda: len(seen) == MESSAGES, clock=clock, timeout_s=10)
        assert {queue_id for queue_id, _ in seen} == {0}
        go_on.set()
        await until(lambda: len(seen) == QUEUES * MESSAGES, clock=clock, timeout_s=10)


async def test_ordered_queues_that_wait_after_failures_do_not_stop_another(cluster: Cluster) -> None:
    await filled(cluster)
    seen: list[int] = []

    def listen(messages: Sequence[MessageExt]) -> ConsumeResult | None:
        seen.extend(message.queue_offset for message in messages if not message.queue_id)
        return ConsumeResult.RECONSUME_LATER if messages[0].queue_id else None

    config = PushConfig(consume_from_where=FIRST, pull_threshold_bytes=SMALL, pull_batch_size=2, orderly=True)
    consumer = PushConsumer("failing", listen, config=config, instance=cluster.client_instance())
    await consumer.subscribe("full")
    async with consumer:
        await until(lambda: len(seen) == MESSAGES, timeout_s=10)
    assert seen == list(range(MESSAGES))


async def test_messages_that_are_filtered_out_here_hold_nothing(cluster: Cluster) -> None:
    # "Aa" and "BB" have the same Java hash: the broker sends these messages, the client drops them.
    queues = await filled(cluster, tags="BB")
    async with Producer("p", instance=cluster.client_instance()) as producer:
        for number in range(3):
            await producer.send(Message("full", b"%d" % number, tags="Aa"), queue=queues[0])
    config = LitePullConfig(consume_from_where=FIRST, pull_threshold_bytes=SMALL, pull_batch_size=2)
    async with LitePullConsumer("filtered", config=config, instance=cluster.client_instance()) as consumer:
        await consumer.assign(queues, "Aa")
        consumer.pause(queues[1:])
        got: list[bytes] = []
        while len(got) < 3:
            messages = await asyncio.wait_for(consumer.poll(60.0), 10)
            got += [message.body for message in messages]
    assert got == [b"0", b"1", b"2"]
