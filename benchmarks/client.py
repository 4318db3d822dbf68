"""Measures the client against a running nameserver and broker; prints one JSON object per case.

    python benchmarks/client.py --namesrv 127.0.0.1:9876 [--seconds 3] [--body-bytes 128] [CASE …]

Each sending case makes a topic of eight queues; the consuming cases fill one first and then drain it.
Rates are messages per second of this process. Its processor time per message includes starting, and in
the consuming cases filling the topic; on a busy machine it says more than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cometmq.client import (
    Admin,
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
from cometmq.client.sync import SyncProducer

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@dataclass(frozen=True)
class Setting:
    """What the command line asked for."""

    namesrv: str
    seconds: float
    body: bytes
    fill: int
    pull_batch_size: int


async def _new_topic(setting: Setting, name: str) -> str:
    topic = f"bench-{name}-{time.time_ns() // 1_000_000}"
    async with Admin(setting.namesrv) as admin:
        await admin.create_topic(topic, queues=8)
    return topic


async def send_one_sync(setting: Setting) -> tuple[int, float]:
    """SyncProducer.send, one in flight."""
    topic = await _new_topic(setting, "sync")

    def run() -> tuple[int, float]:
        with SyncProducer("bench", setting.namesrv) as producer:
            message = Message(topic, setting.body)
            for _ in range(500):
                producer.send(message)
            count, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < setting.seconds:
                producer.send(message)
                count += 1
            return count, time.perf_counter() - begun

    return await asyncio.to_thread(run)


async def _send_by_tasks(setting: Setting, tasks: int) -> tuple[int, float]:
    topic = await _new_topic(setting, f"tasks{tasks}")
    async with Producer("bench", setting.namesrv) as producer:
        message = Message(topic, setting.body)
        await producer.send_many([message] * 2000)
        count, begun = 0, time.perf_counter()
        end = begun + setting.seconds

        async def work() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await producer.send(message)
                count += 1

        await asyncio.gather(*(work() for _ in range(tasks)))
        return count, time.perf_counter() - begun


async def send_one(setting: Setting) -> tuple[int, float]:
    """Producer.send, one in flight."""
    return await _send_by_tasks(setting, 1)


async def send_64(setting: Setting) -> tuple[int, float]:
    """Producer.send in 64 tasks."""
    return await _send_by_tasks(setting, 64)


async def send_many(setting: Setting) -> tuple[int, float]:
    """Producer.send_many, 64 in flight."""
    topic = await _new_topic(setting, "many")
    async with Producer("bench", setting.namesrv) as producer:
        messages = [Message(topic, setting.body)] * 5000
        await producer.send_many(messages, max_in_flight=64)
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < setting.seconds:
            count += len(await producer.send_many(messages, max_in_flight=64))
        return count, time.perf_counter() - begun


async def send_batch(setting: Setting) -> tuple[int, float]:
    """Producer.send_batch of 32, two lists in flight."""
    topic = await _new_topic(setting, "batch")
    async with Producer("bench", setting.namesrv) as producer:
        messages = [Message(topic, setting.body)] * 32
        await producer.send_batch(messages)
        count, begun = 0, time.perf_counter()
        end = begun + setting.seconds

        async def work() -> None:
            nonlocal count
            while time.perf_counter() < end:
                sent = await producer.send_batch(messages)
                count += len(sent)

        await asyncio.gather(*(work() for _ in range(2)))
        return count, time.perf_counter() - begun


async def _filled(setting: Setting) -> str:
    topic = await _new_topic(setting, "fill")
    async with Producer("bench", setting.namesrv) as producer:
        messages = [Message(topic, setting.body)] * 1000
        for _ in range(setting.fill // 1000):
            await producer.send_batch(messages)
    return topic


class _Counter:
    """A listener that looks at every body."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self.bytes = 0
        self.done = threading.Event()
        self._limit = limit
        self._lock = threading.Lock()

    def __call__(self, messages: Sequence[MessageExt]) -> None:
        size = 0
        for message in messages:
            size += len(message.body)
        with self._lock:
            self.bytes += size
            self.count += len(messages)
            if self.count >= self._limit:
                self.done.set()

    async def listen(self, messages: Sequence[MessageExt]) -> None:
        self(messages)


async def _consume(setting: Setting, batch: int, asynchronous: bool) -> tuple[int, float]:
    topic = await _filled(setting)
    counter = _Counter(setting.fill // 1000 * 1000)
    config = PushConfig(consume_from_where=FIRST, consume_batch_size=batch, pull_batch_size=setting.pull_batch_size)
    listener = counter.listen if asynchronous else counter
    consumer = PushConsumer(f"g-{topic}", listener, setting.namesrv, config=config)
    await consumer.subscribe(topic)
    begun = time.perf_counter()
    async with consumer:
        await asyncio.to_thread(counter.done.wait)
        elapsed = time.perf_counter() - begun
    return counter.count, elapsed


async def consume_single(setting: Setting) -> tuple[int, float]:
    """PushConsumer, an async listener of one message."""
    return await _consume(setting, 1, True)


async def consume_batch(setting: Setting) -> tuple[int, float]:
    """PushConsumer, an async listener of up to 1024 messages."""
    return await _consume(setting, 1024, True)


async def consume_thread(setting: Setting) -> tuple[int, float]:
    """PushConsumer, a plain listener (threads) of up to 1024 messages."""
    return await _consume(setting, 1024, False)


async def poll(setting: Setting) -> tuple[int, float]:
    """LitePullConsumer.poll."""
    topic = await _filled(setting)
    limit = setting.fill // 1000 * 1000
    config = LitePullConfig(consume_from_where=FIRST, pull_batch_size=setting.pull_batch_size)
    count = size = 0
    begun = time.perf_counter()
    async with LitePullConsumer(f"g-{topic}", setting.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        while count < limit:
            messages = await consumer.poll(5)
            for message in messages:
                size += len(message.body)
            count += len(messages)
        elapsed = time.perf_counter() - begun
    return count, elapsed


async def pull_raw(setting: Setting) -> tuple[int, float]:
    """PullConsumer.pull_raw, queue after queue."""
    topic = await _filled(setting)
    count = 0
    begun = time.perf_counter()
    async with PullConsumer("bench", setting.namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = 0, await consumer.offsets.max(queue)
            while offset < end:
                offset = (await consumer.pull_raw(queue, offset, setting.pull_batch_size)).next_offset
            count += end
        elapsed = time.perf_counter() - begun
    return count, elapsed


CASES: dict[str, Callable[[Setting], Awaitable[tuple[int, float]]]] = {
    case.__name__.replace("_", "-"): case
    for case in (
        send_one_sync,
        send_one,
        send_64,
        send_many,
        send_batch,
        consume_single,
        consume_batch,
        consume_thread,
        poll,
        pull_raw,
    )
}


async def main() -> None:
    """Run the cases asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each sending case")
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--fill", type=int, default=300_000, help="messages that the consuming cases drain")
    parser.add_argument("--pull-batch-size", type=int, default=1024)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    unknown = [case for case in arguments.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; there are {', '.join(CASES)}")
    setting = Setting(
        arguments.namesrv,
        arguments.seconds,
        b"x" * arguments.body_bytes,
        arguments.fill,
        arguments.pull_batch_size,
    )
    for name in arguments.cases or CASES:
        processor = time.process_time()
        count, elapsed = await CASES[name](setting)
        processor = time.process_time() - processor
        line = {
            "case": name,
            "messages": count,
            "seconds": round(elapsed, 3),
            "per_second": round(count / elapsed),
            "processor_us_per_message": round(processor / count * 1e6, 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
