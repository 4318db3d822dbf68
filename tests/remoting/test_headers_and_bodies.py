"""Typed headers and bodies against what Apache RocketMQ and its clients wrote."""

from __future__ import annotations

import contextlib
import re
import unittest.mock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq import fastjson
from cometmq.remoting import admin_bodies, bodies
from cometmq.remoting.admin_bodies import ConsumeStats, ConsumeStatsList, OffsetWrapper, TopicOffset, TopicStatsTable
from cometmq.remoting.headers import (
    GetMaxOffsetRequestHeader,
    Header,
    HeaderError,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    from_ext,
    to_ext,
)

RESPONSE_BODIES: dict[int, type] = {
    21: bodies.TopicConfigSerializeWrapper,
    38: bodies.ConsumerIdList,
    41: bodies.LockBatchResponseBody,
    43: bodies.ConsumerOffsetSerializeWrapper,
    105: bodies.TopicRouteData,
    106: bodies.ClusterInfo,
    201: bodies.SubscriptionGroupWrapper,
    202: admin_bodies.TopicStatsTable,
    203: admin_bodies.ConsumerConnection,
    204: admin_bodies.ProducerConnection,
    208: admin_bodies.ConsumeStats,
    222: bodies.ResetOffsetBody,
    223: admin_bodies.GetConsumerStatusBody,
    328: admin_bodies.ProducerTableInfo,
}


def test_bodies_of_apaches_answers_are_written_again_to_the_same_text(golden_frames: list[dict[str, Any]]) -> None:
    seen = set()
    for line in golden_frames:
        kind = RESPONSE_BODIES.get(line.get("request_code", -1))
        if kind is None or line["code"] != 0 or not line.get("body_text"):
            continue
        body: Any = bodies.decode_body(kind, line["body_text"].encode())
        if not re.search(r'\{"\d+":', line["body_text"]):  # strict JSON, as clients from 4.9.4 on get routes
            assert bodies.encode_body(body).decode() == line["body_text"]
        assert bodies.decode_body(kind, bodies.encode_body(body)) == body
        seen.add(kind)
    assert seen == set(RESPONSE_BODIES.values())


def test_requests_of_real_clients_have_the_typed_headers(golden_frames: list[dict[str, Any]]) -> None:
    kinds: dict[int, type[Header]] = {310: SendMessageRequestHeaderV2, 11: PullMessageRequestHeader}
    seen = set()
    for line in golden_frames:
        if line["direction"] == "response" or line["code"] not in kinds or line["scenario"].startswith("probe"):
            continue
        ext = line["header"]["extFields"]
        typed = to_ext(from_ext(kinds[line["code"]], ext))
        assert {name: ext[name] for name in typed if name in ext} == {n: v for n, v in typed.items() if n in ext}
        seen.add(line["code"])
    assert seen == set(kinds)


def test_a_missing_or_mistyped_field_is_named() -> None:
    with pytest.raises(HeaderError, match="queueId"):
        from_ext(GetMaxOffsetRequestHeader, {"topic": "T"})
    with pytest.raises(HeaderError, match="queueId"):
        from_ext(GetMaxOffsetRequestHeader, {"topic": "T", "queueId": "one"})


def test_fields_of_later_versions_are_ignored() -> None:
    assert (
        from_ext(GetMaxOffsetRequestHeader, {"topic": "T", "queueId": "1", "bname": "b", "lo": "false"}).queue_id == 1
    )


keys = st.text(max_size=10) | st.integers()
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\,:{}', max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(values)
def test_fastjson_reads_back_what_it_writes_compact_and_pretty(value: object) -> None:
    assert fastjson.loads(fastjson.dumps(value)) == value
    assert fastjson.loads(fastjson.dumps_pretty(value)) == value


@given(st.dictionaries(st.integers(), values, max_size=4))
def test_numeric_keys_are_written_unquoted_and_read_as_text(table: dict[int, object]) -> None:
    assert fastjson.loads(fastjson.dumps({"t": table})) == {"t": {str(key): value for key, value in table.items()}}


def test_maps_keyed_by_objects_keep_their_order_and_keys() -> None:
    text = '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":1,"topic":"T"}:7}}'
    assert fastjson.dumps(fastjson.loads(text)).decode() == text
    table = bodies.decode_body(bodies.ResetOffsetBody, text.encode()).offset_table
    assert table[bodies.MessageQueue("T", "b", 1)] == 7


