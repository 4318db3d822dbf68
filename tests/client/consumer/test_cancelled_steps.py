"""A time-out of one step of an iteration neither ends the iteration nor loses a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.helpers.interleaving import interleaved
from tests.helpers.waiting import until

from cometmq.client import (
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    PushConfig,
    PushConsumer,
)
from cometmq.client.consumer.message_stream import ReceivedMessage
from cometmq.testing import Cluster

MESSAGES = 60
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
Consumer = LitePullConsumer | PushConsumer


async def consumer_of(cluster: Cluster, kind: str) -> Consumer:
    instance = cluster.client_instance()
    consumer: Consumer
    if kind == "lite pull":
        consumer = LitePullConsumer("g", config=LitePullConfig(consume_from_where=FIRST), instance=instance)
    else:
        config = PushConfig(consume_from_where=FIRST, orderly=kind == "orderly push")
        consumer = PushConsumer("g", config=config, instance=instance)
    await consumer.subscribe("orders")
    return consumer


async def each(steps: AsyncIterator[object], timeout_s: float) -> list[bytes] | None:
    """The bodies of one step; ``None`` after a time-out."""
    try:
        step = await asyncio.wait_for(anext(steps), timeout_s)
    except TimeoutError:
        return None
    messages = step if isinstance(step, list) else [step]
    for message in messages:
        if isinstance(message, ReceivedMessage):
            message.ack()
    return [message.body for message in messages if isinstance(message, MessageExt)]


@pytest.mark.parametrize("by", ["messages", "batches"])
@pytest.mark.parametrize("kind", ["lite pull", "push", "orderly push"])
async def test_an_iteration_goes_on_after_a_time_out(cluster: Cluster, kind: str, by: str) -> None:
    async with await consumer_of(cluster, kind) as consumer:
        steps: AsyncIterator[object] = aiter(consumer) if by == "messages" else consumer.batches()
        for number in range(3):
            assert await each(steps, 0.01) is None
            await cluster.send(Message("orders", b"%d" % number))
            assert await each(steps, 10) == [b"%d" % number]
        await consumer.close()
        with pytest.raises(StopAsyncIteration):
            await anext(steps)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("by", ["messages", "batches"])
@pytest.mark.parametrize("kind", ["lite pull", "push", "orderly push"])
async def test_a_time_out_at_any_moment_loses_no_message(cluster: Cluster, kind: str, by: str, seed: int) -> None:
    with interleaved(seed) as random:
        async with await consumer_of(cluster, kind) as consumer, asyncio.timeout(30):
            await until(lambda: bool(consumer.assignment))
            steps: AsyncIterator[object] = aiter(consumer) if by == "messages" else consumer.batches()

            async def send() -> None:
                for number in range(MESSAGES):
                    await cluster.send(Message("orders", b"%d" % number))

            sending = asyncio.create_task(send())
            got: list[bytes] = []
            while len(got) < MESSAGES:
                got += await each(steps, random.choice([0.0, 0.0005, 0.001, 0.003])) or []
            await sending
            assert got == [b"%d" % number for number in range(MESSAGES)]
