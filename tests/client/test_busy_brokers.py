"""A broker that refuses for a while, played by a server of our own: real ones are busy only by chance."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client import Message, Producer, ProducerConfig, SendStatus
from cometmq.client.errors import BrokerError, SendFailedError
from cometmq.remoting.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetRouteInfoRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server import RemotingServer


class Broker:
    """A nameserver and two brokers on one port; answers sends with the codes it is told, then stores."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.asked: list[str | None] = []
        table = ProcessorTable()
        table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader, self._route)
        table.register(RequestCode.SEND_MESSAGE_V2, SendMessageRequestHeaderV2, self._send)
        self.server = RemotingServer(table)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _route(self, connection: Any, request: Request[GetRouteInfoRequestHeader], body: bytes) -> Response:
        names = ("a", "b")
        route = TopicRouteData(
            broker_datas=[BrokerData(cluster="c", broker_name=name, broker_addrs={0: self.address}) for name in names],
            queue_datas=[QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in names],
        )
        return Response(body=encode_body(route))

    def _send(self, connection: Any, request: Request[SendMessageRequestHeaderV2], body: bytes) -> Response:
        self.asked.append(request.header.broker_name)
        code = self.codes.pop(0) if self.codes else 0
        stored = code in (0, 10, 11, 12)
        header = SendMessageResponseHeader("0" * 32, request.header.queue_id, 5) if stored else None
        return Response(code, header, None if stored else "told to")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.server.start("127.0.0.1", 0)
    yield broker
    await broker.server.stop()


async def test_a_busy_broker_is_asked_again_until_it_takes_the_message(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_BUSY] * 5
    async with Producer("p", broker.address, config=ProducerConfig(retry_backoff_s=0.01)) as producer:
        assert (await producer.send(Message("T", b"x"))).queue_offset == 5
    assert len(broker.asked) == 6


async def test_a_broker_that_stays_busy_fails_the_send_in_time(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_BUSY] * 1000
    async with Producer("p", broker.address, config=ProducerConfig(retry_backoff_s=0.01)) as producer:
        with pytest.raises(SendFailedError, match="SYSTEM_BUSY") as caught:
            await producer.send(Message("T", b"x"), timeout_s=0.3)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY


async def test_a_refusal_that_another_broker_may_not_share_goes_to_the_other_one(broker: Broker) -> None:
    broker.codes = [ResponseCode.SERVICE_NOT_AVAILABLE]
    async with Producer("p", broker.address) as producer:
        await producer.send(Message("T", b"x"))
    assert sorted(map(str, broker.asked)) == ["a", "b"]


async def test_other_refusals_are_raised_at_once(broker: Broker) -> None:
    broker.codes = [ResponseCode.MESSAGE_ILLEGAL]
    async with Producer("p", broker.address) as producer:
        with pytest.raises(BrokerError, match="told to") as caught:
            await producer.send(Message("T", b"x"))
    assert (caught.value.code, len(broker.asked)) == (13, 1)


async def test_attempts_are_counted(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_ERROR] * 3
    async with Producer("p", broker.address) as producer:
        with pytest.raises(SendFailedError, match="3 attempts") as caught:
            await producer.send(Message("T", b"x"))
    assert len(caught.value.attempts) == 3
    assert isinstance(caught.value.cause, BrokerError)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_every_status_is_told(broker: Broker, code: int, status: SendStatus) -> None:
    broker.codes = [code]
    async with Producer("p", broker.address) as producer:
        assert (await producer.send(Message("T", b"x"))).status is status
    assert len(broker.asked) == 1


async def test_a_status_that_is_not_ok_can_lead_to_another_attempt(broker: Broker) -> None:
    broker.codes = [10]
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with Producer("p", broker.address, config=config) as producer:
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
    assert len(broker.asked) == 2
