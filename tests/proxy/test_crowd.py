"""A thousand clients of RocketMQ 5 at one broker, each with a connection, settings, and a receive that waits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.proxy.crowd import crowd

from cometmq import descriptors
from cometmq.client.admin import Admin
from cometmq.testing import ProcessCluster, free_port

CLIENTS = 1_000
MEMORY_BYTES = 150 * 1024 * 1024


async def test_a_thousand_waiting_clients_fit_into_150_mb() -> None:
    descriptors.raise_limit()
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic("T")
        async with crowd(port, CLIENTS, "T", "G") as clients:
            for _ in range(2):
                await asyncio.gather(*(client.heartbeat() for client in clients))
            statm = Path(f"/proc/{cluster.brokers[0].pid}/statm").read_text()
            assert int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") < MEMORY_BYTES
            assert not any(client.lost for client in clients)
