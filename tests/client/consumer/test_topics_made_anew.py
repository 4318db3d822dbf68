"""A topic is deleted and made anew while consumers read it: they get every message of its new life."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.helpers.waiting import until
from tests.interop.systems import Deployment

from cometmq.client import (
    Admin,
    ClientInstance,
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
from cometmq.testing import Cluster, VirtualClock

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
KINDS = ("concurrent", "ordered", "broadcasting", "lite")
OLD = [b"old %d" % number for number in range(50)]


@asynccontextmanager
async def reading(
    kind: str, instance: ClientInstance, topic: str, seen: list[bytes], root: Path
) -> AsyncIterator[None]:
    """A running consumer of one kind, which adds the bodies that it gets to ``seen``."""
    if kind == "lite":
        async with LitePullConsumer(
            "readers", instance=instance, config=LitePullConfig(consume_from_where=FIRST)
        ) as lite:
            await lite.subscribe(topic)
            task = asyncio.create_task(_poll(lite, seen))
            yield
            task.cancel()
        return

    async def listen(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    config = PushConfig(
        consume_from_where=FIRST,
        message_model=MessageModel.BROADCASTING if kind == "broadcasting" else MessageModel.CLUSTERING,
        orderly=kind == "ordered",
        offset_store_dir=root,
    )
    push = PushConsumer("readers", listen, instance=instance, config=config)
    await push.subscribe(topic)
    async with push:
        yield


async def _poll(consumer: LitePullConsumer, seen: list[bytes]) -> None:
    while True:
        seen.extend(message.body for message in await consumer.poll(1))


async def send(producer: Producer, topic: str, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        await producer.send(Message(topic, body))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 20, 50, 80])
@pytest.mark.parametrize("away_s", [0, 20, 100])
async def test_a_running_consumer_gets_all_messages_of_the_new_life(
    cluster: Cluster, clock: VirtualClock, kind: str, count: int, away_s: int, tmp_path: Path
) -> None:
    """Fewer, as many and more messages than before; while a pull waits, after its end, and after the route's."""
    new = [b"new %d" % number for number in range(count)]
    seen: list[bytes] = []
    async with (
        Admin(instance=cluster.client_instance()) as admin,
        Producer("p", instance=cluster.client_instance()) as producer,
        reading(kind, cluster.client_instance(), "orders", seen, tmp_path),
    ):
        await send(producer, "orders", OLD)
        await until(lambda: len(seen) == len(OLD), clock=clock)
        await admin.delete_topic("orders")
        await clock.run_for(away_s)
        await admin.create_topic("orders", queues=1)
        await send(producer, "orders", new)
        await until(lambda: seen[-1] == new[-1], clock=clock)
        assert Counter(seen[len(OLD) :]) == Counter(new)
        offsets = cluster.broker(0).offsets
        if kind != "broadcasting":
            await until(lambda: offsets.query("readers", "orders", 0) == count, clock=clock)


async def test_apaches_brokers_send_it_to_the_end_of_the_new_topic_but_it_begins_at_the_first_message(
    server: Deployment, group: str, topic: str
) -> None:
    """Although the broker moves the offset to the end of the new queue, which has fewer messages than the old one."""
    new = [b"new %d" % number for number in range(20)]
    seen: list[bytes] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    name = f"{topic}-anew"
    async with Admin(server.address) as admin, Producer("p", server.address) as producer:
        await admin.create_topic(name, queues=1)
        push = PushConsumer(group, listen, server.address, config=PushConfig(consume_from_where=FIRST))
        await push.subscribe(name)
        async with push:
            await send(producer, name, OLD)
            await until(lambda: len(seen) == len(OLD))
            await admin.delete_topic(name)
            await admin.create_topic(name, queues=1)
            await send(producer, name, new)
            await until(lambda: Counter(seen[len(OLD) :]) == Counter(new))
