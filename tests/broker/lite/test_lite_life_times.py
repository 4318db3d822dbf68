"""Messages of lite topics whose lives have ended, and dead letters that a crash tears off their entries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.broker.admin.test_topic_attributes import change
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import GROUP, PARENT, Got, Reader, bodies, got, make_group, make_parent
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records

from cometmq.message.properties import INNER_MULTI_DISPATCH, LITE_TOPIC
from cometmq.testing import VirtualClock

DEAD = f"%DLQ%{GROUP}"


@pytest.fixture
async def reader(wire: Wire, clock: VirtualClock) -> Reader:
    await make_parent(wire)
    await make_group(wire)
    reader = Reader(wire, clock)
    await reader.sync("a")
    return reader


async def send(wire: Wire, body: bytes, ttl_ms: int | None = None) -> None:
    life = "" if ttl_ms is None else f"\x02COMETMQ_TTL_MS\x01{ttl_ms}"
    answer = await wire.send(PARENT, body, properties=f"{LITE_TOPIC}\x01a{life}")
    assert answer.code == 0, answer


async def waited(reader: Reader) -> list[Got]:
    """The messages of a pop that waits while the broker passes over messages."""
    waiting = reader.command(poll_time=10_000)
    reader.wire.post(waiting)
    await reader.clock.skip(0.1)
    return got(await reader.wire.answer(waiting.opaque))


async def popped(reader: Reader) -> list[bytes]:
    return bodies(await waited(reader))


async def dead(reader: Reader) -> list[tuple[bytes, str | None]]:
    found = records(await reader.wire.pull(DEAD))
    assert all(INNER_MULTI_DISPATCH not in record.properties for record in found)
    return [(record.body, record.properties.get("COMETMQ_DEAD_REASON")) for record in found]


async def test_expired_messages_are_passed_over_in_order(reader: Reader) -> None:
    for n in range(150):
        await send(reader.wire, b"short %d" % n, 5_000)
    await send(reader.wire, b"first")
    await send(reader.wire, b"in between", 5_000)
    await send(reader.wire, b"last", 60_000)
    await reader.clock.skip(6)
    (first,) = await waited(reader)
    assert first.body == b"first"
    assert await reader.pop() == []
    await reader.ack(first)
    assert await popped(reader) == [b"last"]


async def test_a_message_whose_life_ends_at_a_consumer_is_not_retried(reader: Reader) -> None:
    await send(reader.wire, b"short", 5_000)
    await send(reader.wire, b"long")
    assert bodies(await reader.pop(max_msg_num=1, invisible_time=10_000)) == [b"short"]
    await reader.clock.skip(11)
    assert await popped(reader) == [b"long"]


async def test_expired_messages_become_dead_letters_if_the_topic_asks_for_that(
    reader: Reader, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    await change(reader.wire, "+expired.messages=dead-letter", PARENT)
    await send(reader.wire, b"0", 5_000)
    await send(reader.wire, b"1", 5_000)
    await send(reader.wire, b"2")
    assert bodies(await reader.pop(max_msg_num=1, invisible_time=10_000)) == [b"0"]
    await reader.clock.skip(11)
    assert await popped(reader) == [b"2"]
    letters = await dead(reader)
    assert [body for body, _ in letters] == [b"0", b"1"]
    assert all(reason for _, reason in letters)
    copy_store(tmp_path / "store", tmp_path / "again")
    again = Reader(await connect_to(await start_broker(store_path_root_dir=str(tmp_path / "again"))), reader.clock)
    await again.sync("a")
    assert await again.pop() == []
    assert await dead(again) == letters


async def test_a_dead_letter_that_a_crash_tears_off_is_made_again(
    reader: Reader, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    await send(reader.wire, b"dies")
    for _ in range(3):  # the group allows two retries
        assert bodies(await reader.pop(invisible_time=1_000)) == [b"dies"]
        await reader.clock.skip(1.1)
    (letter,) = records(await reader.wire.pull(DEAD))
    copy_store(tmp_path / "store", tmp_path / "again")
    (log,) = (tmp_path / "again" / "commitlog").iterdir()
    with open(log, "r+b") as file:
        file.seek(letter.physical_offset)
        file.write(bytes(os.path.getsize(log) - letter.physical_offset))
    again = Reader(await connect_to(await start_broker(store_path_root_dir=str(tmp_path / "again"))), reader.clock)
    await again.clock.skip(0)
    assert [body for body, _ in await dead(again)] == [b"dies"]
    await again.sync("a")
    assert await again.pop() == []
