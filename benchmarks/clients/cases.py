"""Measures our client against a running nameserver and broker; prints one JSON object a case.

    python -m benchmarks.clients.cases --address 127.0.0.1:9876 [--seconds 3] [--body-bytes 128] [CASE …]

Each sending case makes a topic of eight queues; the consuming cases fill one first and then drain it.
Rates are messages per second of this process, beside its processor time for a message: on a busy machine that says
more than the rate. Starting, and filling a topic, count for neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.clients.program import (
    BATCH,
    LIST,
    POLLED,
    QUEUES,
    TASKS,
    Measured,
    Setting,
    Watch,
    measure,
    repeat,
)

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.sync import SyncProducer

FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def _new_topic(setting: Setting) -> str:
    topic = f"bench-{time.time_ns() // 1_000_000}"
    async with Admin(setting.address) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    return topic


async def send_one_sync(setting: Setting) -> Measured:
    """SyncProducer.send, one in flight."""
    topic = await _new_topic(setting)

    def run() -> Measured:
        with SyncProducer("bench", setting.address) as producer:
            message = Message(topic, setting.body)
            for _ in range(500):
                producer.send(message)
            count, watch = 0, Watch()
            while watch.seconds < setting.seconds:
                producer.send(message)
                count += 1
            return watch.measured(count)

    return await asyncio.to_thread(run)


async def send_64(setting: Setting) -> Measured:
    """Producer.send in 64 tasks."""
    topic = await _new_topic(setting)
    async with Producer("bench", setting.address) as producer:
        message = Message(topic, setting.body)
        await producer.send_many([message] * 2000)

        async def send() -> int:
            await producer.send(message)
            return 1

        return await repeat(setting, send, TASKS)


async def send_many(setting: Setting) -> Measured:
    """Producer.send_many, 64 in flight."""
    topic = await _new_topic(setting)
    async with Producer("bench", setting.address) as producer:
        messages = [Message(topic, setting.body)] * LIST

        async def send() -> int:
            return len(await producer.send_many(messages, max_in_flight=TASKS))

        await send()
        return await repeat(setting, send)


async def send_batch(setting: Setting) -> Measured:
    """Producer.send_batch of 32, two lists in flight."""
    return await _send_lists(setting, BATCH, 2)


async def send_list(setting: Setting) -> Measured:
    """Producer.send_batch of a list of 5,000, which the client cuts into batches."""
    return await _send_lists(setting, LIST, 1)


async def _send_lists(setting: Setting, size: int, tasks: int) -> Measured:
    topic = await _new_topic(setting)
    async with Producer("bench", setting.address) as producer:
        messages = [Message(topic, setting.body)] * size

        async def send() -> int:
            return len(await producer.send_batch(messages))

        await send()
        return await repeat(setting, send, tasks)


async def _filled(setting: Setting) -> str:
    topic = await _new_topic(setting)
    async with Producer("bench", setting.address) as producer:
        for _ in range(setting.fill // LIST):
            await producer.send_batch([Message(topic, setting.body)] * LIST)
    return topic


async def consume_single(setting: Setting) -> Measured:
    """PushConsumer, an async listener of one message."""
    return await _consume(setting, 1)


async def consume_batch(setting: Setting) -> Measured:
    """PushConsumer, an async listener of up to 1,024 messages."""
    return await _consume(setting, POLLED)


async def _consume(setting: Setting, batch: int) -> Measured:
    topic = await _filled(setting)
    count = size = 0
    done = asyncio.Event()

    async def listen(messages: Sequence[MessageExt]) -> None:
        nonlocal count, size
        size += sum(len(message.body) for message in messages)
        count += len(messages)
        if count >= setting.fill:
            done.set()

    config = PushConfig(consume_from_where=FIRST, consume_batch_size=batch, pull_batch_size=POLLED)
    consumer = PushConsumer(f"g-{topic}", listen, setting.address, config=config)
    await consumer.subscribe(topic)
    watch = Watch()
    async with consumer:
        await done.wait()
        return watch.measured(count)


async def poll(setting: Setting) -> Measured:
    """LitePullConsumer.poll."""
    consumer, watch = await _reader(setting)
    count = size = 0
    async with consumer:
        while count < setting.fill:
            messages = await consumer.poll(5)
            size += sum(len(message.body) for message in messages)
            count += len(messages)
        return watch.measured(count)


async def loop_single(setting: Setting) -> Measured:
    """LitePullConsumer, `async for message in consumer`."""
    consumer, watch = await _reader(setting)
    count = size = 0
    async with consumer:
        async for message in consumer:
            size += len(message.body)
            count += 1
            if count == setting.fill:
                break
        return watch.measured(count)


async def _reader(setting: Setting) -> tuple[LitePullConsumer, Watch]:
    topic = await _filled(setting)
    config = LitePullConfig(consume_from_where=FIRST, pull_batch_size=POLLED)
    watch = Watch()
    consumer = LitePullConsumer(f"g-{topic}", setting.address, config=config)
    await consumer.subscribe(topic)
    return consumer, watch


def main() -> None:
    """Run the cases asked for, or all."""
    measure(
        *(send_one_sync, send_64, send_many, send_batch, send_list),
        *(consume_single, consume_batch, loop_single, poll),
    )


if __name__ == "__main__":
    main()
