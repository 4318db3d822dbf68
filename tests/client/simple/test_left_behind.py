"""A consumer that gives its messages back when it is gone keeps them while it lives."""

from __future__ import annotations

from tests.client.simple.conftest import consumer
from tests.client.simple.test_simple_consumer import bodies, send

from cometmq.testing import Cluster, VirtualClock, settle


async def test_a_stopped_consumer_keeps_its_messages_until_it_is_gone(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as other, consumer(timed, gives_back_when_gone=True) as reader:
        found = await reader.receive(wait_s=60)
        reader.stop()
        await settle()
        await clock.run_for(5)
        assert await other.receive(wait_s=0) == []
        await reader.ack(found)


async def test_a_renewed_message_comes_again_too(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as other:
        dead = consumer(timed, gives_back_when_gone=True, invisible_s=10, renew_up_to_s=100)
        await dead.start()
        assert bodies(await dead.receive(wait_s=60)) == ["m"]
        await clock.run_for(6)  # renewed
        dead._requests.end_waits()
        await dead.instance.remoting.close()
        await settle()
        await clock.run_for(1)
        assert bodies(await other.receive(wait_s=0)) == ["m"]
        await dead.close()


async def test_a_consumer_that_loses_its_connections_keeps_its_messages(timed: Cluster, clock: VirtualClock) -> None:
    await send(timed, "a", "m")
    async with consumer(timed) as other, consumer(timed, gives_back_when_gone=True) as reader:
        found = await reader.receive(wait_s=60)
        for connection in list(timed.brokers[0].server.connections):
            connection.close()
        await settle()
        await clock.run_for(5)
        assert await other.receive(wait_s=0) == []
        await reader.ack(found)
