"""Failed messages of a concurrent consumer: they come again after growing delays, and are dead letters in the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.helpers.pace import is_in_time

from cometmq.client import ClientRpcHook, ConsumeFromWhere, Message, MessageModel, Producer, PushConfig, PushConsumer
from cometmq.client.instance import ClientInstance
from cometmq.message.message import MessageExt
from cometmq.message.names import dlq_topic
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
DELAYS_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        for body in (b"poison", b"good"):
            await producer.send(Message("orders", body))
    return cluster


class Worker:
    """A listener that fails on poison, and notes what it got and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.seen: list[tuple[bytes, int, str]] = []
        self.times_ms: list[int] = []

    async def __call__(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            self.seen.append((message.body, message.reconsume_times, message.topic))
            if message.body == b"poison":
                self.times_ms.append(self.clock.now_ms())
                raise RuntimeError("poison")


@contextlib.asynccontextmanager
async def consumer_of(
    cluster: Cluster, worker: object, group: str = "workers", **options: Any
) -> AsyncIterator[PushConsumer]:
    config = PushConfig(consume_from_where=FIRST, **options)
    consumer = PushConsumer(group, worker, config=config, instance=cluster.client_instance())  # type: ignore[arg-type]
    await consumer.subscribe("orders")
    async with consumer:
        yield consumer


def dead_letters(cluster: Cluster, group: str = "workers") -> int:
    return cluster.broker(0).store.queue(dlq_topic(group), 0).max_offset()


async def test_sixteen_retries_and_the_dead_letter_topic_within_a_second(cluster: Cluster, clock: VirtualClock) -> None:
    worker = Worker(clock)
    async with consumer_of(cluster, worker):
        await clock.run_for(1)
        began = time.monotonic()
        for delay_s in DELAYS_S:
            await clock.skip(delay_s)
            await clock.run_for(0.01)
        took = time.monotonic() - began
    assert [seen for seen in worker.seen if seen[0] == b"good"] == [(b"good", 0, "orders")], "others are not held up"
    assert [times for body, times, topic in worker.seen if body == b"poison"] == list(range(17))
    assert {topic for _, _, topic in worker.seen} == {"orders"}, "the listener sees where it came from"
    waits = [(after - before) / 1000 for before, after in zip(worker.times_ms, worker.times_ms[1:], strict=False)]
    assert waits == pytest.approx(DELAYS_S, abs=0.1)
    assert dead_letters(cluster) == 1
    assert is_in_time(took, 60), "about a second, on a machine that does nothing else"


async def test_the_group_may_want_fewer_retries(cluster: Cluster, clock: VirtualClock) -> None:
    worker = Worker(clock)
    async with consumer_of(cluster, worker, max_reconsume_times=1):
        await clock.run_for(15)
    assert [times for body, times, _ in worker.seen if body == b"poison"] == [0, 1]
    assert dead_letters(cluster) == 1


class HandingBack:
    """Counts the messages that are being handed back."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    def before(self, peer: str, request: RemotingCommand) -> None:
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            self.now, self.all = self.now + 1, self.all + 1
            self.most = max(self.most, self.now)

    def after(self, peer: str, request: RemotingCommand, response: RemotingCommand) -> None:
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            self.now -= 1


async def test_no_more_failures_go_back_at_a_time_than_listeners_run(cluster: Cluster, clock: VirtualClock) -> None:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        await producer.send_batch([Message("orders", b"poison") for _ in range(200)])
    handing_back = HandingBack()
    instance = ClientInstance(
        cluster.namesrv_address, hooks=[ClientRpcHook(handing_back.before, handing_back.after)], clock=clock
    )
    config = PushConfig(consume_from_where=FIRST, consume_concurrency=5)
    consumer = PushConsumer("workers", Worker(clock), config=config, instance=instance)
    await consumer.subscribe("orders")
    async with consumer:
        await clock.run_for(5)
    assert (handing_back.most, handing_back.all) == (5, 201)


async def test_what_the_broker_does_not_take_back_goes_to_the_retry_topic_by_a_send(
    cluster: Cluster, clock: VirtualClock
) -> None:
    broker = cluster.broker(0)
    worker = Worker(clock)
    async with consumer_of(cluster, worker, max_reconsume_times=2) as consumer:
        broker.live.replace(dataclasses.replace(broker.config, broker_permission=4))  # refuses 36, takes sends
        await clock.run_for(60)
        assert consumer.cached_count == 0
    assert [times for body, times, _ in worker.seen if body == b"poison"] == [0, 1, 2]
    waits = [(after - before) / 1000 for before, after in zip(worker.times_ms, worker.times_ms[1:], strict=False)]
    assert waits == pytest.approx([10, 30], abs=0.1)
    assert dead_letters(cluster) == 1


async def test_a_message_that_takes_too_long_goes_back_and_counts_once(cluster: Cluster, clock: VirtualClock) -> None:
    go_on = asyncio.Event()
    seen: list[tuple[bytes, int]] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        if messages[0].reconsume_times == 0 and messages[0].body == b"poison":
            await go_on.wait()

    async with consumer_of(cluster, listener, consume_timeout_s=60) as consumer:
        await clock.run_for(59)
        assert seen == [(b"poison", 0), (b"good", 0)]
        assert consumer.cached_count == 1
        await clock.run_for(62)
        assert consumer.cached_count == 0, "its queue goes on"
        await clock.run_for(10)
        assert seen[2:] == [(b"poison", 1)]
        go_on.set()
        await clock.run_for(200)
        assert consumer.cached_count == 0
    assert len(seen) == 3


async def test_broadcasting_consumers_do_not_get_failures_again(
    cluster: Cluster, clock: VirtualClock, tmp_path: object
) -> None:
    worker = Worker(clock)
    options: dict[str, Any] = {"message_model": MessageModel.BROADCASTING, "offset_store_dir": tmp_path}
    async with consumer_of(cluster, worker, **options) as consumer:
        await clock.run_for(60)
        assert consumer.cached_count == 0
    assert sorted(worker.seen) == [(b"good", 0, "orders"), (b"poison", 0, "orders")]


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_timeout_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="consume_timeout_s"):
        PushConfig(consume_timeout_s=seconds)
