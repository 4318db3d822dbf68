"""Whatever administrators' tools send, the broker answers with words, logs no stack and goes on."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.wire import Connect, Wire

from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import TopicConfig

CODES = (
    *(17, 21, 25, 26, 28, 43, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303, 305, 306, 307, 308, 309),
    *(314, 315, 316, 317, 321, 328, 329, 343, 351, 352),
)
FIELDS = (
    *("topic", "group", "consumerGroup", "producerGroup", "groupName", "clientId", "clientAddr", "msgId", "timestamp"),
    *("isForce", "isOrder", "queueId", "index", "count", "srcGroup", "destGroup", "statsName", "statsKey", "perm"),
    *("readQueueNums", "writeQueueNums", "topicFilterType", "topicSysFlag", "order", "defaultTopic", "offline"),
    *("compareGroup", "filterGroups", "removeOffset", "jstackEnable", "brokerName"),
)
TEXTS = st.one_of(
    st.sampled_from(["", "T", "G", "../x", "0", "-1", "5", "true", "SINGLE_TAG", "7F000001000051AF0000000000000000"]),
    st.sampled_from(["9223372036854775807", "2147483647", "99999999999999999999", "%RETRY%G", "\x00", "ü" * 200]),
    st.text(max_size=20),
)


@pytest.mark.parametrize("code", CODES)
async def test_every_code_answers_a_request_without_fields(wire: Wire, code: int) -> None:
    for body in (b"", b"{", b"null", b"[]", b"5", bytes(1000)):
        answer = await wire.call(code, body=body)
        assert answer.code == 0 or answer.remark


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(code=st.sampled_from(CODES), fields=st.dictionaries(st.sampled_from(FIELDS), TEXTS), body=st.binary(max_size=64))
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
    with caplog.at_level(logging.ERROR):
        answer = await wire.call(code, body=body, ext=fields)
    assert answer.code == 0 or answer.remark
    assert not caplog.records
