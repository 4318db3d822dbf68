"""Sends and consumes with Apache's Python client until its input ends; prints a line of JSON for each message.

The client's own threads must find a server that was killed and started again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
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
)

ENDPOINT, TOPIC = sys.argv[1], sys.argv[2]


def tell(event: str, body: str) -> None:
    sys.stdout.write(json.dumps({"event": event, "body": body}) + "\n")
    sys.stdout.flush()


class Listener(MessageListener):  # type: ignore[misc]
    """Takes every message."""

    def consume(self, received: Any) -> Any:
        tell("got", received.body.decode())
        return ConsumeResult.SUCCESS


def send() -> None:
    producer = Producer(ClientConfiguration(ENDPOINT, Credentials(), ""), (TOPIC,))
    producer.startup()
    for number in range(1_000_000):
        message = Message()
        message.topic, message.body = TOPIC, str(number).encode()
        try:
            producer.send(message)
        except Exception as error:
            print(f"{number}: {error}", file=sys.stderr)
        else:
            tell("sent", str(number))
        time.sleep(0.02)


configuration = ClientConfiguration(ENDPOINT, Credentials(), "")
consumer = PushConsumer(configuration, f"G{TOPIC}", Listener(), {TOPIC: FilterExpression()})
consumer.startup()
threading.Thread(target=send, daemon=True).start()
sys.stdin.read()
os._exit(0)
