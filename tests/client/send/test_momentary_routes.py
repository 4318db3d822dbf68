"""A route that is not there for a moment: nameservers and brokers restart while producers and consumers begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import real_time

from cometmq.client import ConsumeFromWhere, Message, Producer, ProducerConfig, PushConfig, PushConsumer
from cometmq.client.errors import ClientError, RemotingConnectError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing import Cluster, VirtualClock, free_port


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(clock=clock, broker_keys={"autoCreateTopicEnable": "false"}) as cluster:
        await cluster.create_topic("orders", queues=1)
        yield cluster


Forget = Callable[..., None]


@pytest.fixture
def forget(cluster: Cluster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Forget:
    """The nameserver knows no topic for so many seconds, nor any broker unless told otherwise."""

    def lack(seconds: float, *, brokers: bool = False) -> None:
        routes = cluster.namesrv.routes
        known, info = routes.route, routes.cluster_info
        back_at = clock.monotonic() + seconds
        monkeypatch.setattr(routes, "route", lambda *asked: known(*asked) if clock.monotonic() >= back_at else None)
        if not brokers:
            monkeypatch.setattr(
                routes, "cluster_info", lambda *asked: info(*asked) if clock.monotonic() >= back_at else type(info())()
            )

    return lack


SEND_WAYS: dict[str, Callable[[Producer], Any]] = {
    "send": lambda producer: producer.send(Message("orders", b"x")),
    "send_many": lambda producer: producer.send_many([Message("orders", b"x")] * 3),
    "send_batch": lambda producer: producer.send_batch([Message("orders", b"x")] * 3),
    "send_oneway": lambda producer: producer.send_oneway(Message("orders", b"x")),
}


@pytest.mark.parametrize("way", SEND_WAYS)
async def test_a_first_send_waits_for_a_nameserver_that_was_just_started(
    cluster: Cluster, clock: VirtualClock, forget: Forget, way: str
) -> None:
    forget(2.0)
    async with Producer("p", instance=cluster.client_instance()) as producer:
        began = clock.monotonic()
        await clock.run_until(SEND_WAYS[way](producer), 10)
        assert clock.monotonic() - began >= 1.9
        await clock.run_for(1)
    assert cluster.broker(0).store.queue("orders", 0).max_offset() in (1, 3)


async def test_a_topic_that_is_being_made_is_asked_for_again(
    cluster: Cluster, clock: VirtualClock, forget: Forget
) -> None:
    forget(1.0, brokers=True)
    async with Producer("p", instance=cluster.client_instance()) as producer:
        await clock.run_until(producer.send(Message("orders", b"x")), 10)


@pytest.mark.parametrize("way", SEND_WAYS)
async def test_a_topic_that_does_not_exist_is_told_within_two_seconds(
    cluster: Cluster, clock: VirtualClock, forget: Forget, way: str
) -> None:
    forget(60.0, brokers=True)
    async with Producer("p", instance=cluster.client_instance(), config=ProducerConfig(send_timeout_s=30)) as producer:
        began = clock.monotonic()
        with pytest.raises(ClientError, match="orders") as caught:
            await clock.run_until(SEND_WAYS[way](producer), 60)
        assert clock.monotonic() - began < 2.0
        first = getattr(caught.value, "outcomes", (caught.value,))[0]
        assert isinstance(first, RouteNotFoundError)
        assert "create the topic" in (first.next_step or "")


async def test_brokers_that_stay_away_fail_the_send_when_its_time_is_up(
    cluster: Cluster, clock: VirtualClock, forget: Forget
) -> None:
    forget(60.0)
    async with Producer("p", instance=cluster.client_instance()) as producer:
        began = clock.monotonic()
        with pytest.raises(RouteNotFoundError):
            await clock.run_until(producer.send(Message("orders", b"x"), timeout_s=5), 60)
        assert 4.0 <= clock.monotonic() - began <= 5.0


async def test_a_consumer_starts_beside_a_nameserver_that_was_just_started(
    cluster: Cluster, clock: VirtualClock, forget: Forget
) -> None:
    seen: list[bytes] = []

    async def listener(messages: Any) -> None:
        seen.extend(message.body for message in messages)

    async with Producer("p", instance=cluster.client_instance()) as producer:
        await clock.run_until(producer.send(Message("orders", b"x")), 10)
    forget(2.0)
    config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("workers", listener, config=config, instance=cluster.client_instance())
    await consumer.subscribe("orders")
    await clock.run_until(consumer.start(), 10)
    await clock.run_for(2)
    assert seen == [b"x"]
    await clock.run_until(consumer.close(), 30)


async def test_what_one_nameserver_does_not_know_the_others_are_asked_for(
    cluster: Cluster, clock: VirtualClock, tmp_path: Path
) -> None:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    fresh = NameServer(config, clock=clock)
    await fresh.start()
    try:
        both = f"127.0.0.1:{fresh.port};{cluster.namesrv_address}"
        for _ in range(4):  # whichever comes first
            began = clock.monotonic()
            async with Producer("p", instance=ClientInstance(both, clock=clock)) as producer:
                await clock.run_until(producer.send(Message("orders", b"x")), 10)
            assert clock.monotonic() - began < 0.05
    finally:
        await fresh.stop()


async def test_a_nameserver_that_is_started_a_moment_later_is_waited_for(cluster: Cluster) -> None:
    port = free_port("127.0.0.1")
    async with Producer("p", f"127.0.0.1:{port}") as producer:
        with pytest.raises(RemotingConnectError):
            await producer.send(Message("orders", b"x"), timeout_s=0.2)
        sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
        await real_time(0.1)  # some tries meanwhile, which nothing else shows
        proxy = await asyncio.start_server(_to(cluster.namesrv_address), "127.0.0.1", port)
        await sending
    proxy.close()


def _to(address: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    host, _, port = address.partition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

    return serve
