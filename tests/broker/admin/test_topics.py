"""Topics and groups in the hands of administrators: what may be made, and what goes with what is deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.broker.wire import Wire

from cometmq import fastjson
from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import SubscriptionGroupConfig, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand


async def create(wire: Wire, topic: str, **fields: Any) -> RemotingCommand:
    values = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=values | fields)


async def test_a_topic_is_made_and_changed(broker: Broker, wire: Wire) -> None:
    assert (await create(wire, "T")).code == 0
    version = broker.topics.version
    assert (await create(wire, "T")).code == 0
    assert broker.topics.version == version, "the same again is no change"
    assert (await create(wire, "T", perm="4", order="true", readQueueNums="8")).code == 0
    topic = broker.topics.get("T")
    assert topic is not None
    assert (topic.perm, topic.order, topic.read_queue_nums, topic.write_queue_nums) == (4, True, 8, 2)
    assert broker.topics.version != version


@pytest.mark.parametrize(
    "fields",
    [
        {"readQueueNums": "-1"},
        {"writeQueueNums": "16385"},
        {"perm": "64"},
        {"perm": "-1"},
        {"topicFilterType": "NONE"},
        {"topicFilterType": "../x"},
    ],
)
async def test_impossible_numbers_are_refused_with_their_range(
    broker: Broker, wire: Wire, fields: dict[str, str]
) -> None:
    answer = await create(wire, "T", **fields)
    assert answer.code == 1
    assert next(iter(fields)) in (answer.remark or "")
    assert "must be" in (answer.remark or "")
    assert broker.topics.get("T") is None


@pytest.mark.parametrize("topic", ["../x", "", "a" * 128, "a/b", "x\x00", "SCHEDULE_TOPIC_XXXX", "broker-a"])
async def test_forbidden_names_are_refused_everywhere(broker: Broker, wire: Wire, topic: str) -> None:
    before = set(broker.topics.table)
    assert (await create(wire, topic)).code == 1
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})).code == 1
    assert set(broker.topics.table) == before


async def test_a_deleted_topic_takes_its_queues_offsets_and_numbers_with_it(broker: Broker, wire: Wire) -> None:
    await create(wire, "T")
    await wire.send("T")
    broker.offsets.commit("G", "T", 0, 1)
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})).code == 0
    assert broker.topics.get("T") is None
    assert not (broker.store.config.root / "consumequeue" / "T").exists()
    assert (await wire.call(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"})).ext_fields["offset"] == "0"
    assert broker.offsets.groups_of("T") == set()
    assert broker.stats.view("TOPIC_PUT_NUMS", "T") is None
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})).code == 0
    await create(wire, "T")
    sent = await wire.send("T", body=b"new")
    assert (sent.code, sent.ext_fields["queueOffset"]) == (0, "0")


async def test_queues_without_a_topic_are_cleaned(broker: Broker, wire: Wire) -> None:
    await create(wire, "T")
    await create(wire, "Kept")
    await wire.send("T")
    await wire.send("Kept")
    broker.topics.delete("T")
    assert (await wire.call(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert broker.store.queue("T", 0).max_offset() == 0
    assert broker.store.queue("Kept", 0).max_offset() == 1


async def test_tools_of_5_ask_for_one_topic_or_group(broker: Broker, wire: Wire) -> None:
    await create(wire, "T")
    answer = await wire.call(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T"})
    assert json.loads(answer.body)["topicName"] == "T"
    assert (await wire.call(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "None"})).code == 17
    broker.groups.put(SubscriptionGroupConfig(group_name="G"))
    answer = await wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "G"})
    assert json.loads(answer.body)["groupName"] == "G"
    assert (await wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "None"})).code == 26
    broker.offsets.commit("G", "T", 0, 1)
    answer = await wire.call(RequestCode.QUERY_TOPICS_BY_CONSUMER, ext={"group": "G"})
    assert json.loads(answer.body)["topicList"] == ["T"]


async def test_a_group_is_made_changed_and_deleted(broker: Broker, wire: Wire) -> None:
    body = encode_body(SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    group = broker.groups.get("G")
    assert group is not None
    assert group.retry_max_times == 3
    broker.offsets.commit("G", "T", 0, 1)
    fields = {"groupName": "G", "removeOffset": "false"}
    assert (await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=fields)).code == 0
    assert broker.groups.get("G") is None
    assert broker.offsets.query("G", "T", 0) == 1
    await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=fields | {"removeOffset": "true"})
    assert broker.offsets.query("G", "T", 0) == -1


@pytest.mark.parametrize("name", ["../x", "", "x/../../../../y", "a" * 121])
async def test_group_names_are_as_strict_as_topics(broker: Broker, wire: Wire, name: str) -> None:
    body = encode_body(SubscriptionGroupConfig(group_name=name))
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 1
    clone = {"srcGroup": "G", "destGroup": name, "offline": "true"}
    assert (await wire.call(RequestCode.CLONE_GROUP_OFFSET, ext=clone)).code == 1
    assert name not in broker.groups.table


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"groupName":5}', b"\xff", b'{"groupName":"G","retryQueueNums":-1}']
)
async def test_a_group_that_cannot_be_read_is_refused(broker: Broker, wire: Wire, body: bytes) -> None:
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == 1
    assert answer.remark


async def test_offsets_are_cloned_and_compared(broker: Broker, wire: Wire) -> None:
    await create(wire, "T")
    for queue_id, offset in ((0, 5), (1, 7)):
        broker.offsets.commit("A", "T", queue_id, offset)
    broker.offsets.commit("B", "T", 0, 3)
    clone = {"srcGroup": "A", "destGroup": "C", "topic": "T", "offline": "true"}
    assert (await wire.call(RequestCode.CLONE_GROUP_OFFSET, ext=clone)).code == 0
    assert dict(broker.offsets.of_queues("C", "T")) == {0: 5, 1: 7}
    compare = {"filterGroups": "C", "compareGroup": "A", "topic": "T"}
    answer = await wire.call(RequestCode.QUERY_CORRECTION_OFFSET, ext=compare)
    assert fastjson.loads(answer.body) == {"correctionOffsets": {"0": 3, "1": 7}}
    compare = {"filterGroups": "B,C", "compareGroup": "B", "topic": "T"}
    answer = await wire.call(RequestCode.QUERY_CORRECTION_OFFSET, ext=compare)
    assert fastjson.loads(answer.body) == {"correctionOffsets": {"0": 2**63 - 1, "1": 7}}
    assert dict(broker.offsets.of_queues("B", "T")) == {0: 3}, "looking changes nothing"


async def test_consume_queue_units_are_shown(wire: Wire) -> None:
    await create(wire, "T")
    for _ in range(5):
        await wire.send("T")
    fields = {"topic": "T", "queueId": "0", "index": "1", "count": "3"}
    answer = await wire.call(RequestCode.QUERY_CONSUME_QUEUE, ext=fields)
    body = json.loads(answer.body)
    assert (body["minQueueIndex"], body["maxQueueIndex"], len(body["queueData"])) == (0, 5, 3)
    assert body["queueData"][0]["physicSize"] > 0
    for index in ("-1", "5"):
        assert (await wire.call(RequestCode.QUERY_CONSUME_QUEUE, ext=fields | {"index": index})).code == 1


def topic_list(*topics: dict[str, Any]) -> bytes:
    return json.dumps({"topicConfigList": topics}).encode()


async def test_many_topics_are_made_by_one_request_or_none(broker: Broker, wire: Wire) -> None:
    first = {"topicName": "A", "readQueueNums": 3, "writeQueueNums": 3, "attributes": {"+message.type": "FIFO"}}
    body = topic_list(first, {"topicName": "B", "perm": 4})
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
    a, b = broker.topics.get("A"), broker.topics.get("B")
    assert a is not None
    assert b is not None
    assert (a.read_queue_nums, a.attributes, b.perm) == (3, {"message.type": "FIFO"}, 4)
    for wrong, words in (
        ({"topicName": "../x"}, "illegal characters"),
        ({"topicName": "C", "perm": 64}, "perm=64 must be"),
        ({"topicName": "C", "attributes": {"+no.such": "1"}}, "unsupported key: no.such"),
        ({}, "topicName"),
    ):
        body = topic_list({"topicName": "Good"}, wrong)
        answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert answer.code == 1
        assert words in (answer.remark or "")
    assert broker.topics.get("Good") is None
    many = topic_list(*({"topicName": f"T{n}"} for n in range(1_001)))
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=many)
    assert "1001 topics in one request; at most 1000 are allowed" in (answer.remark or "")


async def test_many_groups_are_made_by_one_request_or_none(broker: Broker, wire: Wire) -> None:
    def body(*groups: dict[str, Any]) -> bytes:
        return json.dumps({"groupConfigList": groups}).encode()

    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    assert (await wire.call(code, body=body({"groupName": "A", "retryMaxTimes": 3}, {"groupName": "B"}))).code == 0
    a = broker.groups.get("A")
    assert a is not None
    assert a.retry_max_times == 3
    assert broker.groups.get("B") is not None
    for wrong in ({"groupName": "../x"}, {"groupName": "C", "retryQueueNums": -1}, {}):
        assert (await wire.call(code, body=body({"groupName": "Good"}, wrong))).code == 1
    assert broker.groups.get("Good") is None
    answer = await wire.call(code, body=body(*({"groupName": f"G{n}"} for n in range(1_001))))
    assert "1001 groups in one request; at most 1000 are allowed" in (answer.remark or "")
