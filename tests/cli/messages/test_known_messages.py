"""consume notices that its topic was deleted and made anew, and reads the new one from its beginning."""

from __future__ import annotations

import asyncio

import pytest
from tests.helpers.waiting import until

from cometmq.cli.messages import reading
from cometmq.cli.messages.known_messages import KnownMessages
from cometmq.cli.messages.reading import EARLIEST, Reading, read
from cometmq.cli.servers.process import Stopping
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.testing import Cluster


async def send(cluster: Cluster, first: int, count: int) -> None:
    for number in range(first, first + count):
        await cluster.send(Message("orders", b"%06d" % number))


@pytest.mark.parametrize("offset", [EARLIEST, 5])
@pytest.mark.parametrize("sent", [5, 10, 25])
async def test_every_message_of_a_topic_made_anew_is_read(
    monkeypatch: pytest.MonkeyPatch, offset: int | str, sent: int
) -> None:
    monkeypatch.setattr(reading, "LIFE_SECONDS", 0.0)
    monkeypatch.setattr(reading, "POLL_SECONDS", 0.05)
    bodies: list[int] = []

    def write(messages: list[MessageExt]) -> None:
        bodies.extend(int(message.body) for message in messages)

    async with Cluster() as cluster:
        await cluster.create_topic("orders", 1)
        await send(cluster, 0, 10)
        stopping = Stopping()
        wanted = Reading("orders", offset=offset)
        follower = asyncio.create_task(read(cluster.namesrv_address, wanted, stopping, write))
        await until(lambda: len(bodies) == (10 if offset == EARLIEST else 5))
        cluster.broker(0).store.delete_topic("orders")
        await send(cluster, 1000, sent)
        await until(lambda: set(range(1000, 1000 + sent)) <= set(bodies))
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def test_a_topic_that_goes_on_is_no_other_one() -> None:
    async with (
        Cluster() as cluster,
        PullConsumer(TOOLS_GROUP, instance=cluster.client_instance()) as puller,
    ):
        await cluster.create_topic("orders", 1)
        await send(cluster, 0, 10)
        known = KnownMessages(puller)
        [queue] = await puller.queues("orders")
        await known.begin({queue: 10})
        assert await known.recreated_queues() == []
        await send(cluster, 10, 3)
        assert await known.recreated_queues() == []
        cluster.broker(0).store.delete_topic("orders")
        assert await known.recreated_queues() == [], "nothing is there yet"
        await send(cluster, 1000, 3)
        assert await known.recreated_queues() == [queue]
        assert await known.recreated_queues() == []