@given(st.lists(st.tuples(values, values), min_size=1, max_size=4))
def test_flat_objects_in_maps_keyed_by_objects_are_read_as_by_the_parser_alone(pairs: list[tuple[Any, Any]]) -> None:
    table = fastjson.ObjectKeyMap(({"key": key}, value) for key, value in pairs)
    for text in (fastjson.dumps(table), fastjson.dumps_pretty(table), b'{{"a":NaN}:1}', b'{{"a":1}:{"a":01}}'):
        read = []
        for flat in (fastjson._FLAT, re.compile(r"(?!)")):
            with unittest.mock.patch.object(fastjson, "_FLAT", flat):
                try:
                    read.append(repr(fastjson.loads(text)))
                except fastjson.FastjsonError:
                    read.append("refused")
        assert read[0] == read[1]


_TEXTS = st.text(st.sampled_from('{}[]:,"\\\1\2é T'), max_size=6)
_OFFSETS = st.builds(
    OffsetWrapper, broker_offset=st.integers(0, 9), consumer_offset=st.just(0), last_timestamp=st.just(1)
)
_STATS = st.builds(
    ConsumeStats,
    offset_table=st.dictionaries(
        st.builds(bodies.MessageQueue, topic=_TEXTS, broker_name=st.just("b"), queue_id=st.integers(0, 9)),
        _OFFSETS,
        max_size=4,
    ),
    consume_tps=st.just(0.5),
)


@given(st.lists(st.dictionaries(_TEXTS, st.lists(_STATS, max_size=3), max_size=2), max_size=3))
def test_bodies_with_maps_keyed_by_queues_are_read_whole_whatever_their_names_are(
    listed: list[dict[str, list[ConsumeStats]]],
) -> None:
    body = ConsumeStatsList(consume_stats_list=listed, total_diff=3, broker_addr="b:1")
    assert bodies.decode_body(ConsumeStatsList, bodies.encode_body(body)) == body


def test_bodies_with_thousands_of_queues_are_not_parsed_in_python() -> None:
    offsets = OffsetWrapper(broker_offset=5, consumer_offset=3, last_timestamp=0)
    stats = ConsumeStats(offset_table={bodies.MessageQueue("T", "b", number): offsets for number in range(5_000)})
    table = TopicStatsTable(
        offset_table={
            bodies.MessageQueue("T", "b", 0): TopicOffset(min_offset=0, max_offset=1, last_update_timestamp=2)
        }
    )
    listed = ConsumeStatsList(consume_stats_list=[{"g": [stats]}], total_diff=3, broker_addr="b:1")
    with unittest.mock.patch.object(fastjson, "_Parser", side_effect=AssertionError):
        for body in (stats, table, listed, bodies.ResetOffsetBody(offset_table={bodies.MessageQueue("T", "b", 0): 5})):
            assert bodies.decode_body(type(body), bodies.encode_body(body)) == body


@given(st.text(st.sampled_from('{}[]:,"0a tru'), max_size=30))
def test_text_that_is_no_fastjson_is_refused_never_crashes(text: str) -> None:
    with contextlib.suppress(fastjson.FastjsonError):
        fastjson.loads(text)


def test_text_nested_too_deeply_is_refused() -> None:
    for text in ("[" * 100_000, "{0:" * 100_000, '{{"a":1}:' * 10_000):
        with pytest.raises(fastjson.FastjsonError):
            fastjson.loads(text)


def test_a_body_of_another_form_is_refused_with_its_name() -> None:
    with pytest.raises(bodies.BodyError, match="HeartbeatData"):
        bodies.decode_body(bodies.HeartbeatData, b'{"clientID":7e,"x"')
    with pytest.raises(bodies.BodyError, match="clientID"):
        bodies.decode_body(bodies.HeartbeatData, b"{}")


def test_the_cpp_clients_heartbeat_gives_constants_by_their_positions() -> None:
    body = (
        b'{"clientID":"21222-127.0.0.1@21222","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"gc",'
        b'"messageModel":0,"subscriptionDataSet":[{"subString":"*","subVersion":"1795254371340","topic":"T1"}]}]}\n'
    )
    (consumer,) = bodies.decode_body(bodies.HeartbeatData, body).consumer_data_set
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_PASSIVELY", "BROADCASTING")
    assert consumer.subscription_data_set[0].sub_version == 1795254371340
    with pytest.raises(bodies.BodyError, match="consumeType"):
        bodies.decode_body(bodies.HeartbeatData, body.replace(b'"consumeType":1', b'"consumeType":9'))


def test_the_replication_of_a_master_of_apaches_is_read() -> None:
    body = b'{"haClientRuntimeInfo":{"activated":false,"lastReadTimestamp":0,"lastWriteTimestamp":0,"maxOffset":0,'
    body += b'"transferredByteInSecond":0},"haConnectionInfo":[],"inSyncSlaveNums":0,"master":true,'
    body += b'"masterCommitLogMaxOffset":0}'
    assert bodies.decode_body(admin_bodies.HARuntimeInfo, body).master
