"""Sends messages with life times if told so, and receives what lives; prints a line of JSON with what came.

Arguments: endpoint, topic, group, number of messages to receive, and for each message to send its body and its life
time in milliseconds (0 for none).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

ENDPOINT, TOPIC, GROUP, COUNT = sys.argv[1:5]
PATIENCE_S = 60


def configuration() -> Any:
    return ClientConfiguration(ENDPOINT, Credentials(), "", request_timeout=20)


producer = Producer(configuration(), (TOPIC,))
producer.startup()
for body, ttl_ms in zip(sys.argv[5::2], sys.argv[6::2], strict=True):
    message = Message()
    message.topic, message.body = TOPIC, body.encode()
    if ttl_ms != "0":
        message.add_property("COMETMQ_TTL_MS", ttl_ms)
    producer.send(message)
producer.shutdown()
consumer = SimpleConsumer(configuration(), GROUP, {TOPIC: FilterExpression()})
consumer.startup()
got: list[str] = []
until = time.monotonic() + PATIENCE_S
while len(got) < int(COUNT) and time.monotonic() < until:
    for one in consumer.receive(16, 15) or ():
        got.append(one.body.decode())
        consumer.ack(one)
got += [one.body.decode() for one in consumer.receive(16, 15) or ()]  # nothing more may come
consumer.shutdown()
print(json.dumps({"scenario": "lives", "got": sorted(got)}), flush=True)
