"""A slave takes over: it knows what was popped, until when it is invisible, and what was acknowledged."""

from __future__ import annotations

from tests.broker.pop.popping import TOPIC, Popper
from tests.broker.replication.following import PATIENCE_S, connect, replicated

from cometmq.testing import Cluster, VirtualClock, wait_until


async def test_a_promoted_slave_goes_on_where_its_master_was(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock, broker_keys={"brokerRole": "SYNC_MASTER"}) as cluster:
        await replicated(cluster)
        wire = await connect(cluster.broker(0))
        popper = Popper(wire, clock)
        for n in range(6):
            await wire.send(TOPIC, b"%d" % n, queue_id=0)
        first = await popper.pop(max_msg_nums=4, invisible_time=30_000)
        await popper.ack(first[0])
        await popper.change(first[1], 60_000)
        await wait_until(clock, cluster.has_replicated, PATIENCE_S)
        await wire.close()
        await cluster.kill_broker(0)
        popper = Popper(await connect(await cluster.promote_slave()), clock)
        assert [m.body for m in await popper.pop(invisible_time=90_000)] == [b"4", b"5"]
        await clock.skip(30)
        assert [m.body for m in await popper.pop(invisible_time=90_000)] == [b"2", b"3"]
        await clock.skip(30)
        assert [m.body for m in await popper.pop(invisible_time=90_000)] == [b"1"]
        await popper.wire.close()
