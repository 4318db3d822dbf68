"""The first offset of a group in a topic that it has never read, at a broker whose messages are not young."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from cometmq.client import ConsumeFromWhere, Message, Producer, PushConfig, PushConsumer
from cometmq.message.message import MessageExt
from cometmq.testing import Cluster, VirtualClock

TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
OLD = [b"old-0", b"old-1", b"old-2"]


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """Three messages, a minute apart; the last one is a minute old."""
    async with Cluster(clock=clock, broker_keys={"accessMessageInMemoryMaxRatio": "0"}) as cluster:
        await cluster.create_topic("orders", queues=1)
        for body in OLD:
            await send(cluster, body)
            await clock.skip(60)
        yield cluster


async def send(cluster: Cluster, body: bytes) -> None:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        await producer.send(Message("orders", body))


async def got(cluster: Cluster, clock: VirtualClock, *, later: bytes | None, **options: Any) -> list[bytes]:
    """Return the messages that a consumer of the group gets; ``later`` is sent once it runs."""
    seen: list[bytes] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    consumer = PushConsumer("newcomers", listener, config=PushConfig(**options), instance=cluster.client_instance())
    await consumer.subscribe("orders")
    async with consumer:
        await clock.run_for(2)
        if later is not None:
            await send(cluster, later)
            await clock.run_for(2)
    return seen


async def test_by_default_a_new_group_begins_at_the_end_and_goes_on_where_it_was(
    cluster: Cluster, clock: VirtualClock
) -> None:
    assert await got(cluster, clock, later=b"new") == [b"new"]
    await send(cluster, b"meanwhile")
    assert await got(cluster, clock, later=None) == [b"meanwhile"]


async def test_a_member_that_has_got_nothing_yet_does_not_lose_what_comes_before_it_is_back(
    cluster: Cluster, clock: VirtualClock
) -> None:
    assert await got(cluster, clock, later=None) == []
    await send(cluster, b"meanwhile")
    assert await got(cluster, clock, later=None) == [b"meanwhile"]


@pytest.mark.parametrize(("minutes_ago", "bodies"), [(1, OLD[2:]), (2, OLD[1:]), (60, OLD)])
async def test_from_a_timestamp_on(
    cluster: Cluster, clock: VirtualClock, minutes_ago: int, bodies: list[bytes]
) -> None:
    at = clock.now_ms() - minutes_ago * 60_000
    options: dict[str, Any] = {"consume_from_where": TIMESTAMP, "consume_timestamp_ms": at}
    assert await got(cluster, clock, later=b"new", **options) == [*bodies, b"new"]
    assert await got(cluster, clock, later=None, **options) == [], "the second start goes on where it was"


async def test_a_timestamp_that_is_not_given_is_the_beginning(cluster: Cluster, clock: VirtualClock) -> None:
    await clock.skip(3600)
    assert await got(cluster, clock, later=None, consume_from_where=TIMESTAMP) == OLD
