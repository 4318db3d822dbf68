"""Messages that a busy consumer takes before its channel may hold them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kombu import Connection, Consumer, Producer, Queue
from tests.helpers.waiting import wait_for
from tests.integrations.kombu.conftest import Connect
from tests.integrations.kombu.test_channel import Received, counted_requests, drain, nothing_comes

from cometmq.client import PoppedMessage
from cometmq.integrations.kombu import receiver
from cometmq.integrations.kombu.receiver import Receiver
from cometmq.integrations.kombu.settings import Settings

MESSAGES = 12
LIMIT = 2
FOR_EVER_S = 1e9


def look_busy(member: Receiver, *paces: int) -> None:
    """Pretend that messages have ended in each of the last periods, and do so from now on."""
    member._paces.extend(paces or [10, 15, 30, 10])
    member._period = 10**12


@contextmanager
def busy(connection: Connection, name: str, received: Received) -> Iterator[tuple[Consumer, Receiver]]:
    """Consume messages as a worker that has ended ten or more in each of the last moments."""
    queue = Queue(name, routing_key=name)
    with connection.channel() as channel:
        queue(channel).declare()
        for number in range(MESSAGES):
            Producer(channel).publish(number, routing_key=name)
        member = channel._member()
        look_busy(member)
        with Consumer(channel, [queue], callbacks=[received], prefetch_count=LIMIT) as consumer:
            yield consumer, member


def test_messages_that_are_taken_ahead_come_when_others_have_ended(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "_STILL_S", FOR_EVER_S)
    received = Received(ack=False)
    with busy(connection, name, received) as (_, member):
        wait_for(lambda: len(member._ahead) == MESSAGES - LIMIT, "the messages that are taken ahead")
        counts = counted_requests(member._consumer, monkeypatch)
        drain(connection, received, LIMIT)
        nothing_comes(connection)
        for count in range(1, MESSAGES + 1):
            received.messages[count - 1].ack()
            drain(connection, received, min(count + LIMIT, MESSAGES))
            assert len(received.messages) == min(count + LIMIT, MESSAGES)
        wait_for(lambda: counts["acknowledge"] == MESSAGES, "all acknowledgements")
    assert received.bodies == list(range(MESSAGES))


def test_another_worker_gets_them_when_nothing_ends(connect: Connect, name: str) -> None:
    connection, second = connect(), connect()
    received, others = Received(ack=False), Received()
    with busy(connection, name, received) as (_, member), second.channel() as other:
        drain(connection, received, LIMIT)
        with Consumer(other, [Queue(name, routing_key=name)], callbacks=[others]):
            drain(second, others, MESSAGES - LIMIT)
        assert not member._ahead
        look_busy(member)
        assert not member._most_ahead()
    assert sorted(received.bodies + others.bodies) == list(range(MESSAGES))


@pytest.mark.parametrize("end", [lambda consumer: consumer.cancel(), lambda consumer: consumer.channel.close()])
def test_a_consumer_that_ends_gives_them_back(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch, end: Callable[[Consumer], Any]
) -> None:
    monkeypatch.setattr(receiver, "_STILL_S", FOR_EVER_S)
    connection, second, others = connect(), connect(), Received()
    with busy(connection, name, Received(ack=False)) as (consumer, member), second.channel() as other:
        wait_for(lambda: len(member._ahead) == MESSAGES - LIMIT, "the messages that are taken ahead")
        end(consumer)
        with Consumer(other, [Queue(name, routing_key=name)], callbacks=[others]):
            drain(second, others, MESSAGES)
    assert sorted(others.bodies) == list(range(MESSAGES))


Run = Callable[[Receiver], Any]


def with_receiver(connection: Connection, run: Run) -> Any:
    async def call() -> Any:
        return run(Receiver(Settings.of(connection), lambda: 0, lambda: 1, lambda *_: None))

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("paces", "most"), [([9, 9, 9], 0), ([99, 0, 99, 99], 0), ([1, 30, 7, 50, 40], 7), ([99] * 4, 32)]
)
def test_as_many_are_taken_ahead_as_ended_in_each_of_the_last_periods(
    connection: Connection, paces: list[int], most: int
) -> None:
    def most_ahead(member: Receiver) -> int:
        look_busy(member, *paces)
        return member._most_ahead()

    assert with_receiver(connection, most_ahead) == most


@pytest.mark.parametrize(
    ("ends_ms", "paces"),
    [
        ([1000], []),
        ([1001, 1002, 1003, 1026], [3]),
        ([1001, 1024, 1026, 1051, 1075], [2, 1, 1]),
        ([1001, 1026, 1051, 1099, 1101], [1, 1, 1, 1]),
        ([1001, 1026, 1051, 1101], []),
    ],
)
def test_a_period_in_which_nothing_ended_begins_anew(
    connection: Connection, ends_ms: list[int], paces: list[int]
) -> None:
    def noted(member: Receiver) -> list[int]:
        member._period = 40
        for end_ms in ends_ms:
            member._note_ends(1, end_ms / 1000 + 1e-6)
        return list(member._paces)

    assert with_receiver(connection, noted) == paces


def test_an_end_after_a_pause_takes_nothing_ahead(connection: Connection) -> None:
    def most_ahead(member: Receiver) -> int:
        look_busy(member)
        member._period = 0
        return member._most_ahead()

    assert not with_receiver(connection, most_ahead)


def test_what_is_given_back_too_often_becomes_no_dead_letter(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, received = 4, Received(ack=False)
    given, give_back = Counter[bytes](), Receiver.give_back

    async def counted(member: Receiver, message: PoppedMessage) -> None:
        given[message.body] += 1
        await give_back(member, message)

    monkeypatch.setattr(Receiver, "give_back", counted)
    monkeypatch.setattr(receiver, "_NOT_AHEAD_S", 0.0)  # as if each time were another busy worker's
    connection = connect(max_deliveries=most)
    with busy(connection, name, received) as (_, member):
        look_busy(member)
        for count in range(1, MESSAGES + 1):
            drain(connection, received, count)
            wait_for(lambda: not member._ahead, "messages that are given back or taken")
            received.messages[count - 1].ack()
    assert sorted(received.bodies) == list(range(MESSAGES))
    assert max(given.values()) <= most // 2
