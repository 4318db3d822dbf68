"""Lists of thousands of rows are made in slices, and are what one piece would be."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.broker.heartbeats import beat
from tests.broker.wire import Connect, Wire

import cometmq.broker.admin.groups
import cometmq.broker.admin.offsets
import cometmq.broker.slices
from cometmq.broker.controller import Broker
from cometmq.broker.slices import table_in_slices
from cometmq.broker.tables.queue_offsets import QueueOffsets
from cometmq.fastjson import loads
from cometmq.loop import finish
from cometmq.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    encode_body,
    encode_table,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand

CLIENTS = 12
TOPICS = 25


@pytest.fixture
async def filled(broker: Broker, connect: Connect) -> Wire:
    """A dozen clients in a few groups, and some topics and groups more."""
    for number in range(TOPICS):
        broker.topics.put(TopicConfig(topic_name=f"topic-{number}", attributes={"+k": "v"} if number % 2 else None))
        broker.groups.put(SubscriptionGroupConfig(group_name=f"group-{number}"))
        broker.offsets.commit("g", f"topic-{number}", 0, number)
        broker.offsets.commit(f"group-{number}", "topic-7", 0, number)
    subscriptions = [SubscriptionData(topic="T", sub_string='"connectionSet":[]')]
    for number in range(CLIENTS):
        data = HeartbeatData(
            client_id=f"client-{number}",
            consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=subscriptions)],
            producer_data_set=[ProducerData(group_name="p"), ProducerData(group_name=f"p{number % 3}")],
        )
        await beat(await connect(), encode_body(data))
    return await connect()


def slice_by(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(cometmq.broker.slices, "QUEUES_PER_SLICE", size)
    monkeypatch.setattr(cometmq.broker.slices, "TABLE_ROWS_PER_SLICE", size)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    ],
)
async def test_slices_give_the_list_that_one_piece_gives(
    filled: Wire, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked = {"consumerGroup": "g", "producerGroup": "p", "group": "g", "topic": "topic-7"}
    whole = (await filled.call(code, ext=asked)).body
    slice_by(monkeypatch, 5)
    sliced = await filled.call(code, ext=asked)
    assert (sliced.code, sliced.body) == (0, whole)
    found: Any = loads(whole)
    rows = max(len(part) for part in found.values() if isinstance(part, list | dict))
    assert rows >= 4


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "topic-7"}),
        (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "topic-7", "compareGroup": "g"}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "new", "offline": "true"}),
    ],
)
async def test_others_are_answered_while_many_offsets_are_looked_through(
    filled: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int, asked: dict[str, str]
) -> None:
    other = await connect()
    slice_by(monkeypatch, 1)
    order: list[str] = []

    async def note(name: str, wire: Wire, command: RemotingCommand) -> None:
        assert (await wire.answer(command.opaque)).code == 0
        order.append(name)

    long = filled.command(code, ext=asked)
    quick = other.command(RequestCode.GET_MIN_OFFSET, ext={"topic": "topic-0", "queueId": "0"})
    filled.post(long)
    other.post(quick)
    await asyncio.gather(note("long", filled, long), note("quick", other, quick))
    assert order == ["quick", "long"]


async def test_offsets_are_cloned_in_slices(broker: Broker, filled: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_by(monkeypatch, 3)
    asked = {"srcGroup": "g", "destGroup": "new", "offline": "true"}
    assert (await filled.call(RequestCode.CLONE_GROUP_OFFSET, ext=asked)).code == 0
    assert dict(broker.offsets.of_group("new")) == dict(broker.offsets.of_group("g"))


async def test_the_lowest_offset_is_found_in_slices(filled: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_by(monkeypatch, 3)
    asked = {"topic": "topic-7", "compareGroup": "group-24", "filterGroups": "group-0,group-1"}
    answer = await filled.call(RequestCode.QUERY_CORRECTION_OFFSET, ext=asked)
    assert loads(answer.body) == {"correctionOffsets": {"0": 2}}


async def test_slices_end_where_the_offsets_have_gone_meanwhile(
    broker: Broker, filled: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is deleted while its groups are looked through."""
    other = await connect()
    slice_by(monkeypatch, 5)
    asked = filled.command(RequestCode.QUERY_CORRECTION_OFFSET, ext={"topic": "topic-7", "compareGroup": "g"})
    filled.post(asked)
    other.post(other.command(RequestCode.GET_MIN_OFFSET, ext={"topic": "topic-0", "queueId": "0"}))
    looked: list[str] = []
    of_queues = broker.offsets.of_queues

    def look(group: str, topic: str) -> QueueOffsets:
        if not looked:
            broker.offsets.forget(topic="topic-7")
        looked.append(group)
        return of_queues(group, topic)

    monkeypatch.setattr(broker.offsets, "of_queues", look)
    rounds: list[int] = []
    answer = asyncio.create_task(filled.answer(asked.opaque))
    while not answer.done():
        rounds.append(len(looked))
        await asyncio.sleep(0)
    assert len(looked) == TOPICS + 2
    assert max(after - before for before, after in pairwise(rounds)) <= 5 + 1
    assert loads((await answer).body) == {"correctionOffsets": {}}


async def test_tables_are_encoded_as_in_one_piece(broker: Broker, filled: Wire) -> None:
    assert (await filled.call(RequestCode.GET_ALL_TOPIC_CONFIG)).body == encode_table(broker.topics.wrapper())
    groups = await filled.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert groups.body == encode_table(broker.groups.wrapper())


async def test_a_topic_that_goes_between_two_slices_is_left_out(
    broker: Broker, filled: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_by(monkeypatch, 1)
    topics = broker.topics
    steps = table_in_slices(topics.version, topics.field, topics.table)
    next(steps)
    for number in range(TOPICS):
        topics.delete(f"topic-{number}")
    body = finish(steps).body
    assert isinstance(body, bytes)
    listed = loads(body)["topicConfigTable"].keys()
    assert {"TBW102", "SELF_TEST_TOPIC"} <= listed <= topics.table.keys()
