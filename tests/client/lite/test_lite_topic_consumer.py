"""Consumers of lite topics with a broker: order, acknowledgements, retries, exclusive groups, listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from cometmq.client import (
    Admin,
    BrokerError,
    ClientInstance,
    ClientStateError,
    LiteTopicConfig,
    LiteTopicConsumer,
    Message,
    MessageExt,
    StartAt,
)
from cometmq.client.lite.requests import LiteMessage
from cometmq.client.sync import SyncLiteTopicConsumer
from cometmq.clock import SystemClock
from cometmq.testing import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(2) as running:
        async with Admin(instance=running.client_instance()) as admin:
            await admin.create_lite_topic("L")
            await admin.create_lite_group("G", "L", retry_max_times=2)
            await admin.create_lite_group("E", "L", exclusive=True)
        yield running


def consumer(cluster: Cluster, group: str = "G", **options: Any) -> LiteTopicConsumer:
    return LiteTopicConsumer(group, "L", instance=cluster.client_instance(), **options)


async def send(cluster: Cluster, lite_topic: str, *bodies: str) -> None:
    for body in bodies:
        await cluster.send(Message("L", body.encode(), lite_topic=lite_topic))


async def take(reader: LiteTopicConsumer, count: int) -> list[LiteMessage]:
    found: list[LiteMessage] = []
    while len(found) < count:
        for message in await reader.receive():
            found.append(message)
            await reader.ack(message)
    return found


def bodies(messages: Sequence[MessageExt]) -> list[str]:
    return [message.body.decode() for message in messages]


async def test_each_lite_topic_is_read_in_its_order_on_all_brokers(cluster: Cluster) -> None:
    names = [f"session-{number}" for number in range(8)]  # on both brokers
    async with consumer(cluster) as reader:
        for name in names:
            await reader.subscribe(name)
        for number in range(3):
            for name in (*names, "other"):
                await send(cluster, name, f"{name}:{number}")
        found = await take(reader, 24)
    assert {message.broker_name for message in found} == {"broker-0", "broker-1"}
    for name in names:
        own = [message for message in found if message.lite_topic == name]
        assert [(message.body.decode(), message.offset) for message in own] == [(f"{name}:{at}", at) for at in range(3)]


class Behind(SystemClock):
    """A clock that is an hour behind the brokers' clocks."""

    def now_ms(self) -> int:
        """The wrong date."""
        return super().now_ms() - 3_600_000


async def test_a_consumer_whose_clock_is_behind_receives(cluster: Cluster) -> None:
    instance = ClientInstance(cluster.namesrv_address, clock=Behind())
    async with LiteTopicConsumer("G", "L", instance=instance) as reader:
        await reader.subscribe("a")
        await send(cluster, "a", "m")
        assert bodies(await asyncio.wait_for(reader.receive(), 10)) == ["m"]


async def test_a_message_that_is_not_acknowledged_comes_again_before_those_behind_it(cluster: Cluster) -> None:
    async with consumer(cluster) as reader:
        await reader.subscribe("a")
        await send(cluster, "a", "first", "second")
        (first,) = await reader.receive(1)
        await reader.retry(first)
        again = await take(reader, 2)
    assert [(message.body, message.attempt) for message in again] == [(b"first", 2), (b"second", 1)]


async def test_another_member_goes_on_where_the_first_ended(cluster: Cluster) -> None:
    async with consumer(cluster) as reader:
        await reader.subscribe("a")
        await send(cluster, "a", "m0", "m1")
        await take(reader, 2)
    await send(cluster, "a", "m2")
    async with consumer(cluster) as reader:
        await reader.subscribe("a")
        assert bodies(await take(reader, 1)) == ["m2"]


@pytest.mark.parametrize(
    ("start", "expected"), [(StartAt.first(), ["m0", "m1", "m2"]), (StartAt.offset(2), ["m2"]), (StartAt.end(), [])]
)
async def test_a_group_starts_where_it_is_told(cluster: Cluster, start: StartAt, expected: list[str]) -> None:
    await send(cluster, "a", "m0", "m1", "m2")
    async with consumer(cluster) as reader:
        await reader.subscribe("a", start=start)
        await send(cluster, "a", "new")
        assert bodies(await take(reader, len(expected) + 1)) == [*expected, "new"]


