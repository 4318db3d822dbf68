"""A send that failed is tried again: at another broker, or, where there is one broker, in another queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.client.send.busy_broker import Broker

from cometmq.client import Message, Producer, ProducerConfig
from cometmq.client.producer.transaction_producer import TransactionProducer, TransactionState
from cometmq.remoting.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import GetRouteInfoRequestHeader, SendMessageRequestHeaderV2
from cometmq.remoting.processors import Request, Response
from cometmq.testing import Cluster, VirtualClock


class OneBroker(Broker):
    """One broker with four queues; notes the queue of each attempt."""

    def __init__(self) -> None:
        self.queues: list[int] = []
        super().__init__()

    def _route(self, connection: Any, request: Request[GetRouteInfoRequestHeader], body: bytes) -> Response:
        route = TopicRouteData(
            broker_datas=[BrokerData(cluster="c", broker_name="a", broker_addrs={0: self.address})],
            queue_datas=[QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=4, perm=6)],
        )
        return Response(body=encode_body(route))

    def _send(self, connection: Any, request: Request[SendMessageRequestHeaderV2], body: bytes) -> Response | None:
        self.queues.append(request.header.queue_id)
        return super()._send(connection, request, body)


@pytest.fixture
async def one_broker() -> AsyncIterator[OneBroker]:
    broker = OneBroker()
    await broker.server.start("127.0.0.1", 0)
    yield broker
    await broker.server.stop()


@pytest.mark.parametrize("latency_fault", [False, True])
async def test_where_there_is_one_broker_each_attempt_takes_another_queue(
    one_broker: OneBroker, latency_fault: bool
) -> None:
    one_broker.codes = [ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE]
    config = ProducerConfig(retry_backoff_s=0.01, send_latency_fault_enable=latency_fault)
    async with Producer("p", one_broker.address, config=config) as producer:
        result = await producer.send(Message("T", b"x"))
    first = one_broker.queues[0]
    assert one_broker.queues == [first, (first + 1) % 4, (first + 2) % 4]
    assert result.queue.queue_id == one_broker.queues[-1]


async def test_a_transaction_whose_broker_is_gone_begins_at_another_one_and_ends_there() -> None:
    clock = VirtualClock()
    async with Cluster(2, clock=clock) as cluster:
        await cluster.create_topic("orders", queues=2)
        done: list[bytes] = []

        async def execute(message: Message, arg: object, transaction_id: str) -> TransactionState:
            done.append(message.body)
            return TransactionState.COMMIT

        async def check(message: object) -> TransactionState:
            return TransactionState.ROLLBACK

        producer = TransactionProducer("payers", execute, check, instance=cluster.client_instance())
        async with producer:
            await producer.send_in_transaction(Message("orders", b"before"))
            await cluster.kill_broker(0)
            bodies = [b"%d" % number for number in range(8)]
            for body in bodies:
                result = await producer.send_in_transaction(Message("orders", body))
                assert (result.queue.broker_name, result.confirmed) == ("broker-1", True)
        assert done == [b"before", *bodies], "the local work is done once for each"
        store = cluster.broker(1).store
        committed = sum(store.queue("orders", queue).max_offset() for queue in range(2))
        assert committed >= len(bodies)
        assert cluster.broker(1).transactions.open.count == 0
