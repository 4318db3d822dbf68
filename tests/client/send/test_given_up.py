"""What was stored is reported stored; what nobody waits for any more does not leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.client.send.busy_broker import Broker
from tests.helpers.pace import slowness
from tests.helpers.waiting import real_time, until

from cometmq.client import Message, Producer, ProducerConfig
from cometmq.client.send_result import SendResult
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetMaxOffsetRequestHeader
from cometmq.testing import Cluster

SENDS = 8000
"""Twice what one connection has in flight."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.server.start("127.0.0.1", 0)
    yield broker
    await broker.server.stop()


async def test_a_send_that_is_cancelled_is_not_repeated(broker: Broker) -> None:
    broker.codes = [ResponseCode.SYSTEM_BUSY] * 1000
    async with Producer("p", broker.address, config=ProducerConfig(retry_backoff_s=0.005)) as producer:
        sending = asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=60))
        await until(lambda: len(broker.asked) >= 3)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        left = len(broker.asked) + 1
        await real_time(0.2)
    assert len(broker.asked) <= left


async def test_one_gather_of_many_sends_reports_stored_what_is_stored(cluster: Cluster) -> None:
    """A busy event loop makes no send late. A send is late in earnest if the machine needs longer for all of them."""
    if not await reports_what_is_stored(cluster, "many", 2):
        assert await reports_what_is_stored(cluster, "more", 8 * slowness())


async def reports_what_is_stored(cluster: Cluster, topic: str, timeout_s: float) -> bool:
    """Tell whether as many of the sends succeed as are stored; never do more."""
    await cluster.create_topic(topic)
    async with Producer("p", cluster.namesrv_address) as producer:
        sends = (producer.send(Message(topic, b"x" * 100), timeout_s=timeout_s) for _ in range(SENDS))
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        stored = 0
        for queue in await producer.queues(topic):
            address = await producer.instance.master_of(queue)
            header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue.queue_id)
            answer = await producer.instance.call(address, RequestCode.GET_MAX_OFFSET, header, doing="counting")
            stored += int(answer.ext_fields["offset"])
    reported = sum(isinstance(outcome, SendResult) for outcome in outcomes)
    assert reported <= stored
    return 0 < reported == stored


async def test_sends_that_wait_for_room_take_no_task_of_their_own(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer("p", broker.address) as producer:
        monkeypatch.setattr(producer.instance.remoting, "_max_in_flight", 8)
        await producer.send(Message("T", b"first"))
        before = len(asyncio.all_tasks())
        sends = [asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=60)) for _ in range(1000)]
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before + len(sends)
        assert all(isinstance(outcome, SendResult) for outcome in await asyncio.gather(*sends))
