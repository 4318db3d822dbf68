"""Measures aiokafka against a running broker, by the cases of `benchmarks/client.py`; prints one JSON object.

It runs in an environment of its own (`requirements.txt` beside it), which `benchmarks/compare_aiokafka.py` makes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

PARTITIONS = 8
LIST = 5000


@dataclass(frozen=True)
class Setting:
    """The options of the command line."""

    address: str
    seconds: float
    body: bytes
    fill: int
    pull_batch_size: int


@dataclass(frozen=True)
class Measured:
    """A case that has run."""

    messages: int
    seconds: float
    processor_seconds: float


class Watch:
    """The time since it was made, of the clock and of this process."""

    def __init__(self) -> None:
        self._processor = time.process_time()
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of the clock."""
        return time.perf_counter() - self._begun

    def measured(self, messages: int) -> Measured:
        """The case is over after so many messages."""
        return Measured(messages, self.seconds, time.process_time() - self._processor)


async def _new_topic(setting: Setting) -> str:
    topic = f"bench-{time.time_ns() // 1_000_000}"
    admin = AIOKafkaAdminClient(bootstrap_servers=setting.address)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    await admin.close()
    return topic


async def _producer(setting: Setting) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(bootstrap_servers=setting.address, acks="all", linger_ms=0)
    await producer.start()
    return producer


async def _send_all(producer: AIOKafkaProducer, topic: str, body: bytes, count: int) -> None:
    await asyncio.gather(*[await producer.send(topic, body) for _ in range(count)])


async def send_64(setting: Setting) -> Measured:
    """send_and_wait in 64 tasks."""
    topic = await _new_topic(setting)
    producer = await _producer(setting)
    try:
        await _send_all(producer, topic, setting.body, 2000)
        count, watch = 0, Watch()

        async def work() -> None:
            nonlocal count
            while watch.seconds < setting.seconds:
                await producer.send_and_wait(topic, setting.body)
                count += 1

        await asyncio.gather(*(work() for _ in range(64)))
        return watch.measured(count)
    finally:
        await producer.stop()


async def send_batch(setting: Setting) -> Measured:
    """create_batch and send_batch of 32 by hand, two lists in flight, queues in turn."""
    topic = await _new_topic(setting)
    producer = await _producer(setting)
    try:
        await _send_all(producer, topic, setting.body, 2000)
        count, number, watch = 0, 0, Watch()

        async def work() -> None:
            nonlocal count, number
            while watch.seconds < setting.seconds:
                batch = producer.create_batch()
                for _ in range(32):
                    batch.append(key=None, value=setting.body, timestamp=None)
                number += 1
                await (await producer.send_batch(batch, topic, partition=number % PARTITIONS))
                count += 32

        await asyncio.gather(*(work() for _ in range(2)))
        return watch.measured(count)
    finally:
        await producer.stop()


async def send_list(setting: Setting) -> Measured:
    """Send of 5,000 messages, whose futures are awaited together: the client makes the batches."""
    topic = await _new_topic(setting)
    producer = await _producer(setting)
    try:
        await _send_all(producer, topic, setting.body, LIST)
        count, watch = 0, Watch()
        while watch.seconds < setting.seconds:
            await _send_all(producer, topic, setting.body, LIST)
            count += LIST
        return watch.measured(count)
    finally:
        await producer.stop()


async def _consumer(setting: Setting) -> AIOKafkaConsumer:
    topic = await _new_topic(setting)
    producer = await _producer(setting)
    for _ in range(setting.fill // 1000):
        await _send_all(producer, topic, setting.body, 1000)
    await producer.stop()
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=setting.address,
        group_id=f"g-{topic}",
        auto_offset_reset="earliest",
        enable_auto_commit=True,
    )


async def loop_single(setting: Setting) -> Measured:
    """`async for message in consumer`, with commits at intervals."""
    consumer = await _consumer(setting)
    limit = setting.fill // 1000 * 1000
    count = size = 0
    watch = Watch()
    await consumer.start()
    try:
        async for message in consumer:
            size += len(message.value)
            count += 1
            if count == limit:
                break
        return watch.measured(count)
    finally:
        await consumer.stop()


async def poll(setting: Setting) -> Measured:
    """`getmany`: lists of all partitions."""
    consumer = await _consumer(setting)
    limit = setting.fill // 1000 * 1000
    count = size = 0
    watch = Watch()
    await consumer.start()
    try:
        while count < limit:
            found = await consumer.getmany(timeout_ms=5000, max_records=setting.pull_batch_size)
            for messages in found.values():
                for message in messages:
                    size += len(message.value)
                count += len(messages)
        return watch.measured(count)
    finally:
        await consumer.stop()


CASES: dict[str, Callable[[Setting], Awaitable[Measured]]] = {
    case.__name__.replace("_", "-"): case for case in (send_64, send_batch, send_list, loop_single, poll)
}


async def main() -> None:
    """Run one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each sending case")
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--fill", type=int, default=300_000, help="messages that the consuming cases drain")
    parser.add_argument("--pull-batch-size", type=int, default=1024)
    parser.add_argument("case", choices=CASES)
    options = parser.parse_args()
    body = b"x" * options.body_bytes
    setting = Setting(options.address, options.seconds, body, options.fill, options.pull_batch_size)
    measured = await CASES[options.case](setting)
    line = {
        "case": options.case,
        "messages": measured.messages,
        "seconds": round(measured.seconds, 3),
        "per_second": round(measured.messages / measured.seconds),
        "processor_us_per_message": round(measured.processor_seconds / measured.messages * 1e6, 2),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
