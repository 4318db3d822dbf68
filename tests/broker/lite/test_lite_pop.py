"""Pops, acknowledgements and changes of lite topics over the wire, on a clock that moves; also after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import PARENT, Reader, bodies, got, make_group, make_parent, send
from tests.broker.snapshots import copy_store
from tests.broker.wire import Connect, Wire, records

from cometmq.broker.controller import Broker
from cometmq.message.properties import INNER_MULTI_DISPATCH
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock


@pytest.fixture
async def reader(wire: Wire, clock: VirtualClock) -> Reader:
    await make_parent(wire)
    await make_group(wire)
    return Reader(wire, clock)


async def test_each_lite_topic_is_read_in_order_and_one_does_not_block_another(wire: Wire, reader: Reader) -> None:
    await reader.sync("a", "b")
    await send(wire, "a", b"a0", b"a1", b"a2")
    await send(wire, "b", b"b0", queue_id=1)
    await send(wire, "c", b"c0")
    first = await reader.pop(max_msg_num=2)
    assert [(m.body, m.offset, m.times) for m in first] == [(b"a0", 0, 0), (b"a1", 1, 0)]
    other = await reader.pop()
    assert bodies(other) == [b"b0"]
    assert await reader.pop() == []
    await reader.ack(first[0])
    assert await reader.pop() == []
    await reader.ack(first[1], code=RequestCode.ACK_LITE_MESSAGE)
    assert bodies(await reader.pop()) == [b"a2"]


async def test_a_message_names_its_queue_as_apache_does(wire: Wire, reader: Reader) -> None:
    await send(wire, "a", b"a0", b"a1")
    (_, second) = records(await wire.pull(PARENT, queue_offset=0))
    assert second.properties[INNER_MULTI_DISPATCH] == "%LMQ%$Sessions$a"
    assert second.properties["INNER_MULTI_QUEUE_OFFSET"] == "1"
    assert second.properties["KEYS"] == "k"


async def test_what_is_not_acknowledged_comes_again_and_then_becomes_a_dead_letter(
    wire: Wire, reader: Reader, clock: VirtualClock
) -> None:
    await reader.sync("a")
    await send(wire, "a", b"a0", b"a1")
    for times in range(3):  # the group allows two retries
        (message,) = await reader.pop(max_msg_num=1, invisible_time=10_000)
        assert (message.body, message.times) == (b"a0", times)
        await clock.run_for(9.9)
        assert await reader.pop() == []
        await clock.run_for(0.2)
    assert bodies(await reader.pop()) == [b"a1"]
    (dead,) = records(await wire.pull("%DLQ%readers", queue_offset=0))
    assert (dead.body, dead.properties["__LITE_TOPIC"]) == (b"a0", "a")
    assert INNER_MULTI_DISPATCH not in dead.properties


async def test_the_same_attempt_gets_the_same_messages(wire: Wire, reader: Reader) -> None:
    await reader.sync("a")
    await send(wire, "a", b"a0")
    assert bodies(await reader.pop(attempt_id="one")) == [b"a0"]
    await reader.sync("a")
    assert await reader.pop(attempt_id="two") == []
    (again,) = await reader.pop(attempt_id="one")
    assert (again.body, again.times) == (b"a0", 0)


async def test_a_change_moves_the_time_of_a_message(wire: Wire, reader: Reader, clock: VirtualClock) -> None:
    await reader.sync("a")
    await send(wire, "a", b"a0")
    (message,) = await reader.pop(invisible_time=10_000)
    await reader.change(message, 30_000)
    await clock.run_for(29.9)
    assert await reader.pop() == []
    await clock.run_for(0.2)
    (message,) = await reader.pop(invisible_time=60_000)
    await reader.change(message, 0)
    assert [m.times for m in await reader.pop()] == [2]


async def test_a_waiting_pop_is_answered_when_a_message_arrives(
    wire: Wire, reader: Reader, connect: Connect, clock: VirtualClock
) -> None:
    await reader.sync("a")
    other = await connect()
    waiting = reader.command(poll_time=20_000)
    wire.post(waiting)
    await send(other, "b", b"b0")
    await send(other, "a", b"a0")
    assert bodies(got(await wire.answer(waiting.opaque))) == [b"a0"]


async def test_a_waiting_pop_is_answered_when_a_lock_ends(
    wire: Wire, reader: Reader, connect_to: ConnectTo, broker: Broker, clock: VirtualClock
) -> None:
    await reader.sync("a")
    await send(wire, "a", b"a0", b"a1")
    (first,) = await reader.pop(max_msg_num=1)
    other = await connect_to(broker)
    second = Reader(other, clock, "c2")
    await second.sync("a")
    waiting = second.command(poll_time=20_000)
    other.post(waiting)
    await reader.ack(first)
    assert bodies(got(await other.answer(waiting.opaque))) == [b"a1"]


@pytest.mark.parametrize("saved", [True, False])
async def test_progress_survives_a_crash(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, saved: bool
) -> None:
    wire, clock = reader.wire, reader.clock
    await reader.sync("a", "b")
    await send(wire, "a", b"a0", b"a1", b"a2")
    await send(wire, "b", b"b0")
    first = await reader.pop(max_msg_num=2)
    await reader.ack(first[0])
    if saved:
        await broker.lite.save()
    await send(wire, "b", b"b1")
    copy_store(tmp_path / "store", tmp_path / "again")
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    again = Reader(await connect_to(restarted), clock)
    await again.sync("a", "b")
    assert bodies(await again.pop()) == [b"b0", b"b1"]
    await again.ack(first[1])
    assert bodies(await again.pop()) == [b"a2"]


async def test_a_suspension_holds_for_the_whole_pop_and_its_delivery_does_not_count(
    wire: Wire, reader: Reader, clock: VirtualClock
) -> None:
    """As in Apache's broker, where only the first delivery of a message counts in any case."""
    await reader.sync("a")
    await send(wire, "a", b"a0", b"a1", b"a2")
    times = []
    for _ in range(5):  # the group allows two retries
        found = await reader.pop(max_msg_num=2)
        assert bodies(found) == [b"a0", b"a1"]
        times.append([message.times for message in found])
        await reader.change(found[1], 5_000, suspend=True)
        await clock.run_for(4.9)
        assert await reader.pop() == []
        await clock.run_for(0.2)
    assert times == [[0, 0], *[[1, 0]] * 4], "only the first one uses attempts"
    found = await reader.pop(max_msg_num=2)
    await reader.change(found[0], 0)
    await reader.change(found[1], 0)
    assert [message.times for message in await reader.pop(max_msg_num=2)] == [2, 0]


