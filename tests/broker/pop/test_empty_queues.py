"""Pops that wait for the first message of a queue: the queue is created by the message, and the message is found."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.pop.popping import GROUP, TOPIC, Popper, got
from tests.broker.wire import Connect, Wire

from cometmq.broker.controller import Broker
from cometmq.message.pop_info import pop_retry_topic
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.pop_headers import NotificationRequestHeader, PeekMessageRequestHeader
from cometmq.testing import VirtualClock

QUEUES = 4
WAYS: dict[str, dict[str, Any]] = {
    "of any queue": {},
    "of one queue": {"queue_id": 2},
    "from the end": {"init_mode": 1},
    "in order": {"order": True},
    "by message group": {"order": True, "by_message_group": True},
}


@pytest.fixture
async def made(wire: Wire, broker: Broker) -> Broker:
    """The broker, with a topic of which one queue has a message."""
    await wire.send(TOPIC, b"of another queue", queue_id=3)
    return broker


def known(broker: Broker) -> list[bool]:
    """Whether each queue of the topic is known to the store."""
    return [broker.store.find_queue(TOPIC, queue_id) is not None for queue_id in range(QUEUES)]


@pytest.mark.parametrize("way", WAYS)
async def test_waiting_creates_no_queues_and_the_first_messages_are_found(
    way: str, made: Broker, wire: Wire, connect: Connect, clock: VirtualClock
) -> None:
    popper = Popper(wire, clock)
    await popper.pop(**(WAYS[way] | {"queue_id": 3}))
    waiting = popper.command(poll_time=15_000, **WAYS[way])
    wire.post(waiting)
    await clock.run_for(1)
    assert waiting.opaque not in wire.answers
    assert known(made) == [False, False, False, True]
    retry = pop_retry_topic(TOPIC, GROUP)
    assert not made.store.queues().get(retry)
    producer = await connect()
    for body in (b"first", b"second", b"third"):
        await producer.send(TOPIC, body, queue_id=2)
    found = got(await wire.answer(waiting.opaque))
    while found[-1].body != b"third":
        await popper.ack(found[-1])
        found += await popper.pop(**WAYS[way])
    assert [message.body for message in found] == [b"first", b"second", b"third"]
    assert known(made) == [False, False, True, True]


async def test_a_notification_and_a_peek_create_no_queues(
    made: Broker, wire: Wire, connect: Connect, clock: VirtualClock
) -> None:
    await Popper(wire, clock).pop(queue_id=3)
    asked = NotificationRequestHeader(GROUP, TOPIC, -1, 15_000, clock.now_ms())
    waiting = wire.command(RequestCode.NOTIFICATION, asked)
    wire.post(waiting)
    peek = PeekMessageRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=-1, max_msg_nums=32)
    assert (await wire.call(RequestCode.PEEK_MESSAGE, peek)).code == ResponseCode.PULL_NOT_FOUND
    await clock.run_for(1)
    assert waiting.opaque not in wire.answers
    assert known(made) == [False, False, False, True]
    await (await connect()).send(TOPIC, b"first")
    assert (await wire.answer(waiting.opaque)).ext_fields["hasMsg"] == "true"


@pytest.mark.parametrize("way", ["of any queue", "in order"])
async def test_messages_of_a_topic_that_is_deleted_and_made_anew_are_found(
    way: str, made: Broker, wire: Wire, clock: VirtualClock
) -> None:
    popper = Popper(wire, clock)
    assert [message.body for message in await popper.pop(**WAYS[way])] == [b"of another queue"]
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": TOPIC})).code == 0
    assert known(made) == [False] * QUEUES
    await wire.send(TOPIC, b"anew", queue_id=1)
    waiting = popper.command(poll_time=15_000, queue_id=3, **WAYS[way])
    wire.post(waiting)
    await clock.run_for(1)
    assert known(made) == [False, True, False, False]
    await wire.send(TOPIC, b"again", queue_id=3)
    assert [message.body for message in got(await wire.answer(waiting.opaque))] == [b"again"]


async def test_pops_that_wait_for_empty_queues_look_at_the_offsets_only(
    made: Broker, wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues without messages do not make each pop that will wait look at all queues."""
    popper = Popper(wire, clock)
    for _ in range(2):
        await popper.pop()
    looked: list[tuple[str, int]] = []
    monkeypatch.setattr(made.store, "find_queue", lambda *place: looked.append(place))
    assert await popper.pop() == []
    assert looked == []
