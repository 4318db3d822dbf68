"""Calls that wait: for several topics and brokers, stopped, cancelled, with clocks that differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.simple.conftest import Seen, consumer
from tests.client.simple.test_simple_consumer import bodies, send
from tests.helpers.waiting import until

from cometmq.client import BrokerError, ClientInstance, SimpleConsumer
from cometmq.client.simple.requests import Place, Popped
from cometmq.clock import SystemClock
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock, settle

Receive = Callable[[SimpleConsumer], Any]


async def until_held(cluster: Cluster, count: int) -> None:
    """Wait until the brokers hold so many pops and notifications."""
    await until(lambda: sum(len(broker.pops.polling) for broker in cluster.brokers) == count)


@pytest.mark.parametrize("topics", ["a", "ab"])
async def test_a_call_that_waits_returns_a_message_as_soon_as_it_arrives(two: Cluster, topics: str) -> None:
    async with consumer(two, *topics) as reader:
        for body in ("m0", "m1", "m2"):
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await until_held(two, 2 * len(topics))
            await send(two, topics[-1], body)
            found = await asyncio.wait_for(waiting, 10)
            assert bodies(found) == [body]
            await reader.ack(found)


async def test_one_wait_covers_all_topics_and_brokers(clock: VirtualClock) -> None:
    async with Cluster(2, clock=clock) as cluster:
        for topic in "abc":
            await cluster.create_topic(topic, queues=1)
        async with consumer(cluster, *"abc") as reader:
            began = clock.monotonic()
            assert await clock.run_until(reader.receive(wait_s=20), 60) == []
            assert clock.monotonic() - began == pytest.approx(20, abs=0.1)


async def test_a_call_that_does_not_wait_returns_at_once(timed: Cluster) -> None:
    async with consumer(timed) as reader:
        assert await reader.receive(wait_s=0) == []


@pytest.mark.parametrize("topics", ["a", "ab"])
async def test_waiting_costs_few_requests(clock: VirtualClock, topics: str) -> None:
    async with Cluster(clock=clock) as cluster:
        for topic in topics:
            await cluster.create_topic(topic)
        seen = Seen(cluster)
        async with consumer(cluster, *topics, instance=seen.instance) as reader:
            seen.codes.clear()
            assert await clock.run_until(reader.receive(wait_s=60), 70) == []
            pops = [code for code in seen.codes if code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION)]
            assert len(pops) <= (5 if len(topics) == 1 else 30)


async def test_no_topic_starves(two: Cluster) -> None:
    for number in range(150):
        await send(two, "a", str(number))
    await send(two, "b", "urgent")
    async with consumer(two, "a", "b") as reader:
        found = [bodies(await reader.receive(wait_s=5)) for _ in range(3)]
        assert ["urgent"] in found


async def test_a_call_may_ask_for_one_topic_only(two: Cluster) -> None:
    await send(two, "a", "m")
    await send(two, "b", "n")
    async with consumer(two, "a", "b") as reader:
        assert bodies(await reader.receive(topic="b")) == ["n"]
        assert await reader.receive(topic="b", wait_s=0) == []
        assert bodies(await reader.receive(topic="a")) == ["m"]


async def test_many_calls_at_a_time_share_the_messages(two: Cluster) -> None:
    async with consumer(two, "a", "b") as reader:
        waiting = [asyncio.ensure_future(reader.receive(1, wait_s=30)) for _ in range(8)]
        await until_held(two, 4)
        for number in range(8):
            await send(two, "ab"[number % 2], str(number))
        found = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert sorted(body for messages in found for body in bodies(messages)) == sorted(map(str, range(8)))


async def test_a_cancelled_call_of_one_place_loses_no_message() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("a", queues=2)
        await check_cancelled_calls(cluster, "a")


@pytest.mark.parametrize("topics", ["a", "ab"])
async def test_a_cancelled_call_loses_no_message(two: Cluster, topics: str) -> None:
    await check_cancelled_calls(two, topics)


async def check_cancelled_calls(cluster: Cluster, topics: str) -> None:
    async with consumer(cluster, *topics) as reader:
        for number in range(20):
            waiting = asyncio.ensure_future(reader.receive(wait_s=30))
            sending = asyncio.ensure_future(send(cluster, "a", str(number)))
            for _ in range(number * 3):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await sending
            found = [] if waiting.cancelled() else waiting.result()
            found = found or await asyncio.wait_for(reader.receive(wait_s=30), 10)
            assert bodies(found) == [str(number)]
            assert found[0].delivery_attempt == 1
            await reader.ack(found)


@pytest.mark.parametrize("topics", ["a", "ab"])
async def test_stop_wakes_all_calls(two: Cluster, topics: str) -> None:
    async with consumer(two, *topics) as reader:
        waiting = [asyncio.ensure_future(reader.receive(wait_s=600)) for _ in range(3)]
        await until(lambda: sum(len(broker.pops.polling) for broker in two.brokers) > 0)
        reader.stop()
        reader.stop()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [[], [], []]
        assert await reader.receive() == []


async def test_a_topic_can_be_added_and_left_while_a_call_waits(two: Cluster) -> None:
    async with consumer(two, "a") as reader:
        waiting = asyncio.ensure_future(reader.receive(wait_s=600))
        await until_held(two, 2)
        await reader.subscribe("b")
        await send(two, "b", "m")
        assert bodies(await asyncio.wait_for(waiting, 10)) == ["m"]
        await reader.unsubscribe("a")
        assert reader.topics == {"b"}
        await send(two, "a", "unseen")
        assert await reader.receive(wait_s=0.05) == []
        with pytest.raises(ValueError, match="subscribe"):
            await reader.receive(topic="a")
        await reader.subscribe("a")
        assert bodies(await asyncio.wait_for(reader.receive(wait_s=60), 10)) == ["unseen"]


@pytest.mark.parametrize("others", ["", "a"])
async def test_a_topic_that_is_created_later_is_read(two: Cluster, others: str) -> None:
    async with consumer(two, *others, "late") as reader:
        waiting = asyncio.ensure_future(reader.receive(wait_s=60))
        await asyncio.sleep(0.01)
        await two.create_topic("late")
        await send(two, "late", "m")
        assert bodies(await asyncio.wait_for(waiting, 20)) == ["m"]


class OtherClock(SystemClock):
    """A clock that shows another date than the brokers' clocks."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """The other date."""
        return super().now_ms() + self._ahead_ms


