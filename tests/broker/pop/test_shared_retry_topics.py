"""Groups and topics with underscores in their names, whose retry topics have one name."""

from __future__ import annotations

import pytest
from tests.broker.conftest import ConnectTo
from tests.broker.pop.popping import Popper
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.pop_headers import NotificationRequestHeader, PeekMessageRequestHeader
from cometmq.testing import VirtualClock

SHARED = "%RETRY%a_b_c"


@pytest.fixture
async def poppers(wire: Wire, clock: VirtualClock) -> tuple[Popper, Popper]:
    """Two groups, each with a message of its own topic in flight for ten seconds."""
    both = Popper(wire, clock, "a", "b_c"), Popper(wire, clock, "a_b", "c")
    for popper in both:
        assert (await wire.send(popper.topic, popper.topic.encode(), queue_id=0)).code == 0
        assert len(await popper.pop(invisible_time=10_000)) == 1
    return both


async def test_each_group_gets_its_own_messages_again(
    poppers: tuple[Popper, Popper], broker: Broker, clock: VirtualClock
) -> None:
    for times in (1, 2, 3):
        await clock.run_for(10)
        for popper in poppers:
            (again,) = await popper.pop(invisible_time=10_000)
            assert (again.body.decode(), again.record.topic, again.times) == (popper.topic, popper.topic, times)
            assert again.record.properties["ORIGIN_GROUP"] == popper.group
            assert await popper.pop() == []
    assert broker.store.queue(SHARED, 0).max_offset() == 6
    await clock.run_for(10)
    for popper in poppers:
        (again,) = await popper.pop(invisible_time=10_000)
        await popper.ack(again)
    await clock.run_for(60)
    assert [await popper.pop() for popper in poppers] == [[], []]


async def test_nothing_shows_a_group_the_messages_of_the_other(
    poppers: tuple[Popper, Popper], wire: Wire, connect_to: ConnectTo, broker: Broker, clock: VirtualClock
) -> None:
    first, second = poppers
    waiting = Popper(await connect_to(broker), clock, second.group, second.topic)
    await clock.run_for(10)
    (again,) = await second.pop(invisible_time=60_000)
    command = waiting.command(poll_time=15_000)
    waiting.wire.post(command)
    await clock.run_for(1)
    assert command.opaque not in waiting.wire.answers
    for popper, has in ((first, "true"), (second, "false")):
        asked = NotificationRequestHeader(popper.group, popper.topic, -1, 0, clock.now_ms())
        answer = await wire.call(RequestCode.NOTIFICATION, asked)
        assert answer.ext_fields["hasMsg"] == has
        peeked = await wire.call(RequestCode.PEEK_MESSAGE, PeekMessageRequestHeader(popper.group, popper.topic, -1, 32))
        assert [record.body for record in records(peeked)] == ([b"b_c"] if popper is first else [])
    await second.ack(again)


async def test_copies_without_a_group_come_to_both(
    poppers: tuple[Popper, Popper], wire: Wire, clock: VirtualClock
) -> None:
    await clock.run_for(10)
    assert (await wire.send(SHARED, b"stored before", queue_id=0)).code == 0
    for popper in poppers:
        assert {message.body for message in await popper.pop()} == {popper.topic.encode(), b"stored before"}


@pytest.mark.parametrize("more", ["x", "x" * 32_700], ids=["short", "as long as properties may be"])
async def test_a_message_that_names_another_group_comes_again(wire: Wire, clock: VirtualClock, more: str) -> None:
    popper = Popper(wire, clock, "a", "b_c")
    assert (await wire.send("b_c", b"resent", properties=f"ORIGIN_GROUP\x01a_b\x02k\x01{more}", queue_id=0)).code == 0
    for times in range(4):
        (record,) = records(await popper.answer(invisible_time=10_000))
        assert (record.body, record.reconsume_times, record.properties["k"]) == (b"resent", times, more)
        await clock.run_for(10)
