"""The heartbeats that the endpoint of a broker sends to it for its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from cometmq.broker.limits import CLIENT_EXPIRY_SECONDS
from cometmq.message.names import retry_topic
from cometmq.proxy.backend.backend import ClientIdentity, Link, Reply
from cometmq.proxy.backend.local import LocalBackend, LocalLink
from cometmq.proxy.limits import HEARTBEAT_BROKER_SECONDS, HEARTBEATS_AT_ONCE, HEARTBEATS_PAUSE_SECONDS
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.remoting.codes import RequestCode
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


def of_group(client_id: str, *topics: str) -> HeartbeatData:
    wanted = [SubscriptionData(topic=topic, sub_version=1) for topic in topics]
    return HeartbeatData(client_id=client_id, consumer_data_set=[ConsumerData("G", subscription_data_set=wanted)])


@pytest.mark.parametrize("others", [("T",), ("T", "U", "V")])
async def test_the_topics_of_a_client_return_after_a_member_that_wanted_others(
    cluster: Cluster, clock: VirtualClock, others: tuple[str, ...]
) -> None:
    """As when the clients of a group are replaced one by one: the last heartbeat of an old one must not count on."""
    broker = cluster.broker(0)
    backend = LocalBackend(broker)
    links = [
        backend.connect(ClientIdentity(f"c@{number}", ("127.0.0.1", number), "JAVA"), lambda _request: None)
        for number in (1, 2)
    ]
    await links[0].register(of_group("c@1", "T", "U"))
    await links[1].register(of_group("c@2", *others))
    await links[1].close(None)
    group = broker.clients.consumers.get("G")
    assert group is not None
    assert group.subscriptions.keys() == set(others)
    await clock.run_for(HEARTBEAT_BROKER_SECONDS)
    assert group.subscriptions.keys() == {"T", "U"}
    await backend.stop()


async def test_a_client_that_the_broker_knows_needs_no_request(
    cluster: Cluster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.broker(0)
    backend = LocalBackend(broker)
    link = backend.connect(ClientIdentity("c@1", ("127.0.0.1", 1), "JAVA"), lambda _request: None)
    consumer = ConsumerData(group_name="G", subscription_data_set=[SubscriptionData(topic="T")])
    producers = data(1).producer_data_set
    await link.register(HeartbeatData(client_id="c@1", consumer_data_set=[consumer], producer_data_set=producers))
    requests: list[int] = []
    ask = LocalLink.ask

    def asked(link: LocalLink, broker: str, code: int, *rest: Any) -> Awaitable[Reply]:
        requests.append(code)
        return ask(link, broker, code, *rest)

    monkeypatch.setattr(LocalLink, "ask", asked)
    manager = broker.clients
    await clock.run_for(2 * CLIENT_EXPIRY_SECONDS)
    manager.expire()
    channels = manager.consumers.channels() + manager.producers.channels()
    assert len(channels) == 2
    assert all(clock.monotonic() - channel.last_update <= HEARTBEAT_BROKER_SECONDS for channel in channels)
    assert requests == []
    assert broker.topics.delete(retry_topic("G"))
    await clock.run_for(HEARTBEAT_BROKER_SECONDS)
    assert requests == [RequestCode.HEART_BEAT]
    assert broker.topics.get(retry_topic("G")) is not None
    await backend.stop()
