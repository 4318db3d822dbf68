"""Life times on a slave and after its promotion: only a master makes dead letters, and none of them twice."""

from __future__ import annotations

from tests.broker.admin.test_topic_attributes import change
from tests.broker.pull.test_life_times import TOPIC, pulled, send, settled
from tests.broker.replication.following import connect, copied
from tests.helpers.contents import stored

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import ResponseCode
from cometmq.testing import Cluster, VirtualClock


def letters(broker: Broker, group: str = "consumers") -> list[bytes]:
    return [letter.body for letter in stored(broker, f"%DLQ%{group}")]


async def fill(cluster: Cluster, clock: VirtualClock, fate: str) -> None:
    """A topic whose first and third messages have expired, on a master and its slave."""
    wire = await connect(cluster.broker(0))
    assert (await change(wire, f"+expired.messages={fate}", TOPIC)).code == 0
    for body, ttl_ms in ((b"a", 1_000), (b"b", None), (b"c", 1_000), (b"d", None)):
        await send(wire, body, ttl_ms)
    await wire.close()
    await copied(cluster)
    await clock.run_for(1)


async def test_a_slave_passes_over_what_has_expired(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock) as cluster:
        await fill(cluster, clock, "skip")
        wire = await connect(cluster.slave())
        assert await pulled(wire) == (0, [b"b", b"d"], 4)
        await wire.close()
        assert letters(cluster.slave()) == letters(cluster.broker(0)) == []


async def test_groups_of_a_slave_wait_for_the_dead_letters_of_the_master(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock) as cluster:
        await fill(cluster, clock, "dead-letter")
        wire = await connect(cluster.slave())
        for _ in range(3):
            assert await pulled(wire) == (ResponseCode.PULL_NOT_FOUND, [], 0)
        assert await pulled(wire, 1) == (0, [b"b"], 2)
        assert letters(cluster.slave()) == []
        master = await connect(cluster.broker(0))
        assert await settled(master, 1) == ([b"b"], 2)
        assert await settled(master, 2) == ([b"d"], 4)
        assert await settled(master) == ([b"b", b"d"], 4)
        await copied(cluster)
        assert letters(cluster.slave()) == letters(cluster.broker(0)) == [b"c", b"a"]
        await master.close()
        await wire.close()


async def test_a_promoted_slave_makes_the_dead_letters_that_are_missing_and_no_others(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock) as cluster:
        await fill(cluster, clock, "dead-letter")
        wire = await connect(cluster.broker(0))
        assert await settled(wire, max_msg_nums=1) == ([b"b"], 2)
        assert letters(cluster.broker(0)) == [b"a"]
        await wire.close()
        await copied(cluster)
        slave = await connect(cluster.slave())
        assert await pulled(slave) == (0, [b"b"], 2), "the slave has the dead letter of the first one only"
        assert await pulled(slave, 2) == (ResponseCode.PULL_NOT_FOUND, [], 2)
        await slave.close()
        await cluster.kill_broker(0)
        master = await cluster.promote_slave()
        wire = await connect(master)
        assert await settled(wire, 2) == ([b"d"], 4)
        for _ in range(2):
            assert await settled(wire) == ([b"b", b"d"], 4)
        assert letters(master) == [b"a", b"c"]
        assert await settled(wire, consumer_group="others") == ([b"b", b"d"], 4)
        assert letters(master, "others") == [b"a", b"c"]
        await wire.close()
