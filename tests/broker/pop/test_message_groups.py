"""Ordered pops by message group: one group that waits stops no other, over the wire, also after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.pop.popping import GROUP, TOPIC, Popper, got
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records

from cometmq.broker import limits
from cometmq.broker.controller import Broker
from cometmq.broker.pop import order, ordered_choice
from cometmq.testing import VirtualClock

BY_GROUP: dict[str, Any] = {"order": True, "by_message_group": True, "invisible_time": 10_000, "queue_id": 0}


@pytest.fixture
def popper(wire: Wire, clock: VirtualClock) -> Popper:
    return Popper(wire, clock)


async def send(wire: Wire, *bodies: str) -> None:
    """Send messages to queue 0; the first letter is the message group, ``-`` stands for none."""
    for body in bodies:
        properties = "" if body[0] == "-" else f"__SHARDINGKEY\x01{body[0]}\x02"
        answer = await wire.send(TOPIC, body.encode(), queue_id=0, properties=properties)
        assert answer.code == 0, answer


async def pop(popper: Popper, most: int = 32, **fields: Any) -> list[str]:
    return [m.body.decode() for m in await popper.pop(**(BY_GROUP | {"max_msg_nums": most} | fields))]


async def test_a_message_group_that_waits_for_an_acknowledgement_stops_no_other(wire: Wire, popper: Popper) -> None:
    await send(wire, "a1", "a2", "b1", "a3", "b2", "-1", "-2")
    (a1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    (b1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    assert (a1.body, b1.body) == (b"a1", b"b1")
    assert await pop(popper, 1) == ["-1"], "messages without a group are one group"
    assert await pop(popper) == []
    await popper.ack(b1)
    assert await pop(popper) == ["b2"]
    await popper.ack(a1)
    assert await pop(popper) == ["a2", "a3"]
    assert await pop(popper) == []


async def test_an_acknowledgement_wakes_a_pop_that_waits_for_the_next_message_of_its_group(
    wire: Wire, popper: Popper
) -> None:
    await send(wire, "a1", "b1", "a2")
    a1, _ = await popper.pop(**BY_GROUP, max_msg_nums=2)
    waiting = popper.command(**BY_GROUP, poll_time=15_000)
    wire.post(waiting)
    await popper.ack(a1)
    assert [m.body for m in got(await wire.answer(waiting.opaque))] == [b"a2"]


async def test_an_attempt_that_is_repeated_gets_its_messages_again_and_no_other_does(
    wire: Wire, popper: Popper
) -> None:
    await send(wire, "a1", "b1", "a2", "b2")
    assert await pop(popper, 1, attempt_id="one") == ["a1"]
    assert await pop(popper, 1, attempt_id="two") == ["b1"]
    assert await pop(popper, 1, attempt_id="three") == []
    again = await popper.answer(**(BY_GROUP | {"max_msg_nums": 1, "attempt_id": "one"}))
    assert [m.body for m in got(again)] == [b"a1"]
    assert again.ext_fields["orderCountInfo"] == "0 0 0", "the same attempt is no delivery again"
    assert await pop(popper, 1, attempt_id="two") == ["b1"]


async def test_a_group_whose_time_is_over_comes_again_in_order_while_another_is_held(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, "a1", "b1", "a2", "b2")
    a1, _, a2, _ = await popper.pop(**BY_GROUP)
    await popper.change(a1, 60_000)
    await popper.change(a2, 60_000)
    waiting = popper.command(**BY_GROUP, poll_time=15_000)
    wire.post(waiting)
    await clock.run_for(10)
    answer = await wire.answer(waiting.opaque)
    assert [m.body for m in got(answer)] == [b"b1", b"b2"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0", "b2 is behind b1"
    await popper.ack(a1)
    assert await pop(popper) == [], "a2 is held still"
    await clock.run_for(50)
    assert await pop(popper) == ["b1", "a2", "b2"]


async def restarted(
    broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> tuple[Broker, Popper]:
    """The broker after a crash."""
    root, left = tmp_path / "store", tmp_path / "left"
    copy_store(root, left)
    await broker.cut_off()
    await broker.stop()
    shutil.rmtree(root)
    left.rename(root)
    broker = await start_broker()
    return broker, Popper(await connect_to(broker), clock)


async def test_after_a_crash_groups_wait_as_before_and_nothing_that_waited_is_lost(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, "a1", "a2", "b1", "a3", "b2")
    (a1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    assert await pop(popper) == ["b1", "b2"]
    assert broker.pops.state.in_flight(TOPIC, GROUP) == 3, "what waits is not in flight"
    broker, popper = await restarted(broker, start_broker, connect_to, clock, tmp_path)
    assert broker.offsets.query(GROUP, TOPIC, 0) == 0
    await send(popper.wire, "a4", "c1")
    assert await pop(popper) == ["c1"]
    await popper.ack(a1)
    assert await pop(popper) == ["a2", "a3", "a4"]


async def test_a_message_handed_out_for_the_last_time_is_a_dead_letter_while_another_group_is_held(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    group = broker.groups.find(GROUP)
    assert group is not None
    group.retry_max_times = 1
    await send(popper.wire, "a1", "b1", "a2")
    assert await pop(popper, 1, invisible_time=1_000) == ["a1"]
    assert await pop(popper, 1, invisible_time=60_000) == ["b1"]
    await clock.run_for(1)
    assert await pop(popper, 1, invisible_time=1_000) == ["a1"]
    await clock.run_for(1)
    assert await pop(popper, 1) == ["a2"]
    broker, popper = await restarted(broker, start_broker, connect_to, clock, tmp_path)
    (dead,) = records(await popper.wire.pull(f"%DLQ%{GROUP}"))
    assert dead.body == b"a1"
    assert await pop(popper) == []


async def test_only_the_first_message_of_each_group_dies_and_the_next_one_begins_its_attempts(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    group = broker.groups.find(GROUP)
    assert group is not None
    group.retry_max_times = 1
    await send(popper.wire, "a1", "b1", "a2", "b2", "a3")
    expected = {
        ("a1", "b1", "a2", "b2", "a3"): ["0 0 0", "0 qo0%0 1;0 qo0%1 1;0 0 0"],
        ("a2", "b2", "a3"): ["0 0 0", "0 qo0%2 1;0 qo0%3 1;0 0 0"],
        ("a3",): ["0 0 0", "0 qo0%4 1;0 0 1"],
    }
    for bodies, counts in expected.items():
        for info in counts:
            answer = await popper.answer(**(BY_GROUP | {"invisible_time": 1_000}))
            assert [m.body.decode() for m in got(answer)] == list(bodies)
            assert answer.ext_fields["orderCountInfo"] == info
            broker, popper = await restarted(broker, start_broker, connect_to, clock, tmp_path)
            await clock.run_for(1)
    dead = records(await popper.wire.pull(f"%DLQ%{GROUP}"))
    assert [record.body for record in dead] == [b"a1", b"b1", b"a2", b"b2", b"a3"]
    assert await pop(popper) == []


async def test_pops_in_the_order_of_the_queue_wait_for_all_groups_and_take_what_waited(
    wire: Wire, popper: Popper
) -> None:
    await send(wire, "a1", "a2", "b1", "a3")
    (a1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    (b1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    assert await pop(popper, by_message_group=None) == []
    await popper.ack(b1)
    assert await pop(popper, by_message_group=None) == []
    await popper.ack(a1)
    answer = await popper.answer(**(BY_GROUP | {"by_message_group": None}))
    assert [m.body for m in got(answer)] == [b"a2", b"a3"]
    assert answer.ext_fields["orderCountInfo"] == "0 0 0"


async def test_a_handle_made_up_for_a_message_that_waits_does_nothing(wire: Wire, popper: Popper) -> None:
    await send(wire, "a1", "a2", "b1")
    (a1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    await pop(popper)
    forged = a1.handle._replace(pop_time=order.WAITING.pop_time, queue_offset=1)
    assert (await popper.ack(a1, forged)).code == 0
    await popper.change(a1, 0, forged)
    await popper.ack(a1)
    assert await pop(popper) == ["a2"]


async def test_new_messages_stop_at_the_limit_and_go_on_when_there_is_room(
    wire: Wire, popper: Popper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (limits, order, ordered_choice):
        monkeypatch.setattr(module, "MAX_ORDERED_MESSAGES", 4)
    await send(wire, "a1", "a2", "a3", "a4", "a5", "b1")
    (a1,) = await popper.pop(**BY_GROUP, max_msg_nums=1)
    waiting = popper.command(**BY_GROUP, poll_time=15_000)
    wire.post(waiting)
    await send(wire, "c1")
    await popper.ack(a1)
    assert [m.body for m in got(await wire.answer(waiting.opaque))] == [b"a2", b"a3", b"a4", b"a5"]
    assert await pop(popper) == []


async def test_a_message_behind_one_of_its_group_that_is_redelivered_alone_has_all_its_attempts(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, "a1", "b1", "a2", "b2")
    short = BY_GROUP | {"invisible_time": 1_000}
    assert len(await popper.pop(**short)) == 4
    await clock.run_for(1)
    (a1,) = await popper.pop(**short, max_msg_nums=1)
    broker, popper = await restarted(broker, start_broker, connect_to, clock, tmp_path)
    await popper.ack(a1)
    answer = await popper.answer(**short)
    assert [m.body for m in got(answer)] == [b"b1", b"a2", b"b2"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0", "a2 was behind a1, and b1 was the first of b"
