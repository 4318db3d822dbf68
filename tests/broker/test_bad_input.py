"""Bad input of every kind: it gets its code and words or ends its connection; broker and directory stay whole."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from pathlib import Path

import pytest
from tests.broker.wire import Connect, Wire, pull_header, records, send_header
from tests.helpers.waiting import real_time

import cometmq.broker.tables.groups
import cometmq.broker.tables.topics
import cometmq.broker.turn.targets
from cometmq.broker.controller import Broker
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.message.sysflag import COMPRESSED
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import UpdateConsumerOffsetRequestHeader, to_ext

BLANK = "The specified topic is blank."
LONG = "The specified topic is longer than topic max length."
ILLEGAL = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"


@pytest.fixture(autouse=True)
async def nothing_outside_the_store_is_touched(broker: Broker, connect: Connect) -> object:
    """Whatever a test sends, a new client is served after it, and no file lies outside the store."""
    root = Path(broker.config.store_path_root_dir).parent
    before = set(os.listdir(root))
    yield
    after = await connect()
    assert (await after.send("Afterwards", b"alive")).code == ResponseCode.SUCCESS
    assert [record.body for record in records(await after.pull("Afterwards"))] == [b"alive"]
    await broker.stop()
    assert set(os.listdir(root)) == before
    names = {path.name for path in (root / "store" / "consumequeue").iterdir()}
    assert names <= {"Afterwards", "T", "x" * 127, "%RETRY%g"}


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", BLANK),
        ("   ", BLANK),
        ("../x", ILLEGAL),
        ("a/b", ILLEGAL),
        ("..", ILLEGAL),
        ("bad.topic", ILLEGAL),
        ("nul\0", ILLEGAL),
        ("Ünïcode", ILLEGAL),
        ("T\n", ILLEGAL),
        ("x" * 128, LONG),
        ("x" * 100_000, LONG),
    ],
)
async def test_topics_of_sends(wire: Wire, topic: str, words: str) -> None:
    answer = await wire.send(topic)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, words)
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_longest_topic(wire: Wire) -> None:
    assert (await wire.send("x" * 127)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("group", ["../../../../y", "", "g" * 200, "a b", "a\0", "."])
async def test_groups_of_pulls_and_retry_topics(broker: Broker, wire: Wire, group: str) -> None:
    await wire.send("T")
    known = set(broker.groups.table)
    assert (await wire.pull("T", consumer_group=group)).code == ResponseCode.SYSTEM_ERROR
    assert (await wire.send("%RETRY%" + group)).code != ResponseCode.SUCCESS
    header = UpdateConsumerOffsetRequestHeader(consumer_group=group, topic="T", queue_id=0, commit_offset=1)
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SYSTEM_ERROR
    assert set(broker.groups.table) == known


@pytest.mark.parametrize("topic", ["../x", "", "x" * 128])
async def test_topics_of_pulls(wire: Wire, topic: str) -> None:
    assert (await wire.pull(topic)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_topics_and_groups_are_bounded(broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    await wire.send("T")
    with monkeypatch.context() as patched:
        for module in (cometmq.broker.tables.topics, cometmq.broker.turn.targets):
            patched.setattr(module, "MAX_TOPICS", len(broker.topics.table))
        patched.setattr(cometmq.broker.tables.groups, "MAX_GROUPS", len(broker.groups.table))
        refused = await wire.send("OneMore")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (await wire.send("T")).code == ResponseCode.SUCCESS
        assert (await wire.pull("T")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert broker.topics.get("OneMore") is None


# --- headers -----------------------------------------------------------------------------------------


def fields(**changes: str | None) -> dict[str, str]:
    header = send_header("T")
    values = {
        "producerGroup": "p",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(header.born_timestamp),
        "flag": "0",
        "properties": "a\x01b",
    }
    return {name: value for name, value in (values | changes).items() if value is not None}


@pytest.mark.parametrize("missing", ["producerGroup", "topic", "defaultTopic", "queueId", "sysFlag", "bornTimestamp"])
async def test_missing_fields_are_named(wire: Wire, missing: str) -> None:
    answer = await wire.call(RequestCode.SEND_MESSAGE, ext=fields(**{missing: None}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert missing in answer.remark


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queueId", "zero"),
        ("queueId", ""),
        ("queueId", "1.5"),
        ("queueId", str(2**31)),
        ("flag", str(2**31)),
        ("flag", str(-(2**31) - 1)),
        ("sysFlag", str(2**40)),
        ("bornTimestamp", str(2**63)),
        ("reconsumeTimes", str(2**31)),
        ("batch", "maybe"),
        ("defaultTopicQueueNums", "9" * 400),
    ],
)
async def test_values_of_the_wrong_type_or_range(wire: Wire, name: str, value: str) -> None:
    answer = await wire.call(RequestCode.SEND_MESSAGE, None, b"x", ext=fields(**{name: value}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


@pytest.mark.parametrize(
    ("name", "value"), [("queue_offset", 2**63), ("queue_offset", -(2**63)), ("max_msg_nums", -5), ("queue_id", 2**31)]
)
async def test_pulls_with_numbers_out_of_range(wire: Wire, name: str, value: int) -> None:
    await wire.send("T")
    answer = await wire.pull("T", **{name: value})
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.PULL_OFFSET_MOVED)


@pytest.mark.parametrize("queues", [-1, 0, 2**31 - 1])
async def test_strange_numbers_of_queues(wire: Wire, queues: int) -> None:
    answer = await wire.send("T", default_topic_queue_nums=queues, queue_id=100_000)
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("code", [9999, -1, 200_056])
async def test_codes_that_nobody_answers(wire: Wire, code: int) -> None:
    answer = await wire.call(code, ext={"a": "b"})
    assert (answer.code, answer.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {code} not supported",
    )


async def test_numbers_as_json_numbers(wire: Wire) -> None:
    """As ali-ons sends them."""
    header = (
        b'{"code":310,"extFields":{"a":"p","b":"T","c":"TBW102","d":4,"e":0,"f":0,"g":1700000000000,"h":0,'
        b'"i":"TAGS\\u0001x","j":0,"k":false,"m":false,"n":null},"flag":0,"language":"JAVA","opaque":77,"version":121}'
    )
    wire.writer.write(struct.pack(">ii", 4 + len(header) + 1, len(header)) + header + b"x")
    assert (await wire.answer(77)).code == ResponseCode.SUCCESS


# --- frames ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1) + b"\0" * 8,
        struct.pack(">i", 0) + b"\0" * 8,
        struct.pack(">i", MAX_FRAME_BYTES + 1) + b"\0" * 8,
        struct.pack(">ii", 20, 0x00FFFFFF) + b"\0" * 16,
        struct.pack(">ii", 20, 0x07000010) + b"\0" * 16,
        struct.pack(">ii", 20, 16) + b"not a header at",
        struct.pack(">ii", 8, 4) + b"[]  ",
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
    ],
    ids=["negative", "zero", "huge", "header beyond", "unknown form", "no JSON", "no object", "HTTP", "TLS"],
)
async def test_what_is_no_frame_ends_the_connection(wire: Wire, data: bytes) -> None:
    wire.writer.write(data + b" ")
    with pytest.raises((ConnectionError, TimeoutError)):
        await wire.read(5)


async def test_noise(connect: Connect) -> None:
    random_bytes = random.Random(7)
    for _ in range(30):
        wire = await connect()
        wire.writer.write(random_bytes.randbytes(random_bytes.randrange(1, 4000)))
        await wire.close()


async def test_damaged_requests(connect: Connect) -> None:
    good = RemotingCommand(code=310, opaque=1, ext_fields={"b": "T"}, body=b"x").encode()
    chance = random.Random(11)
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(4, len(damaged))] = chance.randrange(256)
        wire = await connect()
        wire.writer.write(bytes(damaged))
        await wire.close()


@pytest.mark.parametrize(
    "fields",
    [
        b'"opaque":' + b"9" * 200,
        b'"opaque":1099511627776,"serializeTypeCurrentRPC":"ROCKETMQ"',
        b'"opaque":-2147483649',
    ],
    ids=["long", "binary", "negative"],
)
async def test_an_opaque_that_no_answer_can_repeat_harms_nobody_of_the_same_turn(
    wire: Wire, connect: Connect, fields: bytes
) -> None:
    honest = await connect()
    ext = json.dumps(to_ext(send_header("T"))).encode()
    header = b'{"code":310,"extFields":' + ext + b"," + fields + b"}"
    wire.writer.write(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert (await honest.send("T")).code == ResponseCode.SUCCESS
    await wire.read_to_the_end()
    assert not wire.answers


# --- sizes -------------------------------------------------------------------------------------------


async def test_body_over_the_limit(broker: Broker, wire: Wire) -> None:
    answer = await wire.send("T", bytes(broker.config.max_message_size + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert answer.remark.startswith("the message is illegal, maybe msg body or properties length not matched.")


async def test_bomb_is_stored_as_it_is(wire: Wire) -> None:
    """A broker never unpacks: the bomb is the consumer's to refuse."""
    bomb = zlib.compress(bytes(200 * 1024 * 1024))
    assert (await wire.send("T", bomb, sys_flag=COMPRESSED)).code == ResponseCode.SUCCESS
    (record,) = records(await wire.pull("T"))
    assert record.body == bomb


