"""What Apache's POP has lost or doubled, by the number of the issue at github.com/apache/rocketmq: not here."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.disks import FailingDisk, HeldDisk
from tests.broker.pop.popping import GROUP, TOPIC, Popper
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock


@pytest.fixture
def popper(wire: Wire, clock: VirtualClock) -> Popper:
    return Popper(wire, clock)


async def send(wire: Wire, *bodies: bytes, properties: str = "") -> None:
    for body in bodies:
        assert (await wire.send(TOPIC, body, queue_id=0, properties=properties)).code == 0


async def test_7914_with_acks_at_random_every_message_without_one_comes_again(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    rng = random.Random(1)
    left = {b"%d" % n for n in range(60)}
    await send(wire, *sorted(left))
    for _ in range(12):
        for message in await popper.pop(max_msg_nums=rng.randint(1, 32), invisible_time=1_000):
            if rng.random() < 0.5:
                await popper.ack(message)
                left.remove(message.body)
        await clock.run_for(rng.choice([0.1, 1]))
    await clock.run_for(1)
    seen: set[bytes] = set()
    for _ in range(5):
        seen |= {message.body for message in await popper.pop()}
    assert seen == left


async def test_7724_what_comes_again_is_the_message_itself_also_between_others_of_another_tag(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    for n in range(10):
        await send(wire, b"%d" % n, properties=f"TAGS\x01{'ab'[n % 2]}")
    messages = await popper.pop(exp="a", invisible_time=1_000)
    assert [m.body for m in messages] == [b"0", b"2", b"4", b"6", b"8"]
    await popper.batch_ack(messages[:4])
    await clock.run_for(1)
    assert [m.body for m in await popper.pop(exp="a")] == [b"8"]


async def test_8479_a_topic_that_is_made_again_has_nothing_of_the_old_one(
    wire: Wire, popper: Popper, broker: Broker, clock: VirtualClock
) -> None:
    await send(wire, *(b"old %d" % n for n in range(5)))
    old = await popper.pop(invisible_time=1_000)
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": TOPIC})).code == 0
    await send(wire, b"new")
    await clock.run_for(2)
    assert broker.pops.state.in_flight(TOPIC, GROUP) == 0
    await popper.ack(old[0])
    assert [m.body for m in await popper.pop()] == [b"new"]


async def test_3787_a_slow_consumer_that_acknowledges_one_by_one_gets_nothing_twice(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, *(b"%d" % n for n in range(32)))
    for message in await popper.pop(invisible_time=60_000):
        await clock.run_for(1.5)
        await popper.ack(message)
    await clock.run_for(30)
    assert await popper.pop() == []


async def test_8900_what_was_acknowledged_after_retries_is_no_dead_letter(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    for _ in range(3):
        await popper.pop(invisible_time=1_000)
        await clock.run_for(1)
    (message,) = await popper.pop(invisible_time=1_000)
    assert message.times == 3
    await popper.ack(message)
    await clock.run_for(60)
    assert await popper.pop() == []
    assert (await wire.pull(f"%DLQ%{GROUP}")).code == 17


async def test_10276_a_change_to_the_very_time_it_had_loses_nothing(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"a")
    (message,) = await popper.pop(invisible_time=10_000)
    await clock.run_for(4)
    await popper.change(message, 6_000)
    await clock.run_for(5.9)
    assert await popper.pop() == []
    await clock.run_for(0.2)
    assert [(m.body, m.times) for m in await popper.pop()] == [(b"a", 1)]


async def test_an_ack_that_arrives_before_the_time_is_over_wins_and_one_after_it_loses(
    wire: Wire, popper: Popper, clock: VirtualClock
) -> None:
    await send(wire, b"early", b"late")
    early, late = await popper.pop(invisible_time=1_000)
    await clock.run_for(0.999)
    await popper.ack(early)
    await clock.run_for(0.001)
    await popper.ack(late)
    assert [(m.body, m.times) for m in await popper.pop()] == [(b"late", 1)]


async def test_what_cannot_be_stored_has_not_happened(
    tmp_path_factory: pytest.TempPathFactory, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path_factory.mktemp("failing")), clock=clock, disk=disk)
    await broker.start()
    try:
        popper = Popper(await connect_to(broker), clock)
        await send(popper.wire, b"a", b"b", b"c")
        a, _ = await popper.pop(max_msg_nums=2, invisible_time=10_000)
        disk.write_error = errno.ENOSPC
        assert (await popper.answer()).code == 14
        assert (await popper.ack(a)).code == 14
        await clock.run_for(11)
        disk.write_error = None
        await clock.run_for(1)
        seen = [*await popper.pop(), *await popper.pop()]
        assert sorted((m.body, m.times) for m in seen) == [(b"a", 1), (b"b", 1), (b"c", 0)]
    finally:
        await broker.stop()


async def test_messages_whose_pop_a_power_cut_takes_back_come_again(
    tmp_path: Path, start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    """The offsets of consumers are behind popped messages, and must not be on the disk before the POP log is."""
    disk = HeldDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    popper = Popper(await connect_to(broker), clock)
    await send(popper.wire, b"a")
    flushed = broker.store.max_physical_offset
    await broker.store.wait_flushed(flushed)
    disk.hold()
    assert [message.body for message in await popper.pop()] == [b"a"]
    saving = asyncio.create_task(broker.offsets.save_in_background())
    await asyncio.wait([saving], timeout=0.5)
    copy_store(tmp_path / "store", tmp_path / "cut" / "store")
    disk.go_on()
    await saving
    await broker.stop()
    log = min((tmp_path / "cut" / "store" / "commitlog").iterdir())
    log.write_bytes(log.read_bytes()[:flushed].ljust(log.stat().st_size, b"\0"))
    again = await start_broker(store_path_root_dir=str(tmp_path / "cut" / "store"))
    popper = Popper(await connect_to(again), clock)
    assert [message.body for message in await popper.pop()] == [b"a"]
