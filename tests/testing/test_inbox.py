"""Expectations: what arrives, within what time, and what a failed one tells."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from cometmq.client import ConsumeResult, Message, Producer
from cometmq.message.names import dlq_topic
from cometmq.testing import Cluster, ExpectationError, VirtualClock, wait_until


@pytest.fixture
async def cluster(clock: VirtualClock) -> AsyncIterator[Cluster]:
    async with Cluster(clock=clock) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("application", instance=cluster.client_instance()) as producer:
        yield producer


async def test_messages_are_handed_out_once_and_in_order(cluster: Cluster, producer: Producer) -> None:
    await cluster.create_topic("orders", queues=1)
    async with cluster.inbox("orders") as inbox:
        for number in range(5):
            await producer.send(Message("orders", b"%d" % number))
        assert [message.body for message in await inbox.expect(2)] == [b"0", b"1"]
        assert [message.body for message in await inbox.expect(3, within=0)] == [b"2", b"3", b"4"]
        await inbox.expect_none(within=60)
        assert len(inbox.messages) == 5


async def test_what_was_sent_before_and_what_comes_later_arrive_alike(cluster: Cluster, producer: Producer) -> None:
    clock = cluster.clock
    assert isinstance(clock, VirtualClock)
    await producer.send(Message("orders", b"before"))
    began = clock.monotonic()

    async def later() -> None:
        await clock.sleep(100)
        await producer.send(Message("orders", b"later"))

    async with cluster.inbox("orders") as inbox:
        task = asyncio.create_task(later())
        assert [message.body for message in await inbox.expect(2, within=timedelta(minutes=5))] == [b"before", b"later"]
        assert clock.monotonic() - began == pytest.approx(100, abs=1), "no further than needed"
        await task


async def test_a_date_far_away_is_skipped_to(clock: VirtualClock) -> None:
    fired: list[int] = []
    began_ms = clock.now_ms()
    days = [10, 20, 40]
    for day in days:
        clock.call_at(began_ms + day * 86_400_000, fired.append, day)
    real = time.monotonic()
    assert await wait_until(clock, lambda: len(fired) == 2, timedelta(days=30))
    assert clock.now_ms() == began_ms + 20 * 86_400_000
    assert not await wait_until(clock, lambda: len(fired) == 3, timedelta(days=19))
    assert clock.now_ms() == began_ms + 39 * 86_400_000
    assert time.monotonic() - real < 60


async def test_sixteen_retries_and_the_dead_letter_pass_within_a_moment(
    cluster: Cluster, producer: Producer, clock: VirtualClock
) -> None:
    began_ms = clock.now_ms()
    async with cluster.inbox("orders", group="g", answer=ConsumeResult.RECONSUME_LATER) as inbox:
        await producer.send(Message("orders", b"poison"))
        received = await inbox.expect(17, within=timedelta(hours=5))
        assert [message.reconsume_times for message in received] == list(range(17))
        times_s = [(message.store_timestamp - began_ms) / 1000 for message in received]
        pauses_s = [after - before for before, after in itertools.pairwise(times_s)]
        assert pauses_s == [10, 30, 60, *(60 * minutes for minutes in (2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120))]
        assert clock.monotonic() < 600, "most of the five hours was skipped"
        async with cluster.inbox(dlq_topic("g")) as dead:
            await dead.expect(1, within=5)
        with pytest.raises(ExpectationError, match="messages that failed too often are in %DLQ%g"):
            await inbox.expect(1, within=timedelta(days=1))


async def test_a_long_sleep_is_not_skipped(clock: VirtualClock) -> None:
    ticks: list[float] = []

    async def report() -> None:
        while True:
            await clock.sleep(3600)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(report())
    assert await wait_until(clock, lambda: len(ticks) == 5, timedelta(hours=6))
    assert ticks == [3600.0 * hour for hour in range(1, 6)]
    task.cancel()


async def test_waiting_on_the_real_clock() -> None:
    async with Cluster() as cluster, Producer("p", instance=cluster.client_instance()) as producer:
        inbox = cluster.inbox("orders")
        async with inbox:
            await producer.send(Message("orders", b"now"))
            assert [message.body for message in await inbox.expect(1, within=30)] == [b"now"]
            await inbox.expect_none(within=0.05)
            with pytest.raises(ExpectationError, match=r"within 0\.05 s, but none arrived"):
                await inbox.expect(1, within=0.05)


async def test_a_failed_expectation_says_what_came_and_what_is_missing(cluster: Cluster, producer: Producer) -> None:
    async with cluster.inbox("orders") as inbox:
        await producer.send(Message("orders", b"parcel " * 20, keys=("order-1", "vip"), tags="paid"))
        with pytest.raises(ExpectationError) as caught:
            await inbox.expect(3, within=5)
        text = str(caught.value)
    assert text.startswith("3 messages expected from orders within 5 s, but 1 arrived:\n  1. orders broker-0/")
    assert "keys order-1 vip, tags paid: b'parcel parcel" in text
    assert "…\n2 messages missing. Messages on the running brokers for group inbox-" in text
    assert "orders: 1 stored, 0 not consumed by the group" in text


async def test_a_failed_expectation_shows_the_way_to_a_wrong_topic(cluster: Cluster, producer: Producer) -> None:
    async with cluster.inbox("orders") as inbox:
        with pytest.raises(ExpectationError, match=f"nothing was sent to this cluster.* {cluster.namesrv_address}"):
            await inbox.expect(1)
        await producer.send(Message("Orders", b"x"))
        with pytest.raises(ExpectationError, match="nothing was sent to orders, only to Orders: check the topic"):
            await inbox.expect(1)


async def test_a_failed_expectation_shows_what_the_subscription_leaves_out(
    cluster: Cluster, producer: Producer
) -> None:
    async with cluster.inbox("orders", expression="payed") as inbox:
        await producer.send(Message("orders", b"x", tags="paid"))
        with pytest.raises(ExpectationError, match=r"'payed' filters out messages; the stored tags are paid"):
            await inbox.expect(1)


async def test_a_failed_expectation_shows_a_broker_that_does_not_run(cluster: Cluster, producer: Producer) -> None:
    await producer.send(Message("orders", b"x"))
    async with cluster.inbox("orders") as inbox:
        await inbox.expect(1)
        await cluster.kill_broker(0)
        with pytest.raises(ExpectationError, match="broker 0 is not running: see start_broker"):
            await inbox.expect(1)
        await cluster.start_broker(0)


async def test_expecting_none_says_what_came(cluster: Cluster, producer: Producer) -> None:
    async with cluster.inbox("orders") as inbox:
        await producer.send(Message("orders", b"surprise"))
        with pytest.raises(ExpectationError, match=r"(?s)expected no message from orders .*b'surprise'"):
            await inbox.expect_none()


async def test_an_inbox_needs_a_topic(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="needs at least one topic"):
        cluster.inbox()