async def test_properties_with_odd_separators(wire: Wire) -> None:
    odd = "A\x01\x02B\x01b\x01c\x02\x01x\x02\x02plain\x02"
    assert (await wire.send("T", properties=odd)).code == ResponseCode.SUCCESS
    assert records(await wire.pull("T"))[0].properties == {"B": "b\x01c", "CLUSTER": "DefaultCluster"}


async def test_host_flags_of_the_sender_are_not_believed(wire: Wire) -> None:
    assert (await wire.send("T", sys_flag=0x30)).code == ResponseCode.SUCCESS
    (record,) = records(await wire.pull("T"))
    assert record.sys_flag == 0
    assert len(record.born_host) == len(record.store_host) == 8


# --- clients that do not read --------------------------------------------------------------------------


async def test_client_that_does_not_read_is_not_read(broker: Broker, wire: Wire, connect: Connect) -> None:
    for _ in range(20):
        await wire.send("T", bytes(200_000))
    idle = await connect()
    request = idle.command(RequestCode.PULL_MESSAGE, pull_header("T")).encode()
    idle.writer.write(request * 2000)
    pulled_before = -1
    while pulled_before != broker.stats.get_found:
        pulled_before = broker.stats.get_found
        await real_time(0.1)  # nothing more is pulled, and nothing tells that it is not
    assert broker.stats.get_found < 500
    assert (await wire.send("T")).code == ResponseCode.SUCCESS
