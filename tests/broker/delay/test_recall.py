"""Recall: messages that wait are taken back by the handle of their send; also after restarts, not too late."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.delayed import send_later
from tests.broker.disks import FailingDisk
from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.message.ids import RecallHandle, RecallHandleError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.headers import RecallMessageRequestHeader
from cometmq.testing import VirtualClock

DAY_S = 86_400


async def recall(wire: Wire, handle: str, topic: str = "Later") -> RemotingCommand:
    header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group="p")
    return await wire.call(RequestCode.RECALL_MESSAGE, header)


async def bodies(wire: Wire) -> list[bytes]:
    return [record.body for record in records(await wire.pull("Later"))]


@given(
    st.builds(
        RecallHandle,
        st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
        st.from_regex(r"[a-z0-9 .-]{1,50}", fullmatch=True),
        st.integers(0, 10**16),
        st.text(st.characters(exclude_characters=" ", codec="utf-8"), min_size=1, max_size=60),
    )
)
def test_handles_are_read_as_written(handle: RecallHandle) -> None:
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "djE",
        base64.urlsafe_b64encode(b"v1 a b 1").decode(),
        base64.urlsafe_b64encode(b"v2 a b 1 k").decode(),
        base64.urlsafe_b64encode(b"v1 a b x k").decode(),
        base64.urlsafe_b64encode(b"v1 a b 1 k k").decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        "A" * 5000,
        "ü",
    ],
)
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(RecallHandleError, match="recall handle is invalid"):
        RecallHandle.decode(text)


async def test_a_handle_is_what_rocketmq_makes(wire: Wire, clock: VirtualClock) -> None:
    text = base64.urlsafe_b64decode(await send_later(wire, b"x", 10, "KEY")).decode()
    assert text == f"v1 Later broker-a {clock.now_ms() + 10_001} KEY"


async def test_only_messages_that_wait_have_a_handle(wire: Wire) -> None:
    for properties in ("UNIQ_KEY\x01k", "UNIQ_KEY\x01k\x02TIMER_DELAY_MS\x010", "TIMER_DELAY_MS\x01100"):
        answer = await wire.send("Later", b"x", properties=properties)
        assert answer.code == 0
        assert "recallHandle" not in answer.ext_fields


@pytest.mark.parametrize("seconds", [1, 45, 100 * DAY_S])
async def test_a_recalled_message_never_comes_and_others_of_its_time_do(
    wire: Wire, clock: VirtualClock, seconds: int
) -> None:
    first = await send_later(wire, b"first", seconds)
    await send_later(wire, b"second", seconds)
    answer = await recall(wire, first)
    assert (answer.code, answer.ext_fields["msgId"]) == (0, "first")
    await clock.skip(seconds + 1)
    assert await bodies(wire) == [b"second"]


async def test_a_recall_before_the_turn_of_the_delivery(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    handle = await send_later(wire, b"x", 1)
    await clock.skip(0.999)
    assert (await recall(wire, handle)).code == 0
    await clock.skip(0.001)
    assert await bodies(wire) == []


async def test_taking_back_twice_is_like_once(wire: Wire, clock: VirtualClock) -> None:
    handle = await send_later(wire, b"x", 100)
    first, second = await recall(wire, handle), await recall(wire, handle)
    assert (first.code, first.ext_fields) == (second.code, second.ext_fields)
    await clock.skip(100)
    assert await bodies(wire) == []


async def test_recalls_survive_restarts(clock: VirtualClock, start_broker: StartBroker, connect_to: ConnectTo) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    near, far = await send_later(wire, b"near", 50), await send_later(wire, b"far", 50 * DAY_S)
    await first.stop()
    second = await start_broker()
    wire = await connect_to(second)
    assert (await recall(wire, near)).code == (await recall(wire, far)).code == 0
    await second.stop()
    third = await start_broker()
    await clock.skip(51 * DAY_S)
    assert await bodies(await connect_to(third)) == []


@pytest.mark.parametrize("late_s", [0, 1, 100])
async def test_too_late(wire: Wire, clock: VirtualClock, late_s: int) -> None:
    handle = await send_later(wire, b"x", 5)
    await clock.skip(5 + late_s)
    answer = await recall(wire, handle)
    assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    assert await bodies(wire) == [b"x"]


async def test_what_is_refused(wire: Wire, clock: VirtualClock) -> None:
    handle = RecallHandle.decode(await send_later(wire, b"x", 5))
    await wire.send("Other")
    illegal = ResponseCode.ILLEGAL_OPERATION
    for text, topic, code, remark in (
        (handle.encode(), "Nowhere", ResponseCode.TOPIC_NOT_EXIST, "recall failed, the topic[Nowhere] not exist"),
        (handle.encode(), "Other", illegal, "recall failed, topic not match"),
        ("garbage", "Later", illegal, "recall handle is invalid"),
        (RecallHandle("Later", "b", handle.due_ms, "k").encode(), "Later", illegal, "broker service not available"),
        (RecallHandle("Later", "broker-a", 10**15, "k").encode(), "Later", illegal, "timestamp invalid"),
        (RecallHandle("Later", "broker-a", handle.due_ms, "k\x02a\x01b").encode(), "Later", illegal, "separator"),
    ):
        answer = await recall(wire, text, topic)
        assert answer.code == code
        assert remark in (answer.remark or "")
    await clock.skip(5)
    assert await bodies(wire) == [b"x"]


async def test_switched_off(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    wire = await connect_to(await start_broker(recall_message_enable=False))
    answer = await recall(wire, await send_later(wire, b"x", 5))
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")


async def test_a_recall_that_is_not_stored_takes_nothing_back(tmp_path: Path, clock: VirtualClock) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    try:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
        handle = await send_later(wire, b"x", 5)
        disk.write_error = 28
        assert (await recall(wire, handle)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.write_error = None
        await clock.skip(5)
        assert await bodies(wire) == [b"x"]
        await wire.close()
    finally:
        await broker.stop()


async def test_a_second_recall_that_is_not_stored_leaves_the_first_one(tmp_path: Path, clock: VirtualClock) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    try:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", broker.server.port))
        handle = await send_later(wire, b"x", 5)
        assert (await recall(wire, handle)).code == ResponseCode.SUCCESS
        disk.write_error = 28
        assert (await recall(wire, handle)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.write_error = None
        await clock.skip(5)
        assert await bodies(wire) == []
        await wire.close()
    finally:
        await broker.stop()


async def test_oneway_is_not_answered(wire: Wire, clock: VirtualClock) -> None:
    handle = await send_later(wire, b"x", 5)
    header = RecallMessageRequestHeader(topic="Later", recall_handle=handle)
    wire.post(wire.command(RequestCode.RECALL_MESSAGE, header, flag=FLAG_ONEWAY))
    await clock.skip(5)
    assert await bodies(wire) == []
    assert not wire.answers


async def test_recalls_by_property_as_clients_of_rocketmq_5_1_send_them(wire: Wire, clock: VirtualClock) -> None:
    due_ms = clock.now_ms() + 9_000
    await wire.send("Later", b"x", properties=f"UNIQ_KEY\x01u\x02TIMER_DELIVER_MS\x01{due_ms}")
    for value in ("u", "Later+u"):
        answer = await wire.send(
            "Later", b"0", properties=f"UNIQ_KEY\x01r\x02TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_DEL_UNIQKEY\x01{value}"
        )
        assert answer.code == 0
    await clock.skip(10)
    assert await bodies(wire) == []
    late = await wire.send("Later", b"0", properties="TIMER_DELIVER_MS\x011\x02TIMER_DEL_UNIQKEY\x01Later+u")
    assert late.code == ResponseCode.MESSAGE_ILLEGAL
