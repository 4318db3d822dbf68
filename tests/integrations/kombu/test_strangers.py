"""Messages that look like those of Kombu, but are not: no program that receives them stops."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.test_channel import Received, dead_letters, drain

from cometmq.client import Message as RocketMessage
from cometmq.testing import SyncCluster


def head(**changed: Any) -> bytes:
    fields = {"content-type": "application/json", "content-encoding": "utf-8", "headers": {}, "properties": {}}
    return json.dumps(fields | {name.replace("_", "-"): value for name, value in changed.items()}).encode() + b"\n1"


HOSTILE = {
    "nested": b"[" * 100_000,
    "decimal": head(headers={"a": {"__type__": "decimal", "__value__": "x"}}),
    "info is a text": head(properties={"delivery_info": "x"}),
    "info is a list": head(properties={"delivery_info": ["x"]}),
    "key is a number": head(properties={"delivery_info": {"routing_key": 5}}),
    "encoding is a number": head(properties={"body_encoding": 5}),
    "encoding is unknown": head(properties={"body_encoding": "rot13"}),
    "type is a list": head(content_type=["x"]),
    "coding is an object": head(content_encoding={"x": 1}),
    "task is an object": head(headers={"task": {"x": 1}}),
    "id is a list": head(headers={"task": "t", "id": ["x"]}),
    "limits are a text": head(headers={"task": "t", "timelimit": "abc"}),
    "limits are three": head(headers={"task": "t", "timelimit": [1, 2, 3]}),
    "limit is a text": head(headers={"task": "t", "timelimit": [None, "x"]}),
    "limit is not finite": head(headers={"task": "t", "timelimit": [float("nan"), None]}),
    "limit is negative": head(headers={"task": "t", "timelimit": [-1, None]}),
}
each = pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())


@each
def test_of_a_queue_they_are_dead_letters(cluster: SyncCluster, connection: Connection, name: str, body: bytes) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put("ours")
        cluster.send(RocketMessage(name, body, priority=9, properties={"KOMBU": "1"}))
        assert queue.get(timeout=10).payload == "ours"
    namesrv = cluster.namesrv_address
    wait_for(lambda: cluster.call(dead_letters(namesrv, name)), "a dead letter")


@each
@pytest.mark.parametrize("kind", ["fanout", "topic"])
def test_of_an_exchange_they_are_passed_over(
    cluster: SyncCluster, connection: Connection, name: str, body: bytes, kind: str
) -> None:
    received = Received()
    exchange = Exchange(name, kind)
    queue = Queue(f"{name}-own", exchange, routing_key="k", exclusive=True, no_ack=True)
    with connection.channel() as channel, Consumer(channel, [queue], callbacks=[received], no_ack=True):
        received._ack = False
        cluster.send(RocketMessage(f"{name}|exchange", body, properties={"KOMBU": "1"}))
        Producer(channel).publish("ours", exchange=exchange, routing_key="k", declare=[exchange])
        drain(connection, received, 1)
        assert received.bodies == ["ours"]
