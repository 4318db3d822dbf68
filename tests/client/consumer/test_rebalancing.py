"""Rebalancing goes on whatever happens while it looks at the group: subscriptions, strategies and servers change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from cometmq.client import (
    ClientRpcHook,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.consumer.rebalance import AllocateStrategy, ByConfig, averagely
from cometmq.client.instance import ClientInstance
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(clock=clock) as cluster:
        for topic in ("a", "b", "c"):
            await cluster.create_topic(topic, queues=2)
        yield cluster


class During:
    """A strategy that does something, once, in the middle of a rebalance."""

    def __init__(self) -> None:
        self.act: Callable[[], Any] | None = None
        self.topics: list[str] = []

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> list[MessageQueue]:
        self.topics.append(queues[0].topic)
        if self.act is not None:
            act, self.act = self.act, None
            result = act()
            if result is not None:
                return result  # type: ignore[no-any-return]
        return averagely(group, client_id, queues, client_ids)


async def listener(messages: Sequence[MessageExt]) -> None:
    """Takes everything."""


def topics_of(consumer: PushConsumer | LitePullConsumer) -> set[str]:
    return {queue.topic for queue in consumer.assignment}


@contextlib.asynccontextmanager
async def push(
    cluster: Cluster, strategy: AllocateStrategy, *topics: str, hooks: Sequence[ClientRpcHook] = ()
) -> AsyncIterator[PushConsumer]:
    config = PushConfig(consume_from_where=FIRST, allocate_strategy=strategy, handover_delay_s=0)
    instance = ClientInstance(cluster.namesrv_address, clock=cluster.clock, hooks=hooks)
    consumer = PushConsumer("workers", listener, config=config, instance=instance)
    for topic in topics:
        await consumer.subscribe(topic)
    async with consumer:
        yield consumer


async def test_a_topic_unsubscribed_during_a_rebalance_is_left_and_the_others_are_looked_at(
    cluster: Cluster, clock: VirtualClock
) -> None:
    strategy = During()
    async with push(cluster, strategy, "a", "b") as consumer:
        await clock.run_for(1)
        tasks: list[asyncio.Task[None]] = []
        strategy.act = lambda: tasks.append(asyncio.create_task(consumer.unsubscribe("a")))
        consumer.members_changed()
        await clock.run_for(1)
        assert topics_of(consumer) == {"b"}
        assert all(task.done() for task in tasks)
        await consumer.subscribe("c")
        await clock.run_for(1)
        assert topics_of(consumer) == {"b", "c"}
        async with push(cluster, averagely, "b", "c") as other:
            await clock.run_for(2)
            assert len(consumer.assignment) == len(other.assignment) == 2
        await clock.run_for(2)
        assert len(consumer.assignment) == 4


async def test_a_topic_unsubscribed_before_it_was_ever_read_stays_away(cluster: Cluster, clock: VirtualClock) -> None:
    strategy = During()
    async with push(cluster, strategy, "b") as consumer:
        await consumer.subscribe("a")
        await consumer.unsubscribe("a")

        async def there_and_back() -> None:
            await consumer.subscribe("c")
            await consumer.unsubscribe("c")

        tasks: list[asyncio.Task[None]] = []
        strategy.act = lambda: tasks.append(asyncio.create_task(there_and_back()))
        consumer.members_changed()
        await clock.run_for(45)
        assert all(task.done() for task in tasks)
        assert topics_of(consumer) == {"b"}
        await consumer.unsubscribe("b")
        await consumer.subscribe("b")
        await consumer.subscribe("a")
        await clock.run_for(1)
        assert topics_of(consumer) == {"a", "b"}


async def test_another_expression_counts_from_now_on(cluster: Cluster, clock: VirtualClock) -> None:
    seen: list[str] = []

    async def note(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.tags or "" for message in messages)

    config = PushConfig(consume_from_where=FIRST, handover_delay_s=0)
    consumer = PushConsumer("workers", note, config=config, instance=cluster.client_instance())
    await consumer.subscribe("a", "x")
    async with consumer, Producer("p", instance=cluster.client_instance()) as producer:
        for tag in "xy":
            await producer.send(Message("a", b"1", tags=tag))
        await clock.run_for(1)
        await consumer.subscribe("a", "y")
        await clock.run_for(1)
        for tag in "xy":
            await producer.send(Message("a", b"2", tags=tag))
        await clock.run_for(1)
    assert seen[0] == "x"
    assert seen.count("x") == 1
    assert "y" in seen


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: [None],
        lambda: [MessageQueue("a", "broker-0", 0), "b"],
        lambda: 1 / 0,
        lambda: (_ for _ in ()).throw(KeyboardInterrupt("no")),
        lambda: (_ for _ in ()).throw(asyncio.CancelledError()),
        lambda: 5,
    ],
)
async def test_a_strategy_that_fails_leaves_queues_where_they_are(
    cluster: Cluster, clock: VirtualClock, wrong: Callable[[], Any]
) -> None:
    strategy = During()
    async with push(cluster, strategy, "a", "b") as consumer:
        await clock.run_for(1)
        strategy.act = wrong
        consumer.members_changed()
        await clock.run_for(1)
        assert len(consumer.assignment) == 4
        async with push(cluster, averagely, "a", "b"):
            await clock.run_for(2)
            assert len(consumer.assignment) == 2


async def test_queues_of_other_topics_in_a_share_are_not_read_twice(cluster: Cluster, clock: VirtualClock) -> None:
    fixed = ByConfig((MessageQueue("a", "broker-0", 0), MessageQueue("b", "broker-0", 1)))
    async with push(cluster, fixed, "a", "b") as consumer:
        await clock.run_for(45)
        assert consumer.assignment == set(fixed.fixed)
        readers = [task for task in asyncio.all_tasks() if "QueueReader.read" in repr(task.get_coro())]
        assert len(readers) == 2


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.GET_ROUTEINFO_BY_TOPIC])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
async def test_a_request_that_fails_oddly_is_made_again(
    cluster: Cluster, clock: VirtualClock, code: RequestCode, error: type[BaseException]
) -> None:
    failing: list[int] = []

    def before(address: str, request: RemotingCommand) -> None:
        if failing and request.code == code:
            raise error("no")

    async with push(cluster, averagely, "a", hooks=[ClientRpcHook(before=before)]) as consumer:
        await clock.run_for(1)
        failing.append(1)
        await consumer.subscribe("b")
        consumer.members_changed()
        await clock.run_for(65)
        assert topics_of(consumer) == {"a"}
        assert len(cluster.broker(0).clients.consumers.get("workers").channels) == 1  # type: ignore[union-attr]
        failing.clear()
        await clock.run_for(65)
        assert topics_of(consumer) == {"a", "b"}


async def test_a_nameserver_that_lacks_a_topic_for_a_while_stops_no_rebalance(
    cluster: Cluster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with push(cluster, averagely, "a", "b") as consumer:
        await clock.run_for(1)
        with monkeypatch.context() as patched:
            patched.setattr(cluster.namesrv.routes, "route", lambda *_: None)
            await consumer.subscribe("c")
            await clock.run_for(65)
            assert topics_of(consumer) == {"a", "b"}
        await clock.run_for(65)
        assert topics_of(consumer) == {"a", "b", "c"}


async def test_lite_pull_a_topic_unsubscribed_during_a_rebalance_is_left(cluster: Cluster, clock: VirtualClock) -> None:
    strategy = During()
    config = LitePullConfig(consume_from_where=FIRST, allocate_strategy=strategy)
    async with LitePullConsumer("lite", config=config, instance=cluster.client_instance()) as consumer:
        for topic in ("a", "b"):
            await clock.run_until(consumer.subscribe(topic), 10)
        await clock.run_for(1)
        tasks: list[asyncio.Task[None]] = []
        strategy.act = lambda: tasks.append(asyncio.create_task(consumer.unsubscribe("a")))
        consumer.members_changed()
        await clock.run_for(1)
        assert topics_of(consumer) == {"b"}
        await clock.run_until(consumer.subscribe("c"), 10)
        await clock.run_for(25)
        assert topics_of(consumer) == {"b", "c"}
        assert all(task.done() for task in tasks)
