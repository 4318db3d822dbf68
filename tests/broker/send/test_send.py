"""Sends over raw sockets: what is stored, what is answered, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Connect, Wire, pull_header, records, send_header

from cometmq.broker.controller import Broker
from cometmq.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from cometmq.message.batch import BatchPiece, encode_batch, encode_piece
from cometmq.message.compression import compress
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from cometmq.message.sysflag import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_PREPARED
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY
from cometmq.remoting.frame import JSON, ROCKETMQ, encode_frame
from cometmq.remoting.headers import SendMessageRequestHeader, to_ext


async def test_a_message_comes_back_as_it_was_sent(broker: Broker, wire: Wire) -> None:
    answer = await wire.send(
        "T", b"body", flag=-5, queue_id=2, properties="KEYS\x01a b\x02WAIT\x01true\x02TAGS\x01TagA"
    )
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert answer.ext_fields["queueId"] == "2"
    assert answer.ext_fields["queueOffset"] == "0"
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert answer.ext_fields["TRACE_ON"] == "true"
    ip, port, offset = decode_offset_msg_id(answer.ext_fields["msgId"])
    assert (ip, port) == ("127.0.0.1", broker.server.port)
    pulled = await wire.pull("T", queue_id=2)
    (record,) = records(pulled)
    assert (record.topic, record.body, record.flag) == ("T", b"body", -5)
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (2, 0, offset)
    assert record.properties == {"KEYS": "a b", "TAGS": "TagA", "CLUSTER": "DefaultCluster"}
    assert record.born_timestamp == 1_700_000_000_000


@pytest.mark.parametrize("serialize_type", [0, ROCKETMQ])
async def test_both_versions_and_both_forms_of_the_header(wire: Wire, serialize_type: int) -> None:
    v2 = send_header("T")
    v1 = SendMessageRequestHeader(**{name: getattr(v2, name) for name in SendMessageRequestHeader.__struct_fields__})
    for offset, (code, header) in enumerate([(RequestCode.SEND_MESSAGE, v1), (RequestCode.SEND_MESSAGE_V2, v2)]):
        answer = await wire.call(code, header, b"x", serialize_type=serialize_type)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.serialize_type == serialize_type
        assert answer.ext_fields["queueOffset"] == str(offset)
        assert set(answer.ext_fields) == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}


async def test_many_requests_in_one_segment_are_answered_in_order(wire: Wire) -> None:
    commands = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"%d" % n) for n in range(200)]
    wire.writer.write(b"".join(command.encode() for command in commands))
    offsets = [int((await wire.answer(command.opaque)).ext_fields["queueOffset"]) for command in commands]
    assert offsets == list(range(200))
    pulled = await wire.pull("T", max_msg_nums=200)
    assert [record.body for record in records(pulled)] == [b"%d" % n for n in range(200)]


async def test_oneway_is_stored_and_not_answered(wire: Wire) -> None:
    wire.post(wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"quiet", flag=FLAG_ONEWAY))
    answer = await wire.send("T", b"loud")
    assert answer.ext_fields["queueOffset"] == "1"
    assert not wire.answers


async def test_a_negative_queue_is_any_queue(wire: Wire) -> None:
    answer = await wire.send("T", queue_id=-1)
    assert 0 <= int(answer.ext_fields["queueId"]) < 4


async def test_an_empty_body_is_stored(wire: Wire) -> None:
    assert (await wire.send("T", b"")).code == ResponseCode.SUCCESS
    assert records(await wire.pull("T"))[0].body == b""


# --- topics that come into being ---------------------------------------------------------------------


async def test_topic_is_made_from_the_default_topic(broker: Broker, wire: Wire) -> None:
    await wire.send("Made", default_topic_queue_nums=3)
    topic = broker.topics.get("Made")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 3, 6)


async def test_topic_takes_no_more_queues_than_the_default_topic(broker: Broker, wire: Wire) -> None:
    await wire.send("Made", default_topic_queue_nums=1000)
    topic = broker.topics.get("Made")
    assert topic is not None
    assert topic.write_queue_nums == broker.config.default_topic_queue_nums


async def test_topic_is_not_made_when_forbidden(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(auto_create_topic_enable=False)
    wire = await connect_to(broker)
    answer = await wire.send("Never")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == (
        "topic[Never] not exist, apply first please!\nSee http://rocketmq.apache.org/docs/faq/ for further details."
    )
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_topic_is_not_made_from_an_unknown_or_uninheritable_one(wire: Wire) -> None:
    await wire.send("Plain")
    for parent in ("NoSuchTopic", "Plain"):
        assert (await wire.send("Never", default_topic=parent)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_retry_topic_is_always_made(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(auto_create_topic_enable=False)
    wire = await connect_to(broker)
    assert (await wire.send("%RETRY%g")).code == ResponseCode.SUCCESS
    topic = broker.topics.get("%RETRY%g")
    assert topic is not None
    assert topic.write_queue_nums == 1
    assert broker.groups.get("g") is not None


async def test_topics_survive_a_restart(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    first = await start_broker()
    await (await connect_to(first)).send("Kept", default_topic_queue_nums=2)
    version = first.topics.version
    await first.stop()
    second = await start_broker(auto_create_topic_enable=False)
    topic = second.topics.get("Kept")
    assert topic is not None
    assert topic.write_queue_nums == 2
    assert second.topics.version == version
    assert (await (await connect_to(second)).send("Kept", b"again")).ext_fields["queueOffset"] == "1"


async def test_a_changed_topic_is_seen_by_the_next_send(broker: Broker, wire: Wire) -> None:
    await wire.send("T", queue_id=3)
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    refused = await wire.send("T", queue_id=3)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark is not None
    assert refused.remark.startswith(
        "request queueId[3] is illegal, TopicConfig [topicName=T, readQueueNums=2, writeQueueNums=2, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: 127.0.0.1:"
    )


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TRANS_HALF_TOPIC])
async def test_forbidden_topics(wire: Wire, topic: str) -> None:
    answer = await wire.send(topic)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        f"Sending message to topic[{topic}] is forbidden.",
    )


async def test_largest_body_and_one_byte_more(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    wire = await connect_to(await start_broker(max_message_size=1000))
    assert (await wire.send("T", b"x" * 1000)).code == ResponseCode.SUCCESS
    answer = await wire.send("T", b"x" * 1001)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit 1000B, "
        "msg properties length limit 32KB."
    )


async def test_largest_properties_and_one_byte_more(wire: Wire) -> None:
    room = MAX_PROPERTIES_BYTES - len("a\x01\x02CLUSTER\x01DefaultCluster")
    assert (await wire.send("T", properties="a\x01" + "v" * room)).code == ResponseCode.SUCCESS
    assert (await wire.send("T", properties="a\x01" + "v" * (room + 1))).code == ResponseCode.MESSAGE_ILLEGAL
    record = records(await wire.pull("T"))[0]
    assert len(record.properties["a"]) == room


async def test_message_larger_than_a_log_file(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    wire = await connect_to(await start_broker(mapped_file_size_commit_log=8192))
    room = 8192 - 400
    for _ in range(3):
        assert (await wire.send("T", bytes(room), properties="")).code == ResponseCode.SUCCESS
    assert (await wire.send("T", bytes(8192), properties="")).code == ResponseCode.MESSAGE_ILLEGAL
    pieces = encode_batch([BatchPiece(0, b"small", ""), BatchPiece(0, bytes(8192), "")])
    refused = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), pieces)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await wire.send("T", b"next")).ext_fields["queueOffset"] == "3"


async def test_delay_that_is_no_number(wire: Wire) -> None:
    answer = await wire.send("T", properties="DELAY\x01notanumber")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith('java.lang.NumberFormatException: For input string: "notanumber"')


async def test_broker_that_may_not_be_written_refuses_ordered_topics_only(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker(broker_permission=4)
    broker.topics.put(TopicConfig(topic_name="Ordered", order=True))
    wire = await connect_to(broker)
    answer = await wire.send("Ordered")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending message is forbidden",
    )
    assert (await wire.send("Plain")).code == ResponseCode.SUCCESS


# --- batches ---------------------------------------------------------------------------------------


def batch(*bodies: bytes) -> bytes:
    return encode_batch(BatchPiece(n, body, f"UNIQ_KEY\x01U{n}\x02TAGS\x01t{n}") for n, body in enumerate(bodies))


async def test_batch_gets_consecutive_offsets_and_one_answer(wire: Wire) -> None:
    await wire.send("T", b"before")
    header = send_header("T", batch=True, properties="WAIT\x01true")
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, header, batch(b"a", b"b", b"c"))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext_fields["queueOffset"] == "1"
    ids = answer.ext_fields["msgId"].split(",")
    stored = records(await wire.pull("T", queue_offset=1))
    assert [record.body for record in stored] == [b"a", b"b", b"c"]
    assert [record.flag for record in stored] == [0, 1, 2]
    assert [decode_offset_msg_id(msg_id)[2] for msg_id in ids] == [record.physical_offset for record in stored]
    assert stored[1].properties == {"UNIQ_KEY": "U1", "TAGS": "t1", "WAIT": "true", "CLUSTER": "DefaultCluster"}


async def test_messages_of_a_batch_are_found_by_tag(wire: Wire) -> None:
    await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), batch(b"a", b"b", b"c"))
    assert [record.body for record in records(await wire.pull("T", subscription="t0 || t2"))] == [b"a", b"c"]


async def test_a_batch_packed_as_a_whole_is_stored_as_its_plain_messages(wire: Wire) -> None:
    """As the C++ client sends batches over 4096 bytes."""
    bodies = [b"%d" % n * 300 for n in range(32)]
    header = send_header("T", batch=True, sys_flag=COMPRESSED)
    answer = await wire.call(RequestCode.SEND_MESSAGE_V2, header, compress(batch(*bodies)))
    assert answer.code == ResponseCode.SUCCESS
    stored = records(await wire.pull("T"))
    assert [record.body for record in stored] == bodies
    assert {record.sys_flag for record in stored} == {0}


@pytest.mark.parametrize("packed", [compress(bytes(5 << 20)), b"no zlib", compress(batch(b"a" * 99))[:-5]])
async def test_a_packed_batch_that_is_a_bomb_or_damaged_is_refused(wire: Wire, packed: bytes) -> None:
    header = send_header("T", batch=True, sys_flag=COMPRESSED)
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, header, packed)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await wire.send("T", b"first")).ext_fields["queueOffset"] == "0"


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        ("%RETRY%g", batch(b"a")),
        ("T", b""),
        ("T", batch(b"a")[:-1]),
        ("T", b"\xff" * 40),
        ("T", encode_batch([BatchPiece(0, b"a", "DELAY\x013")])),
        ("T", encode_batch([BatchPiece(0, b"a", ""), BatchPiece(0, b"b", "TIMER_DELIVER_MS\x019999999999999")])),
        ("T", encode_batch([BatchPiece(0, b"a", ""), BatchPiece(0, b"b", "TRAN_MSG\x01true")])),
        ("T", encode_batch([BatchPiece(0, b"", "")] * (MAX_BATCH_MESSAGES + 1))),
        ("T", encode_batch([BatchPiece(0, b"a", "p\x01" + "v" * 32_760)])),
    ],
    ids=["retry topic", "empty", "cut", "lying lengths", "delayed", "timed", "half", "too many", "too long"],
)
async def test_batches_that_are_refused_store_nothing(wire: Wire, topic: str, body: bytes) -> None:
    await wire.send(topic, b"first")
    header = send_header(topic, batch=True)
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, header, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark
    assert (await wire.send(topic, b"second")).ext_fields["queueOffset"] == "1"


@pytest.mark.parametrize(
    "fields",
    [
        {"sys_flag": TRANSACTION_PREPARED},
        {"sys_flag": TRANSACTION_COMMIT},
        {"properties": "TRAN_MSG\x01true"},
        {"properties": "WAIT\x01true\x02DELAY\x013"},
        {"properties": "TIMER_DELAY_SEC\x0110"},
    ],
    ids=lambda fields: next(iter(fields.values())),
)
async def test_a_batch_that_as_a_whole_is_delayed_or_transactional_is_refused(
    wire: Wire, fields: dict[str, Any]
) -> None:
    header = send_header("T", batch=True, **fields)
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, header, batch(b"a"))
    assert (answer.code, "delayed or transactional" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert (await wire.send("T", b"first")).ext_fields["queueOffset"] == "0"


# --- flushing and stopping ---------------------------------------------------------------------------


async def test_sync_flush_answers_when_the_disk_has_it(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(flush_disk_type="SYNC_FLUSH")
    wire = await connect_to(broker)
    answer = await wire.send("T", b"durable")
    assert answer.code == ResponseCode.SUCCESS
    assert broker.store.flushed_position > decode_offset_msg_id(answer.ext_fields["msgId"])[2]


async def test_wait_false_is_answered_without_the_flush(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(flush_disk_type="SYNC_FLUSH")
    flushes: list[Callable[[Any], None]] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    wire = await connect_to(broker)
    waiting = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T", properties="WAIT\x01true"), b"1")
    wire.post(waiting)
    assert (await wire.send("T", b"2", properties="WAIT\x01false")).code == ResponseCode.SUCCESS
    assert waiting.opaque not in wire.answers
    (flushed,) = flushes
    flushed(None)
    assert (await wire.answer(waiting.opaque)).code == ResponseCode.SUCCESS


async def test_slow_flush_is_answered_with_flush_disk_timeout(
    start_broker: StartBroker, connect_to: ConnectTo, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=3000)
    flushes: list[Callable[[Any], None]] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    wire = await connect_to(broker)
    waiting = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"1")
    wire.post(waiting)
    while not flushes:
        await asyncio.sleep(0)
    clock.advance(3.0)
    answer = await wire.answer(waiting.opaque)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert answer.ext_fields["queueOffset"] == "0"
    flushes[0](None)
    assert (await wire.pull("T")).code == ResponseCode.SUCCESS


async def test_late_sends_are_told_that_the_broker_stops(broker: Broker, connect: Connect) -> None:
    wire = await connect()
    held = wire.command(RequestCode.PULL_MESSAGE, pull_header("T", wait_ms=15_000))
    await wire.send("T")
    wire.post(wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=1, wait_ms=15_000)))
    wire.post(held)
    await wire.answer(held.opaque)
    assert len(broker.hold) == 1
    stopping = asyncio.ensure_future(broker.stop())
    late = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"late")
    wire.post(late)
    await wire.read_to_the_end()
    await stopping
    codes = [answer.code for answer in wire.answers.values()]
    assert ResponseCode.PULL_NOT_FOUND in codes
    answer = wire.answers.get(late.opaque)
    assert answer is None or answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("tag", "stored"), [("中".encode("gbk"), "\ufffd\ufffd"), (rb"cut \ud83d", "cut ?"), (b"\xed\xa0\xbd", "\ufffd")]
)
async def test_a_text_that_is_none_is_stored_as_apaches_brokers_store_it(wire: Wire, tag: bytes, stored: str) -> None:
    """Those of C++ programs with GBK, and of JavaScript where an emoji is cut: the connection goes on."""
    header = to_ext(send_header("Odd", properties="TAGS\x01mark\x02"))
    command = json.dumps({"code": 310, "opaque": 7, "flag": 0, "extFields": header}).encode().replace(b"mark", tag)
    wire.writer.write(encode_frame(JSON, command, 1) + b"x")
    assert (await wire.answer(7)).code == 0
    (record,) = records(await wire.pull("Odd"))
    assert record.properties["TAGS"] == stored


async def test_a_batch_may_have_texts_that_are_none(wire: Wire) -> None:
    """Unless they are too long as they are stored."""
    for tag, code in ((b"\xff", 0), ("中".encode("gbk"), 0), (b"\xff" * 20_000, 13)):
        pieces = (b"TAGS\x01" + tag + b"\x02", b"TAGS\x01plain\x02")
        body = b"".join(part for properties in pieces for part in encode_piece(0, b"x", properties))
        header = send_header("OddBatch", batch=True, properties="")
        assert (await wire.call(RequestCode.SEND_BATCH_MESSAGE, header, body)).code == code
    stored = records(await wire.pull("OddBatch"))
    assert [record.properties["TAGS"] for record in stored] == ["\ufffd", "plain", "\ufffd\ufffd", "plain"]