@pytest.mark.parametrize("saved", [True, False])
async def test_only_the_first_message_dies_and_the_next_one_has_all_its_attempts_also_after_a_crash(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, saved: bool
) -> None:
    clock = reader.clock
    await reader.sync("a")
    await send(reader.wire, "a", b"a0", b"a1")
    for first, expected in enumerate([[b"a0", b"a1"], [b"a1"]]):
        for times in range(3):  # the group allows two retries
            found = await reader.pop(invisible_time=10_000)
            assert [message.body for message in found] == expected
            assert [message.times for message in found] == [times, 0][: len(found)]
            await clock.run_for(10.1)
        dead = records(await reader.wire.pull("%DLQ%readers", queue_offset=0))
        assert [record.body for record in dead] == [b"a0", b"a1"][: first + 1]
        if saved:
            await broker.lite.save()
        store = tmp_path / f"after {first}"
        copy_store(Path(broker.config.store_path_root_dir), store)
        broker = await start_broker(store_path_root_dir=str(store))
        reader = Reader(await connect_to(broker), clock)
        await reader.sync("a")
    assert await reader.pop() == []


async def test_a_message_behind_one_that_is_redelivered_alone_has_all_its_attempts(reader: Reader) -> None:
    await reader.sync("a")
    await send(reader.wire, "a", b"a0", b"a1")
    assert len(await reader.pop(invisible_time=10_000)) == 2
    await reader.clock.run_for(10.1)
    (first,) = await reader.pop(max_msg_num=1)
    await reader.ack(first)
    (second,) = await reader.pop()
    assert (first.times, second.body, second.times) == (1, b"a1", 0)