@pytest.mark.parametrize("topics", ["a", "ab"])
@pytest.mark.parametrize("ahead_ms", [-3_600_000, -2_000, 3_600_000])
async def test_a_client_whose_clock_is_wrong_receives_messages(two: Cluster, topics: str, ahead_ms: int) -> None:
    instance = ClientInstance(two.namesrv_address, clock=OtherClock(ahead_ms))
    async with consumer(two, *topics, instance=instance, error_delay_s=0.05) as reader:
        for body in ("m0", "m1"):
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await asyncio.sleep(0.02)
            await send(two, "a", body)
            found = await asyncio.wait_for(waiting, 20)
            assert bodies(found) == [body]
            await reader.ack(found)


async def test_a_wrong_clock_does_not_ask_without_pause(timed: Cluster, clock: VirtualClock) -> None:
    seen = Seen(timed)
    seen.instance.clock = Behind(clock)
    async with consumer(timed, instance=seen.instance) as reader:
        seen.codes.clear()
        assert await clock.run_until(reader.receive(wait_s=20), 30) == []
        assert len(seen.codes) < 80


async def test_a_client_whose_clock_is_behind_receives_at_once(timed: Cluster, clock: VirtualClock) -> None:
    instance = timed.client_instance()
    instance.clock = Behind(clock)
    async with consumer(timed, instance=instance) as reader:
        waiting = asyncio.ensure_future(reader.receive(wait_s=20))
        await clock.run_for(5)
        await send(timed, "a", "m")
        await clock.run_for(0.1)
        assert waiting.done()
        assert bodies(waiting.result()) == ["m"]


