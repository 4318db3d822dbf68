"""Apache's brokers miss messages of lite topics that arrive while a pop begins to wait."""

from __future__ import annotations

import asyncio

from tests.helpers.waiting import until

from cometmq.client import Admin, LiteTopicConsumer, Message
from cometmq.testing import Cluster, VirtualClock


async def test_a_message_that_a_broker_did_not_see_comes_within_a_second() -> None:
    """After the consumer's start and after each message; it came only after 15 seconds."""
    clock = VirtualClock()
    async with Cluster(clock=clock) as cluster:
        async with Admin(instance=cluster.client_instance()) as admin:
            await admin.create_lite_topic("L")
            await admin.create_lite_group("G", "L")
        lite = cluster.brokers[0].lite
        wake = lite.subscriptions.on_ready
        async with LiteTopicConsumer("G", "L", instance=cluster.client_instance()) as reader:
            await reader.subscribe("a")
            client_id = reader.instance.client_id
            for text in (b"one", b"two"):
                receiving = asyncio.create_task(reader.receive())
                await until(lambda: lite.pops.held.is_waiting(client_id, "G"))
                lite.subscriptions.on_ready = lambda _: True
                await cluster.send(Message("L", text, lite_topic="a"))
                lite.subscriptions.on_ready = wake
                await clock.run_for(1.1)
                await until(receiving.done, timeout_s=10)
                (message,) = await receiving
                assert message.body == text
                await reader.ack(message)
