"""A worker of thousands of queues; here the limit is lower instead."""

from __future__ import annotations

import pytest
from kombu import Consumer, Queue
from kombu.exceptions import OperationalError
from tests.integrations.kombu.conftest import Connect

import cometmq.client.simple.consumer


def test_too_many_queues_are_an_error(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.client.simple.consumer, "MAX_TOPICS", 2)
    queues = [Queue(f"{name}-{number}", routing_key=f"{name}-{number}") for number in range(3)]
    with connect().channel() as channel:
        consumer = Consumer(channel, queues)
        with pytest.raises(OperationalError, match=r"more than 2 topics \(divide the topics among several consumers\)"):
            consumer.consume()
        consumer.cancel()
        Consumer(channel, queues[:2]).consume()
