"""What a client has popped comes again soon after its connections have closed, if it asked for that."""

from __future__ import annotations

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import GROUP, TOPIC, Popper
from tests.broker.wire import Wire
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.pop import left_behind
from cometmq.broker.pop.left_behind import GRACE_SECONDS
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock, settle


async def send(wire: Wire, *bodies: bytes) -> None:
    for body in bodies:
        assert (await wire.send(TOPIC, body, queue_id=0)).code == 0


@pytest.fixture
async def other(broker: Broker, connect_to: ConnectTo, clock: VirtualClock) -> Popper:
    return Popper(await connect_to(broker), clock)


@pytest.fixture
async def popper(wire: Wire, connect_to: ConnectTo, broker: Broker, clock: VirtualClock) -> Popper:
    """A consumer that dies in the test; its connection is not that of the sender."""
    return Popper(await connect_to(broker), clock)


async def close(popper: Popper, broker: Broker) -> None:
    before = len(broker.server.connections)
    await popper.wire.close()
    await until(lambda: len(broker.server.connections) < before)
    await settle()


async def test_messages_of_a_dead_client_come_again_within_a_second(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a", b"b", b"c")
    found = await popper.pop(owner="me")
    await popper.ack(found[1])
    await close(popper, broker)
    assert await other.pop() == []
    await clock.run_for(GRACE_SECONDS)
    assert [(m.body, m.times) for m in await other.pop()] == [(b"a", 1), (b"c", 1)]


async def test_a_client_that_dies_before_it_gets_the_answer(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock
) -> None:
    await send(popper.wire, b"a")
    popper.wire.post(popper.command(owner="me"))
    await close(popper, broker)
    assert await other.pop() == []
    await clock.run_for(GRACE_SECONDS)
    assert [(m.body, m.times) for m in await other.pop()] == [(b"a", 1)]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"}),
    ],
)
async def test_nothing_comes_back_to_what_was_deleted(
    wire: Wire, broker: Broker, popper: Popper, clock: VirtualClock, code: RequestCode, fields: dict[str, str]
) -> None:
    await send(wire, b"a")
    assert len(await popper.pop(owner="me")) == 1
    assert (await wire.call(code, ext=fields)).code == 0
    await close(popper, broker)
    await clock.run_for(GRACE_SECONDS)
    assert broker.pops._left._log.state.queues_of(TOPIC, GROUP) == []


async def test_many_messages_are_given_back_in_several_rounds(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "MESSAGES_AT_ONCE", 4)
    await send(wire, *(b"%d" % number for number in range(10)))
    assert len(await popper.pop(owner="me")) == 10
    await close(popper, broker)
    await clock.run_for(GRACE_SECONDS)
    first = await other.pop()
    assert 0 < len(first) < 10
    await clock.run_for(0.1)
    assert len(first) + len(await other.pop()) == 10


async def test_no_more_messages_are_remembered_than_the_limit_allows(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "MAX_MESSAGES", 3)
    await send(wire, *(b"%d" % number for number in range(5)))
    found = await popper.pop(owner="me", max_msg_nums=2, invisible_time=60_000)
    await other.ack(found[0])  # on another connection
    await popper.pop(owner="me", invisible_time=60_000)
    await close(popper, broker)
    await clock.run_for(GRACE_SECONDS)
    assert len(await other.pop()) == 3
    await clock.run_for(60)
    assert len(await other.pop()) >= 1


async def test_messages_that_were_acknowledged_on_other_connections_are_forgotten(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "FEW_MESSAGES", 2)
    for _ in range(20):
        await send(wire, b"a", b"b")
        for message in await popper.pop(owner="me"):
            await other.ack(message)
    assert len(broker.pops._left) < 10


async def test_without_an_owner_the_invisible_time_applies(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    await popper.pop(invisible_time=60_000)
    await close(popper, broker)
    await clock.run_for(59)
    assert await other.pop() == []
    await clock.run_for(1)
    assert [m.body for m in await other.pop()] == [b"a"]


async def test_a_renewed_message_comes_again_and_one_that_others_took_does_not(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"renewed", b"expired")
    renewed, _ = await popper.pop(owner="me", invisible_time=10_000)
    await popper.change(renewed, 60_000)
    await clock.run_for(10)
    assert [m.body for m in await other.pop(owner="other", invisible_time=60_000)] == [b"expired"]
    await close(popper, broker)
    await clock.run_for(GRACE_SECONDS)
    assert [m.body for m in await other.pop()] == [b"renewed"]


async def test_a_client_that_pops_on_a_new_connection_keeps_its_messages(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"kept")
    (kept,) = await popper.pop(owner="me")
    await close(popper, broker)
    await clock.run_for(GRACE_SECONDS / 2)
    await send(wire, b"next")
    assert [m.body for m in await other.pop(owner="me")] == [b"next"]
    await clock.run_for(10)
    assert (await other.ack(kept)).code == 0
    await close(other, broker)
    await clock.run_for(GRACE_SECONDS)
    third = Popper(wire, clock)
    assert [m.body for m in await third.pop()] == [b"next"]
    await clock.run_for(120)
    assert b"kept" not in [m.body for m in await third.pop()]


async def test_a_pop_that_finds_nothing_keeps_the_messages_too(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"kept")
    await popper.pop(owner="me")
    await close(popper, broker)
    assert await other.pop(owner="me") == []
    await clock.run_for(10)
    assert await Popper(wire, clock).pop() == []


async def test_a_restart_leaves_the_invisible_time(
    wire: Wire, broker: Broker, popper: Popper, clock: VirtualClock, start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    await send(wire, b"a")
    await popper.pop(owner="me", invisible_time=60_000)
    await broker.stop()
    again = await start_broker()
    third = Popper(await connect_to(again), clock)
    await clock.run_for(10)
    assert await third.pop() == []
    await clock.run_for(50)
    assert [m.body for m in await third.pop()] == [b"a"]


async def test_a_long_owner_is_refused(popper: Popper, wire: Wire) -> None:
    await send(wire, b"a")
    answer = await popper.answer(owner="x" * 1_025)
    assert answer.remark == "the owner has 1025 characters, the maximum is 1024"


async def test_a_stranger_neither_holds_nor_frees_the_messages_of_another_group(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    await popper.pop(owner="me")
    stranger = Popper(await connect_to(broker), clock, group="strangers")
    assert [m.body for m in await stranger.pop(owner="me")] == [b"a"]
    await close(popper, broker)
    await clock.run_for(GRACE_SECONDS)
    assert [m.body for m in await other.pop()] == [b"a"]


async def test_a_connection_has_owners_in_a_limited_number_of_groups(
    wire: Wire, broker: Broker, popper: Popper, other: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "MAX_OWNED_GROUPS_OF_CONNECTION", 2)
    await send(wire, b"a")
    for group in ("first", "second", "first"):
        assert (await popper.answer(consumer_group=group, owner="me")).code in (0, 210)
    refused = await popper.answer(consumer_group="third", owner="me")
    assert refused.remark == "this connection has pops with an owner for 2 groups, the maximum; use another connection"
    assert (await popper.answer(consumer_group="third")).code == 0
    assert (await other.answer(consumer_group="third", owner="me")).code == 210
    await close(popper, broker)
    await close(other, broker)
    assert not broker.pops._left._groups_of
