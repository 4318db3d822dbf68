"""The metric of expired messages: each time that one is passed over, by topic and group."""

from __future__ import annotations

from tests.broker.admin.test_topic_attributes import change
from tests.broker.metrics.test_metrics import KEYS, scrape
from tests.broker.pull.test_life_times import TOPIC, pulled, send, settled
from tests.broker.replication.following import connect

from cometmq.testing import Cluster, VirtualClock

EXPIRED = "cometmq_expired_messages_total"
DEAD = "rocketmq_send_to_dlq_messages_total"


async def test_each_message_that_is_passed_over_counts_each_time(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        wire = await connect(cluster.broker(0))
        for body, ttl_ms in ((b"a", 1_000), (b"b", None), (b"c", 1_000)):
            await send(wire, body, ttl_ms)
        assert (await pulled(wire))[1] == [b"a", b"b", b"c"]
        assert (await scrape(cluster)).value(EXPIRED) == 0
        await clock.run_for(1)
        for _ in range(2):
            assert (await pulled(wire))[1] == [b"b"]
        assert (await pulled(wire, 2, consumer_group="others"))[1] == []
        assert len((await pulled(wire, consumer_group="TOOLS_CONSUMER"))[1]) == 3
        seen = await scrape(cluster)
        assert seen.value(EXPIRED, topic=TOPIC, consumer_group="consumers") == 4
        assert seen.value(EXPIRED, topic=TOPIC, consumer_group="others") == 1
        assert seen.value(EXPIRED) == 5
        assert seen.value(DEAD) == 0
        await wire.close()


async def test_a_message_that_became_a_dead_letter_counts_in_both(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys=KEYS) as cluster:
        wire = await connect(cluster.broker(0))
        assert (await change(wire, "+expired.messages=dead-letter", TOPIC)).code == 0
        await send(wire, b"a", 1_000)
        await send(wire, b"b")
        await clock.run_for(1)
        assert (await settled(wire))[0] == [b"b"]
        seen = await scrape(cluster)
        assert seen.value(EXPIRED, topic=TOPIC, consumer_group="consumers") == 1
        assert seen.value(DEAD, topic=TOPIC, consumer_group="consumers") == 1
        await wire.close()
