"""The gRPC port with certificates of its own (``tls.server.certPath``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tests.proxy.client import Client

from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.tls.own_authority import Authority
from cometmq.testing import Cluster

ROUTE = v2.QueryRouteRequest(topic=v2.Resource(name="T"))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(grpc=True, tls=True) as running:
        await running.create_topic("T")
        yield running


async def test_a_client_that_trusts_the_authority_is_served(cluster: Cluster) -> None:
    assert cluster.security.tls is not None
    assert cluster.security.tls.trust_cert_path is not None
    trusted = Path(cluster.security.tls.trust_cert_path).read_bytes()
    credentials = grpc.ssl_channel_credentials(trusted)
    async with grpc.aio.secure_channel(cluster.grpc_address, credentials) as channel:
        client = Client(channel)
        assert (await client.ask("QueryRoute", ROUTE)).status.code == Code.OK
        assert (await client.send("T", b"x" * 1024 * 1024)).status.code == Code.OK


async def test_a_client_that_trusts_another_authority_leaves(cluster: Cluster) -> None:
    credentials = grpc.ssl_channel_credentials(Authority.new("another", 1).issued.certificate)
    async with grpc.aio.secure_channel(cluster.grpc_address, credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await Client(channel).ask("QueryRoute", ROUTE, timeout=5)


async def test_plain_text_is_refused_where_tls_is_enforced(cluster: Cluster) -> None:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await Client(channel).ask("QueryRoute", ROUTE, timeout=5)
