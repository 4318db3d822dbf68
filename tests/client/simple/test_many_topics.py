"""Consumers of thousands of topics; here limits are lower instead."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from tests.client.simple.conftest import Seen, consumer
from tests.client.simple.test_simple_consumer import bodies, send
from tests.client.simple.test_waiting import until_held

import cometmq.broker.clients.client_manage
import cometmq.client.simple.consumer
import cometmq.client.simple.places
import cometmq.client.simple.quiet
import cometmq.client.simple.requests
from cometmq.client import Admin, ClientInstance, ClientStateError, SimpleConsumer
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock, settle

TOPICS = [f"t{number}" for number in range(8)]


async def create(cluster: Cluster, topics: Sequence[str] = TOPICS) -> None:
    for topic in topics:
        await cluster.create_topic(topic, queues=1)


async def test_waiting_at_many_topics_leaves_room_for_other_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection has room for four requests, as one for 4,096 with 8,000 topics."""
    monkeypatch.setattr(cometmq.client.simple.requests, "_MOST_SHARED", 2)
    async with Cluster() as cluster:
        await create(cluster)
        instance = ClientInstance(cluster.namesrv_address)
        instance.remoting._max_in_flight = 4
        async with consumer(cluster, *TOPICS, instance=instance) as reader:
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await until_held(cluster, len(TOPICS))
            for topic in TOPICS:
                await send(cluster, topic, topic)
                found = await asyncio.wait_for(waiting, 10)
                assert bodies(found) == [topic]
                await asyncio.wait_for(reader.ack(found), 1)
                waiting = asyncio.ensure_future(reader.receive(wait_s=60))
                await until_held(cluster, len(TOPICS))
            notifications = reader._requests._notifications
            assert notifications is not None
            assert len(notifications.connections) == 1
            waiting.cancel()
        assert not notifications.connections
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_many_topics_are_read_after_a_restart_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.client.simple.requests, "_MOST_SHARED", 2)
    async with Cluster() as cluster:
        await create(cluster)
        async with consumer(cluster, *TOPICS, error_delay_s=0.05) as reader:
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await until_held(cluster, len(TOPICS))
            await cluster.restart_broker(0)
            await until_held(cluster, len(TOPICS))
            await send(cluster, TOPICS[-1], "m")
            assert bodies(await asyncio.wait_for(waiting, 20)) == ["m"]


async def test_the_first_call_pops_at_some_places_and_asks_about_the_others_together(
    timed: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.client.simple.places, "_MOST_POPS", 2)
    await create(timed)
    await send(timed, TOPICS[-1], "m")
    seen = Seen(timed)
    async with consumer(timed, *TOPICS, instance=seen.instance) as reader:
        assert bodies(await asyncio.wait_for(reader.receive(wait_s=60), 10)) == ["m"]
        pops = seen.codes.count(RequestCode.POP_MESSAGE)
        assert pops <= 3
        assert await reader.receive(wait_s=0) == []
        assert seen.codes.count(RequestCode.POP_MESSAGE) == pops + len(TOPICS)


async def test_calls_do_not_look_at_quiet_places(timed: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a busy consumer took as long as a walk through all its topics, also if only one has messages."""
    await create(timed)
    await send(timed, TOPICS[3], *map(str, range(40)))
    async with consumer(timed, *TOPICS) as reader:
        while len(await reader.receive(1, wait_s=5)) == 1 and len(reader._places._due) > 1:
            pass
        looked_at = Counter[str]()
        quiet = reader._places._quiet

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(quiet, name)

            def __contains__(self, place: Any) -> bool:
                looked_at[place.topic] += 1
                return place in quiet

        monkeypatch.setattr(reader._places, "_quiet", Counted())
        assert len(await reader.receive(1, wait_s=5)) == 1
        assert set(looked_at) == {TOPICS[3]}


async def test_subscribing_looks_only_for_the_new_topic(timed: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call waits, each new topic caused a search for the routes of all."""
    await create(timed)
    async with consumer(timed, "a") as reader:
        receiving = asyncio.create_task(reader.receive(wait_s=60))
        asked: list[str] = []
        find_routes = reader._places.find_routes

        async def counted(topics: Iterable[str]) -> bool:
            asked.extend(topics)
            return await find_routes(topics)

        monkeypatch.setattr(reader._places, "find_routes", counted)
        for topic in TOPICS:
            await reader.subscribe(topic)
        assert asked == TOPICS
        await send(timed, TOPICS[-1], "m")
        assert bodies(await asyncio.wait_for(receiving, 10)) == ["m"]


async def test_many_topics_that_do_not_exist_are_looked_for_rarely(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.client.simple.places, "SPACING_MS", 1_000)
    async with Cluster(clock=clock) as cluster:
        seen = Seen(cluster)
        async with consumer(cluster, *TOPICS, instance=seen.instance) as reader:
            receiving = asyncio.create_task(reader.receive(wait_s=100))
            seen.codes.clear()
            await clock.run_for(25)
            assert seen.codes.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) <= 5 * len(TOPICS)
            await cluster.create_topic(TOPICS[5])
            await send(cluster, TOPICS[5], "m")
            assert bodies(await clock.run_until(receiving, 10)) == ["m"]