class Behind:
    """The same clock with an earlier date."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def now_ms(self) -> int:
        return self._clock.now_ms() - 3_600_000


async def test_tags_are_compared_in_full_and_others_are_not_left_over(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "wanted", tags="Aa")
    await send(timed, "a", "same hash", tags="BB")
    await send(timed, "a", "other", tags="C")
    reader = SimpleConsumer("workers", {"a": "Aa"}, instance=timed.client_instance())
    async with reader:
        found = await reader.receive(wait_s=0)
        assert bodies(found) == ["wanted"]
        await reader.ack(found)
        await clock.run_for(100)
        assert await reader.receive(wait_s=0) == []


async def test_an_expression_selects_messages() -> None:
    async with Cluster(broker_keys={"enablePropertyFilter": "true"}) as cluster:
        await cluster.create_topic("a", queues=1)
        async with consumer(cluster) as reader:
            await reader.subscribe("a", "n > 5", expression_type="SQL92")
            await send(cluster, "a", "small", properties={"n": "1"})
            await send(cluster, "a", "large", properties={"n": "9"})
            assert bodies(await reader.receive(wait_s=5)) == ["large"]
            with pytest.raises(BrokerError):
                await reader.subscribe("a", "n >", expression_type="SQL92")


async def test_urgent_messages_come_first(timed: Cluster) -> None:
    await timed.create_topic("p", queues=4, message_type="PRIORITY")
    for number, priority in enumerate([0, 3, 1, 2, 3]):
        await send(timed, "p", str(number), priority=priority)
    async with consumer(timed, "p") as reader:
        found = await reader.receive(wait_s=0)
        assert [message.priority for message in found] == [3, 3, 2, 1, 0]


async def test_a_call_that_ends_at_any_moment_leaves_no_pop_at_the_broker(timed: Cluster) -> None:
    async with consumer(timed) as reader:
        for rounds in range(30):  # each time over a new connection, which may not be open yet
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            for _ in range(rounds):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await settle()
            assert [len(broker.pops.polling) for broker in timed.brokers] == [0], f"ended after {rounds} rounds"


async def test_a_slow_round_of_many_topics_ends(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than a notification waits, and was begun again and again; a message waited for its turn."""
    topics = [f"t{number}" for number in range(20)]
    async with Cluster(clock=clock) as cluster:
        for topic in topics:
            await cluster.create_topic(topic)
        async with consumer(cluster, *topics) as reader:
            asked, pop = [], reader._requests.pop

            async def slow_pop(place: Place, *rest: Any) -> Popped:
                asked.append(place.topic)
                await clock.sleep(1)
                return await pop(place, *rest)

            monkeypatch.setattr(reader._requests, "pop", slow_pop)
            receiving = asyncio.create_task(reader.receive(wait_s=100))
            await clock.run_for(60)
            assert sorted(asked) == sorted(topics)
            await send(cluster, topics[7], "now")
            assert bodies(await clock.run_until(receiving, 2)) == ["now"]


async def test_many_idle_places_ask_rarely(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 topics, each waits as long as each of 7,000 does: 21 seconds instead of 5."""
    monkeypatch.setattr("cometmq.client.simple.quiet.SPACING_MS", 3 * 350)
    topics = [f"t{number}" for number in range(20)]
    async with Cluster(clock=clock) as cluster:
        for topic in topics:
            await cluster.create_topic(topic)
        seen = Seen(cluster)
        async with consumer(cluster, *topics, instance=seen.instance) as reader:
            receiving = asyncio.create_task(reader.receive(wait_s=100))
            await clock.run_for(10)
            seen.codes.clear()
            await clock.run_for(62)
            assert seen.codes.count(RequestCode.NOTIFICATION) <= 3 * len(topics)
            await send(cluster, topics[3], "now")
            assert bodies(await clock.run_until(receiving, 1)) == ["now"]
