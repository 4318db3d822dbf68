"""A worker of thousands of queues; here the limit is lower instead."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Consumer, Exchange, Queue
from kombu.exceptions import OperationalError
from tests.integrations.kombu.conftest import Connect

import cometmq.client.simple.consumer
from cometmq.integrations.kombu.channel import Channel


def test_too_many_queues_are_an_error(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.client.simple.consumer, "MAX_TOPICS", 2)
    queues = [Queue(f"{name}-{number}", routing_key=f"{name}-{number}") for number in range(3)]
    with connect().channel() as channel:
        consumer = Consumer(channel, queues)
        with pytest.raises(OperationalError, match=r"more than 2 topics \(divide the topics among several consumers\)"):
            consumer.consume()
        consumer.cancel()
        Consumer(channel, queues[:2]).consume()


def test_a_known_queue_is_declared_again_without_a_step_in_the_other_thread(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker declares each queue, binds it and consumes it; each step waited for the thread of the connections."""
    runs: list[str] = []
    run = Channel._run

    def counted(channel: Channel, work: Any) -> Any:
        runs.append(work.__qualname__)
        return run(channel, work)

    monkeypatch.setattr(Channel, "_run", counted)
    with connect().channel() as channel:
        queue = Queue(name, Exchange(name), routing_key=name)(channel)
        for _ in range(2):
            queue.declare()
        queue.consume("tag", callback=lambda _message: None)
        assert runs == ["Session.ensure_queue", "Receiver.open", "Receiver.start"]
        queue.cancel("tag")
