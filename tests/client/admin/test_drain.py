"""What a drained broker still has: messages that were popped and not acknowledged are not done."""

from __future__ import annotations

from tests.broker.pop.popping import GROUP, TOPIC, Popper
from tests.broker.replication.following import connect

from cometmq.client.admin import Admin
from cometmq.client.admin.drain import Drain, GroupLeft
from cometmq.testing import Cluster, VirtualClock


async def test_popped_messages_are_left_until_they_are_acknowledged(clock: VirtualClock) -> None:
    async with Cluster(clock=clock) as cluster:
        broker = cluster.broker(0)
        wire = await connect(broker)
        popper = Popper(wire, clock)
        for n in range(3):
            await wire.send(TOPIC, b"%d" % n, queue_id=0)
        popped = await popper.pop()
        await popper.ack(popped[0])
        async with Admin(instance=cluster.client_instance()) as admin:
            drain = Drain(admin, broker.config.broker_name, broker.address)
            left = await clock.run_until(drain.check(), 10)
            assert left.groups == (GroupLeft(GROUP, TOPIC, 2, 0),)
            await popper.batch_ack(popped[1:])
            assert (await clock.run_until(drain.check(), 10)).groups == ()
        await wire.close()
