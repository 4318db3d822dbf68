"""Attributes of topics: each change answered as a real Apache 5.5.0 answered it."""

from __future__ import annotations

import json

import pytest
from tests.broker.wire import Wire

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand

TYPES = "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL]"


async def change(wire: Wire, attributes: str | None, topic: str = "Typed") -> RemotingCommand:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    more = {} if attributes is None else {"attributes": attributes}
    return await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields | more)


async def attributes_of(wire: Wire, topic: str = "Typed") -> dict[str, str] | None:
    answer = await wire.call(RequestCode.GET_TOPIC_CONFIG, ext={"topic": topic})
    found: dict[str, str] | None = json.loads(answer.body).get("attributes") if answer.code == 0 else None
    return found


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ("+message.type=WRONG", TYPES),
        ("+message.type=fifo", TYPES),
        ("+message.type=A=B", TYPES),
        ("-message.type", "only add attribute is supported while creating topic. key: message.type"),
        ("+lite.topic.expiration=43201", "value is not in range(-1, 43200)"),
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+message.type", "delete attribute format is wrong: +message.type"),
        ("+no.such=1", "unsupported key: no.such"),
        ("+message.type=FIFO,+message.type=FIFO", "key duplication: +message.type"),
        ("+reserve.time=abc", 'For input string: "abc"'),
        ("+reserve.time=-5", "value is not in range(-1, 9223372036854775807)"),
    ],
)
async def test_what_cannot_be_set_is_refused_in_apaches_words(wire: Wire, attributes: str, words: str) -> None:
    answer = await change(wire, attributes)
    assert (answer.code, answer.remark) == (1, words)
    assert await attributes_of(wire) is None


@pytest.mark.parametrize("is_new", [True, False])
async def test_compaction_is_refused_by_name_with_the_alternative(wire: Wire, is_new: bool) -> None:
    if not is_new:
        assert (await change(wire, "+message.type=NORMAL")).code == 0
    answer = await change(wire, "+cleanup.policy=COMPACTION")
    assert answer.code == 1
    assert (answer.remark or "").startswith("cleanup.policy=COMPACTION is not supported: an archive with a key index")


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("+queue.type=SimpleCQ", {"queue.type": "SimpleCQ"}),
        ("+cleanup.policy=DELETE", {"cleanup.policy": "DELETE"}),
        ("+message.type=LITE,+lite.topic.expiration=43200", {"message.type": "LITE", "lite.topic.expiration": "43200"}),
        ("+reserve.time=72", {"reserve.time": "72"}),
    ],
)
async def test_each_attribute_of_apache_is_kept(wire: Wire, asked: str, kept: dict[str, str]) -> None:
    assert (await change(wire, asked)).code == 0
    assert await attributes_of(wire) == kept


async def test_static_topics_are_refused_with_the_alternative(wire: Wire) -> None:
    fields = {"topic": "Static", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2"}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "force": "false"}
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, ext=fields, body=b"{}")
    assert (answer.code, (answer.remark or "")[:34]) == (3, "static topics are not supported: a")
    assert await attributes_of(wire, "Static") is None


async def test_attributes_stay_until_they_are_changed(wire: Wire) -> None:
    assert (await change(wire, "+message.type=FIFO,+queue.type=SimpleCQ")).code == 0
    assert (await change(wire, None)).code == 0
    assert await attributes_of(wire) == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    answer = await change(wire, "+queue.type=BatchCQ")
    assert answer.remark == "attempt to update an unchangeable attribute. key: queue.type"
    assert (await change(wire, "+message.type=DELAY")).code == 0
    assert await attributes_of(wire) == {"message.type": "DELAY", "queue.type": "SimpleCQ"}
    assert (await change(wire, "-message.type")).code == 0
    assert (await change(wire, "-message.type")).remark == "attempt to delete a nonexistent key: message.type"
    assert await attributes_of(wire) == {"queue.type": "SimpleCQ"}


async def test_groups_keep_the_fields_of_rocketmq_5(wire: Wire) -> None:
    group = {
        "groupName": "five",
        "attributes": {},
        "consumeMessageOrderly": True,
        "consumeTimeoutMinute": 15,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "retryMaxTimes": 5,
    }
    body = json.dumps(group).encode()
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    answer = await wire.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "five"})
    found = json.loads(answer.body)
    assert {name: found[name] for name in group} == group
    for code in (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,):
        table = json.loads((await wire.call(code)).body)["subscriptionGroupTable"]
        assert table["five"]["consumeMessageOrderly"] is True
        assert "consumeMessageOrderly" not in table["TOOLS_CONSUMER"]
