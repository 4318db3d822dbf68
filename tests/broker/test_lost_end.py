"""A broker whose log has lost its end: what it says of messages that are gone is true of no new ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.delayed import send_delayed
from tests.broker.send.sequences import open_producer, send
from tests.broker.wire import Wire, records
from tests.helpers.contents import bodies
from tests.helpers.waiting import until

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from cometmq.testing import VirtualClock


def lose(root: Path, start: int) -> None:
    """Let the log end at ``start``."""
    (log,) = (root / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(start)
        file.write(bytes(log.stat().st_size - start))


async def commit(wire: Wire, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=offset)
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS


async def committed(wire: Wire) -> int:
    query = QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0)
    return int((await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, query)).ext_fields["offset"])


@pytest.mark.parametrize("position", ["kept", "gone"])
async def test_a_group_that_had_read_what_is_lost_gets_every_new_message(
    position: str, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    """Without a position file offsets are given again, and the group goes on at the end of the queue."""
    first = await start_broker()
    wire = await connect_to(first)
    for number in range(5):
        await wire.send("T", b"left %d" % number, queue_id=0)
    end = first.store.max_physical_offset
    for number in range(10):
        await wire.send("T", b"lost %d" % number, queue_id=0)
    await commit(wire, 15)
    await first.stop()
    lose(tmp_path / "store", end)
    if position == "gone":
        (tmp_path / "store" / "comet" / "position.json").unlink()
    second = await start_broker()
    wire = await connect_to(second)
    offset = await committed(wire)
    assert offset == (15 if position == "kept" else 5)
    for number in range(12):
        await wire.send("T", b"new %d" % number, queue_id=0)
    found = records(await wire.pull("T", queue_id=0, queue_offset=offset))
    assert [record.body for record in found] == [b"new %d" % number for number in range(12)]
    assert [record.body for record in records(await wire.pull("T", queue_id=0))][:5] == [
        b"left %d" % number for number in range(5)
    ]


async def test_an_offset_of_a_queue_that_lost_nothing_stays(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    for _ in range(5):
        await wire.send("T", queue_id=0)
    await commit(wire, 3)
    await first.stop()
    assert await committed(await connect_to(await start_broker())) == 3


async def test_a_delayed_message_whose_delivery_is_lost_is_delivered_again(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    await send_delayed(wire, b"kept", 1)
    await clock.run_for(1)
    await until(lambda: bodies(first, "Delayed") == [b"kept"])
    await send_delayed(wire, b"again", 1)
    end = first.store.max_physical_offset
    await clock.run_for(1)
    await until(lambda: bodies(first, "Delayed") == [b"kept", b"again"])
    await first.stop()
    lose(tmp_path / "store", end)
    second = await start_broker()
    await clock.run_for(1)
    await until(lambda: bodies(second, "Delayed") == [b"kept", b"again"])
    await second.stop()
    third = await start_broker()
    await clock.run_for(1)
    assert bodies(third, "Delayed") == [b"kept", b"again"]


async def test_a_producer_with_a_sequence_is_told_what_is_lost(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    await open_producer(wire)
    assert (await send(wire, range(3))).code == ResponseCode.SUCCESS
    end = first.store.max_physical_offset
    assert (await send(wire, range(3, 6))).code == ResponseCode.SUCCESS
    await first.stop()
    lose(tmp_path / "store", end)
    second = await start_broker()
    wire = await connect_to(second)
    opened = await open_producer(wire)
    assert opened.lanes["T/0"].next == 3
    assert (await send(wire, range(6, 9), epoch=opened.epoch)).code == ResponseCode.SEQUENCE_GAP
    assert (await send(wire, range(3, 6), epoch=opened.epoch)).code == ResponseCode.SUCCESS
