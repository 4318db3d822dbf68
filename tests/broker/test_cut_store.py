"""A broker on a store that was cut goes on exactly as one whose store never had the bytes, with delays, timers,
transactions, pops and offsets."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.delayed import send_delayed, send_later
from tests.broker.pop.popping import got, pop_command
from tests.broker.transacting import COMMIT, end, send_half
from tests.broker.wire import Wire
from tests.helpers.contents import bodies
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.store.cut import PARTED, cut_log
from cometmq.store.message_store import MessageStore
from cometmq.testing import VirtualClock


async def work(broker: Broker, wire: Wire, clock: VirtualClock, name: str) -> None:
    """Messages of each kind, some of which are delivered, ended or handed out."""
    for number in range(5):
        await wire.send("T", f"{name}-{number}".encode())
    await send_delayed(wire, f"{name}-level".encode(), 1)
    await send_delayed(wire, f"{name}-longer".encode(), 3)
    await send_later(wire, f"{name}-timer".encode(), 2)
    await send_later(wire, f"{name}-later-timer".encode(), 40)
    await end(wire, await send_half(wire, f"{name}-ended"), COMMIT)
    await send_half(wire, f"{name}-open")
    await wire.send("Pops", f"{name}-pop".encode())
    await wire.send("Pops", f"{name}-another".encode())
    broker.turn.end()


async def use(broker: Broker, wire: Wire, clock: VirtualClock, offset: int) -> None:
    """Consume what is readable."""
    popped = await wire.ask(pop_command(wire, clock.now_ms(), topic="Pops", max_msg_nums=1))
    assert len(got(popped, topic="Pops")) == 1
    header = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext=header)).code == 0
    broker.turn.end()


def state(broker: Broker) -> dict[str, Any]:
    """What a client could see, and what the broker will do."""
    store = broker.store
    return {
        "queues": {
            queue.key: (queue.min_offset(), queue.max_offset())
            for queues in store.queues().values()
            for queue in queues.values()
            if queue.max_offset()
        },
        "offsets": {
            (topic, queue_id): broker.offsets.query("g", topic, queue_id)
            for topic in ("T", "Pops")
            for queue_id in (0, 1)
        },
        "levels": dict(broker.schedule.offsets()),
        "open": (broker.transactions.open.count, broker.transactions.open.offsets()),
        "pops": sorted(
            (queue.topic, queue.group, queue.queue_id, queue.next_offset, *queue.invisible.dump())
            for queue in broker.pops.log.state
        ),
        "timers": broker.timer.runtime_info()["timerOffsetBehind"],
    }


def delivered(broker: Broker) -> dict[str, list[bytes]]:
    return {topic: sorted(bodies(broker, topic)) for topic in ("T", "Delayed", "Later", "TxTopic", "Pops")}


async def settle(broker: Broker, clock: VirtualClock) -> None:
    """Let all delays run out."""
    for _ in range(120):
        clock.advance(0.5)
        await broker_round(broker)


async def broker_round(broker: Broker) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    broker.server.schedule_round()
    await asyncio.sleep(0)


async def test_after_a_cut_the_broker_goes_on_as_if_it_had_never_had_the_bytes(
    tmp_path: Path, connect_to: ConnectTo, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MessageStore.open

    def open_in_a_set(*args: Any, **options: Any) -> MessageStore:
        return real(*args, **(options | {"readable": 0}))

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "open", open_in_a_set)
        broker = Broker(small_config(tmp_path / "set", transaction_time_out=3_600_000), clock=clock)
        await broker.start()
    store = broker.store
    wire = await connect_to(broker)

    def confirm() -> None:
        store.confirm(store.max_physical_offset)

    await work(broker, wire, clock, "before")
    confirm()
    await use(broker, wire, clock, 3)
    confirm()
    for _ in range(16):  # the first delays end, and progress is saved
        clock.advance(0.5)
        await broker_round(broker)
        confirm()
    await until(lambda: store.stored_end("Later", 0) == 1 and store.stored_end("Delayed", 0) == 1)
    confirm()
    await broker.schedule.save()
    await broker.pops.save()
    await store.wait_kept(store.max_physical_offset)
    offsets = tmp_path / "set" / "store" / "config" / "consumerOffset.json"
    await until(lambda: offsets.exists() and "T@g" in offsets.read_text())
    offset = store.max_physical_offset
    shutil.copytree(tmp_path / "set", tmp_path / "short")

    await work(broker, wire, clock, "unconfirmed")
    await use(broker, wire, clock, 3)
    savers = [asyncio.ensure_future(save()) for save in (broker.schedule.save, broker.pops.save, broker.producers.save)]
    for _ in range(80):  # a confirmed message of level 3 is due, and its delivery is not confirmed
        clock.advance(0.5)
        await broker_round(broker)
    await until(lambda: store.stored_end("Delayed", 0) == 2)
    assert store.readable_end == offset
    assert store.max_physical_offset > offset + 1000
    await store.wait_flushed(store.max_physical_offset)
    shutil.copytree(tmp_path / "set", tmp_path / "long")
    for file in ("delayOffset.json", "pop.bin", "timer/position.json"):
        kept, saved = (tmp_path / name / "store" / "comet" / file for name in ("short", "long"))
        assert saved.read_bytes() == kept.read_bytes(), "files wait until the log keeps what they contain"
    store.give_up()
    await asyncio.gather(*savers)
    await broker.stop()

    cut_log(small_config(tmp_path / "long"), offset, 2)
    assert [path.name for path in (tmp_path / "long" / "store" / PARTED).iterdir()] == [f"2-{offset}"]
    states = []
    for name in ("short", "long"):
        own = VirtualClock(clock.now_ms())
        again = Broker(small_config(tmp_path / name, transaction_time_out=3_600_000), clock=own)
        await again.start()
        before = state(again)
        await settle(again, own)
        await until(lambda again=again: again.store.stored_end("Later", 0) == 2)  # type: ignore[misc]
        states.append((before, state(again), delivered(again)))
        await again.stop()
    short, long = states
    for one, other in zip(long, short, strict=True):
        assert one == other
    assert short[2]["Delayed"] == [b"before-level", b"before-longer"]
    assert short[2]["Later"] == [b"before-later-timer", b"before-timer"]
    assert not any(b"unconfirmed" in body for found in short[2].values() for body in found)
