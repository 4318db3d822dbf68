"""Tasks of the sink, without Spark: what is stored where, in which order, and which rows are refused."""

from __future__ import annotations

import datetime
import itertools
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.pace import Patience
from tests.interop.systems import System
from tests.spark.conftest import SYSTEM
from tests.spark.sinking import rows_of, sink, stored
from tests.spark.topics import Topics

from cometmq.client.send.selection import queue_of_key
from cometmq.message.ids import java_hash
from cometmq.remoting.bodies import MessageQueue
from cometmq.spark.errors import SinkError
from cometmq.spark.sink.encoding import TaskIdentity
from cometmq.spark.sink.placing import BLOCK_ROWS


def test_every_column_arrives_in_the_message(topics: Topics) -> None:
    topic = topics.create(queues=2)
    row = {
        "body": b"\x00body",
        "tags": "TagA",
        "keys": "k1 k2",
        "shardingKey": "order-7",
        "properties": [("colour", "grün"), ("empty", "")],
        "flag": -5,
    }
    sink(topics, topic, [rows_of([row])])
    (record,) = [record for records in stored(topics, topic, 2) for record in records]
    assert (record.body, record.flag, record.queue_id) == (b"\x00body", -5, abs(java_hash("order-7")) % 2)
    assert record.properties == {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "order-7",
        "colour": "grün",
        "UNIQ_KEY": TaskIdentity("job", 0, 0).message_id(0),
        "CLUSTER": "DefaultCluster",
    }


def test_absent_values_leave_no_properties(topics: Topics) -> None:
    topic = topics.create(queues=1)
    row = {"value": "text", "tags": None, "keys": "", "shardingKey": None, "properties": None, "flag": None}
    sink(topics, topic, [rows_of([row | {"tags": "x"}, row])])
    records = stored(topics, topic, 1)[0]
    assert [sorted(record.properties) for record in records] == [
        ["CLUSTER", "TAGS", "UNIQ_KEY"],
        ["CLUSTER", "UNIQ_KEY"],
    ]
    assert [record.body for record in records] == [b"text", b"text"]


def test_keys_may_be_an_array(topics: Topics) -> None:
    topic = topics.create(queues=1)
    batch = rows_of([{"body": b"x", "keys": ["a", "b"]}, {"body": b"y", "keys": None}], keys=pa.list_(pa.string()))
    sink(topics, topic, [batch])
    assert [record.properties.get("KEYS") for record in stored(topics, topic, 1)[0]] == ["a b", None]


_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=300),
            "shardingKey": st.none() | st.sampled_from(["a", "b", "ключ", "d" * 200]),
            "queueId": st.none() | st.integers(0, 2),
            "tags": st.none() | st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=5),
            "delayLevel": st.sampled_from([None, 0]),
        }
    ),
    min_size=1,
    max_size=60,
)


