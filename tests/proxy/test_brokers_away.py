"""`cometmq proxy` sends to other brokers while one is restarted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from tests.proxy.client import Client

from cometmq.broker.turn.targets import RefusedError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, MessageType
from cometmq.proxy.proxy_config import ProxyConfig
from cometmq.proxy.standalone import FleetProxy
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import Cluster

QUEUES = 4


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
    ("topic", "kind", "codes"),
    [
        ("T", MessageType.NORMAL, {Code.OK}),
        ("TX", MessageType.TRANSACTION, {Code.OK, Code.INTERNAL_SERVER_ERROR}),
    ],
)
async def test_another_broker_stores_what_a_stopping_broker_refuses_unless_it_is_of_a_transaction(
    fleet: Cluster, client: Client, topic: str, kind: MessageType, codes: set[Code]
) -> None:
    fleet.broker(0).turn.forbid(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down"))
    assert {answer.status.code for answer in await _send_over_all_queues(client, topic, kind)} == codes


async def test_a_send_fails_with_the_reason_when_no_broker_is_left(fleet: Cluster, client: Client) -> None:
    await client.send("T", b"x")
    for index in (0, 1):
        await fleet.kill_broker(index)
    answer = await client.send("T", b"x")
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert "connect" in answer.status.message
