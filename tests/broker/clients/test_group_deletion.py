"""Groups that are deleted (207) while their consumers run: nobody hangs, nothing that waits for them is lost."""

from __future__ import annotations

import dataclasses

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.send.retrying import DEAD, GROUP, RETRY, hand_back
from tests.broker.transacting import COMMIT, TOPIC, delivered, end, send_half
from tests.broker.wire import Wire, pull_header, records
from tests.helpers.contents import bodies
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.message.names import TRANSACTION_GROUP
from cometmq.remoting.admin_headers import DeleteSubscriptionGroupRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from cometmq.testing import VirtualClock


async def delete(wire: Wire, group: str = GROUP, *, offsets: bool = False) -> None:
    header = DeleteSubscriptionGroupRequestHeader(group, offsets)
    assert (await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("made_again", [True, False])
async def test_a_pull_that_waits_is_answered(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, made_again: bool
) -> None:
    broker = await start_broker()
    consumer, other = await connect_to(broker), await connect_to(broker)
    await other.send("T", b"before")
    waiting = consumer.command(
        RequestCode.PULL_MESSAGE, pull_header("T", consumer_group=GROUP, queue_offset=1, wait_ms=15_000)
    )
    consumer.post(waiting)
    await until(lambda: len(broker.hold) == 1)
    broker.live.replace(dataclasses.replace(broker.live.current, auto_create_subscription_group=made_again))
    await delete(other)
    await other.send("T", b"after")
    answer = await consumer.answer(waiting.opaque)
    if made_again:
        assert [record.body for record in records(answer)] == [b"after"]
        assert broker.groups.get(GROUP) is not None
    else:
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert broker.groups.get(GROUP) is None


async def test_what_failed_before_the_deletion_comes_when_the_group_is_back(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await wire.send("T", b"failed")
    (failed,) = records(await wire.pull("T", consumer_group=GROUP))
    assert (await hand_back(wire, failed.physical_offset)).code == ResponseCode.SUCCESS
    await delete(wire, offsets=True)
    await clock.run_for(10)
    (retried,) = records(await wire.pull(RETRY, consumer_group=GROUP))
    assert (retried.body, retried.reconsume_times) == (b"failed", 1)
    assert (await hand_back(wire, retried.physical_offset, delay_level=-1)).code == ResponseCode.SUCCESS
    await delete(wire, offsets=True)
    assert bodies(broker, DEAD) == [b"failed"]


@pytest.mark.parametrize("with_offsets", [True, False])
async def test_the_offsets_go_only_if_they_are_to(broker: Broker, wire: Wire, with_offsets: bool) -> None:
    for number in range(3):
        await wire.send("T", b"%d" % number)
    header = UpdateConsumerOffsetRequestHeader(consumer_group=GROUP, topic="T", queue_id=0, commit_offset=2)
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    await delete(wire, offsets=with_offsets)
    asked = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic="T", queue_id=0)
    answer = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
    assert answer.ext_fields.get("offset") == ("0" if with_offsets else "2")
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)  # of a member that has not noticed
    assert (await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)).ext_fields["offset"] == "2"


async def test_deleting_the_group_of_transactions_loses_none(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    over = await send_half(wire, "over", b"over")
    await end(wire, over, COMMIT)
    half = await send_half(wire, "open", b"open")
    await delete(wire, TRANSACTION_GROUP, offsets=True)
    await first.stop()
    second = await start_broker()
    wire = await connect_to(second)
    assert second.transactions.open.count == 1
    await end(wire, over, COMMIT)
    await end(wire, half, COMMIT)
    assert delivered(second) == [b"over", b"open"]
    assert TOPIC in second.topics.table
