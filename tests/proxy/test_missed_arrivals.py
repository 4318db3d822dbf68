"""Before Apache's brokers, which miss messages that arrive while a pop begins to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.helpers.request_hooks import add_hooks
from tests.helpers.waiting import until
from tests.proxy.client import Client, receive

from cometmq.proxy.converter import duration
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.proxy_config import ProxyConfig
from cometmq.proxy.standalone import FleetProxy
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.processors import RpcHook
from cometmq.testing import Cluster, VirtualClock

WAITING = receive("T", "G", "broker-0", long_polling_timeout=duration(20_000))


@pytest.fixture
async def timed() -> AsyncIterator[Cluster]:
    async with Cluster(clock=VirtualClock()) as cluster:
        await cluster.create_topic("T")
        yield cluster


@pytest.fixture
async def client(timed: Cluster) -> AsyncIterator[Client]:
    config = ProxyConfig(namesrv_addr=timed.namesrv_address, bind_address="127.0.0.1", grpc_server_port=0)
    proxy = FleetProxy(config, clock=timed.clock)
    await proxy.start()
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        client = Client(channel)
        await client.subscribe("G", "T")
        yield client
    await proxy.stop()


@pytest.fixture
def clock(timed: Cluster) -> VirtualClock:
    assert isinstance(timed.clock, VirtualClock)
    return timed.clock


async def is_held(cluster: Cluster) -> None:
    await until(lambda: cluster.brokers[0].pops.polling.is_waiting("T", "G"))


async def test_a_message_that_a_broker_did_not_see_comes_within_a_second(
    timed: Cluster, clock: VirtualClock, client: Client
) -> None:
    """After the consumer's start and after each message; it came only after the whole wait of 20 seconds."""
    on_arrival = timed.brokers[0].store.batch.on_arrival
    for text in (b"one", b"two"):
        receiving = asyncio.create_task(client.receive(WAITING))
        await is_held(timed)
        listeners = list(on_arrival)
        on_arrival.clear()
        assert (await client.send("T", text)).status.code == Code.OK
        on_arrival.extend(listeners)
        await clock.run_for(1.1)
        await until(receiving.done, timeout_s=10)
        assert [answer.message.body for answer in (await receiving)[1:-1]] == [text]


async def test_an_idle_consumer_asks_rarely_and_waits_as_long_as_it_wants(
    timed: Cluster, clock: VirtualClock, client: Client
) -> None:
    waits: list[int] = []

    def seen(_peer: str, request: Any, _body: bytes) -> None:
        if request.code == RequestCode.POP_MESSAGE:
            waits.append(request.header.poll_time)

    add_hooks(timed.brokers[0].server, RpcHook(before=seen))
    for _ in range(2):
        receiving = asyncio.create_task(client.receive(WAITING))
        await is_held(timed)
        if len(waits) == 1:
            await clock.run_for(1)
            await until(lambda: len(waits) == 2)
        await is_held(timed)
        await clock.run_for(18.5)
        assert not receiving.done()
        await clock.run_for(1.5)
        await until(receiving.done, timeout_s=10)
        assert [answer.status.code for answer in (await receiving)[:1]] == [Code.MESSAGE_NOT_FOUND]
    assert waits == [1_000, pytest.approx(19_000, abs=100), 20_000]
