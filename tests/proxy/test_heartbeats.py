"""The heartbeats that the endpoint of a broker sends to it for its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cometmq.proxy.backend.backend import ClientIdentity, Link
from cometmq.proxy.backend.local import LocalBackend
from cometmq.proxy.limits import HEARTBEAT_BROKER_SECONDS, HEARTBEATS_AT_ONCE, HEARTBEATS_PAUSE_SECONDS
from cometmq.remoting.bodies import HeartbeatData, ProducerData
from cometmq.testing import Cluster, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(clock=clock) as running:
        yield running


def data(number: int) -> HeartbeatData:
    return HeartbeatData(client_id=f"c@{number}", producer_data_set=[ProducerData(group_name="P")])


async def registered(backend: LocalBackend, number: int) -> Link:
    link = backend.connect(ClientIdentity(f"c@{number}", ("127.0.0.1", number), "JAVA"), lambda _request: None)
    await link.register(data(number))
    return link


def forget(cluster: Cluster) -> None:
    """Let the broker forget its producers."""
    producers = cluster.broker(0).clients.producers
    for connection in list(producers.groups.get("P", {})):
        producers.unregister("P", connection)


def known(cluster: Cluster) -> int:
    return len(cluster.broker(0).clients.producers.groups.get("P", {}))


async def test_a_client_is_registered_again_until_it_leaves(cluster: Cluster, clock: VirtualClock) -> None:
    backend = LocalBackend(cluster.broker(0))
    link = await registered(backend, 1)
    for _ in range(2):
        forget(cluster)
        await clock.run_for(HEARTBEAT_BROKER_SECONDS - 1)
        assert known(cluster) == 0
        await clock.run_for(1)
        assert known(cluster) == 1
    await link.close(data(1))
    assert known(cluster) == 0
    await clock.run_for(2 * HEARTBEAT_BROKER_SECONDS)
    assert known(cluster) == 0
    await backend.stop()


async def test_many_clients_take_turns(cluster: Cluster, clock: VirtualClock) -> None:
    backend = LocalBackend(cluster.broker(0))
    count = 2 * HEARTBEATS_AT_ONCE + 1
    for number in range(count):
        await registered(backend, number)
    forget(cluster)
    await clock.run_for(HEARTBEAT_BROKER_SECONDS)
    assert known(cluster) == HEARTBEATS_AT_ONCE
    await clock.run_for(2 * HEARTBEATS_PAUSE_SECONDS)
    assert known(cluster) == count
    await backend.stop()
    forget(cluster)
    await clock.run_for(2 * HEARTBEAT_BROKER_SECONDS)
    assert known(cluster) == 0
