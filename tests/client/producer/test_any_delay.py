"""Any delay from our client: when messages come, what is refused before it is sent, and taking messages back."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.helpers.contents import topic_bodies

from cometmq.client import Admin, Message, Producer, TransactionProducer, TransactionState
from cometmq.client.errors import BrokerError, ClientError, DelayNotSupportedError, IllegalMessageError
from cometmq.client.sync import SyncProducer
from cometmq.message.ids import RecallHandleError
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock

DAY_S = 86_400


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(clock=VirtualClock(1_800_000_000_000)) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("p", cluster.namesrv_address) as producer:
        yield producer


def clock_of(cluster: Cluster) -> VirtualClock:
    assert isinstance(cluster.clock, VirtualClock)
    return cluster.clock


async def test_delay_and_deliver_at(cluster: Cluster, producer: Producer) -> None:
    clock = clock_of(cluster)
    at = datetime.datetime.fromtimestamp(clock.now_ms() / 1000, datetime.UTC) + timedelta(days=30, milliseconds=7)
    await producer.send(Message("t", b"delay", delay=timedelta(milliseconds=1500)))
    await producer.send(Message("t", b"at", deliver_at=at.astimezone(datetime.timezone(timedelta(hours=8)))))
    await producer.send(Message("t", b"now"))
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"now"]
    await clock.skip(1.5)
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"delay", b"now"]
    await clock.skip(30 * DAY_S + 0.006 - 1.5)
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"delay", b"now"]
    await clock.skip(0.001)
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"at", b"delay", b"now"]


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", delay=timedelta(0)),
        Message("t", b"x", delay=timedelta(days=-1)),
        Message("t", b"x", deliver_at=datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)),
    ],
)
async def test_what_is_due_already_comes_at_once(cluster: Cluster, producer: Producer, message: Message) -> None:
    result = await producer.send(message)
    assert result.recall_handle is None
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"x"]


async def test_every_way_to_send(cluster: Cluster, producer: Producer) -> None:
    delayed = [Message("t", b"%d" % number, delay=timedelta(seconds=10)) for number in range(6)]
    await producer.send_many(delayed[:2])
    results = await producer.send_batch([delayed[2], Message("t", b"batch 1"), delayed[3], Message("t", b"batch 2")])
    assert [result.recall_handle is not None for result in results] == [True, False, True, False]
    await producer.send_oneway(delayed[4])
    (queue, *_) = await producer.queues("t")
    await producer.send(delayed[5], queue=queue)
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"batch 1", b"batch 2"]
    await clock_of(cluster).skip(10)
    assert await topic_bodies(cluster.namesrv_address, "t") == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
        b"batch 1",
        b"batch 2",
    ]


TWO_TIMES: list[dict[str, Any]] = [
    {"delay": timedelta(1), "deliver_at": datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)},
    {"delay": timedelta(1), "delay_level": 3},
    {"deliver_at": datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC), "delay_level": 3},
]
NO_TIME_ZONE: dict[str, Any] = {"deliver_at": datetime.datetime(2099, 1, 1)}  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize(
    ("wrong", "words"),
    [*((times, "set only one") for times in TWO_TIMES), (NO_TIME_ZONE, "has no time zone: add one")],
)
async def test_a_delay_that_cannot_be_is_told_when_the_message_is_made_and_before_it_is_sent(
    cluster: Cluster, producer: Producer, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Message("t", b"x", **wrong)
    message = Message("t", b"x")
    for name, value in wrong.items():
        setattr(message, name, value)
    with pytest.raises(IllegalMessageError) as refused:
        await producer.send(message)
    assert refused.value.next_step
    with pytest.raises(IllegalMessageError):
        await producer.send_batch([Message("t", b"fine"), message])
    assert cluster.broker(0).store.max_physical_offset == 0


async def test_too_far_is_the_brokers_word(producer: Producer) -> None:
    with pytest.raises(BrokerError, match="bigger than the max delay") as refused:
        await producer.send(Message("t", b"x", delay=timedelta(days=50 * 365)))
    assert refused.value.code == 13


async def test_transactions_have_no_delay(cluster: Cluster) -> None:
    def commit(*_: object) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer("tp", commit, commit, cluster.namesrv_address) as producer:
        with pytest.raises(IllegalMessageError, match="cannot be delayed"):
            await producer.send_in_transaction(Message("t", b"x", delay=timedelta(1)))


async def test_a_broker_that_knows_levels_only_is_not_sent_to(cluster: Cluster, producer: Producer) -> None:
    broker = cluster.broker(0)
    broker.server.processors = broker.processors.without(RequestCode.GET_TIMER_CHECK_POINT)
    message = Message("t", b"x", delay=timedelta(1))
    with pytest.raises(DelayNotSupportedError, match="immediately") as refused:
        await producer.send(message)
    assert "delay_level" in (refused.value.next_step or "")
    with pytest.raises(DelayNotSupportedError):
        await producer.send_oneway(message)
    with pytest.raises(ClientError):
        await producer.send_many([message])
    await producer.send(Message("t", b"now"))
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"now"]


async def test_taking_back(cluster: Cluster, producer: Producer) -> None:
    kept = await producer.send(Message("t", b"kept", delay=timedelta(days=2)))
    back = await producer.send(Message("t", b"back", delay=timedelta(days=2)))
    assert back.recall_handle is not None
    assert kept.recall_handle is not None
    assert await producer.recall(back.recall_handle) == back.msg_id
    assert await producer.recall(back.recall_handle) == back.msg_id
    await clock_of(cluster).skip(2 * DAY_S)
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"kept"]
    with pytest.raises(BrokerError) as late:
        await producer.recall(kept.recall_handle)
    assert late.value.code == 604
    with pytest.raises(RecallHandleError):
        await producer.recall("garbage")


async def test_the_synchronous_producer(cluster: Cluster) -> None:
    def work() -> str:
        with SyncProducer("s", cluster.namesrv_address) as producer:
            handle = producer.send(Message("t", b"back", delay=timedelta(seconds=5))).recall_handle
            producer.send(Message("t", b"x", delay=timedelta(seconds=5)))
            assert handle is not None
            return producer.recall(handle)

    assert await asyncio.to_thread(work)
    await clock_of(cluster).skip(5)
    assert await topic_bodies(cluster.namesrv_address, "t") == [b"x"]


async def test_what_waits_is_counted(cluster: Cluster, producer: Producer) -> None:
    clock = clock_of(cluster)
    for seconds in (30, 600, 7200, 2 * DAY_S, 90 * DAY_S):
        await producer.send(Message("a", b"x", delay=timedelta(seconds=seconds)))
    back = await producer.send(Message("a", b"back", delay=timedelta(days=5)))
    await producer.send(Message("b", b"x", delay=timedelta(seconds=1)))
    assert back.recall_handle is not None
    await producer.recall(back.recall_handle)
    await clock.run_for(2)
    async with Admin(cluster.namesrv_address) as admin:
        waiting = await admin.waiting(cluster.broker(0).address)
    assert waiting.keys() == {"a"}
    metric = waiting["a"]
    assert metric.count == 5
    assert metric.due_within == {60: 1, 3_600: 2, 86_400: 3, 2_592_000: 4}
    assert metric.last_due_time == 1_800_000_000_000 + 90 * DAY_S * 1000
    await clock.skip(30)
    await cluster.restart_broker(0)
    async with Admin(cluster.namesrv_address) as admin:
        assert (await admin.waiting(cluster.broker(0).address))["a"].count == 4
