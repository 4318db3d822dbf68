"""A worker of thousands of queues; here the limit is lower instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kombu import Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from tests.integrations.kombu.conftest import Connect
from tests.integrations.kombu.test_channel import Received, drain

import cometmq.client.simple.consumer
from cometmq.client.simple.places import Places
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
        assert runs == ["Session.ensure_queue", "Receiver.open", "Receiver.started"]
        queue.cancel("tag")


def test_queues_that_are_consumed_together_are_begun_together(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    find_routes = Places.find_routes

    async def counted(places: Places, topics: Sequence[str]) -> bool:
        asked.append(len(topics))
        return await find_routes(places, topics)

    queues = [Queue(f"{name}-{number}", routing_key=f"{name}-{number}") for number in range(60)]
    received = Received()
    connection = connect()
    with connection.channel() as channel:
        consumer = Consumer(channel, queues, callbacks=[received])
        for queue in queues:
            Producer(channel).publish(queue.name, routing_key=queue.name)
        monkeypatch.setattr(Places, "find_routes", counted)
        consumer.consume()
        assert sum(asked) == len(queues)
        assert len(asked) < len(queues) // 3
        drain(connection, received, len(queues))
    assert sorted(received.bodies) == sorted(queue.name for queue in queues)
