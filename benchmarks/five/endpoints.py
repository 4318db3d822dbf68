"""A fresh endpoint of either system for a measurement: nameserver, and broker and endpoint in one process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.servers import JAVA
from tests.helpers.waiting import wait_for
from tests.interop import probe, systems
from tests.interop.five.apache_endpoint import start_apache
from tests.interop.five.tables import Endpoint, make_group, make_topic, wait_until_ready
from tests.interop.systems import Server, System

from cometmq.remoting.client import RemotingClient
from cometmq.testing import free_port

SIDES: Final = (System.APACHE55, System.COMETMQ)
KEYS: Final = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "true"}
QUEUES: Final = 8


@contextmanager
def endpoint(
    system: System, topics: tuple[str, ...], groups: tuple[str, ...], keys: Mapping[str, str] = KEYS
) -> Iterator[tuple[Server, str]]:
    """A fresh system with topics of eight queues (Apache: proxyMode LOCAL, a heap of 1 GB).

    :returns: the broker's process, and the endpoint's address.
    """
    with tempfile.TemporaryDirectory(prefix="bench-five-") as name:
        directory = Path(name)
        with systems.start_namesrv(system, directory / "namesrv") as namesrv:
            if system is System.COMETMQ:
                address = f"127.0.0.1:{free_port()}"
                own = {**keys, "grpcServerPort": address.rpartition(":")[2]}
                server = systems.start_broker(system, directory / "broker", namesrv.address, own)
            else:
                server, address = start_apache(directory / "broker", namesrv.address, keys, JAVA)
            with server:
                wait_for(lambda: probe.port_open(address), "the endpoint answers", 60)
                asyncio.run(_prepare(Endpoint(address, server.address, namesrv.address), topics, groups))
                yield server, address


async def _prepare(at: Endpoint, topics: tuple[str, ...], groups: tuple[str, ...]) -> None:
    """Make topics and groups: Apache's endpoint makes none."""
    async with RemotingClient() as client:
        for topic in topics:
            await make_topic(client, at.broker, topic, "NORMAL", queues=QUEUES)
        for group in groups:
            await make_group(client, at.broker, group)
    await wait_until_ready(at, topics)
