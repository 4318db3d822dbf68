"""Lite topics and parent topics that were removed and made again before a crash; what a start reads from the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import PARENT, Reader, bodies, expire, make_group, make_parent, send
from tests.broker.snapshots import copy_store

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.testing import VirtualClock


@pytest.fixture
async def reader(broker: Broker, connect_to: ConnectTo, clock: VirtualClock) -> Reader:
    wire = await connect_to(broker)
    await make_parent(wire, attributes="+message.type=LITE,+lite.topic.expiration=60")
    await make_group(wire)
    return Reader(wire, clock)


async def again(start_broker: StartBroker, connect_to: ConnectTo, reader: Reader, tmp_path: Path) -> Reader:
    """The same client at a broker that starts from what is on the disk now."""
    copy_store(tmp_path / "store", tmp_path / "again")
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    return Reader(await connect_to(restarted), reader.clock)


@pytest.mark.parametrize("saved", [True, False])
async def test_a_lite_topic_that_was_removed_and_made_again_keeps_its_messages(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, saved: bool
) -> None:
    await reader.sync("a")
    await send(reader.wire, "a", b"old", b"older")
    await reader.ack(*await reader.pop())
    if saved:
        await broker.lite.save()
    await reader.sync()
    await reader.clock.skip(7_200)
    await expire(broker)
    assert broker.lite.indexes.count == 0
    await send(reader.wire, "a", b"new", b"newer")
    started = await again(start_broker, connect_to, reader, tmp_path)
    await started.sync("a")
    assert bodies(await started.pop()) == [b"new", b"newer"]


@pytest.mark.parametrize("saved", [True, False])
async def test_a_parent_topic_that_was_deleted_and_made_again_keeps_its_messages(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, saved: bool
) -> None:
    wire = reader.wire
    await reader.sync("a", "b")
    await send(wire, "a", b"old", b"older")
    await reader.ack(*await reader.pop())
    if saved:
        await broker.lite.save()
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": PARENT})).code == 0
    await make_parent(wire)
    await send(wire, "b", b"0", b"1", b"2")
    await send(wire, "a", b"new")
    started = await again(start_broker, connect_to, reader, tmp_path)
    await started.sync("a", "b")
    found = await started.pop()
    assert sorted(bodies(found)) == [b"0", b"1", b"2", b"new"]
    assert [message.offset for message in found if message.lite == "b"] == [0, 1, 2]
