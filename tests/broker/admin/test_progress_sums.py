"""GET_PROGRESS_SUMS (30041) tells what the answers with each queue tell, added up, slice by slice."""

from __future__ import annotations

import pytest
from tests.broker.heartbeats import beat
from tests.broker.wire import Connect, Wire

import cometmq.broker.admin.progress_sums as module
from cometmq.broker.controller import Broker
from cometmq.remoting.admin_bodies import ConsumeStats, ProgressSums, ProgressSumsQuestion
from cometmq.remoting.admin_headers import GetConsumeStatsRequestHeader
from cometmq.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    TopicConfig,
    decode_body,
    encode_body,
    encode_json,
)
from cometmq.remoting.codes import RequestCode, ResponseCode

GROUPS = ("one", "two", "member", "none")


@pytest.fixture
async def filled(broker: Broker, connect: Connect) -> Wire:
    """Groups with offsets of some queues, of queues that are not read any more, and of topics that are gone."""
    wire = await connect()
    for topic, read in (("A", 3), ("B", 40), ("C", 1)):
        broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=40))
        for queue_id in (0, 1, 2, 30):
            for _ in range(queue_id + 2):
                await wire.send(topic=topic, queue_id=queue_id)
    for group, topic, queue_id, offset in (
        ("one", "A", 0, 1),
        ("one", "A", 30, 7),
        ("one", "B", 30, 32),
        ("one", "gone", 0, 5),
        ("two", "C", 0, 2),
        ("member", "A", 1, 3),
        ("member", "B", 0, 1),
    ):
        assert broker.offsets.commit(group, topic, queue_id, offset)
    consumer = ConsumerData(group_name="member", subscription_data_set=[SubscriptionData(topic="A")])
    await beat(await connect(), encode_body(HeartbeatData(client_id="c", consumer_data_set=[consumer])))
    return wire


async def asked(wire: Wire, *groups: str, with_topics: bool = False) -> ProgressSums:
    body = encode_json(ProgressSumsQuestion(groups=list(groups), with_topics=with_topics))
    answer = await wire.call(RequestCode.GET_PROGRESS_SUMS, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_body(ProgressSums, answer.body)


async def test_the_sums_are_those_of_the_queues(filled: Wire) -> None:
    told = await asked(filled, *GROUPS)
    assert list(told.groups) == list(GROUPS)
    for group in GROUPS:
        answer = await filled.call(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(group))
        expected: dict[str, tuple[int, int]] = {}
        for queue, offsets in decode_body(ConsumeStats, answer.body).offset_table.items():
            end, lag = expected.get(queue.topic, (0, 0))
            lag += offsets.broker_offset - offsets.consumer_offset
            expected[queue.topic] = (end + offsets.broker_offset, lag)
        assert {topic: (sums.end, sums.lag) for topic, sums in told.groups[group].topics.items()} == expected
    assert told.groups["one"].topics.keys() == {"A", "B"}
    assert told.groups["member"].topics.keys() == {"A"}
    assert told.topics == {}


async def test_topics_have_the_messages_of_all_queues(filled: Wire) -> None:
    told = await asked(filled, with_topics=True)
    assert {topic: told.topics[topic] for topic in "ABC"} == dict.fromkeys("ABC", 2 + 3 + 4 + 32)
    assert told.groups == {}


async def test_an_answer_has_no_more_groups_than_fit(filled: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await asked(filled, *GROUPS)
    monkeypatch.setattr(module, "MAX_PROGRESS_SUMS_BYTES", 1)
    for group in GROUPS:
        assert (await asked(filled, group, *GROUPS)).groups == {group: whole.groups[group]}


async def test_each_slice_adds_up_few_pairs(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS_PER_SLICE", 2)
    pairs = 60
    for number in range(pairs):
        broker.topics.put(TopicConfig(topic_name=f"T{number}", read_queue_nums=1, write_queue_nums=1))
        assert broker.offsets.commit(f"g{number % 7}", f"T{number}", 0, 0)
    question = ProgressSumsQuestion(groups=[f"g{number}" for number in range(7)])
    processor = broker.processors.get(RequestCode.GET_PROGRESS_SUMS)
    assert processor is not None
    steps = processor.handler.__self__._sums(encode_json(question))  # type: ignore[attr-defined]
    assert sum(1 for _ in steps) >= pairs / 2


async def test_a_question_that_is_none_is_refused(filled: Wire) -> None:
    answer = await filled.call(RequestCode.GET_PROGRESS_SUMS, body=b"[]")
    assert answer.code == ResponseCode.SYSTEM_ERROR
