"""Apache's brokers miss messages that arrive while a pop or a notification begins to wait."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.simple.conftest import Seen, consumer
from tests.client.simple.test_simple_consumer import bodies, send

from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock, settle


@pytest.mark.parametrize("topics", [("a",), ("a", "b")], ids=["pops wait", "notifications wait"])
async def test_a_message_that_a_broker_did_not_see_comes_within_a_second(
    timed: Cluster, clock: VirtualClock, topics: tuple[str, ...]
) -> None:
    """After the consumer's start and after each message; it came only after 15 seconds."""
    await timed.create_topic("b", queues=2)
    on_arrival = timed.brokers[0].store.batch.on_arrival
    async with consumer(timed, *topics) as reader:
        for text in ("one", "two"):
            receiving = asyncio.create_task(reader.receive(wait_s=60))
            await settle()
            listeners = list(on_arrival)
            on_arrival.clear()
            await send(timed, "a", text)
            on_arrival.extend(listeners)
            await clock.run_for(1.1)
            assert receiving.done()
            assert bodies(await receiving) == [text]


async def test_an_idle_consumer_asks_rarely(timed: Cluster, clock: VirtualClock) -> None:
    seen = Seen(timed)
    async with consumer(timed, instance=seen.instance) as reader:
        receiving = asyncio.create_task(reader.receive(wait_s=60))
        await settle()
        await clock.run_for(59)
        assert 4 <= seen.codes.count(RequestCode.POP_MESSAGE) <= 5
        await clock.run_for(2)
        assert await receiving == []
