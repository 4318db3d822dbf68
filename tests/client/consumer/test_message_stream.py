"""Loops over a push consumer: what is acknowledged is done, anything else comes again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    Batch,
    ClientStateError,
    ConsumeFromWhere,
    ConsumeMessageContext,
    ConsumeMessageHook,
    Message,
    MessageModel,
    Producer,
    PushConfig,
    PushConsumer,
    ReceivedMessage,
)
from cometmq.message.names import dlq_topic
from cometmq.testing import Cluster, VirtualClock, settle

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def send(cluster: Cluster, *bodies: bytes, key: str = "") -> None:
    async with Producer("p", instance=cluster.client_instance()) as producer:
        for body in bodies:
            await producer.send(Message("orders", body, keys=[key] if key else ()))


@contextlib.asynccontextmanager
async def reading(cluster: Cluster, *, hooks: tuple[Any, ...] = (), **options: Any) -> AsyncIterator[PushConsumer]:
    config = PushConfig(consume_from_where=FIRST, handover_delay_s=0, **options)
    consumer = PushConsumer("workers", config=config, instance=cluster.client_instance(), consume_hooks=hooks)
    await consumer.subscribe("orders")
    async with consumer:
        yield consumer


def offset(cluster: Cluster) -> int:
    return cluster.broker(0).offsets.query("workers", "orders", 0)


async def take(consumer: PushConsumer, clock: VirtualClock, count: int, within_s: float = 60) -> list[ReceivedMessage]:
    async def some() -> list[ReceivedMessage]:
        return [message for _ in range(count) for message in await consumer.receive()]

    return await clock.run_until(some(), within_s)


async def test_an_acknowledged_message_is_done_and_the_loop_ends_with_the_consumer(
    cluster: Cluster, clock: VirtualClock
) -> None:
    await send(cluster, b"1", b"2", b"3")
    seen = []
    async with reading(cluster) as consumer:
        async for message in consumer:
            seen.append(message.body)
            message.ack()
            if len(seen) == 3:
                await consumer.close()
    assert seen == [b"1", b"2", b"3"]
    assert offset(cluster) == 3


async def test_after_a_break_everything_that_is_not_acknowledged_comes_again(
    cluster: Cluster, clock: VirtualClock
) -> None:
    await send(cluster, b"1", b"2", b"3")
    async with reading(cluster) as consumer:
        began = clock.monotonic()
        async for message in consumer:
            if message.body == b"2":
                break
            message.ack()
        third = await take(consumer, clock, 1)
        assert third[0].body == b"3"
        third[0].ack()
    assert clock.monotonic() - began < 1, "a close does not wait for messages that nobody will acknowledge"
    assert offset(cluster) == 1
    async with reading(cluster) as consumer:
        again = await take(consumer, clock, 2)
    assert [(message.body, message.reconsume_times) for message in again] == [(b"2", 0), (b"3", 0)]


async def test_a_message_whose_step_raised_has_failed_and_comes_again_later(
    cluster: Cluster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await send(cluster, b"poison", key="order-1")
    message: ReceivedMessage | None = None

    async def loop() -> None:
        nonlocal message
        async with reading(cluster) as consumer:
            async for each in consumer:
                message = each
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await loop()
    assert message is not None
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    text = record.getMessage()
    assert "topic orders, queue broker-0/0, offset 0, key order-1, attempt 1" in text
    assert message.msg_id in text
    assert offset(cluster) == 1, "the broker has it again"
    async with reading(cluster) as consumer:
        (again,) = await take(consumer, clock, 1)
        assert (again.body, again.reconsume_times) == (b"poison", 1)
        assert clock.monotonic() == pytest.approx(10, abs=0.1)


async def test_a_cancelled_loop_gives_its_message_back_without_a_failure(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, b"1")

    async def loop() -> None:
        async with reading(cluster) as consumer:
            async for _ in consumer:
                await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await clock.run_for(1)
    task.cancel()
    await clock.run_for(1)
    assert task.cancelled()
    async with reading(cluster) as consumer:
        (again,) = await take(consumer, clock, 1)
        assert again.reconsume_times == 0


async def test_retry_comes_after_its_delay_and_reject_is_a_dead_letter(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, b"now", b"later", b"never")
    async with reading(cluster) as consumer:
        first, second, third = await take(consumer, clock, 3)
        first.retry()
        second.retry(after=timedelta(seconds=45))
        third.reject()
        third.ack()
        arrived = {}
        for _ in range(2):
            (message,) = await take(consumer, clock, 1, 120)
            arrived[message.body] = round(clock.monotonic())
            message.ack()
        await clock.run_for(10)
        with pytest.raises(ValueError, match="delay must be from 0 to 7200 s"):
            message.retry(after=7201)
    assert arrived == {b"now": pytest.approx(10, abs=2), b"later": pytest.approx(60, abs=2)}
    assert cluster.broker(0).store.queue(dlq_topic("workers"), 0).max_offset() == 1
    assert offset(cluster) == 3


async def test_a_message_that_is_never_acknowledged_goes_back_to_the_broker(
    cluster: Cluster, clock: VirtualClock
) -> None:
    await send(cluster, b"1")
    async with reading(cluster, consume_timeout_s=60) as consumer:
        (kept,) = await take(consumer, clock, 1)
        (again,) = await take(consumer, clock, 1, 300)
        kept.ack()
        assert again.reconsume_times == 1
        again.ack()
        await clock.run_for(10)
        assert offset(cluster) == 1


async def test_no_more_is_read_than_the_limits_allow_while_nothing_is_acknowledged(
    cluster: Cluster, clock: VirtualClock
) -> None:
    await send(cluster, *[b"%d" % number for number in range(100)])
    async with reading(cluster, pull_threshold_for_queue=10, pull_batch_size=10) as consumer:
        taken = await take(consumer, clock, 10)
        with pytest.raises(TimeoutError):
            await take(consumer, clock, 1)
        assert consumer.cached_count == 10
        for message in reversed(taken):
            message.ack()
        assert len(await take(consumer, clock, 10)) == 10


async def test_a_queue_that_is_left_waits_for_the_acknowledgement_and_nothing_comes_twice(
    cluster: Cluster, clock: VirtualClock
) -> None:
    await send(cluster, b"1", b"2")
    async with reading(cluster) as one:
        (first,) = await take(one, clock, 1)
        await one.unsubscribe("orders")
        first.ack()
        await clock.run_for(1)
        assert offset(cluster) == 1
    async with reading(cluster) as other:
        (second,) = await take(other, clock, 1)
        assert second.body == b"2"


async def test_batches_have_what_is_there_and_single_messages_may_fail(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, *[b"%d" % number for number in range(10)])
    async with reading(cluster) as consumer:
        await clock.run_for(1)
        sizes = []
        async for batch in consumer.batches(max_messages=4):
            sizes.append(len(batch))
            batch[0].retry()
            batch.ack()
            if sum(sizes) == 10:
                break
        assert sizes == [4, 4, 2]
        again = Batch()
        while len(again) < 3:
            again += await clock.run_until(consumer.receive(3), 60)
        again.ack()
        assert sorted(message.body for message in again) == [b"0", b"4", b"8"]


async def test_orderly_the_next_message_comes_after_the_acknowledgement(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, b"1", b"2")
    async with reading(cluster, orderly=True) as consumer:
        (first,) = await take(consumer, clock, 1)
        with pytest.raises(TimeoutError):
            await take(consumer, clock, 1)
        began = clock.monotonic()
        first.retry(after=7)
        (again,) = await take(consumer, clock, 1)
        assert (again.body, again.reconsume_times) == (b"1", 1)
        assert clock.monotonic() - began == pytest.approx(7, abs=0.1)
        again.ack()
        (second,) = await take(consumer, clock, 1)
        assert second.body == b"2"
    assert offset(cluster) == 1
    async with reading(cluster, orderly=True) as consumer:
        (second,) = await take(consumer, clock, 1, 120)
        assert (second.body, second.reconsume_times) == (b"2", 0)


async def test_messages_are_acknowledged_from_threads(cluster: Cluster, clock: VirtualClock) -> None:
    await send(cluster, b"1", b"2")
    async with reading(cluster) as consumer:
        for message in await take(consumer, clock, 2):
            await asyncio.to_thread(message.ack)
        await settle()
        assert consumer.cached_count == 0
    assert offset(cluster) == 2


async def test_hooks_see_each_message_and_its_end(cluster: Cluster, clock: VirtualClock) -> None:
    ends: list[ConsumeMessageContext] = []
    await send(cluster, b"1", b"2", b"3")
    async with reading(cluster, hooks=(ConsumeMessageHook(after=ends.append),)) as consumer:
        first, second, _ = await take(consumer, clock, 3)
        first.ack()
        second.retry()
    assert [(end.messages[0].body, end.success) for end in ends] == [(b"1", True), (b"2", False), (b"3", False)]


async def test_a_broadcasting_consumer_is_iterated(cluster: Cluster, clock: VirtualClock, tmp_path: Any) -> None:
    await send(cluster, b"1")
    options = {"message_model": MessageModel.BROADCASTING, "offset_store_dir": tmp_path}
    async with reading(cluster, **options) as consumer:
        (message,) = await take(consumer, clock, 1)
        message.ack()
    assert list(tmp_path.glob("*/workers/offsets.json"))


async def test_wrong_use_is_refused_with_the_next_step(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match=r"pass max_messages to batches\(\)"):
        PushConsumer("g", config=PushConfig(consume_batch_size=32))
    with pytest.raises(ValueError, match="requires a listener"):
        PushConsumer("g", config=PushConfig(orderly=True, auto_commit=False))
    consumer = PushConsumer("g", instance=cluster.client_instance())
    with pytest.raises(ClientStateError, match=r"is not started .*async with"):
        await consumer.receive()
    with pytest.raises(ClientStateError, match="no listener to run"):
        await consumer.run()
    with pytest.raises(ClientStateError, match="has a listener"):
        await PushConsumer("g", lambda messages: None, instance=cluster.client_instance()).receive()


async def test_a_loop_consumes_from_any_broker(server: Deployment, topic: str, group: str) -> None:
    async with Producer("p", server.address) as producer, Admin(server.address) as admin:
        await admin.create_group(group)
        await producer.send_many([Message(topic, value={"number": number}) for number in range(50)])
        config = PushConfig(consume_from_where=FIRST)
        consumer = PushConsumer(group, namesrv=server.address, config=config, deserializer=dict)
        await consumer.subscribe(topic)
        seen: list[int] = []
        retried = False
        async with asyncio.timeout(60), consumer:
            async for message in consumer:
                if message.value["number"] == 7 and not message.reconsume_times:
                    message.retry(after=1)
                    retried = True
                    continue
                seen.append(message.value["number"])
                message.ack()
                if len(seen) == 50:
                    break
        assert retried
        assert sorted(seen) == list(range(50))
        progress = await admin.consume_progress(group)
        assert progress.lag == 0
