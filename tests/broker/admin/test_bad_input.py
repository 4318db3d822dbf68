"""Whatever administrators' tools send, the broker answers with words, logs no stack and goes on."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.wire import Connect, Wire
from tests.fuzz.worst_inputs import OF_BROKERS
from tests.helpers.logs import lines

from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import TopicConfig

BATCH_ACK = 200151
"""Answers that there is no message, without words, as Apache's broker does."""
FIELDS = (
    *("topic", "group", "consumerGroup", "producerGroup", "groupName", "clientId", "clientAddr", "msgId", "timestamp"),
    *("isForce", "isOrder", "queueId", "index", "count", "srcGroup", "destGroup", "statsName", "statsKey", "perm"),
    *("readQueueNums", "writeQueueNums", "topicFilterType", "topicSysFlag", "order", "defaultTopic", "offline"),
    *("compareGroup", "filterGroups", "removeOffset", "jstackEnable", "brokerName"),
    *("extraInfo", "offset", "invisibleTime", "maxMsgNums", "initMode", "exp", "expType", "attempId", "bornTime"),
    *("recallHandle", "subject", "messagesIn", "attributes", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "m"),
    *("queueOffset", "sysFlag", "commitOffset", "subVersion", "subscription", "expressionType", "properties"),
    *("defaultTopicQueueNums", "bornTimestamp", "flag", "tranStateTableOffset", "commitLogOffset", "commitOrRollback"),
    *("delayLevel", "originMsgId", "maxReconsumeTimes", "key", "maxNum", "beginTimestamp", "endTimestamp", "position"),
    *("beginTime", "endTime", "producer", "file", "length", "each"),
)
TEXTS = st.one_of(
    st.sampled_from(["", "T", "G", "../x", "0", "-1", "5", "true", "SINGLE_TAG", "7F000001000051AF0000000000000000"]),
    st.sampled_from(["9223372036854775807", "2147483647", "99999999999999999999", "%RETRY%G", "\x00", "ü" * 200]),
    st.text(max_size=20),
)


@pytest.mark.parametrize("code", OF_BROKERS)
async def test_every_code_answers_a_request_without_fields(wire: Wire, code: int) -> None:
    for body in (b"", b"{", b"null", b"[]", b"5", bytes(1000)):
        answer = await wire.call(code, body=body)
        assert answer.code == 0 or answer.remark or code == BATCH_ACK


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(sorted(OF_BROKERS)),
    fields=st.dictionaries(st.sampled_from(FIELDS), TEXTS, max_size=25),
    body=st.binary(max_size=64),
)
async def test_any_fields_are_answered(
    broker: Broker,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    code: int,
    fields: dict[str, str],
    body: bytes,
) -> None:
    if broker.topics.get("T") is None:
        broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    broker.offsets.commit("G", "T", 0, 1)
    wire = await connect()
    caplog.clear()  # lines of the last example
    with caplog.at_level(logging.ERROR):
        answer = await wire.call(code, body=body, ext=fields)
    assert answer.code == 0 or answer.remark or code == BATCH_ACK
    assert not lines(caplog)