async def test_a_lite_topic_that_is_left_is_not_read(cluster: Cluster) -> None:
    async with consumer(cluster) as reader:
        await reader.subscribe("a")
        await reader.subscribe("b")
        await reader.unsubscribe("a")
        assert reader.lite_topics == {"b"}
        await send(cluster, "a", "unseen")
        await send(cluster, "b", "seen")
        assert bodies(await take(reader, 1)) == ["seen"]
        assert await reader.receive(wait_s=0.1) == []


async def test_in_an_exclusive_group_the_last_subscriber_has_the_lite_topic(cluster: Cluster) -> None:
    lost: asyncio.Queue[str] = asyncio.Queue()
    async with consumer(cluster, "E", on_lost=lost.put_nowait) as first, consumer(cluster, "E") as second:
        await first.subscribe("a")
        await second.subscribe("a")
        assert await lost.get() == "a"
        assert not first.lite_topics
        await send(cluster, "a", "m0")
        assert bodies(await take(second, 1)) == ["m0"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_listener_is_called_in_order_and_again_after_a_failure(cluster: Cluster, is_async: bool) -> None:
    seen: list[str] = []
    config = LiteTopicConfig(retry_s=0.01)

    def listen(messages: Sequence[MessageExt]) -> None:
        (message,) = messages
        seen.append(message.body.decode())
        if seen == ["m0"]:
            raise ValueError("not yet")
        if len(seen) == 4:
            asyncio.get_running_loop().call_soon(reader.stop) if is_async else loop.call_soon_threadsafe(reader.stop)

    async def listen_async(messages: Sequence[MessageExt]) -> None:
        listen(messages)

    loop = asyncio.get_running_loop()
    reader = consumer(cluster, listener=listen_async if is_async else listen, config=config)
    await reader.subscribe("a")
    await send(cluster, "a", "m0", "m1", "m2")
    await reader.run()
    assert seen == ["m0", "m0", "m1", "m2"]


async def test_a_group_of_another_topic_is_refused(cluster: Cluster) -> None:
    reader = LiteTopicConsumer("Other", "L", instance=cluster.client_instance())
    with pytest.raises(BrokerError):
        await reader.start()


async def test_a_name_that_is_not_allowed_is_refused(cluster: Cluster) -> None:
    async with consumer(cluster) as reader:
        with pytest.raises(ValueError, match="lite topic"):
            await reader.subscribe("a$b")


async def test_a_consumer_that_is_not_started_receives_nothing(cluster: Cluster) -> None:
    reader = consumer(cluster)
    with pytest.raises(ClientStateError, match="not started"):
        await reader.receive()
    with pytest.raises(ClientStateError, match="start="):
        await reader.subscribe("a", start=StartAt.first())


async def test_the_synchronous_consumer_does_the_same(cluster: Cluster) -> None:
    def work() -> list[str]:
        with SyncLiteTopicConsumer("G", "L", namesrv=cluster.namesrv_address) as reader:
            reader.subscribe("a")
            found: list[str] = []
            for message in reader:
                found.append(message.body.decode())
                reader.ack(message)
                if len(found) == 2:
                    return found
        raise AssertionError("the consumer ended")

    await send(cluster, "a", "m0", "m1")
    assert await asyncio.to_thread(work) == ["m0", "m1"]


async def test_administrators_see_lite_topics_and_who_reads_them(cluster: Cluster) -> None:
    async with Admin(instance=cluster.client_instance()) as admin, consumer(cluster) as reader:
        await reader.subscribe("a")
        await send(cluster, "a", "m0", "m1")
        parents = await admin.lite_parent("L")
        assert {found.lite_topic_count for found in parents.values()} == {1}  # each broker has the subscription
        topics = await admin.lite_topic("L", "a")
        assert max(found.topic_offset.max_offset for found in topics.values() if found.topic_offset is not None) == 2
        assert {client.client_id for found in topics.values() for client in found.subscriber} == {
            reader.instance.client_id
        }
        lag = await admin.lite_lag("L", "G", "a")
        assert sum(max(found.total_lag_count, 0) for found in lag.values()) == 2
        clients = await admin.lite_client("L", "G", reader.instance.client_id)
        assert {name for found in clients.values() for name in found.lite_topic_set} == {"a"}
