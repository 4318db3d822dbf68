"""Priorities in the test kit: urgent messages come first, on a clock that stands still."""

from __future__ import annotations

from cometmq.client import Message, SimpleConsumer
from cometmq.testing import Cluster, VirtualClock


async def test_urgent_messages_are_received_first(clock: VirtualClock) -> None:
    async with Cluster(clock=clock) as cluster:
        await cluster.create_topic("jobs", queues=3, message_type="PRIORITY")
        for priority in (0, 2, 1, 2):
            await cluster.send(Message("jobs", b"%d" % priority, priority=priority))
        async with SimpleConsumer("workers", {"jobs": "*"}, instance=cluster.client_instance()) as workers:
            messages = await workers.receive(32, wait_s=0)
            assert [message.body for message in messages] == [b"2", b"2", b"1", b"0"]
            await workers.ack(messages)
