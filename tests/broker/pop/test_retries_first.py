"""Pops with ``retriesFirst``: what comes again is among the next messages, and never all of them."""

from __future__ import annotations

import pytest
from tests.broker.pop.popping import GROUP, TOPIC, Got, Popper
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.message.properties import PRIORITY
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.testing import VirtualClock

BACKLOG = 60
NEXT = 2
"""Number of pops of one message in which a message that was given back comes."""


@pytest.fixture
def popper(wire: Wire, clock: VirtualClock) -> Popper:
    return Popper(wire, clock)


def make_topic(broker: Broker, kind: str) -> None:
    levels = 4 if kind == "PRIORITY" else 1
    broker.topics.put(
        TopicConfig(
            topic_name=TOPIC, read_queue_nums=levels, write_queue_nums=levels, attributes={"message.type": kind}
        )
    )


async def send(wire: Wire, *bodies: bytes, level: int = 0) -> None:
    for body in bodies:
        answer = await wire.send(TOPIC, body, queue_id=0, properties=f"{PRIORITY}\x01{level}")
        assert answer.code == 0, answer


async def next_one(popper: Popper) -> Got:
    (found,) = await popper.pop(max_msg_nums=1, retries_first=True)
    return found


async def give_back(popper: Popper, clock: VirtualClock, message: Got) -> None:
    await popper.change(message, 0)
    await clock.run_for(0.2)


@pytest.mark.parametrize("kind", ["NORMAL", "PRIORITY"])
async def test_a_message_that_was_given_back_is_among_the_next_ones(
    wire: Wire, popper: Popper, broker: Broker, clock: VirtualClock, kind: str
) -> None:
    make_topic(broker, kind)
    await send(wire, *(b"%d" % number for number in range(BACKLOG)))
    for round_ in range(10):
        message = await next_one(popper)
        await give_back(popper, clock, message)
        found = [await next_one(popper) for _ in range(NEXT)]
        assert message.body in [one.body for one in found], f"round {round_}: {found}"
        for one in found:
            await popper.ack(one)


@pytest.mark.parametrize("kind", ["NORMAL", "PRIORITY"])
async def test_one_that_is_given_back_again_and_again_stops_no_other(
    wire: Wire, popper: Popper, broker: Broker, clock: VirtualClock, kind: str
) -> None:
    make_topic(broker, kind)
    broker.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=1_000))
    await send(wire, b"poison", *(b"%d" % number for number in range(BACKLOG)))
    done: list[bytes] = []
    poisoned = 0
    for _ in range(2 * BACKLOG + 1):
        found = await next_one(popper)
        if found.body == b"poison":
            poisoned += 1
            await give_back(popper, clock, found)
        else:
            await popper.ack(found)
            done.append(found.body)
    assert done == [b"%d" % number for number in range(BACKLOG)]
    assert poisoned == BACKLOG + 1


async def test_two_groups_in_turn_do_not_take_each_others_turns(
    wire: Wire, broker: Broker, clock: VirtualClock
) -> None:
    make_topic(broker, "NORMAL")
    await send(wire, *(b"%d" % number for number in range(BACKLOG)))
    poppers = [Popper(wire, clock, group) for group in ("first", "second")]
    messages = [await next_one(popper) for popper in poppers]
    for popper, message in zip(poppers, messages, strict=True):
        await give_back(popper, clock, message)
    found = [[(await next_one(popper)).body for popper in poppers] for _ in range(NEXT)]
    assert [b"0" in of_group for of_group in zip(*found, strict=True)] == [True, True]


async def test_a_more_urgent_message_comes_before_those_that_were_given_back(
    wire: Wire, popper: Popper, broker: Broker, clock: VirtualClock
) -> None:
    make_topic(broker, "PRIORITY")
    await send(wire, b"first", level=1)
    await send(wire, b"second", level=2)
    await send(wire, b"third", level=1)
    for message in await popper.pop(retries_first=True):
        await popper.change(message, 0)
        await clock.run_for(0.01)
    await clock.run_for(0.2)
    await send(wire, b"fourth", level=3)
    found = [message.body for message in await popper.pop(retries_first=True)]
    assert found == [b"fourth", b"second", b"first", b"third"]


async def test_without_the_field_the_order_is_that_of_apache(
    wire: Wire, popper: Popper, broker: Broker, clock: VirtualClock
) -> None:
    make_topic(broker, "PRIORITY")
    await send(wire, *(b"%d" % number for number in range(BACKLOG)))
    (message,) = await popper.pop(max_msg_nums=1)
    await give_back(popper, clock, message)
    found = [(await popper.pop(max_msg_nums=1))[0].body for _ in range(BACKLOG)]
    assert found == [*(b"%d" % number for number in range(1, BACKLOG)), b"0"]
