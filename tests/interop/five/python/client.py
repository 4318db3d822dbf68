"""Runs the scenarios of clients of RocketMQ 5 with Apache's Python client; prints a line of JSON for each.

The last line has the receives that were refused. The simple consumer of this client does not wait for its settings, and
Apache's endpoint refuses a receive before them, so the program receives again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.exception import InternalErrorException

ENDPOINT, RUN = sys.argv[1], sys.argv[2]
PATIENCE_S = 60
REQUEST_TIMEOUT_S = 20
refused: list[str] = []


def configuration() -> Any:
    return ClientConfiguration(ENDPOINT, Credentials(), "", request_timeout=REQUEST_TIMEOUT_S)


def message(topic: str, body: str, **fields: Any) -> Any:
    made = Message()
    made.topic, made.body, made.tag, made.keys = topic + RUN, body.encode(), "a", "k1"
    made.add_property("color", "red")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def take(topic: str, group: str, count: int) -> list[str]:
    consumer = SimpleConsumer(configuration(), group + RUN, {topic + RUN: FilterExpression()})
    consumer.startup()
    found: list[str] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until:
        try:
            received = consumer.receive(32, 15)
        except InternalErrorException as error:
            refused.append(str(error))
            time.sleep(0.2)
            continue
        for one in received or ():
            found.append(one.body.decode())
            consumer.ack(one)
    consumer.shutdown()
    return found


def normal() -> object:
    with_topics = Producer(configuration(), (f"N{RUN}", f"F{RUN}", f"D{RUN}"))
    with_topics.startup()
    for number in range(10):
        with_topics.send(message("N", f"m{number}"))
    for number in range(6):
        with_topics.send(message("F", f"f{number}", message_group="g"))
    with_topics.send(message("D", "later", delivery_timestamp=int(time.time()) + 2))
    with_topics.shutdown()
    return sorted(take("N", "GN", 10))


class Listener(MessageListener):  # type: ignore[misc]
    """Fails once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.has_all = threading.Event()

    def consume(self, received: Any) -> Any:
        body = received.body.decode()
        self.seen.append(body)
        if len(self.seen) == 11:
            self.has_all.set()
        return ConsumeResult.FAILURE if body == "m3" and self.seen.count(body) == 1 else ConsumeResult.SUCCESS


def push() -> object:
    listener = Listener()
    consumer = PushConsumer(configuration(), f"GP{RUN}", listener, {f"N{RUN}": FilterExpression()})
    consumer.startup()
    listener.has_all.wait(PATIENCE_S)
    consumer.shutdown()
    return sorted(listener.seen)


class Checker(TransactionChecker):  # type: ignore[misc]
    """Commits what is asked about."""

    def check(self, _message: Any) -> Any:
        return TransactionResolution.COMMIT


def transactions() -> object:
    producer = Producer(configuration(), (f"X{RUN}",), checker=Checker())
    producer.startup()
    for body, end in (("commit", "commit"), ("rollback", "rollback"), ("orphan", "")):
        transaction = producer.begin_transaction()
        producer.send(message("X", body), transaction)
        if end:
            getattr(transaction, end)()
    found = sorted(take("X", "GX", 2))
    producer.shutdown()
    return found


SCENARIOS: dict[str, Callable[[], object]] = {
    "normal": normal,
    "fifo": lambda: take("F", "GF", 6),
    "delay": lambda: take("D", "GD", 1),
    "push": push,
    "transactions": transactions,
    "refused": lambda: refused,
}
for name, scenario in SCENARIOS.items():
    print(json.dumps({"scenario": name, "got": scenario()}), flush=True)
