"""Brokers that stop, freeze, fail over or refuse."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.simple.conftest import consumer
from tests.client.simple.test_simple_consumer import bodies, dead_letters, send
from tests.client.simple.test_waiting import until_held

from cometmq.client import (
    AccessDeniedError,
    Admin,
    BrokerError,
    ClientInstance,
    ClientRpcHook,
    Credentials,
    Message,
    MessageQueue,
    PoppedMessage,
    Producer,
    RemotingSendError,
    Security,
    SimpleConsumer,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import Cluster, VirtualClock
from cometmq.testing.link import Direction


@pytest.mark.parametrize("topics", ["a", "ab"])
async def test_a_call_waits_through_a_restart(topics: str) -> None:
    async with Cluster() as cluster:
        for topic in topics:
            await cluster.create_topic(topic)
        async with consumer(cluster, *topics, error_delay_s=0.05) as reader:
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await until_held(cluster, len(topics))
            await cluster.restart_broker(0)
            await send(cluster, "a", "m")
            assert bodies(await asyncio.wait_for(waiting, 20)) == ["m"]


async def test_messages_are_acknowledged_while_the_broker_starts_again() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("a")
        await send(cluster, "a", "m", "n")
        async with consumer(cluster) as reader:
            found: list[PoppedMessage] = []
            while len(found) < 2:
                found += await reader.receive(wait_s=5)
            await cluster.kill_broker(0)
            acked = asyncio.gather(*(reader.ack(message) for message in found))
            await cluster.start_broker(0)
            await asyncio.wait_for(acked, 20)
            for message in found:
                await reader.change_invisible(message, 0)  # has no effect
            assert await reader.receive(wait_s=0.2) == []


async def test_an_acknowledgement_fails_when_the_broker_is_away_too_long() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("a")
        await send(cluster, "a", "m")
        async with consumer(cluster, retry_s=0.2) as reader:
            found = await reader.receive(wait_s=5)
            await cluster.kill_broker(0)
            with pytest.raises(Exception, match=r"broker-0|connect"):
                await reader.ack(found)
            await cluster.start_broker(0)


async def test_a_dead_broker_does_not_delay_messages_of_another(two: Cluster) -> None:
    async with consumer(two, "a", "b", error_delay_s=0.05) as reader:
        await two.kill_broker(0)
        for number in range(20):
            await send(two, "ab"[number % 2], str(number))
        found: set[str] = set()
        while len(found) < 20:
            messages = await asyncio.wait_for(reader.receive(wait_s=20), 10)
            found |= set(bodies(messages))
            await reader.ack(messages)
        await two.start_broker(0)


async def test_a_frozen_broker_does_not_delay_messages_of_another(clock: VirtualClock) -> None:
    async with Cluster(2, clock=clock, links=True) as cluster:
        for topic in "abcd":
            await cluster.create_topic(topic, queues=1)
        async with consumer(cluster, *"abcd") as reader:
            with cluster.pause_broker(0):
                assert await clock.run_until(reader.receive(wait_s=4), 20) == []
                began = clock.monotonic()
                for number in range(3):
                    waiting = asyncio.ensure_future(reader.receive(wait_s=30))
                    await clock.run_until(send_to(cluster, "broker-1", "abc"[number], str(number)), 30)
                    found = await clock.run_until(waiting, 5)
                    assert bodies(found) == [str(number)]
                    await clock.run_until(reader.ack(found), 5)
                assert clock.monotonic() - began < 10


async def send_to(cluster: Cluster, broker: str, topic: str, body: str) -> None:
    async with Producer("p", instance=cluster.client_instance()) as producer:
        await producer.send(Message(topic, body.encode()), queue=MessageQueue(topic, broker, 0))


async def test_a_new_master_goes_on() -> None:
    async with Cluster(replicas=3) as cluster:
        await cluster.create_topic("a")
        await send(cluster, "a", "acked", "open")
        async with consumer(cluster, error_delay_s=0.05, invisible_s=600) as reader:
            found: list[PoppedMessage] = []
            while len(found) < 2:
                found += await reader.receive(wait_s=5)
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await cluster.kill_master()
            await reader.ack([message for message in found if message.body == b"acked"])
            await send(cluster, "a", "later")
            assert bodies(await asyncio.wait_for(waiting, 60)) == ["later"]
            (still_open,) = [message for message in found if message.body == b"open"]
            await reader.change_invisible(still_open, 0)
            assert bodies(await asyncio.wait_for(reader.receive(wait_s=60), 60)) == ["open"]


ACCOUNTS = [
    {"accessKey": "worker1", "secretKey": "12345678", "topicPerms": ["a=SUB", "b=SUB"], "groupPerms": ["workers=SUB"]},
    {"accessKey": "stranger", "secretKey": "12345678", "topicPerms": ["a=PUB", "b=SUB"], "groupPerms": ["workers=SUB"]},
]


async def test_an_account_needs_its_permissions() -> None:
    async with Cluster(accounts=ACCOUNTS) as cluster:
        for topic in "ab":
            await cluster.create_topic(topic)
            await send(cluster, topic, topic)
        worker = SimpleConsumer(
            "workers", {"a": "*"}, cluster.namesrv_address, security=Security(Credentials("worker1", "12345678"))
        )
        async with worker:
            (message,) = await worker.receive(wait_s=5)
            await worker.change_invisible(message, 0)
            (again,) = await worker.receive(wait_s=5)
            assert again.delivery_attempt == 2
            await worker.ack([again])
        stranger = SimpleConsumer(
            "workers",
            {"a": "*", "b": "*"},
            cluster.namesrv_address,
            security=Security(Credentials("stranger", "12345678")),
        )
        async with stranger:
            outcomes = [await outcome(stranger) for _ in range(2)]
            assert {"b", AccessDeniedError} == set(outcomes)


async def outcome(reader: SimpleConsumer) -> object:
    try:
        return bodies(await reader.receive(wait_s=5))[0]
    except BrokerError as error:
        return type(error)


async def test_a_group_that_does_not_exist_is_an_error() -> None:
    async with Cluster(broker_keys={"autoCreateSubscriptionGroup": "false"}) as cluster:
        await cluster.create_topic("a")
        async with consumer(cluster) as reader:
            with pytest.raises(BrokerError, match="workers"):
                await reader.receive(wait_s=5)


async def test_a_topic_that_is_deleted_does_not_delay_the_others(two: Cluster) -> None:
    async with consumer(two, "a", "b", error_delay_s=0.05) as reader:
        async with Admin(instance=two.client_instance()) as admin:
            await admin.delete_topic("b")
        assert await reader.receive(wait_s=0.2) == []
        await send(two, "a", "m")
        assert bodies(await asyncio.wait_for(reader.receive(wait_s=20), 5)) == ["m"]


async def test_a_message_is_rejected_once_while_the_broker_starts_again() -> None:
    async with Cluster() as cluster:
        await cluster.create_topic("a")
        await send(cluster, "a", "m")
        async with consumer(cluster) as reader:
            (message,) = await reader.receive(wait_s=5)
            await cluster.kill_broker(0)
            rejected = asyncio.ensure_future(reader.reject(message))
            await asyncio.sleep(0.1)
            await cluster.start_broker(0)
            await asyncio.wait_for(rejected, 20)
            await reader.change_invisible(message, 0)  # has no effect
            assert await reader.receive(wait_s=0.2) == []
        assert await dead_letters(cluster) == ["m"]


@pytest.mark.parametrize("lost_answers", [1, 100])
async def test_a_rejection_whose_answers_are_lost_makes_at_most_two_dead_letters(lost_answers: int) -> None:
    async with Cluster(links=True) as cluster:
        await cluster.create_topic("a")
        await send(cluster, "a", "m")
        sent = 0

        def lose_the_answer(_address: str, command: RemotingCommand) -> None:
            nonlocal sent
            sent += command.code == RequestCode.CONSUMER_SEND_MSG_BACK
            if command.code == RequestCode.CONSUMER_SEND_MSG_BACK and sent <= lost_answers:
                cluster.link(0).cut_after(0, Direction.TO_CLIENT)

        instance = ClientInstance(cluster.namesrv_address, hooks=[ClientRpcHook(before=lose_the_answer)])
        async with consumer(cluster, instance=instance, invisible_s=5, renew_up_to_s=600, retry_s=5) as reader:
            (message,) = await reader.receive(wait_s=5)
            if lost_answers == 1:
                await reader.reject(message)
                await reader.change_invisible(message, 0)  # has no effect
                assert await reader.receive(wait_s=0.2) == []
            else:
                with pytest.raises(RemotingSendError):
                    await reader.reject(message)
                assert bodies(await reader.receive(wait_s=10)) == ["m"]  # it is not renewed
        assert sent == 2
        assert await dead_letters(cluster) == ["m", "m"]
