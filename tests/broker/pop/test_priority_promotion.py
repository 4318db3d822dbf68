"""A slave takes over while messages of a PRIORITY topic wait for their retries: each one keeps its level."""

from __future__ import annotations

import pytest
from tests.broker.pop.popping import TOPIC, Popper
from tests.broker.pop.test_priority import LEVELS, RETRY, bodies, send
from tests.broker.replication.following import connect, copied, replicated

from cometmq.broker.controller import Broker
from cometmq.remoting.admin_headers import CreateTopicRequestHeader
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, VirtualClock

PRIORITY_TOPIC = CreateTopicRequestHeader(
    *(TOPIC, "TBW102", LEVELS, LEVELS, 6, "SINGLE_TAG"), order=False, attributes="+message.type=PRIORITY"
)


async def popper_of(broker: Broker, clock: VirtualClock) -> Popper:
    return Popper(await connect(broker), clock)


async def fail_over(cluster: Cluster, popper: Popper, clock: VirtualClock) -> Popper:
    await copied(cluster)
    await popper.wire.close()
    await cluster.kill_broker(0)
    return await popper_of(await cluster.promote_slave(), clock)


@pytest.mark.parametrize("is_due", [False, True], ids=["before the retries are due", "when they are"])
async def test_retries_keep_their_levels_at_a_promoted_slave(clock: VirtualClock, is_due: bool) -> None:
    async with Cluster(slaves=1, clock=clock) as cluster:
        await replicated(cluster)
        popper = await popper_of(cluster.broker(0), clock)
        assert (await popper.wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, PRIORITY_TOPIC)).code == 0
        await send(popper.wire, 3, 1)
        assert bodies(await popper.pop(invisible_time=30_000)) == [b"3.0", b"1.1"]
        if is_due:
            await clock.skip(31)
            await clock.run_for(1)
        popper = await fail_over(cluster, popper, clock)
        if not is_due:
            await clock.skip(31)
            await clock.run_for(1)
        await send(popper.wire, 0, 2, 3)
        found = await popper.pop(invisible_time=30_000)
        assert [(m.body, m.times) for m in found] == [(b"3.2", 0), (b"3.0", 1), (b"2.1", 0), (b"1.1", 1), (b"0.0", 0)]
        retry = cluster.broker(0).topics.get(RETRY)
        assert retry is not None
        assert (retry.read_queue_nums, retry.write_queue_nums) == (LEVELS, LEVELS)
        await popper.wire.close()


async def test_a_retry_that_fails_at_each_of_two_masters_keeps_its_level(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock) as cluster:
        await replicated(cluster)
        popper = await popper_of(cluster.broker(0), clock)
        assert (await popper.wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, PRIORITY_TOPIC)).code == 0
        await send(popper.wire, 2, 0)
        await popper.pop(invisible_time=1_000)
        await clock.run_for(2)
        popper = await fail_over(cluster, popper, clock)
        await cluster.start_slave()
        assert [(m.body, m.times) for m in await popper.pop(invisible_time=1_000)] == [(b"2.0", 1), (b"0.1", 1)]
        await clock.run_for(2)
        popper = await fail_over(cluster, popper, clock)
        await send(popper.wire, 1)
        again = await popper.pop()
        assert [(m.body, m.times) for m in again] == [(b"2.0", 2), (b"1.0", 0), (b"0.1", 2)]
        await popper.wire.close()
