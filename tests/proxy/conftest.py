"""A cluster with an endpoint for clients of RocketMQ 5, and a client of gRPC's own library."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from tests.proxy.client import Client

from cometmq.testing import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(grpc=True, broker_keys={"recallMessageEnable": "true"}) as running:
        await running.create_topic("T")
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        yield Client(channel)
