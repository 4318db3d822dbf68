"""A broker that stops cleanly takes its queues out of the routes; their consumers continue where they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PushConfig,
    PushConsumer,
)
from cometmq.client.consumer.offset_store import MEMORY_S
from cometmq.client.route.table import REFRESH_S
from cometmq.limits import LOCK_TRUST_SECONDS
from cometmq.remoting.bodies import MessageQueue
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
QUEUE = MessageQueue("orders", "broker-0", 0)
LATER_S = REFRESH_S + 5
"""More than the time after which a client drops the queues of a broker that is in no route, or reads them again."""


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(brokers=2, clock=clock) as cluster:
        await cluster.create_topic("orders", queues=1)
        yield cluster


class Group:
    """The members of a group, and the bodies that they have consumed."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.cluster = cluster
        self.config = PushConfig(**{"consume_from_where": FIRST, "handover_delay_s": 0, **options})
        self.got: list[str] = []

    async def member(self) -> PushConsumer:
        consumer = PushConsumer("workers", self._consume, config=self.config, instance=self.cluster.client_instance())
        await consumer.subscribe("orders")
        return consumer

    async def _consume(self, messages: Sequence[MessageExt]) -> None:
        self.got += [message.body.decode() for message in messages]


async def send(cluster: Cluster, *bodies: str) -> None:
    async with Producer("p", instance=cluster.client_instance()) as producer:
        for body in bodies:
            await producer.send(Message("orders", body.encode()), queue=QUEUE)


async def consume_and_stop(cluster: Cluster, clock: VirtualClock, got: Callable[[], list[str]]) -> None:
    """Stop the broker after messages that no report contains, and wait until its queue is dropped."""
    await send(cluster, "1")
    await clock.run_for(7)
    await send(cluster, "2", "3")
    await clock.run_for(0.5)
    assert got() == ["1", "2", "3"]
    await cluster.stop_broker(0)
    await clock.run_for(LATER_S)


@pytest.mark.parametrize(
    ("options", "away_s"),
    [
        ({}, 0.0),
        ({"orderly": True}, 0.0),
        ({"orderly": True}, LOCK_TRUST_SECONDS + 60),
        ({"message_model": MessageModel.BROADCASTING}, 0.0),
    ],
    ids=["concurrent", "orderly", "orderly, without a lock", "broadcasting"],
)
async def test_nothing_is_consumed_twice(
    cluster: Cluster, clock: VirtualClock, tmp_path: Path, options: dict[str, Any], away_s: float
) -> None:
    group = Group(cluster, offset_store_dir=tmp_path, **options)
    async with await group.member() as consumer:
        await consume_and_stop(cluster, clock, lambda: group.got)
        assert QUEUE not in consumer.assignment
        await clock.run_for(away_s)
        await cluster.start_broker(0)
        await send(cluster, "4")
        await clock.run_for(LATER_S)
        assert group.got == ["1", "2", "3", "4"]


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_loop_that_polls_gets_nothing_twice(cluster: Cluster, clock: VirtualClock, auto_commit: bool) -> None:
    config = LitePullConfig(consume_from_where=FIRST, auto_commit=auto_commit)
    got: list[str] = []
    async with LitePullConsumer("workers", config=config, instance=cluster.client_instance()) as consumer:
        await consumer.subscribe("orders")

        async def loop() -> None:
            while True:
                got.extend(message.body.decode() for message in await consumer.poll(1))

        task = asyncio.create_task(loop())
        await consume_and_stop(cluster, clock, lambda: got)
        assert QUEUE not in consumer.assignment
        await cluster.start_broker(0)
        await send(cluster, "4")
        await clock.run_for(LATER_S)
        assert got == (["1", "2", "3", "4"] if auto_commit else ["1", "2", "3", "1", "2", "3", "4"])
        task.cancel()


@pytest.mark.parametrize(("offset", "again"), [(0, ["1", "2", "3"]), (2, ["3"]), (3, [])])
async def test_an_offset_that_others_have_committed_counts(
    cluster: Cluster, clock: VirtualClock, offset: int, again: list[str]
) -> None:
    """Another member, or an administrator, commits it before this member reads the queue again."""
    group = Group(cluster)
    async with await group.member(), Admin(instance=cluster.client_instance()) as admin:
        await consume_and_stop(cluster, clock, lambda: group.got)
        await cluster.start_broker(0)
        await admin.offsets.commit("workers", QUEUE, offset)
        await send(cluster, "4")
        await clock.run_for(LATER_S)
        assert group.got == ["1", "2", "3", *again, "4"]


async def test_a_reset_to_the_offset_of_the_last_report_counts(cluster: Cluster, clock: VirtualClock) -> None:
    group = Group(cluster)
    async with await group.member() as consumer:
        await consume_and_stop(cluster, clock, lambda: group.got)
        consumer.reset_offsets("orders", {QUEUE: 1})
        await cluster.start_broker(0)
        await clock.run_for(LATER_S)
        assert group.got == ["1", "2", "3", "2", "3"]


async def test_what_was_consumed_long_ago_is_forgotten(cluster: Cluster, clock: VirtualClock) -> None:
    group = Group(cluster)
    async with await group.member():
        await consume_and_stop(cluster, clock, lambda: group.got)
        await clock.run_for(MEMORY_S)
        await cluster.start_broker(0)
        await clock.run_for(LATER_S)
        assert group.got == ["1", "2", "3", "2", "3"]
