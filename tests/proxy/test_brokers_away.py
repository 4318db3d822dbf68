"""`cometmq proxy` sends to other brokers while one is restarted, and receives from it wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import msgspec
import pytest
from tests.proxy.client import Client

from cometmq.broker.turn.targets import NotServingError, RefusedError
from cometmq.client import Message
from cometmq.proxy.backend.backend import ClientIdentity, Reply
from cometmq.proxy.backend.fleet import AWAY_SECONDS, FleetBackend
from cometmq.proxy.errors import BrokerAwayError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, MessageType
from cometmq.proxy.proxy_config import ProxyConfig
from cometmq.proxy.standalone import FleetProxy
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.pop_headers import PopMessageRequestHeader
from cometmq.remoting.security import Security
from cometmq.testing import Cluster, VirtualClock

QUEUES = 4
STOPS = NotServingError("the broker is shutting down")
MAY_BE_STORED = RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "send the message again")


@pytest.fixture
async def fleet() -> AsyncIterator[Cluster]:
    async with Cluster(2) as running:
        await running.create_topic("T", QUEUES)
        await running.create_topic("TX", QUEUES, message_type="TRANSACTION")
        yield running


@pytest.fixture
async def client(fleet: Cluster) -> AsyncIterator[Client]:
    proxy = FleetProxy(ProxyConfig(namesrv_addr=fleet.namesrv_address, bind_address="127.0.0.1", grpc_server_port=0))
    await proxy.start()
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        yield Client(channel)
    await proxy.stop()


async def _send_over_all_queues(client: Client, topic: str, kind: MessageType) -> list[v2.SendMessageResponse]:
    return [await client.send(topic, b"%d" % number, message_type=kind) for number in range(2 * QUEUES)]


@pytest.mark.parametrize(("topic", "kind"), [("T", MessageType.NORMAL), ("TX", MessageType.TRANSACTION)])
async def test_no_send_fails_while_a_broker_is_away(
    fleet: Cluster, client: Client, topic: str, kind: MessageType
) -> None:
    await _send_over_all_queues(client, topic, kind)  # the route has both brokers now
    await fleet.kill_broker(0)
    for answer in await _send_over_all_queues(client, topic, kind):
        assert answer.status.code == Code.OK, answer


async def test_messages_of_a_group_keep_to_their_queue(fleet: Cluster, client: Client) -> None:
    await fleet.create_topic("F", QUEUES, message_type="FIFO")
    await client.send("F", b"x", message_group="g", message_type=MessageType.FIFO)
    await fleet.kill_broker(0)
    groups = [f"g{number}" for number in range(4 * QUEUES)]
    answers = [await client.send("F", b"x", message_group=one, message_type=MessageType.FIFO) for one in groups]
    assert {answer.status.code for answer in answers} == {Code.OK, Code.INTERNAL_SERVER_ERROR}


@pytest.mark.parametrize(
    ("topic", "kind", "reason", "codes"),
    [
        ("T", MessageType.NORMAL, STOPS, {Code.OK}),
        ("TX", MessageType.TRANSACTION, STOPS, {Code.OK}),
        ("T", MessageType.NORMAL, MAY_BE_STORED, {Code.OK}),
        ("TX", MessageType.TRANSACTION, MAY_BE_STORED, {Code.OK, Code.INTERNAL_SERVER_ERROR}),
    ],
)
async def test_another_broker_stores_what_a_stopping_broker_refuses_unless_both_may_store_a_transaction(
    fleet: Cluster, client: Client, topic: str, kind: MessageType, reason: RefusedError, codes: set[Code]
) -> None:
    fleet.broker(0).turn.forbid(reason)
    assert {answer.status.code for answer in await _send_over_all_queues(client, topic, kind)} == codes


async def test_a_send_fails_with_the_reason_when_no_broker_is_left(fleet: Cluster, client: Client) -> None:
    await client.send("T", b"x")
    for index in (0, 1):
        await fleet.kill_broker(index)
    answer = await client.send("T", b"x")
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert "connect" in answer.status.message


async def test_a_receive_from_a_broker_that_is_away_or_stops_fails_after_a_pause() -> None:
    clock = VirtualClock()
    async with Cluster(clock=clock) as cluster:
        await cluster.create_topic("T")
        backend = FleetBackend((cluster.namesrv_address,), security=Security(), clock=clock)
        link = backend.connect(ClientIdentity("c", ("127.0.0.1", 1), "JAVA"), lambda _request: None)
        header = PopMessageRequestHeader("G", "T", -1, 32, 30_000, 5_000, clock.now_ms(), init_mode=0, order=False)

        async def receive() -> Reply:
            answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

            def done(reply: Reply | BaseException) -> None:
                if isinstance(reply, BaseException):
                    answer.set_exception(reply)
                else:
                    answer.set_result(reply)

            link.pop("broker-0", msgspec.structs.replace(header, born_time=clock.now_ms()), done)
            return await answer

        await clock.run_until(backend.topic("T"), 5)
        await cluster.send(Message("T", b"x"))
        assert (await clock.run_until(receive(), 5)).code == ResponseCode.SUCCESS
        await cluster.stop_broker(0)
        for _ in range(2):
            began = clock.monotonic()
            with pytest.raises(BrokerAwayError):
                await clock.run_until(receive(), 5)
            assert clock.monotonic() - began == pytest.approx(AWAY_SECONDS)
        broker = await cluster.start_broker(0)
        await cluster.send(Message("T", b"y"))
        assert (await clock.run_until(receive(), 5)).code == ResponseCode.SUCCESS
        broker.pops.polling.stop()
        began = clock.monotonic()
        assert (await clock.run_until(receive(), 5)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert clock.monotonic() - began == pytest.approx(AWAY_SECONDS)
        await backend.stop()
