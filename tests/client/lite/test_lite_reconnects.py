"""A consumer of lite topics repeats its subscriptions as soon as it meets a broker that may not know them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.client import Admin, LiteTopicConfig, LiteTopicConsumer, Message
from cometmq.testing import Cluster, VirtualClock, wait_until

CONFIG = LiteTopicConfig(sync_s=3_600.0, error_delay_s=0.05)


async def prepared(cluster: Cluster) -> None:
    async with Admin(instance=cluster.client_instance()) as admin:
        await admin.create_lite_topic("L")
        await admin.create_lite_group("G", "L")


def forget(root: Path) -> None:
    """Remove the subscriptions that a stopped broker has saved, as a crash loses those of the last seconds."""
    (root / "comet" / "lite_clients.bin").unlink(missing_ok=True)


async def received(cluster: Cluster, consumer: LiteTopicConsumer, body: bytes) -> None:
    await cluster.send(Message("L", body, lite_topic="a"))
    (message,) = await consumer.receive(wait_s=60)
    assert message.body == body
    await consumer.ack(message)


async def test_a_broker_that_was_restarted_knows_the_lite_topics_again() -> None:
    async with Cluster(1) as cluster:
        await prepared(cluster)
        async with LiteTopicConsumer("G", "L", instance=cluster.client_instance(), config=CONFIG) as consumer:
            await consumer.subscribe("a")
            await received(cluster, consumer, b"before")
            for number in range(2):
                await cluster.kill_broker(0)
                forget(cluster.store_root(0))
                broker = await cluster.start_broker(0)
                assert not broker.lite.subscriptions.clients
                await received(cluster, consumer, b"%d" % number)
        assert consumer._connected not in consumer.instance.remoting.on_open


@pytest.mark.parametrize("is_killed", [True, False])
async def test_the_next_master_knows_the_lite_topics_before_the_next_repetition(is_killed: bool) -> None:
    clock = VirtualClock()
    async with Cluster(replicas=3, clock=clock) as cluster:
        await prepared(cluster)
        async with LiteTopicConsumer("G", "L", instance=cluster.client_instance(), config=CONFIG) as consumer:
            await consumer.subscribe("a")
            await clock.run_until(received(cluster, consumer, b"before"), 60)
            assert await wait_until(clock, cluster.is_in_sync, 60)
            await (cluster.kill_master() if is_killed else cluster.hand_over())
            await clock.run_until(received(cluster, consumer, b"after"), 60)
