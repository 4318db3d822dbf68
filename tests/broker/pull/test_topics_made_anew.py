"""Offsets of an earlier life of a topic mean nothing in the new one: those that consumers pull from, and commit."""

from __future__ import annotations

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.heartbeats import beat, heartbeat
from tests.broker.pull.holding import held, post_pull
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader

GROUP = "readers"


async def send(wire: Wire, count: int) -> None:
    for number in range(count):
        assert (await wire.send("T", b"%d" % number)).code == ResponseCode.SUCCESS


async def delete(wire: Wire) -> None:
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})).code == ResponseCode.SUCCESS


async def commit(wire: Wire, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader(GROUP, "T", 0, offset)
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS


async def pulled(wire: Wire, offset: int) -> tuple[int, int, int]:
    """The code, the offset to go on at and the number of messages of a pull."""
    answer = await wire.pull("T", consumer_group=GROUP, queue_offset=offset)
    return answer.code, int(answer.ext_fields["nextBeginOffset"]), len(records(answer))


@pytest.mark.parametrize("count", [1, 3, 7])
async def test_a_member_of_the_old_topic_is_sent_to_the_first_message_once(
    broker: Broker, wire: Wire, count: int
) -> None:
    await send(wire, 3)
    await beat(wire, heartbeat("reader", "T", group=GROUP))
    assert await pulled(wire, 0) == (ResponseCode.SUCCESS, 3, 3)
    await delete(wire)
    await send(wire, count)
    await commit(wire, 3)
    assert broker.offsets.query(GROUP, "T", 0) == -1, "the offset is of the old topic"
    assert await pulled(wire, 3) == (ResponseCode.PULL_OFFSET_MOVED, 0, 0)
    await commit(wire, 0)
    assert await pulled(wire, 0) == (ResponseCode.SUCCESS, count, count)
    await commit(wire, count)
    assert broker.offsets.query(GROUP, "T", 0) == count
    await commit(wire, 9)
    assert broker.offsets.query(GROUP, "T", 0) == count, "no message has come there"
    assert (await pulled(wire, count))[0] == ResponseCode.PULL_NOT_FOUND


async def test_a_member_that_begins_anew_is_sent_nowhere(wire: Wire) -> None:
    """It asks for its offset, as after a rebalance; or it pulls from the first message."""
    await send(wire, 3)
    await beat(wire, heartbeat("reader", "T", group=GROUP))
    await delete(wire)
    await send(wire, 3)
    await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader(GROUP, "T", 0))
    assert await pulled(wire, 2) == (ResponseCode.SUCCESS, 3, 1)
    await delete(wire)
    await send(wire, 3)
    assert await pulled(wire, 0) == (ResponseCode.SUCCESS, 3, 3)
    assert await pulled(wire, 2) == (ResponseCode.SUCCESS, 3, 1)


async def test_a_newcomer_pulls_from_where_it_wants(wire: Wire, broker: Broker, connect_to: ConnectTo) -> None:
    await send(wire, 3)
    await beat(wire, heartbeat("reader", "T", group=GROUP))
    await delete(wire)
    await send(wire, 3)
    newcomer = await connect_to(broker)
    await beat(newcomer, heartbeat("newcomer", "T", group=GROUP))
    assert await pulled(newcomer, 2) == (ResponseCode.SUCCESS, 3, 1)


async def test_a_pull_that_waited_at_the_deletion_begins_at_the_first_message(
    broker: Broker, wire: Wire, connect_to: ConnectTo
) -> None:
    """Also if the new queue ends where it waits."""
    await send(wire, 1)
    waiting = post_pull(wire, queue_offset=1)
    await held(broker)
    producer = await connect_to(broker)
    await delete(producer)
    await send(producer, 1)
    answer = await wire.answer(waiting.opaque)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_after_a_restart_an_offset_behind_the_end_is_of_the_old_topic(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await send(wire, 5)
    await delete(wire)
    await send(wire, 2)
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    await commit(wire, 5)
    assert await pulled(wire, 5) == (ResponseCode.PULL_OFFSET_MOVED, 0, 0)
    await commit(wire, 1)
    assert await pulled(wire, 5) == (ResponseCode.PULL_OFFSET_MOVED, 1, 0), "the group has come there"
