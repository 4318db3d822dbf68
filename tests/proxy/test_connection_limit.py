"""``serverMaxConnections`` also limits the connections of the gRPC endpoint."""

from __future__ import annotations

import asyncio

import pytest
from tests.proxy.wire import HELLO

from cometmq.testing import Cluster


async def _open(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HELLO)
    return reader, writer


async def test_more_grpc_connections_than_the_limit_are_refused_and_others_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Cluster(grpc=True, broker_keys={"serverMaxConnections": "2"}) as cluster:
        opened = [await _open(cluster.grpc_address) for _ in range(2)]
        for reader, _ in opened:
            assert await reader.readexactly(9), "the server's settings"
        refused, writer = await _open(cluster.grpc_address)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await refused.readexactly(1)
        assert "refusing connections: 2 are open (serverMaxConnections)" in caplog.text
        opened[0][1].close()
        for _, each in [*opened, (refused, writer)]:
            each.close()
