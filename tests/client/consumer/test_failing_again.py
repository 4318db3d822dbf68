"""Failures of listeners: parts of batches, retries in order without end, more than 16 of them, no early dead letter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from cometmq.client import ConsumeFromWhere, Message, Producer, PushConfig, PushConsumer
from cometmq.client.consumer.listener import ConsumeResult, Retry, Verdict
from cometmq.message.message import MessageExt
from cometmq.message.names import dlq_topic
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def send(cluster: Cluster, *bodies: bytes) -> None:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        await producer.send_batch([Message("orders", body) for body in bodies])


@pytest.mark.parametrize("first", [0, 1, 3])
async def test_of_a_batch_only_what_failed_goes_back_and_comes_again(
    cluster: Cluster, clock: VirtualClock, first: int
) -> None:
    await send(cluster, b"a", b"b", b"c", b"d")
    calls: list[list[tuple[bytes, int]]] = []

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        calls.append([(message.body, message.reconsume_times) for message in messages])
        return Retry(first=first) if len(calls) == 1 else None

    config = PushConfig(consume_from_where=FIRST, consume_batch_size=4)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        await clock.run_for(15)
        assert consumer.cached_count == 0
    bodies = [b"a", b"b", b"c", b"d"]
    assert calls[0] == [(body, 0) for body in bodies]
    again = [seen for call in calls[1:] for seen in call]
    assert sorted(again) == [(body, 1) for body in bodies[first:]]
    assert cluster.broker(0).store.queue("%RETRY%workers", 0).max_offset() == len(bodies) - first


async def test_a_message_that_fails_in_order_is_never_given_up(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, b"poison", b"next")
    seen: list[tuple[bytes, int]] = []

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        return ConsumeResult.RECONSUME_LATER

    config = PushConfig(consume_from_where=FIRST, orderly=True)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        await clock.run_for(60)
    assert len(seen) >= 50
    assert seen == [(b"poison", times) for times in range(len(seen))], "it holds up its queue, as often as it fails"
    assert not cluster.has_topic(dlq_topic("workers"))
    assert cluster.broker(0).store.queue("%RETRY%workers", 0).max_offset() == 0


async def test_a_group_may_want_more_retries_than_there_are_delays(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, b"poison")
    times: list[int] = []
    at_ms: list[int] = []

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        times.extend(message.reconsume_times for message in messages)
        at_ms.append(clock.now_ms())
        return ConsumeResult.RECONSUME_LATER

    config = PushConfig(consume_from_where=FIRST, max_reconsume_times=19)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        await clock.run_for(1)
        for delay_s in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, *[7200] * 5):
            await clock.skip(delay_s)
            await clock.run_for(0.01)
        waits = [(after - before) / 1000 for before, after in itertools.pairwise(at_ms)]
        assert times == list(range(20))
        assert waits[-5:] == pytest.approx([3600, 7200, 7200, 7200, 7200], abs=0.1), (
            "from the 16th on the longest delay"
        )
        assert cluster.broker(0).store.queue(dlq_topic("workers"), 0).max_offset() == 1


async def test_no_dead_letter_topic_is_made_before_there_is_a_dead_letter(
    cluster: Cluster, clock: VirtualClock
) -> None:
    await send(cluster, b"poison", b"good")

    async def listener(messages: Sequence[MessageExt]) -> Verdict:
        return ConsumeResult.RECONSUME_LATER if messages[0].body == b"poison" else None

    config = PushConfig(consume_from_where=FIRST, max_reconsume_times=1)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    broker = cluster.broker(0)
    directory = cluster.store_root(0) / "consumequeue" / dlq_topic("workers")
    async with consumer:
        await clock.run_for(5)
        assert broker.store.queue("%RETRY%workers", 0).max_offset() == 0, "it waits for its retry"
        assert broker.topics.get("%RETRY%workers") is not None
        assert (broker.topics.get(dlq_topic("workers")), directory.exists()) == (None, False)
        assert not cluster.has_topic(dlq_topic("workers"))
        await clock.run_for(10)
        assert broker.topics.get(dlq_topic("workers")) is not None
        assert broker.store.queue(dlq_topic("workers"), 0).max_offset() == 1
