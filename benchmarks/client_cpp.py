"""The same cases as client.py for RocketMQ's C++ client through its binding (`rocketmq==0.4.4`), the yardstick.

Run by benchmarks/compare_client.py with an interpreter that has the binding; prints one JSON object per case.
"""

from __future__ import annotations

import argparse
import json
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage

BATCH = 32
TOPIC = "bench-cpp"


def message(body: bytes) -> Message:
    """One message to send."""
    built = Message(TOPIC)
    built.set_body(body)
    return built


def send(namesrv: str, seconds: float, body: bytes, batch: bool) -> tuple[int, float]:
    """Synchronous sends, one (or one batch of 32) in flight."""
    producer = Producer("bench-cpp")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    producer.send_sync(message(body))
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        if batch:
            producer.send_batch([message(body) for _ in range(BATCH)])
            count += BATCH
        else:
            producer.send_sync(message(body))
            count += 1
    elapsed = time.perf_counter() - begun
    producer.shutdown()
    return count, elapsed


def consume(namesrv: str, messages: int, body: bytes) -> tuple[int, float]:
    """Drain a filled topic by a listener that looks at every body."""
    producer = Producer("bench-cpp")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for _ in range(messages // BATCH):
        producer.send_batch([message(body) for _ in range(BATCH)])
    producer.shutdown()
    wanted = messages // BATCH * BATCH
    seen = 0
    finished = threading.Event()

    def on_message(received: RecvMessage) -> None:
        nonlocal seen
        seen += bool(received.body)
        if seen >= wanted:
            finished.set()

    consumer = PushConsumer(f"bench-cpp-{time.time_ns()}")
    consumer.set_namesrv_addr(namesrv)
    consumer.subscribe(TOPIC, on_message)
    begun = time.perf_counter()
    consumer.start()
    finished.wait(120)
    elapsed = time.perf_counter() - begun
    consumer.shutdown()
    return seen, elapsed


def main() -> None:
    """Run one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--fill", type=int, default=60_000)
    parser.add_argument("case", choices=["send-one-sync", "send-batch", "consume"])
    options = parser.parse_args()
    body = b"x" * options.body_bytes
    if options.case == "consume":
        count, elapsed = consume(options.namesrv, options.fill, body)
    else:
        count, elapsed = send(options.namesrv, options.seconds, body, options.case == "send-batch")
    print(json.dumps({"case": options.case, "messages": count, "per_second": round(count / elapsed)}), flush=True)


if __name__ == "__main__":
    main()
