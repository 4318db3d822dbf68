"""The same cases for aiokafka at a Kafka broker, with a Python that has it (`requirements.txt`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
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


async def _new_topic(setting: Setting) -> str:
    topic = f"bench-{time.time_ns() // 1_000_000}"
    admin = AIOKafkaAdminClient(bootstrap_servers=setting.address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, QUEUES, 1)])
    await admin.close()
    return topic


@asynccontextmanager
async def _producer(setting: Setting) -> AsyncIterator[tuple[AIOKafkaProducer, str]]:
    """A warm producer, and a new topic."""
    topic = await _new_topic(setting)
    producer = AIOKafkaProducer(bootstrap_servers=setting.address, acks="all", linger_ms=0)
    await producer.start()
    try:
        await _send_all(producer, topic, setting.body)
        yield producer, topic
    finally:
        await producer.stop()


async def _send_all(producer: AIOKafkaProducer, topic: str, body: bytes) -> int:
    await asyncio.gather(*[await producer.send(topic, body) for _ in range(LIST)])
    return LIST


async def send_64(setting: Setting) -> Measured:
    """send_and_wait in 64 tasks."""
    async with _producer(setting) as (producer, topic):

        async def send() -> int:
            await producer.send_and_wait(topic, setting.body)
            return 1

        return await repeat(setting, send, TASKS)


async def send_batch(setting: Setting) -> Measured:
    """create_batch and send_batch of 32 by hand, two lists in flight, queues in turn."""
    number = 0
    async with _producer(setting) as (producer, topic):

        async def send() -> int:
            nonlocal number
            batch = producer.create_batch()
            for _ in range(BATCH):
                batch.append(key=None, value=setting.body, timestamp=None)
            number += 1
            await (await producer.send_batch(batch, topic, partition=number % QUEUES))
            return BATCH

        return await repeat(setting, send, 2)


async def send_list(setting: Setting) -> Measured:
    """Send of 5,000 messages, whose futures are awaited together: the client makes the batches."""
    async with _producer(setting) as (producer, topic):
        return await repeat(setting, lambda: _send_all(producer, topic, setting.body))


async def _consumer(setting: Setting) -> AIOKafkaConsumer:
    async with _producer(setting) as (producer, topic):
        for _ in range(setting.fill // LIST - 1):
            await _send_all(producer, topic, setting.body)
    options = {"auto_offset_reset": "earliest", "enable_auto_commit": True}
    return AIOKafkaConsumer(topic, bootstrap_servers=setting.address, group_id=f"g-{topic}", **options)


async def loop_single(setting: Setting) -> Measured:
    """`async for message in consumer`, with commits at intervals."""
    consumer = await _consumer(setting)
    count = size = 0
    watch = Watch()
    await consumer.start()
    try:
        async for message in consumer:
            size += len(message.value)
            count += 1
            if count == setting.fill:
                break
        return watch.measured(count)
    finally:
        await consumer.stop()


async def poll(setting: Setting) -> Measured:
    """`getmany`: lists of all partitions."""
    consumer = await _consumer(setting)
    count = size = 0
    watch = Watch()
    await consumer.start()
    try:
        while count < setting.fill:
            for messages in (await consumer.getmany(timeout_ms=5000, max_records=POLLED)).values():
                size += sum(len(message.value) for message in messages)
                count += len(messages)
        return watch.measured(count)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    measure(send_64, send_batch, send_list, loop_single, poll)
