"""The same cases for RocketMQ's C++ client through its binding (`rocketmq==0.4.4`), with a Python that has it."""

from __future__ import annotations

import threading
import time

from benchmarks.clients.program import BATCH, Measured, Setting, Watch, measure
from rocketmq.client import Message, Producer, PushConsumer, RecvMessage

TOPIC = "bench-cpp"
PATIENCE_S = 120


def message(body: bytes) -> Message:
    """One message to send."""
    built = Message(TOPIC)
    built.set_body(body)
    return built


def producer_of(setting: Setting) -> Producer:
    """A producer that has sent once."""
    producer = Producer("bench-cpp")
    producer.set_namesrv_addr(setting.address)
    producer.start()
    producer.send_sync(message(setting.body))
    return producer


async def send_one_sync(setting: Setting) -> Measured:
    """One message in flight."""
    producer = producer_of(setting)
    count, watch = 0, Watch()
    while watch.seconds < setting.seconds:
        producer.send_sync(message(setting.body))
        count += 1
    found = watch.measured(count)
    producer.shutdown()
    return found


async def send_batch(setting: Setting) -> Measured:
    """One batch of 32 in flight."""
    producer = producer_of(setting)
    count, watch = 0, Watch()
    while watch.seconds < setting.seconds:
        producer.send_batch([message(setting.body) for _ in range(BATCH)])
        count += BATCH
    found = watch.measured(count)
    producer.shutdown()
    return found


async def consume(setting: Setting) -> Measured:
    """Drain a filled topic by a listener that looks at every body."""
    producer = producer_of(setting)
    for _ in range(setting.fill // BATCH):
        producer.send_batch([message(setting.body) for _ in range(BATCH)])
    producer.shutdown()
    wanted = setting.fill // BATCH * BATCH
    seen = 0
    finished = threading.Event()

    def on_message(received: RecvMessage) -> None:
        nonlocal seen
        seen += bool(received.body)
        if seen >= wanted:
            finished.set()

    consumer = PushConsumer(f"bench-cpp-{time.time_ns()}")
    consumer.set_namesrv_addr(setting.address)
    consumer.subscribe(TOPIC, on_message)
    watch = Watch()
    consumer.start()
    finished.wait(PATIENCE_S)
    found = watch.measured(seen)
    consumer.shutdown()
    return found


if __name__ == "__main__":
    measure(send_one_sync, send_batch, consume)
