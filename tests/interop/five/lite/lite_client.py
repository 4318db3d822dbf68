"""Runs the scenarios of lite topics with Apache's Python client; prints a line of JSON for each.

Arguments: endpoint, run, and the scenarios. Python's client sends the letters of a lite topic's name when it
subscribes; only ``subscribe_lite_all`` sends the name. Its simple consumer does not wait for its settings, so its quota
is 0 first.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
)
from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

ENDPOINT, RUN = sys.argv[1], sys.argv[2]
PATIENCE_S = 120


def configuration() -> Any:
    return ClientConfiguration(ENDPOINT, Credentials(), "", request_timeout=10)


class Got(MessageListener):  # type: ignore[misc]
    """What a consumer got: the lite topic and the body of each message."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._changed = threading.Condition()

    def consume(self, message: Any) -> Any:
        with self._changed:
            self.all.append(f"{message.lite_topic}:{message.body.decode()}")
            self._changed.notify_all()
        return ConsumeResult.SUCCESS

    def wait(self, count: int) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: len(self.all) >= count, PATIENCE_S)
            return sorted(self.all)


producer = Producer(configuration(), ("L" + RUN,))


def send(lite: str, *bodies: str) -> None:
    for body in bodies:
        message = Message()
        message.topic, message.body, message.lite_topic = "L" + RUN, body.encode(), lite
        producer.send(message)


def push() -> list[str]:
    got = Got()
    consumer = LitePushConsumer(configuration(), "GS" + RUN, "L" + RUN, got)
    consumer.startup()
    consumer.subscribe_lite("session-7")
    consumer.subscribe_lite_all()
    send("session-7", "s0", "s1", "s2")
    send("other", "o0")
    found = got.wait(3)
    consumer.unsubscribe_lite("session-7")
    consumer.shutdown()
    return found


def letters() -> list[str]:
    """Subscribe without ``subscribe_lite_all``."""
    got = Got()
    consumer = LitePushConsumer(configuration(), "GS" + RUN, "L" + RUN, got)
    consumer.startup()
    consumer.subscribe_lite("letters")
    send("letters", "l0", "l1")
    found = got.wait(2)
    consumer.shutdown()
    return found


def simple() -> list[str]:
    """Receive, acknowledge, and let one message become visible again."""
    consumer = LiteSimpleConsumer("L" + RUN, configuration(), "GS" + RUN, 2)
    consumer.startup()
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            consumer.subscribe_lite("simple")
            break
        except LiteSubscriptionQuotaExceededException:
            time.sleep(0.05)
    send("simple", "x0", "x1")
    found: list[str] = []
    while len(found) < 3 and time.monotonic() < until:
        for message in consumer.receive(8, 10):
            body = message.body.decode()
            found.append(f"{message.lite_topic}:{body}:{message.delivery_attempt}")
            if body == "x1" and message.delivery_attempt == 1:
                consumer.change_invisible_duration(message, 1)
            else:
                consumer.ack(message)
    consumer.shutdown()
    return found


def exclusive() -> list[str]:
    """A lite topic that another client takes goes to that client."""
    first, second = Got(), Got()
    for got in (first, second):
        consumer = LitePushConsumer(configuration(), "GE" + RUN, "L" + RUN, got)
        consumer.startup()
        consumer.subscribe_lite("only")
        consumer.subscribe_lite_all()
        send("only", f"to {'first' if got is first else 'second'}")
        got.wait(1)
    return [*first.all, "/", *second.all]


SCENARIOS: dict[str, Callable[[], list[str]]] = {
    "push": push,
    "letters": letters,
    "simple": simple,
    "exclusive": exclusive,
}

producer.startup()
for name in sys.argv[3:]:
    print(json.dumps({"scenario": name, "got": SCENARIOS[name]()}), flush=True)
sys.stdout.flush()
os._exit(0)  # the client's threads would keep the process alive
