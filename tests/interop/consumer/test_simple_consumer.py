"""Our simple consumer at Apache 5.5.0 and at ours: the same outcomes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.client.conftest import visible
from tests.interop.conftest import _deploy
from tests.interop.systems import Deployment, System

from cometmq.client import Admin, Message, PoppedMessage, Producer, PullConsumer, SimpleConsumer, SimpleConsumerConfig

pytestmark = pytest.mark.interop

_numbers = itertools.count(1)
SOON = SimpleConsumerConfig(invisible_s=2, wait_s=30)


@pytest.fixture(scope="module", params=[System.COMETMQ, System.APACHE55], ids=["cometmq", "apache55"])
def popped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = _deploy(request.param, tmp_path_factory.mktemp("popped"))
    yield deployment
    deployment.close()


@pytest.fixture
async def topics(popped: Deployment) -> list[str]:
    names = [f"InteropSimple{next(_numbers)}" for _ in range(2)]
    async with Admin(popped.address) as admin:
        for name in names:
            await admin.create_topic(name, queues=4)
    return names


@pytest.fixture
async def producer(popped: Deployment) -> AsyncIterator[Producer]:
    async with Producer("simple-producer", popped.address) as running:
        yield running


def consumer(popped: Deployment, topics: list[str], config: SimpleConsumerConfig | None = None) -> SimpleConsumer:
    return SimpleConsumer(f"group-{topics[0]}", dict.fromkeys(topics, "*"), popped.address, config=config)


async def take(reader: SimpleConsumer, count: int) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []
    while len(found) < count:
        messages = await reader.receive(wait_s=30)
        assert messages, f"only {len(found)} of {count} messages"
        await reader.ack(messages)
        found += messages
    return found


@pytest.mark.parametrize("count", [1, 2])
async def test_all_messages_are_received_once(
    popped: Deployment, topics: list[str], producer: Producer, count: int
) -> None:
    async with consumer(popped, topics[:count], SOON) as reader:
        await producer.send_many([Message(topics[number % count], b"%d" % number) for number in range(200)])
        found = await take(reader, 200)
        assert sorted(int(message.body) for message in found) == list(range(200))
        assert await reader.receive(wait_s=8) == []  # none of them is handed out again


@pytest.mark.parametrize("count", [1, 2])
async def test_a_call_that_waits_is_woken(
    popped: Deployment, topics: list[str], producer: Producer, count: int
) -> None:
    async with consumer(popped, topics[:count]) as reader:
        for number in range(3):
            waiting = asyncio.ensure_future(reader.receive(wait_s=60))
            await asyncio.sleep(0.3)
            await producer.send(Message(topics[number % count], b"m"))
            messages = await asyncio.wait_for(waiting, 20)
            assert [message.body for message in messages] == [b"m"]
            await reader.ack(messages)


async def test_a_message_comes_again_until_it_is_acknowledged(
    popped: Deployment, topics: list[str], producer: Producer
) -> None:
    await producer.send_many([Message(topics[0], b"%d" % number) for number in range(6)])
    await visible(popped.address, topics[0], 6)
    async with consumer(popped, topics, SOON) as reader:
        first: list[PoppedMessage] = []
        while len(first) < 6:
            first += await reader.receive(wait_s=30)
        await reader.ack(first[0])
        await reader.ack(first[1:3])
        await reader.change_invisible(first[3], 1)
        again = await take(reader, 3)
        assert sorted(message.body for message in again) == sorted(message.body for message in first[3:])
        assert {(message.topic, message.delivery_attempt) for message in again} == {(topics[0], 2)}
        assert await reader.receive(wait_s=6) == []


async def test_a_changed_message_is_acknowledged(popped: Deployment, topics: list[str], producer: Producer) -> None:
    await producer.send(Message(topics[0], b"m"))
    async with consumer(popped, topics[:1], SOON) as reader:
        (message,) = await reader.receive()
        for _ in range(2):
            await reader.change_invisible(message, 3)
        await reader.ack(message)
        assert await reader.receive(wait_s=8) == []


async def test_a_call_that_ends_takes_its_waiting_pop_back(
    popped: Deployment, topics: list[str], producer: Producer
) -> None:
    await producer.send(Message(topics[0], b"m"))
    async with consumer(popped, topics[:1]) as reader:
        (message,) = await reader.receive()
        waiting = asyncio.ensure_future(reader.receive(wait_s=600))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.5)
        await reader.change_invisible(message, 0)
        async with SimpleConsumer(reader.group, {topics[0]: "*"}, popped.address) as other:
            (again,) = await other.receive(wait_s=30)
            assert again.delivery_attempt == 2


async def test_a_rejected_message_is_a_dead_letter(popped: Deployment, topics: list[str], producer: Producer) -> None:
    await producer.send(Message(topics[0], b"m"))
    async with consumer(popped, topics, SOON) as reader:
        (message,) = await reader.receive()
        await reader.reject(message)
        dead = f"%DLQ%{reader.group}"
        await visible(popped.address, dead, 1)
        async with PullConsumer("tools", popped.address) as letters:
            (queue,) = await letters.queues(dead)
            assert [letter.body for letter in (await letters.pull(queue, 0)).messages] == [b"m"]
        assert await reader.receive(wait_s=6) == []
