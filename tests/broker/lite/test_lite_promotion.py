"""A slave takes over, and then its own slave: what groups have read of lite topics, also where messages are deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from tests.broker.lite.subscribing import Reader, bodies, expire, make_group, make_parent, send
from tests.broker.replication.following import connect, copied
from tests.broker.wire import Wire

from cometmq.broker.controller import Broker
from cometmq.testing import Cluster, VirtualClock

FILE_BYTES = 64 * 1024
KEYS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "maxMessageSize": "16384",
    "fileReservedTime": "24",
}


async def fill_and_delete(cluster: Cluster, wire: Wire, until: int) -> None:
    """Send messages of another topic until retention can delete the log before a position, on both brokers."""
    while cluster.broker(0).store.max_physical_offset < until // FILE_BYTES * FILE_BYTES + 2 * FILE_BYTES:
        assert (await wire.send("Other", bytes(10_000))).code == 0
    await copied(cluster)
    for broker in (cluster.broker(0), cluster.slave()):
        await delete(broker, until, cast(VirtualClock, cluster.clock))


async def delete(broker: Broker, until: int, clock: VirtualClock) -> None:
    for path in sorted(Path(broker.config.commit_log).iterdir()):
        if int(path.name) + FILE_BYTES <= until:
            os.utime(path, (0, 0))
    await clock.run_for(2)
    broker.store.delete_expired_files()
    assert broker.store.min_physical_offset == until // FILE_BYTES * FILE_BYTES


async def promoted(cluster: Cluster) -> Reader:
    await copied(cluster)
    await cluster.kill_broker(0)
    wire = await connect(await cluster.promote_slave())
    return Reader(wire, cluster.clock)


async def test_a_promoted_slave_goes_on_where_each_group_was(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock, broker_keys=KEYS) as cluster:
        wire = await connect(cluster.broker(0))
        await make_parent(wire)
        await make_group(wire)
        await copied(cluster)
        reader = Reader(wire, clock)
        await reader.sync("a", "b")
        await send(wire, "a", b"a0", b"a1", b"a2")
        await send(wire, "b", b"b0")
        first = await reader.pop(max_msg_num=2)
        await reader.ack(first[0])
        await wire.close()
        reader = await promoted(cluster)
        await reader.sync("a", "b")
        assert bodies(await reader.pop()) == [b"b0"]
        await reader.ack(first[1])
        assert bodies(await reader.pop()) == [b"a2"]
        await reader.wire.close()


async def test_messages_after_a_promotion_are_not_hidden_by_what_was_read_before(clock: VirtualClock) -> None:
    """Retention deletes messages while the entry for their acknowledgement is left; two slaves take over in turn."""
    async with Cluster(slaves=1, clock=clock, broker_keys=KEYS) as cluster:
        wire = await connect(cluster.broker(0))
        await make_parent(wire)
        await make_group(wire)
        await copied(cluster)
        reader = Reader(wire, clock)
        await reader.sync("a")
        await send(wire, "a", *[b"old"] * 9)
        read = cluster.broker(0).store.max_physical_offset
        while cluster.broker(0).store.max_physical_offset < read + FILE_BYTES:
            assert (await wire.send("Other", bytes(10_000))).code == 0
        await reader.ack(*await reader.pop())
        await fill_and_delete(cluster, wire, read // FILE_BYTES * FILE_BYTES + FILE_BYTES)
        await wire.close()
        reader = await promoted(cluster)
        await send(reader.wire, "a", b"new")
        await cluster.start_slave()
        await reader.wire.close()
        reader = await promoted(cluster)
        await send(reader.wire, "a", b"newer")
        await reader.sync("a")
        assert bodies(await reader.pop()) == [b"new", b"newer"]
        await reader.wire.close()


async def test_a_promoted_slave_keeps_what_a_group_has_not_read_though_its_entries_are_deleted(
    clock: VirtualClock,
) -> None:
    async with Cluster(slaves=1, clock=clock, broker_keys=KEYS) as cluster:
        wire = await connect(cluster.broker(0))
        await make_parent(wire, attributes="+message.type=LITE,+lite.topic.expiration=60")
        for group in ("readers", "others"):
            await make_group(wire, group)
        await copied(cluster)
        readers, others = (Reader(wire, clock, name, name) for name in ("readers", "others"))
        for reader in (readers, others):
            await reader.sync("a")
        await send(wire, "a", b"read")
        await readers.ack(*await readers.pop())
        await fill_and_delete(cluster, wire, FILE_BYTES)
        await send(wire, "a", b"unread")
        found = await others.pop()
        await others.ack(*found)
        await wire.close()
        reader = await promoted(cluster)
        reader.group = "readers"
        await clock.skip(7_200)
        await expire(cluster.broker(0))
        await reader.sync("a")
        assert bodies(await reader.pop()) == [b"unread"]
        await reader.wire.close()
