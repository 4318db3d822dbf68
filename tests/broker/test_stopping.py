"""A broker that stops: what it has stored is acknowledged, and nobody waits for an answer that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire, send_header

from cometmq.message.ports import FAST_PORT_DISTANCE
from cometmq.remoting.codes import NOT_STORED, RequestCode, ResponseCode
from cometmq.testing import free_port


async def test_sends_that_wait_for_the_disk_are_acknowledged_on_both_ports(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    broker = await start_broker(flush_disk_type="SYNC_FLUSH", listen_port=port)
    flushes: list[Callable[[Any], None]] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    fast = Wire(*await asyncio.open_connection("127.0.0.1", port - FAST_PORT_DISTANCE))
    wires = [await connect_to(broker), fast]
    sends = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"x") for wire in wires]
    for wire, send in zip(wires, sends, strict=True):
        wire.post(send)
    while len(broker.turn.waiters._bytes_of) < len(sends):
        await asyncio.sleep(0)
    stopping = asyncio.ensure_future(broker.stop())
    reading = [asyncio.ensure_future(wire.read_to_the_end()) for wire in wires]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in (stopping, *reading))
    monkeypatch.undo()
    for flushed in flushes:
        flushed(None)
    await asyncio.gather(stopping, *reading)
    codes = [wire.answers[send.opaque].code for wire, send in zip(wires, sends, strict=True)]
    assert codes == [ResponseCode.SUCCESS] * 2
    await fast.close()


async def test_a_send_of_a_java_client_is_neither_stored_nor_refused_while_others_wait_for_the_disk(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is reset, and it sends to another broker; a refusal would be the end of an asynchronous send."""
    broker = await start_broker(flush_disk_type="SYNC_FLUSH")
    flushes: list[Callable[[Any], None]] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    wire, other = await connect_to(broker), await connect_to(broker)
    first = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"1")
    wire.post(first)
    while not flushes:
        await asyncio.sleep(0)
    stopping = asyncio.ensure_future(broker.stop())
    while not broker.server._is_halted:
        await asyncio.sleep(0)
    java, python = (one.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"2") for one in (wire, other))
    java.language = "JAVA"
    wire.post(java)
    refused = await other.ask(python)
    assert (refused.code, refused.ext_fields.get(NOT_STORED)) == (ResponseCode.SERVICE_NOT_AVAILABLE, "true")
    reading = asyncio.ensure_future(wire.read_to_the_end())
    monkeypatch.undo()
    for flushed in flushes:
        flushed(None)
    await asyncio.gather(stopping, reading)
    assert wire.answers.keys() == {first.opaque}
    assert wire.answers[first.opaque].code == ResponseCode.SUCCESS
    assert broker.stats.put_messages == 1