async def test_waits_of_many_places_do_not_end_together(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.client.simple.quiet, "SPACING_MS", 3_000)
    async with Cluster(clock=clock) as cluster:
        await create(cluster)
        seen = Seen(cluster)
        async with consumer(cluster, *TOPICS, instance=seen.instance) as reader:
            receiving = asyncio.create_task(reader.receive(wait_s=200))
            await clock.run_for(30)
            rates = []
            for _ in range(24):
                seen.codes.clear()
                await clock.run_for(1)
                rates.append(seen.codes.count(RequestCode.NOTIFICATION))
            assert sum(rates) == len(TOPICS)
            assert max(rates) <= 2
            receiving.cancel()


async def test_a_consumer_of_many_topics_is_a_member_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats were larger than brokers accept."""
    monkeypatch.setattr(cometmq.client.simple.consumer, "MAX_HEARTBEAT_TOPICS", 4)
    monkeypatch.setattr(cometmq.broker.clients.client_manage, "MAX_HEARTBEAT_GROUPS", 4)
    async with Cluster() as cluster, Admin(instance=cluster.client_instance()) as admin:
        await create(cluster)
        async with consumer(cluster, *TOPICS) as reader:
            (member,) = await admin.consumer_ids("workers")
            assert member == reader.instance.client_id
            info = await admin.consumer_running_info("workers", member)
            assert sorted(found.topic for found in info.subscription_set) == TOPICS


async def test_a_heartbeat_that_names_no_topics_is_not_repeated_for_each_but_new_brokers_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker of 10,000 queues sent 10,000 equal heartbeats while it started."""
    monkeypatch.setattr(cometmq.client.simple.consumer, "MAX_HEARTBEAT_TOPICS", 2)
    async with Cluster(brokers=2) as cluster, Admin(instance=cluster.client_instance()) as admin:
        for topic, number in zip("abcde", (0, 0, 0, 0, 1), strict=True):
            await admin.create_topic(topic, queues=1, broker_address=cluster.brokers[number].address)
        seen = Seen(cluster)
        sent = []
        async with consumer(cluster, "a", instance=seen.instance) as reader:
            for topic in "bcde":
                before = seen.codes.count(RequestCode.HEART_BEAT)
                await reader.subscribe(topic)
                sent.append(seen.codes.count(RequestCode.HEART_BEAT) - before)
        assert sent == [1, 1, 0, 1], "the second names b, the third no topic any more; e has another broker"


async def test_too_many_topics_are_an_error(timed: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.client.simple.consumer, "MAX_TOPICS", 3)
    with pytest.raises(ClientStateError, match=r"more than 3 topics \(divide the topics among several consumers"):
        SimpleConsumer("workers", dict.fromkeys("abcd", "*"), instance=timed.client_instance())
    async with consumer(timed, "a", "b") as reader:
        await reader.subscribe("c")
        await reader.subscribe("c", "tag")
        with pytest.raises(ClientStateError, match="more than 3 topics"):
            await reader.subscribe("d")
        assert reader.topics == {"a", "b", "c"}
        await reader.unsubscribe("a")
        await reader.subscribe("d")


async def test_a_broker_that_holds_no_more_requests_is_asked_from_time_to_time(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(clock=clock, broker_keys={"maxPopPollingSize": "3"}) as cluster:
        await create(cluster)
        seen = Seen(cluster)
        async with consumer(cluster, *TOPICS, instance=seen.instance) as reader:
            receiving = asyncio.create_task(reader.receive(wait_s=100))
            await settle()
            seen.codes.clear()
            await clock.run_for(10)
            assert seen.codes.count(RequestCode.POP_MESSAGE) == 0
            assert seen.codes.count(RequestCode.NOTIFICATION) <= 11 * len(TOPICS)
            for topic in TOPICS:
                await send(cluster, topic, topic)
                assert bodies(await clock.run_until(receiving, 1.2)) == [topic]
                receiving = asyncio.create_task(reader.receive(wait_s=100))
            receiving.cancel()
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING and "every" in record.message]
    assert "raise the broker's maxPopPollingSize" in line.message


async def test_the_waits_of_a_broker_that_holds_no_more_requests_are_longer_for_many_topics(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.client.simple.quiet, "SPACING_MS", 1_000)
    async with Cluster(clock=clock, broker_keys={"maxPopPollingSize": "0"}) as cluster:
        await create(cluster)
        seen = Seen(cluster)
        async with consumer(cluster, *TOPICS, instance=seen.instance) as reader:
            receiving = asyncio.create_task(reader.receive(wait_s=100))
            await clock.run_for(20)
            seen.codes.clear()
            await clock.run_for(40)
            assert len(TOPICS) * 3 <= seen.codes.count(RequestCode.NOTIFICATION) <= len(TOPICS) * 6
            receiving.cancel()
