"""Answers about thousands of queues are the same as in one piece, and let others in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.wire import Connect, Wire

import cometmq.broker.slices
from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import (
    ConsumeStats,
    QueryConsumeTimeSpanBody,
    ResetOffsetBody,
    TopicStatsTable,
    decode_body,
)
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import CreateTopicRequestHeader, UpdateConsumerOffsetRequestHeader

QUEUES = 40
ASKED = {"topic": "Wide", "group": "g", "consumerGroup": "g", "timestamp": "0", "isForce": "true"}
HEARTBEAT = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"Wide"}]}]}'


@pytest.fixture
async def wide(broker: Broker, wire: Wire) -> Wire:
    """A topic of many queues, half of them with a message, and a group with offsets and a member."""
    header = CreateTopicRequestHeader(
        topic="Wide",
        default_topic="TBW102",
        read_queue_nums=QUEUES,
        write_queue_nums=QUEUES,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        order=False,
    )
    await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    for queue_id in range(QUEUES):
        if queue_id % 2:
            await wire.send("Wide", queue_id=queue_id)
        offset = UpdateConsumerOffsetRequestHeader(
            consumer_group="g", topic="Wide", queue_id=queue_id, commit_offset=queue_id % 2
        )
        await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    member = wire.command(RequestCode.HEART_BEAT, None, HEARTBEAT)
    member.version = CURRENT_VERSION
    await wire.ask(member)
    return wire


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, TopicStatsTable),
        (RequestCode.GET_CONSUME_STATS, ConsumeStats),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanBody),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetBody),
    ],
)
async def test_slices_give_the_answer_that_one_piece_gives(
    wide: Wire, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[object]
) -> None:
    whole = decode_body(kind, (await wide.call(code, ext=ASKED)).body)
    monkeypatch.setattr(cometmq.broker.slices, "QUEUES_PER_SLICE", 7)
    sliced = await wide.call(code, ext=ASKED)
    assert sliced.code == 0
    assert decode_body(kind, sliced.body) == whole
    field = getattr(whole, "offset_table", None) or getattr(whole, "consume_time_span_set", None)
    assert field is not None
    assert len(field) == QUEUES


async def test_others_are_answered_between_two_slices_and_the_asker_in_order(
    wide: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await connect()
    monkeypatch.setattr(cometmq.broker.slices, "QUEUES_PER_SLICE", 1)
    asked = wide.command(RequestCode.GET_TOPIC_STATS_INFO, ext=ASKED)
    after = wide.command(RequestCode.GET_MIN_OFFSET, ext={"topic": "Wide", "queueId": "0"})
    order: list[str] = []

    async def note(name: str, wire: Wire, command: RemotingCommand) -> None:
        await wire.answer(command.opaque)
        order.append(name)

    wide.writer.write(asked.encode() + after.encode())
    quick = other.command(RequestCode.GET_MIN_OFFSET, ext={"topic": "Wide", "queueId": "0"})
    other.post(quick)
    both = asyncio.gather(note("wide", wide, asked), note("quick", other, quick))
    await both
    await note("after", wide, after)
    assert order == ["quick", "wide", "after"]


async def test_a_client_that_goes_between_two_slices_harms_nobody(
    broker: Broker, wide: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await connect()
    monkeypatch.setattr(cometmq.broker.slices, "QUEUES_PER_SLICE", 1)
    opened = len(broker.server.connections)
    gone.post(gone.command(RequestCode.GET_TOPIC_STATS_INFO, ext=ASKED))
    await asyncio.sleep(0)
    gone.writer.transport.abort()
    async with asyncio.timeout(30):
        while len(broker.server.connections) == opened:
            assert (await wide.call(RequestCode.GET_MIN_OFFSET, ext={"topic": "Wide", "queueId": "0"})).code == 0


async def test_a_failure_in_a_later_slice_is_answered_and_the_connection_goes_on(
    broker: Broker, wide: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.slices, "QUEUES_PER_SLICE", 10)

    def fail(_topic: str, queue_id: int, _offset: int) -> int:
        if queue_id > 20:
            raise OSError("the disk is gone")
        return 0

    monkeypatch.setattr(broker.store, "store_time", fail)
    answer = await wide.call(RequestCode.GET_TOPIC_STATS_INFO, ext=ASKED)
    assert (answer.code, answer.remark) == (1, "OSError: the disk is gone")
    assert (await wide.call(RequestCode.GET_MIN_OFFSET, ext={"topic": "Wide", "queueId": "0"})).code == 0
