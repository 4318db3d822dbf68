"""Measures the client against a running nameserver and broker; prints one JSON object per case.

    python benchmarks/client.py --namesrv 127.0.0.1:9876 [--seconds 3] [--body-bytes 128] [CASE …]

Each sending case makes a topic of eight queues; the consuming cases fill one first and then drain it.
Rates are messages per second of this process, beside its processor time for a message: on a busy machine that says
more than the rate. Starting, and filling a topic, count for neither.
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
    """The options of the command line."""

    namesrv: str
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


async def _new_topic(setting: Setting, name: str) -> str:
    topic = f"bench-{name}-{time.time_ns() // 1_000_000}"
    async with Admin(setting.namesrv) as admin:
        await admin.create_topic(topic, queues=8)
    return topic


async def send_one_sync(setting: Setting) -> Measured:
    """SyncProducer.send, one in flight."""
    topic = await _new_topic(setting, "sync")

    def run() -> Measured:
        with SyncProducer("bench", setting.namesrv) as producer:
            message = Message(topic, setting.body)
            for _ in range(500):
                producer.send(message)
            count, watch = 0, Watch()
            while watch.seconds < setting.seconds:
                producer.send(message)
                count += 1
            return watch.measured(count)

    return await asyncio.to_thread(run)


async def _send_by_tasks(setting: Setting, tasks: int) -> Measured:
    topic = await _new_topic(setting, f"tasks{tasks}")
    async with Producer("bench", setting.namesrv) as producer:
        message = Message(topic, setting.body)
        await producer.send_many([message] * 2000)
        count, watch = 0, Watch()

        async def work() -> None:
            nonlocal count
            while watch.seconds < setting.seconds:
                await producer.send(message)
                count += 1

        await asyncio.gather(*(work() for _ in range(tasks)))
        return watch.measured(count)


async def send_one(setting: Setting) -> Measured:
    """Producer.send, one in flight."""
    return await _send_by_tasks(setting, 1)


async def send_64(setting: Setting) -> Measured:
    """Producer.send in 64 tasks."""
    return await _send_by_tasks(setting, 64)


async def send_many(setting: Setting) -> Measured:
    """Producer.send_many, 64 in flight."""
    topic = await _new_topic(setting, "many")
    async with Producer("bench", setting.namesrv) as producer:
        messages = [Message(topic, setting.body)] * 5000
        await producer.send_many(messages, max_in_flight=64)
        count, watch = 0, Watch()
        while watch.seconds < setting.seconds:
            count += len(await producer.send_many(messages, max_in_flight=64))
        return watch.measured(count)


async def send_batch(setting: Setting) -> Measured:
    """Producer.send_batch of 32, two lists in flight."""
    topic = await _new_topic(setting, "batch")
    async with Producer("bench", setting.namesrv) as producer:
        messages = [Message(topic, setting.body)] * 32
        await producer.send_batch(messages)
        count, watch = 0, Watch()

        async def work() -> None:
            nonlocal count
            while watch.seconds < setting.seconds:
                sent = await producer.send_batch(messages)
                count += len(sent)

        await asyncio.gather(*(work() for _ in range(2)))
        return watch.measured(count)


async def send_list(setting: Setting) -> Measured:
    """Producer.send_batch of a list of 5,000, which the client cuts into batches."""
    topic = await _new_topic(setting, "list")
    async with Producer("bench", setting.namesrv) as producer:
        messages = [Message(topic, setting.body)] * 5000
        await producer.send_batch(messages)
        count, watch = 0, Watch()
        while watch.seconds < setting.seconds:
            count += len(await producer.send_batch(messages))
        return watch.measured(count)


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


async def _consume(setting: Setting, batch: int, asynchronous: bool) -> Measured:
    topic = await _filled(setting)
    counter = _Counter(setting.fill // 1000 * 1000)
    config = PushConfig(consume_from_where=FIRST, consume_batch_size=batch, pull_batch_size=setting.pull_batch_size)
    listener = counter.listen if asynchronous else counter
    consumer = PushConsumer(f"g-{topic}", listener, setting.namesrv, config=config)
    await consumer.subscribe(topic)
    watch = Watch()
    async with consumer:
        await asyncio.to_thread(counter.done.wait)
        return watch.measured(counter.count)


async def consume_single(setting: Setting) -> Measured:
    """PushConsumer, an async listener of one message."""
    return await _consume(setting, 1, True)


async def consume_batch(setting: Setting) -> Measured:
    """PushConsumer, an async listener of up to 1024 messages."""
    return await _consume(setting, 1024, True)


async def consume_thread(setting: Setting) -> Measured:
    """PushConsumer, a plain listener (threads) of up to 1024 messages."""
    return await _consume(setting, 1024, False)


async def poll(setting: Setting) -> Measured:
    """LitePullConsumer.poll."""
    topic = await _filled(setting)
    limit = setting.fill // 1000 * 1000
    config = LitePullConfig(consume_from_where=FIRST, pull_batch_size=setting.pull_batch_size)
    count = size = 0
    watch = Watch()
    async with LitePullConsumer(f"g-{topic}", setting.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        while count < limit:
            messages = await consumer.poll(5)
            for message in messages:
                size += len(message.body)
            count += len(messages)
        return watch.measured(count)


async def loop_single(setting: Setting) -> Measured:
    """LitePullConsumer, `async for message in consumer`."""
    topic = await _filled(setting)
    limit = setting.fill // 1000 * 1000
    config = LitePullConfig(consume_from_where=FIRST, pull_batch_size=setting.pull_batch_size)
    count = size = 0
    watch = Watch()
    async with LitePullConsumer(f"g-{topic}", setting.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            size += len(message.body)
            count += 1
            if count == limit:
                break
        return watch.measured(count)


async def loop_ack(setting: Setting) -> Measured:
    """PushConsumer, `async for message in consumer`, each message acknowledged."""
    topic = await _filled(setting)
    limit = setting.fill // 1000 * 1000
    config = PushConfig(consume_from_where=FIRST, pull_batch_size=setting.pull_batch_size)
    count = size = 0
    consumer = PushConsumer(f"g-{topic}", None, setting.namesrv, config=config)
    await consumer.subscribe(topic)
    watch = Watch()
    async with consumer:
        async for message in consumer:
            size += len(message.body)
            count += 1
            message.ack()
            if count == limit:
                break
        return watch.measured(count)


async def pull_raw(setting: Setting) -> Measured:
    """PullConsumer.pull_raw, queue after queue."""
    topic = await _filled(setting)
    count = 0
    watch = Watch()
    async with PullConsumer("bench", setting.namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = 0, await consumer.offsets.max(queue)
            while offset < end:
                offset = (await consumer.pull_raw(queue, offset, setting.pull_batch_size)).next_offset
            count += end
        return watch.measured(count)


CASES: dict[str, Callable[[Setting], Awaitable[Measured]]] = {
    case.__name__.replace("_", "-"): case
    for case in (
        send_one_sync,
        send_one,
        send_64,
        send_many,
        send_batch,
        send_list,
        consume_single,
        consume_batch,
        consume_thread,
        loop_single,
        loop_ack,
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
        measured = await CASES[name](setting)
        line = {
            "case": name,
            "messages": measured.messages,
            "seconds": round(measured.seconds, 3),
            "per_second": round(measured.messages / measured.seconds),
            "processor_us_per_message": round(measured.processor_seconds / measured.messages * 1e6, 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