@given(rows=_ROWS, cuts=st.lists(st.integers(0, 60), max_size=3), most=st.sampled_from([100, 1000, 1_000_000]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_are_stored_once_each_in_their_order(
    topics: Topics, rows: list[dict[str, Any]], cuts: list[int], most: int
) -> None:
    """However Spark cuts the rows and however small the chunks are: keyed rows where Java would put them."""
    topic = topics.create(queues=3)
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    batches = [rows_of(rows[first:last]) for first, last in itertools.pairwise(bounds)]
    done = sink(topics, topic, batches, maxBatchBytes=most)
    queues = [MessageQueue(topic, topics.broker_name, number) for number in range(3)]
    expected: dict[int, list[tuple[bytes, str | None]]] = defaultdict(list)
    for row in rows:
        target = 0 if row["queueId"] is None else row["queueId"]
        if row["queueId"] is None and row["shardingKey"] is not None:
            target = queue_of_key(queues, row["shardingKey"]).queue_id
        expected[target].append((row["body"], row["tags"] or None))
    found = stored(topics, topic, 3)
    assert [[(r.body, r.properties.get("TAGS")) for r in records] for records in found] == [
        expected[queue_id] for queue_id in range(3)
    ]
    ids = {record.properties["UNIQ_KEY"] for records in found for record in records}
    assert ids == {TaskIdentity("job", 0, 0).message_id(row) for row in range(len(rows))}
    assert done.messages == len(rows)


def test_rows_without_a_key_go_round_the_queues_in_blocks(topics: Topics) -> None:
    topic = topics.create(queues=3)
    bodies = [b"%06d" % row for row in range(5 * BLOCK_ROWS + 3)]
    batches = [rows_of([{"body": body} for body in bodies[at : at + 700]]) for at in range(0, len(bodies), 700)]
    sink(topics, topic, batches, partition=1)
    expected: dict[int, list[bytes]] = defaultdict(list)
    for row, body in enumerate(bodies):
        expected[(row // BLOCK_ROWS + 1) % 3].append(body)
    assert [[record.body for record in records] for records in stored(topics, topic, 3)] == [
        expected[q] for q in range(3)
    ]


def test_ids_go_on_over_blocks_of_the_hash() -> None:
    identity = TaskIdentity("q", 3, 1)
    ids = identity.message_ids(65_530, 70_000)
    assert [bytes(ids[at]).decode() for at in (0, 5, 6, 69_999)] == [
        identity.message_id(65_530 + at) for at in (0, 5, 6, 69_999)
    ]
    assert len({bytes(row) for row in ids}) == 70_000
    others = (TaskIdentity("q", 3, 2), TaskIdentity("q", 4, 1), TaskIdentity("p", 3, 1))
    assert identity.message_id(0) not in {other.message_id(0) for other in others}


def test_topics_by_row(topics: Topics) -> None:
    first, other = topics.create(queues=1), topics.create(queues=1)
    rows = [{"topic": [first, other, None][n % 3], "body": b"%d" % n} for n in range(9)]
    sink(topics, other, [rows_of(rows)])
    assert [record.body for record in stored(topics, first, 1)[0]] == [b"0", b"3", b"6"]
    assert [record.body for record in stored(topics, other, 1)[0]] == [b"1", b"2", b"4", b"5", b"7", b"8"]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_large_bodies_are_packed(topics: Topics, kind: str) -> None:
    topic = topics.create(queues=1)
    rows = [{"body": b"small"}, {"body": b"x" * 10_000}, {"body": b"small too"}]
    sink(topics, topic, [rows_of(rows)], compressionType=kind)
    records = stored(topics, topic, 1)[0]
    assert [record.sys_flag & 1 for record in records] == [0, 1, 0]
    assert len(records[1].body) < 1000


def test_delayed_rows_go_alone_and_come_when_they_are_due(topics: Topics) -> None:
    if SYSTEM is System.APACHE:
        pytest.skip("4.9 knows no TIMER properties")
    topic = topics.create(queues=1)
    base: dict[str, Any] = {"delayLevel": None, "delayMs": None, "deliverAt": None}
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(milliseconds=700)
    rows = [
        {"body": b"level", **base, "delayLevel": 1},
        {"body": b"now", **base},
        {"body": b"time", **base, "deliverAt": due},
        {"body": b"span", **base, "delayMs": 400},
        {"body": b"no delay", **base, "delayLevel": 0},
    ]
    done = sink(topics, topic, [rows_of(rows)])
    assert (done.messages, done.requests) == (5, 5)
    patience = Patience(20)
    while len(found := stored(topics, topic, 1)[0]) < 5:
        assert not patience.is_over, [record.body for record in found]
    assert [record.body for record in found] == [b"now", b"no delay", b"span", b"time", b"level"]
    assert found[3].store_timestamp >= int(due.timestamp() * 1000)


def test_rows_with_a_priority_go_to_the_queue_of_their_priority(topics: Topics) -> None:
    if SYSTEM is System.APACHE:
        pytest.skip("4.9 knows no priorities")
    topic = topics.create(queues=3)
    rows = [{"body": b"%d" % at, "priority": priority} for at, priority in enumerate([0, 9, 1, 2, 0])]
    done = sink(topics, topic, [rows_of([*rows, {"body": b"none", "priority": None}])])
    assert (done.messages, done.requests) == (6, 6)
    found = stored(topics, topic, 3)
    queues = [[record.body for record in found[queue] if record.body != b"none"] for queue in range(3)]
    assert queues == [[b"0", b"4"], [b"2"], [b"1", b"3"]]
    assert [record.properties.get("_SYS_MSG_PRIORITY_") for record in found[2] if record.body != b"none"] == ["9", "2"]


def test_rows_with_a_life_time_share_a_batch_and_begin_to_live_at_the_broker(topics: Topics) -> None:
    topic = topics.create(queues=1)
    rows = [{"body": b"%d" % at, "ttlMs": ttl} for at, ttl in enumerate([60_000, None, 1, 315_360_000_000])]
    done = sink(topics, topic, [rows_of(rows)])
    assert (done.messages, done.requests) == (4, 1)
    (found,) = stored(topics, topic, 1)
    assert [record.properties.get("COMETMQ_TTL_MS") for record in found] == ["60000", None, "1", "315360000000"]
    if SYSTEM is System.COMETMQ:
        ends = [record.properties.get("COMETMQ_EXPIRES_MS") for record in found]
        assert [end and int(end) - record.store_timestamp for end, record in zip(ends, found, strict=True)] == [
            pytest.approx(60_000, abs=5),
            None,
            pytest.approx(1, abs=5),
            pytest.approx(315_360_000_000, abs=5),
        ]


def test_a_row_of_the_source_is_sent_again_with_a_new_life(topics: Topics) -> None:
    """Its properties contain the length of its life and the end of the old one."""
    topic = topics.create(queues=1)
    properties = [("COMETMQ_TTL_MS", "60000"), ("COMETMQ_EXPIRES_MS", "1"), ("a", "b")]
    sink(topics, topic, [rows_of([{"body": b"x", "properties": properties}])])
    ((record,),) = stored(topics, topic, 1)
    assert (record.properties["COMETMQ_TTL_MS"], record.properties["a"]) == ("60000", "b")
    if SYSTEM is System.COMETMQ:
        assert int(record.properties["COMETMQ_EXPIRES_MS"]) > record.store_timestamp


ROW: dict[str, Any] = {"body": b"x"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ROW, {"body": None}], r"row 1 of partition 0: body is null .*where"),
        ([ROW, {"body": b""}], "row 1 of partition 0: body is empty"),
        ([ROW, {"body": bytes(2000)}], r"row 1 .*: body has more than 1000 bytes \(the largest .* has 2000\)"),
        ([{"body": b"x", "tags": "a\x02b"}], r"row 0 of partition 0 .*tags hold one of the separators"),
        ([{"body": b"x", "keys": "a\x01b"}], "keys hold one of the separators"),
        ([{"body": b"x", "properties": [("a\x01", "b")]}], "properties hold one of the separators"),
        ([{"body": b"x", "properties": [("a", "b\x02")]}], "properties hold one of the separators"),
        (
            [{"body": b"x", "properties": [("x", "y"), ("KEYS", "k")]}],
            "is reserved for RocketMQ .*map_filter",
        ),
        ([{"body": b"x", "properties": [("a", "b" * 40_000)]}], "more than the 32767 bytes"),
        ([{"body": b"x", "queueId": 7}], r"no writable queue 7 on broker broker-a .*broker-a: 2"),
        ([{"body": b"x", "queueId": 0, "brokerName": "nowhere"}], "no writable queue 0 on broker nowhere"),
        ([{"body": b"x", "delayLevel": -1}], "delayLevel is negative"),
        ([{"body": b"x", "priority": -1}], "priority is negative"),
        ([{"body": b"x", "ttlMs": 0}], "ttlMs is not 1 to 315360000000"),
        ([{"body": b"x", "ttlMs": 5}, {"body": b"y", "ttlMs": -1}], "row 1 of partition 0: ttlMs is not 1 to"),
        ([{"body": b"x", "ttlMs": 315_360_000_001}], "ttlMs is not 1 to 315360000000"),
        ([{"body": b"x", "ttlMs": 5, "properties": [("COMETMQ_TTL_MS", "6")]}], "is reserved for RocketMQ"),
        ([{"body": b"x", "delayLevel": 1, "delayMs": 5}], "more than one of delayLevel, delayMs, deliverAt"),
        (
            [{"body": b"x", "topic": "never-made", "keys": "k9"}],
            r"row 0 of partition 0 \(topic 'never-made', keys 'k9'\): topic never-made does not exist",
        ),
    ],
)
def test_bad_rows_are_named_with_their_remedy(topics: Topics, rows: list[dict[str, Any]], message: str) -> None:
    topic = topics.create(queues=2)
    with pytest.raises(SinkError, match=message):
        sink(topics, topic, [rows_of(rows)], maxMessageSize=1000)
    assert stored(topics, topic, 2) == [[], []]


def test_a_null_topic_without_an_option_is_refused(topics: Topics) -> None:
    with pytest.raises(SinkError, match="row 0 of partition 0: topic is null"):
        sink(topics, None, [rows_of([{"body": b"x", "topic": None}])])


def test_no_rows_and_large_parts(topics: Topics) -> None:
    topic = topics.create(queues=2)
    assert sink(topics, topic, []).messages == 0
    assert sink(topics, topic, [rows_of([ROW]).slice(0, 0)]).messages == 0
    batch = rows_of([{"body": bytes(1024 * 1024), "properties": [("n", str(n))]} for n in range(70)])
    assert sink(topics, topic, [batch]).messages == 70
    found = [record.properties["n"] for records in stored(topics, topic, 2) for record in records]
    assert sorted(found, key=int) == [str(n) for n in range(70)]
