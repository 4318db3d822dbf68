"""Answers about thousands of queues are the same as in one piece, and let others in between."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest
from tests.broker.wire import Connect, Wire

import cometmq.broker.admin.offsets
import cometmq.broker.slices
import cometmq.broker.tables.consumer_offsets
from cometmq.broker.admin.offsets import OffsetAdmin
from cometmq.broker.controller import Broker
from cometmq.broker.limits import SLICES_SECONDS
from cometmq.broker.slices import Steps
from cometmq.loop import finish
from cometmq.remoting.admin_bodies import ConsumeStats, ConsumeStatsList, QueryConsumeTimeSpanBody, TopicStatsTable
from cometmq.remoting.admin_headers import CreateTopicRequestHeader
from cometmq.remoting.bodies import ConsumerOffsetSerializeWrapper, ResetOffsetBody, decode_body, encode_body
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import UpdateConsumerOffsetRequestHeader
from cometmq.remoting.processors import Response
from cometmq.testing import VirtualClock

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


async def give_offsets(broker: Broker, wire: Wire, groups: int, topics: int) -> None:
    """Groups with offsets in topics: half of the topics exist."""
    for topic in range(0, topics, 2):
        await wire.send(f"t{topic}")
    for group in range(groups):
        assert broker.groups.find(f"g{group}") is not None
        for topic in range(topics):
            assert broker.offsets.commit(f"g{group}", f"t{topic}", 0, topic % 3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (RequestCode.GET_BROKER_CONSUME_STATS, ConsumeStatsList),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetSerializeWrapper),
        (RequestCode.GET_CONSUME_STATS, ConsumeStats),
    ],
)
async def test_slices_of_tables_give_the_answer_that_one_piece_gives(
    broker: Broker, wide: Wire, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[object]
) -> None:
    await give_offsets(broker, wide, groups=5, topics=20)
    asked = {"isOrder": "false", "consumerGroup": "g1"}
    whole = await wide.call(code, ext=asked)
    monkeypatch.setattr(cometmq.broker.slices, "QUEUES_PER_SLICE", 7)
    monkeypatch.setattr(cometmq.broker.tables.consumer_offsets, "TABLE_ROWS_PER_SLICE", 7)
    sliced = await wide.call(code, ext=asked)
    assert sliced.code == 0
    assert sliced.body == whole.body
    assert b"t4" in sliced.body
    assert encode_body(decode_body(kind, whole.body)) == whole.body


async def test_progress_of_all_groups_costs_what_they_have(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 groups beside 20,000 pairs of others took 1.1 s: each looked through all pairs."""
    for number in range(500):
        assert broker.groups.find(f"idle{number}") is not None
    for number in range(20_000):
        broker.offsets.commit(f"other{number}", f"gone{number}", 0, 1)
    await give_offsets(broker, wire, groups=50, topics=4)
    slices: list[float] = []
    plain = OffsetAdmin._of_all_groups

    def timed(self: OffsetAdmin, is_order: bool) -> Steps:
        steps = plain(self, is_order)
        while True:
            before = time.thread_time()
            try:
                next(steps)
            except StopIteration as done:
                slices.append(time.thread_time() - before)
                return cast("Response", done.value)
            slices.append(time.thread_time() - before)
            yield

    monkeypatch.setattr(OffsetAdmin, "_of_all_groups", timed)
    answer = await wire.call(RequestCode.GET_BROKER_CONSUME_STATS, ext={"isOrder": "false"})
    listed = decode_body(ConsumeStatsList, answer.body).consume_stats_list
    assert sum(len(topics) for group in listed for topics in group.values()) == 50 * 2
    assert max(slices) < 0.05
    assert sum(slices) < 0.25


async def test_progress_that_fits_into_no_answer_is_refused_with_a_way_out(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give_offsets(broker, wire, groups=5, topics=20)
    monkeypatch.setattr(cometmq.broker.admin.offsets, "MAX_FRAME_BYTES", 1_000)
    answer = await wire.call(RequestCode.GET_BROKER_CONSUME_STATS, ext={"isOrder": "false"})
    assert answer.code == 1
    assert "query each group" in (answer.remark or "")


async def test_progress_that_fits_into_no_answer_is_refused_before_it_is_made(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million offsets it took 2.3 s of the processor, only to be refused."""
    await give_offsets(broker, wire, groups=20, topics=20)
    looked: list[str] = []
    monkeypatch.setattr(OffsetAdmin, "_offset", lambda *at: looked.append(at[1]))
    monkeypatch.setattr(cometmq.broker.admin.offsets, "MAX_FRAME_BYTES", 20_000)
    answer = await wire.call(RequestCode.GET_BROKER_CONSUME_STATS, ext={"isOrder": "false"})
    assert (answer.code, looked) == (1, [])


async def test_offsets_of_a_group_or_topic_go_without_a_look_at_all_others(broker: Broker) -> None:
    offsets = broker.offsets
    for number in range(100):
        for topic in ("T", "U"):
            offsets.commit(f"g{number}", topic, 0, 1)
    offsets.forget(group="g5")
    assert not list(offsets.of_group("g5"))
    offsets.forget(topic="T", group="g6")
    assert [topic for topic, _ in offsets.of_group("g6")] == ["U"]
    offsets.forget(topic="U")
    assert offsets.groups_of("U") == set()
    assert offsets.groups_of("T") == {f"g{number}" for number in range(100)} - {"g5", "g6"}
    offsets.forget(topic="T")
    assert not offsets.table
    finish(offsets.table.tidy())
    assert not offsets.table._of_group
    assert not offsets.table._groups_of


async def test_short_works_are_done_together_although_other_processes_have_the_processor(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is interrupted for as long as all works of a round may take."""
    monkeypatch.setattr(cometmq.broker.slices, "SYSTEM_CLOCK", clock)
    done = [0]

    def work() -> bool:
        clock.advance(SLICES_SECONDS)
        done[-1] += 1
        return False

    lane = cometmq.broker.slices._slice_queue()
    for _ in range(100):
        lane.begin(work)
    while sum(done) < 100:
        done.append(0)
        await asyncio.sleep(0)
    assert max(done[1:]) in (5, 6), "half of the time, of which a tenth counts"
