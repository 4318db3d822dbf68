"""Sends messages of several priorities, and receives them four at a time; prints a line of JSON with what came."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
from rocketmq.v5.exception import InternalErrorException

ENDPOINT, RUN = sys.argv[1], sys.argv[2]
TOPIC = f"P{RUN}"
PRIORITIES = (1, 3, 0, 2, 9, 3, 0, 1)
PATIENCE_S = 60


def configuration() -> Any:
    return ClientConfiguration(ENDPOINT, Credentials(), "", request_timeout=20)


producer = Producer(configuration(), (TOPIC,))
producer.startup()
for number, priority in enumerate(PRIORITIES):
    message = Message()
    message.topic, message.body, message.priority = TOPIC, f"{priority}.{number}".encode(), priority
    producer.send(message)
producer.shutdown()
consumer = SimpleConsumer(configuration(), f"GL{RUN}", {TOPIC: FilterExpression()})
consumer.startup()
got: list[str] = []
until = time.monotonic() + PATIENCE_S
while len(got) < len(PRIORITIES) and time.monotonic() < until:
    try:
        received = consumer.receive(4, 15)
    except InternalErrorException:  # Apache's endpoint refuses a receive that comes before the settings of its client
        time.sleep(0.2)
        continue
    for one in received or ():
        got.append(f"{one.body.decode()} {one.priority}")
        consumer.ack(one)
consumer.shutdown()
print(json.dumps({"scenario": "levels", "got": got}), flush=True)
