"""Requests and replies over brokers of either system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.helpers.examples import run
from tests.helpers.waiting import until
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from cometmq.client.errors import BrokerError, IllegalMessageError, RequestTimeoutError
from cometmq.client.sync import SyncProducer, SyncPushConsumer
from cometmq.testing import Cluster

FIRST = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


class Service:
    """Replies to every request with its body in capitals; keeps what it got."""

    def __init__(self) -> None:
        self.requests: list[MessageExt] = []
        self.go = asyncio.Event()
        self.go.set()
        self.failures: list[BaseException] = []

    @asynccontextmanager
    async def running(self, address: str, topic: str, group: str) -> AsyncIterator[Producer]:
        async with Producer("replier", address, config=ProducerConfig(retry_times_when_send_failed=0)) as producer:

            async def listener(messages: Sequence[MessageExt]) -> None:
                for message in messages:
                    self.requests.append(message)
                    await self.go.wait()
                    try:
                        await producer.reply(message, message.body.upper())
                    except BrokerError as error:
                        self.failures.append(error)

            consumer = PushConsumer(group, listener, address, config=FIRST)
            await consumer.subscribe(topic)
            async with consumer:
                yield producer


async def test_a_request_gets_its_reply(server: Deployment, topic: str, group: str) -> None:
    service = Service()
    async with service.running(server.address, topic, group), Producer("asker", server.address) as producer:
        reply = await producer.request(Message(topic, b"question", tags="t", keys=["k"]), timeout_s=60)
        assert reply.body == b"QUESTION"
        (request,) = service.requests
        assert (request.tags, request.keys) == ("t", ("k",))
        assert request.properties["TTL"] == "60000"
        assert request.properties["REPLY_TO_CLIENT"] == producer.instance.client_id
        for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"):
            assert reply.properties[name] == request.properties[name]
        assert reply.properties["MSG_TYPE"] == "reply"
        assert int(reply.properties["PUSH_REPLY_TIME"]) <= int(reply.properties["ARRIVE_TIME"])
        assert reply.topic == "DefaultCluster_REPLY_TOPIC"
        assert reply.born_host.startswith("127.0.0.1:")


async def test_many_requests_at_a_time_get_each_its_own_reply(server: Deployment, topic: str, group: str) -> None:
    service = Service()
    async with service.running(server.address, topic, group), Producer("asker", server.address) as producer:
        asked = [b"request %d" % number for number in range(50)]
        replies = await asyncio.gather(*(producer.request(Message(topic, body), timeout_s=60) for body in asked))
        assert [reply.body for reply in replies] == [body.upper() for body in asked]
        large = b"x" * 200_000
        assert (await producer.request(Message(topic, large), timeout_s=60, sharding_key="k")).body == large.upper()


async def test_a_reply_that_is_late_is_nobodys(server: Deployment, topic: str, group: str) -> None:
    service = Service()
    service.go.clear()
    async with service.running(server.address, topic, group), Producer("asker", server.address) as producer:
        with pytest.raises(RequestTimeoutError, match=f"no reply to a request to topic {topic} within 2 s") as late:
            await producer.request(Message(topic, b"slow"), timeout_s=2)
        assert (late.value.code, late.value.topic) == (10006, topic)
        await until(lambda: service.requests)
        service.go.set()
        reply = await producer.request(Message(topic, b"quick"), timeout_s=60)
        assert reply.body == b"QUICK"
    assert not service.failures


async def test_replying_to_a_requester_that_is_gone_is_an_error(server: Deployment, topic: str, group: str) -> None:
    service = Service()
    service.go.clear()
    async with service.running(server.address, topic, group):
        async with Producer("asker", server.address) as producer:
            asking = asyncio.create_task(producer.request(Message(topic, b"hello"), timeout_s=60))
            await until(lambda: service.requests)
            asking.cancel()
        service.go.set()
        await until(lambda: service.failures)
    (failure,) = service.failures
    assert f"channel of <{producer.instance.client_id}> not found" in str(failure)


async def test_only_requests_can_be_replied_to(server: Deployment, topic: str, group: str) -> None:
    service = Service()
    seen: list[MessageExt] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.extend(messages)

    consumer = PushConsumer(group, listener, server.address, config=FIRST)
    await consumer.subscribe(topic)
    async with consumer, Producer("p", server.address) as producer:
        await producer.send(Message(topic, b"plain"))
        await until(lambda: seen)
        with pytest.raises(IllegalMessageError, match="is not a request: it has no CORRELATION_ID, REPLY_TO_CLIENT"):
            await producer.reply(seen[0], b"answer")
        for wrong in (Message(topic, b"mine"), [seen[0]], None, b"x"):
            with pytest.raises(IllegalMessageError, match=f"a {type(wrong).__name__} object is not a consumed request"):
                await producer.reply(wrong, b"answer")  # type: ignore[arg-type]
        with pytest.raises(IllegalMessageError, match="no body"):
            await producer.request(Message(topic, b""))
    assert not service.requests


async def test_the_synchronous_face(server: Deployment, topic: str, group: str) -> None:
    with SyncProducer("replier", server.address) as replier, SyncProducer("asker", server.address) as asker:

        def listener(messages: Sequence[MessageExt]) -> None:
            for message in messages:
                replier.reply(message, message.body.upper(), properties={"language": "en"})

        consumer = SyncPushConsumer(group, listener, server.address, config=FIRST)
        consumer.subscribe(topic)
        with consumer:
            reply = await asyncio.to_thread(asker.request, Message(topic, b"question"), timeout_s=60)
    assert reply.body == b"QUESTION"
    assert reply.properties["language"] == "en"


async def test_a_reply_may_come_from_any_broker_of_the_cluster() -> None:
    async with Cluster(brokers=3) as cluster:
        address = cluster.namesrv_address
        async with Admin(address) as admin:
            await admin.create_topic("Questions", queues=1)
        service = Service()
        async with service.running(address, "Questions", "g"), Producer("asker", address) as producer:
            for number in range(12):
                reply = await producer.request(Message("Questions", b"q%d" % number), timeout_s=60)
                assert reply.body == b"Q%d" % number


def test_the_example_runs_as_written(server: Deployment, tmp_path: Path) -> None:
    assert "7 * 6 = 42" in run("request_reply.py", tmp_path, server.address)
