"""Pulls over raw sockets: every status of the store and its code, filters, permissions, commits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.message.ports import FAST_PORT_DISTANCE
from cometmq.message.sysflag import PULL_COMMIT, PULL_SUBSCRIPTION
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData, TopicConfig, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock, free_port

HELP = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


def header_of(answer: Any) -> dict[str, int]:
    return {name: int(value) for name, value in answer.ext_fields.items()}


async def test_found(wire: Wire) -> None:
    for body in (b"a", b"b", b"c"):
        await wire.send("T", body)
    answer = await wire.pull("T", queue_offset=1)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert header_of(answer) == {
        "suggestWhichBrokerId": 0,
        "nextBeginOffset": 3,
        "minOffset": 0,
        "maxOffset": 3,
    }
    assert [record.body for record in records(answer)] == [b"b", b"c"]


@pytest.mark.parametrize("wanted", [0, 1])
async def test_at_least_one_message(wire: Wire, wanted: int) -> None:
    await wire.send("T", b"a")
    await wire.send("T", b"b")
    answer = await wire.pull("T", max_msg_nums=wanted)
    assert [record.body for record in records(answer)] == [b"a"]
    assert header_of(answer)["nextBeginOffset"] == 1


async def test_messages_of_one_answer_are_limited(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    wire = await connect_to(
        await start_broker(max_transfer_count_on_message_in_memory=5, max_transfer_bytes_on_message_in_memory=4096)
    )
    for _ in range(8):
        await wire.send("T", b"x" * 10)
        await wire.send("T", b"x" * 1500, queue_id=1)
    assert len(records(await wire.pull("T", max_msg_nums=32))) == 5
    assert len(records(await wire.pull("T", max_msg_nums=32, queue_id=1))) == 2


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        pytest.param(4000, 2, id="fewer-than-the-broker-gives"),
        pytest.param(2**31 - 1, 3, id="more"),
        pytest.param(0, 1, id="none"),
        pytest.param(-1, 1, id="nonsense"),
    ],
)
async def test_a_pull_may_ask_for_fewer_bytes(
    start_broker: StartBroker, connect_to: ConnectTo, asked: int, answered: int
) -> None:
    wire = await connect_to(await start_broker(max_transfer_bytes_on_message_in_memory=6000))
    for _ in range(8):
        await wire.send("T", b"x" * 1500)
    assert len(records(await wire.pull("T", max_msg_nums=32, max_msg_bytes=asked))) == answered


@pytest.mark.parametrize(
    ("queue_id", "offset", "code", "remark", "following"),
    [
        (0, 2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 2),
        (0, 1000, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2),
        (0, -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (1, 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
        (1, 5, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
    ],
)
async def test_nothing_there(
    wire: Wire, queue_id: int, offset: int, code: ResponseCode, remark: str, following: int
) -> None:
    await wire.send("T")
    await wire.send("T")
    answer = await wire.pull("T", queue_id=queue_id, queue_offset=offset)
    assert (answer.code, answer.remark) == (code, remark)
    assert header_of(answer)["nextBeginOffset"] == following
    assert answer.body == b""


async def test_tags(wire: Wire) -> None:
    for tag in "abcab":
        await wire.send("T", tag.encode(), properties=f"TAGS\x01{tag}")
    answer = await wire.pull("T", subscription="a || c")
    assert [record.body for record in records(answer)] == [b"a", b"c", b"a"]
    assert header_of(answer)["nextBeginOffset"] == 5
    nothing = await wire.pull("T", subscription="z")
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert header_of(nothing)["nextBeginOffset"] == 5


async def test_the_longest_read_is_told(
    broker: Broker, wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.send("T")
    read = broker.store.get_message
    for milliseconds in (250, 30):

        def slow(*arguments: Any, milliseconds: int = milliseconds, **options: Any) -> Any:
            clock.advance(milliseconds / 1000)
            return read(*arguments, **options)

        monkeypatch.setattr(broker.store, "get_message", slow)
        await wire.pull("T")
    assert broker.stats.runtime_info()["getMessageEntireTimeMax"] == "250"


async def test_lite_pull_is_a_pull(wire: Wire) -> None:
    from tests.broker.wire import pull_header

    await wire.send("T")
    answer = await wire.call(RequestCode.LITE_PULL_MESSAGE, pull_header("T"))
    assert len(records(answer)) == 1


async def test_fast_port_serves_everything_but_pulls(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    port = free_port()
    broker = await start_broker(listen_port=port)
    await (await connect_to(broker)).send("T", b"x")
    fast = Wire(*await asyncio.open_connection("127.0.0.1", port - FAST_PORT_DISTANCE))
    assert (await fast.send("T", b"y")).ext_fields["queueOffset"] == "1"
    answer = await fast.pull("T")
    assert (answer.code, answer.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        " request type 11 not supported",
    )
    await fast.close()


async def test_fast_port_that_is_taken_is_done_without(
    start_broker: StartBroker, connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port - FAST_PORT_DISTANCE)):
        broker = await start_broker(listen_port=port)
    assert f"cannot listen on port {port - FAST_PORT_DISTANCE} for clients with vipChannelEnabled" in caplog.text
    assert (await (await connect_to(broker)).send("T")).code == ResponseCode.SUCCESS


# --- refusals, in the order of the checks ------------------------------------------------------------


async def test_sql_is_refused_in_apaches_words(wire: Wire) -> None:
    await wire.send("T")
    answer = await wire.pull("T", subscription="a > 3", expression_type="SQL92")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The broker does not support consumer to filter message by SQL92",
    )


async def test_expression_without_tags(wire: Wire) -> None:
    await wire.send("T")
    answer = await wire.pull("T", subscription="||")
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        "parse the consumer's subscription failed",
    )


async def test_unknown_topic(wire: Wire) -> None:
    answer = await wire.pull("Never")
    assert (answer.code, answer.remark) == (
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[Never] not exist, apply first please! {HELP}",
    )


async def test_queue_that_is_not_there(wire: Wire) -> None:
    await wire.send("T")
    for queue_id in (4, -1):
        answer = await wire.pull("T", queue_id=queue_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith(
            f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:"
        )


async def test_permissions(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await wire.send("T")
    broker.topics.put(TopicConfig(topic_name="Closed", perm=2))
    assert (await wire.pull("Closed")).code == ResponseCode.NO_PERMISSION
    group = broker.groups.find("consumers")
    assert group is not None
    broker.groups.put(msgspec.structs.replace(group, consume_enable=False))
    answer = await wire.pull("T")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "subscription group no permission, consumers",
    )


async def test_unknown_group_where_none_is_made(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    wire = await connect_to(await start_broker(auto_create_subscription_group=False))
    await wire.send("T")
    assert (await wire.pull("T")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# --- filters from heartbeats -------------------------------------------------------------------------


def heartbeat(expression: str, version: int, *, model: str = "CLUSTERING", topic: str = "T") -> bytes:
    subscription = SubscriptionData(topic=topic, sub_string=expression, sub_version=version)
    consumer = ConsumerData(group_name="consumers", message_model=model, subscription_data_set=[subscription])
    return encode_body(HeartbeatData(client_id="c1", consumer_data_set=[consumer]))


async def test_filter_of_the_heartbeat(wire: Wire) -> None:
    await wire.send("T", b"a", properties="TAGS\x01a")
    await wire.send("T", b"b", properties="TAGS\x01b")
    missing = await wire.pull("T", sys_flag=0)
    assert (missing.code, missing.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        f"the consumer's group info not exist{HELP}",
    )
    await wire.call(RequestCode.HEART_BEAT, body=heartbeat("b", 7))
    assert [record.body for record in records(await wire.pull("T", sys_flag=0, sub_version=7))] == [b"b"]
    stale = await wire.pull("T", sys_flag=0, sub_version=8)
    assert (stale.code, stale.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        "the consumer's subscription not latest",
    )
    await wire.send("U")
    other = await wire.pull("U", sys_flag=0)
    assert (other.code, other.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        f"the consumer's subscription not exist{HELP}",
    )


async def test_broadcasting_may_be_forbidden(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    await wire.call(RequestCode.HEART_BEAT, body=heartbeat("*", 1, model="BROADCASTING"))
    group = broker.groups.get("consumers")
    assert group is not None
    broker.groups.put(msgspec.structs.replace(group, consume_broadcast_enable=False))
    answer = await wire.pull("T", sys_flag=0)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the consumer group[consumers] can not consume by broadcast way",
    )


# --- offsets -----------------------------------------------------------------------------------------


async def test_pull_commits_the_offset_it_carries(broker: Broker, wire: Wire) -> None:
    await wire.send("T")
    await wire.pull("T", commit_offset=1, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT)
    assert broker.offsets.query("consumers", "T", 0) == 1
    await wire.pull("T", commit_offset=9)
    assert broker.offsets.query("consumers", "T", 0) == 1
