"""Replies to requests: pushed to the client that asked, stored, and answered to their sender."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.broker.conftest import StartBroker
from tests.broker.send.replying import PROPERTIES, TOPIC, beat, post_reply, pushed, take, text
from tests.broker.wire import Connect, Wire, records, send_header

import cometmq.broker.send.reply_message
from cometmq.broker.controller import Broker
from cometmq.message.properties import decode_properties
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SendMessageRequestHeader
from cometmq.testing import VirtualClock


async def test_a_reply_reaches_the_client_that_asked_and_is_stored(
    wire: Wire, connect: Connect, broker: Broker
) -> None:
    asker = await connect()
    await beat(asker)
    opaque = post_reply(wire, b"packed", sys_flag=1, flag=7)
    push = await pushed(asker)
    assert (push.code, push.body, push.is_oneway) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"packed", False)
    assert {name: push.ext_fields[name] for name in ("topic", "producerGroup", "sysFlag", "flag", "queueId")} == {
        "topic": TOPIC,
        "producerGroup": "producers",
        "sysFlag": "1",
        "flag": "7",
        "queueId": "0",
    }
    assert push.ext_fields["storeHost"] == broker.address
    assert push.ext_fields["bornHost"].startswith("127.0.0.1:")
    properties = decode_properties(push.ext_fields["properties"])
    assert properties.pop("PUSH_REPLY_TIME") == push.ext_fields["storeTimestamp"]
    assert properties == PROPERTIES
    assert opaque not in wire.answers
    take(asker, push)
    answer = await wire.answer(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    (record,) = records(await wire.pull(TOPIC))
    assert (record.body, record.sys_flag, record.flag) == (b"packed", 1, 7)
    assert answer.ext_fields == {
        "msgId": f"7F000001{broker.server.port:08X}{record.physical_offset:016X}",
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


async def test_the_fields_are_those_that_apache_pushes(
    wire: Wire, connect: Connect, golden_frames: list[dict[str, Any]]
) -> None:
    frames = [frame for frame in golden_frames if frame["scenario"].startswith("request-reply")]
    codes = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    sends = [frame for frame in frames if frame["direction"] == "request" and frame["code"] in codes]
    pushes = [frame for frame in frames if frame["direction"] == "request" and frame["code"] == 326]
    answers = {frame["request_seq"]: frame for frame in frames if frame["direction"] == "response"}
    assert len(sends) == len(pushes) == 3
    asker = await connect()
    for send, expected in zip(sends, pushes, strict=True):
        fields = send["header"]["extFields"]
        properties = decode_properties(fields.get("i") or fields["properties"])
        await beat(asker, properties["REPLY_TO_CLIENT"])
        request = wire.command(send["code"], ext=fields, body=send["body_text"].encode())
        wire.post(request)
        push = await pushed(asker)
        wanted = expected["header"]["extFields"]
        differing = {"bornHost", "storeHost", "storeTimestamp", "properties"}
        assert push.ext_fields.keys() == wanted.keys()
        assert {(name, value) for name, value in push.ext_fields.items() if name not in differing} == {
            (name, value) for name, value in wanted.items() if name not in differing
        }
        assert decode_properties(push.ext_fields["properties"]).keys() == decode_properties(wanted["properties"]).keys()
        take(asker, push)
        answer = await wire.answer(request.opaque)
        assert (answer.code, answer.ext_fields.keys()) == (0, answers[send["seq"]]["header"]["extFields"].keys())


async def test_replies_of_the_old_form_are_pushed_too(wire: Wire, connect: Connect) -> None:
    asker = await connect()
    await beat(asker)
    old = SendMessageRequestHeader(
        producer_group="p",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=text(PROPERTIES),
    )
    request = wire.command(RequestCode.SEND_REPLY_MESSAGE, old, b"reply")
    wire.post(request)
    take(asker, await pushed(asker))
    assert (await wire.answer(request.opaque)).code == ResponseCode.SUCCESS


async def test_a_reply_to_nobody_is_an_error_of_apaches_words_and_stored_all_the_same(wire: Wire) -> None:
    answer = await wire.answer(post_reply(wire))
    assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <asker> not found.")
    assert answer.ext_fields["queueOffset"] == "0"
    answer = await wire.answer(post_reply(wire, properties={"MSG_TYPE": "reply"}))
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert len(records(await wire.pull(TOPIC))) == 2


async def test_a_requester_that_refuses_is_silent_or_goes(wire: Wire, connect: Connect, clock: VirtualClock) -> None:
    failed = (1, "push reply message to askerfail.")
    asker = await connect()
    await beat(asker)
    opaque = post_reply(wire)
    take(asker, await pushed(asker), code=1)
    answer = await wire.answer(opaque)
    assert (answer.code, answer.remark) == failed
    opaque = post_reply(wire)
    await pushed(asker)
    clock.advance(9.9)
    await beat(asker)
    assert opaque not in wire.answers
    clock.advance(0.2)
    answer = await wire.answer(opaque)
    assert (answer.code, answer.remark) == failed
    opaque = post_reply(wire)
    await pushed(asker)
    await asker.close()
    answer = await wire.answer(opaque)
    assert (answer.code, answer.remark) == failed
    answer = await wire.answer(post_reply(wire))
    assert "channel of <asker> not found" in str(answer.remark)


async def test_the_newest_connection_of_the_requester_is_taken_whatever_its_groups(
    wire: Wire, connect: Connect, broker: Broker
) -> None:
    old, new, other = await connect(), await connect(), await connect()
    await beat(other, client="other")
    await beat(old, group="g1")
    await beat(old, group="g2")
    await beat(new, group="g1")
    opaque = post_reply(wire)
    take(new, await pushed(new))
    assert (await wire.answer(opaque)).code == 0
    broker.clients.producers.unregister("g1", next(iter(broker.clients.producers.groups["g1"])))
    await new.close()
    opaque = post_reply(wire)
    take(old, await pushed(old))
    assert (await wire.answer(opaque)).code == 0
    await beat(old, client="renamed", group="g2")
    answer = await wire.answer(post_reply(wire))
    assert "channel of <asker> not found" in str(answer.remark)


async def test_replies_need_not_be_stored(
    start_broker: StartBroker, connect_to: Callable[[Broker], Awaitable[Wire]]
) -> None:
    broker = await start_broker(store_reply_message_enable=False)
    wire, asker = await connect_to(broker), await connect_to(broker)
    await beat(asker)
    opaque = post_reply(wire)
    take(asker, await pushed(asker))
    answer = await wire.answer(opaque)
    assert (answer.code, answer.ext_fields["msgId"], answer.ext_fields["queueOffset"]) == (0, "0", "0")
    assert (await wire.pull(TOPIC)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "body", "code", "words"),
    [
        ({"topic": "a/b"}, b"x", 1, "illegal characters"),
        ({"topic": "Unknown", "default_topic": "none"}, b"x", 17, "not exist"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", 16, "forbidden"),
        ({"queue_id": 5}, b"x", 1, "queueId[5] is illegal"),
        ({}, b"x" * (4 * 1024 * 1024 + 1), 13, "illegal"),
        ({"properties": "a\x01" + "x" * 33_000}, b"x", 13, "illegal"),
    ],
)
async def test_what_is_no_message_is_no_reply(
    wire: Wire, connect: Connect, fields: dict[str, Any], body: bytes, code: int, words: str
) -> None:
    asker = await connect()
    await beat(asker)
    header = send_header(**({"topic": TOPIC, "properties": text(PROPERTIES)} | fields))
    answer = await wire.call(RequestCode.SEND_REPLY_MESSAGE_V2, header, body)
    assert answer.code == code
    assert words in str(answer.remark)
    assert not asker.pushed


@pytest.mark.parametrize(
    ("most", "body", "properties"),
    [(6_000, b"x" * 1000, PROPERTIES), (40_000, b"x", PROPERTIES | {"own": "x" * 30_000}), (6_000, b"", PROPERTIES)],
    ids=["body", "properties", "nothing"],
)
async def test_replies_that_wait_are_bounded(
    wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch, most: int, body: bytes, properties: dict[str, str]
) -> None:
    monkeypatch.setattr(cometmq.broker.send.reply_message, "MAX_WAITING_REPLY_BYTES", most)
    asker = await connect()
    await beat(asker)
    first = post_reply(wire, body, properties)
    push = await pushed(asker)
    assert (await wire.answer(post_reply(wire, body, properties))).code == ResponseCode.SYSTEM_BUSY
    take(asker, push)
    assert (await wire.answer(first)).code == 0
    second = post_reply(wire, body, properties)
    take(asker, await pushed(asker))
    assert (await wire.answer(second)).code == 0
