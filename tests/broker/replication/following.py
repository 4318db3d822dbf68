"""A master and its slave in this process, and what tests ask of both."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.testing import Cluster, wait_until

PATIENCE_S = 120
"""Of the virtual clock."""


async def connect(broker: Broker) -> Wire:
    return Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))


async def replicated(cluster: Cluster) -> None:
    """Wait until the slave has all of the master's log."""
    slave, master = cluster.slave(), cluster.broker(0)

    def has_all() -> bool:
        return slave.store.max_physical_offset == master.store.max_physical_offset

    assert await wait_until(cluster.clock, has_all, PATIENCE_S), slave.slave.follower.trouble


async def copied(cluster: Cluster) -> None:
    """Wait until the slave has all of the master's log, then let it copy the tables and files of this moment.

    Files count once the disk has the log up to where they say, which is flushed every half a second.
    """
    await replicated(cluster)
    await cluster.slave().slave.tables.copy()
    await asyncio.to_thread(lambda: None)
    store = cluster.slave().store
    assert await wait_until(cluster.clock, lambda: store.flushed_position == store.max_physical_offset, PATIENCE_S)
    await cluster.slave().slave.tables.copy()


async def bodies(broker: Broker, topic: str, queue_id: int = 0) -> list[bytes]:
    """Pull one queue as a consumer does."""
    wire = await connect(broker)
    found: list[bytes] = []
    while pulled := records(await wire.pull(topic, queue_id=queue_id, queue_offset=len(found))):
        found += [record.body for record in pulled]
    await wire.close()
    return found


def log_of(root: Path) -> dict[str, bytes]:
    """The files of a store's log."""
    return {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
