"""A slave takes over: it knows what was popped, until when it is invisible, and what was acknowledged."""

from __future__ import annotations

import json

from tests.broker.pop.popping import GROUP, TOPIC, Popper
from tests.broker.replication.following import PATIENCE_S, connect, copied, replicated

from cometmq.remoting.admin_headers import CreateTopicRequestHeader
from cometmq.remoting.codes import RequestCode
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


async def test_a_promoted_slave_has_the_request_modes_and_the_attributes_of_topics_and_groups(
    clock: VirtualClock,
) -> None:
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2}
    attributes = {"priority.factor": "1"}
    async with Cluster(slaves=1, clock=clock) as cluster:
        wire = await connect(cluster.broker(0))
        header = CreateTopicRequestHeader(
            TOPIC, "TBW102", 4, 4, 6, "SINGLE_TAG", order=False, attributes="+message.type=FIFO"
        )
        assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        group = json.dumps({"groupName": GROUP, "attributes": attributes, "consumeMessageOrderly": True}).encode()
        assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)).code == 0
        assert (await wire.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code == 0
        await copied(cluster)
        await wire.close()
        await cluster.kill_broker(0)
        promoted = await cluster.promote_slave()
        wire = await connect(promoted)
        answer = await wire.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert json.loads(answer.body) == {"messageRequestModeMap": {TOPIC: {GROUP: mode}}}
        topic, found = promoted.topics.get(TOPIC), promoted.groups.get(GROUP)
        assert topic is not None
        assert topic.attributes == {"message.type": "FIFO"}
        assert found is not None
        assert (found.attributes, found.consume_message_orderly) == (attributes, True)
        await wire.close()
