"""Questions that are handed on to consumers: those who never answer keep a bounded amount of memory, for a while."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.heartbeats import beat, heartbeat
from tests.broker.wire import Wire

import cometmq.broker.admin.relay
from cometmq.broker.limits import MAX_RELAYED_BODY_BYTES
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import VirtualClock


def question(wire: Wire, body: bytes = b"") -> RemotingCommand:
    ext = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"}
    return wire.command(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext, body=body)


def status(wire: Wire) -> RemotingCommand:
    ext = {"topic": "T", "group": "g", "clientAddr": ""}
    return wire.command(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext=ext)


async def asked(wire: Wire, count: int) -> None:
    """Wait until the broker has asked this client so many questions."""
    while sum(push.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for push in wire.pushed) < count:
        await wire.read()


async def test_questions_in_flight_are_bounded_and_there_is_room_again_when_their_time_is_up(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.admin.relay, "MAX_RELAYED_REQUESTS", 2)
    broker = await start_broker()
    silent, wire = await connect_to(broker), await connect_to(broker)
    await beat(silent, heartbeat("c", "T"))
    for _ in range(2):
        waiting = [question(wire), question(wire)]
        for command in waiting:
            wire.post(command)
        assert (await wire.ask(question(wire))).code == ResponseCode.SYSTEM_BUSY
        clock.advance(11)
        for command in waiting:
            assert (await wire.answer(command.opaque)).code == ResponseCode.CONSUME_MSG_TIMEOUT
        await asyncio.sleep(0)


async def test_bytes_of_questions_in_flight_are_bounded(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.admin.relay, "MAX_RELAYED_BYTES", 100_000)
    broker = await start_broker()
    silent, wire = await connect_to(broker), await connect_to(broker)
    await beat(silent, heartbeat("c", "T"))
    refused = await wire.ask(question(wire, bytes(MAX_RELAYED_BODY_BYTES + 1)))
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the body has 65537 bytes; at most 65536 can be forwarded to a consumer",
    )
    waiting = question(wire, bytes(MAX_RELAYED_BODY_BYTES))
    wire.post(waiting)
    assert (await wire.ask(question(wire, bytes(MAX_RELAYED_BODY_BYTES)))).code == ResponseCode.SYSTEM_BUSY
    clock.advance(11)
    assert (await wire.answer(waiting.opaque)).code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_consumer_that_does_not_read_is_not_asked(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.admin.relay, "WRITE_LOW_WATER_BYTES", -1)
    broker = await start_broker()
    silent, wire = await connect_to(broker), await connect_to(broker)
    await beat(silent, heartbeat("c", "T"))
    answer = await wire.ask(question(wire))
    assert (answer.code, answer.remark) == (
        ResponseCode.CONSUME_MSG_TIMEOUT,
        "consumer <g> <c> Timeout: it is not reading from its connection",
    )


async def test_offsets_that_members_tell_are_bounded_until_the_last_has_answered(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.admin.relay, "MAX_RELAYED_REQUESTS", 5)
    monkeypatch.setattr(cometmq.broker.admin.relay, "MAX_STATUS_ANSWERS_BYTES", 1_000)
    broker = await start_broker()
    first, second, wire = [await connect_to(broker) for _ in range(3)]
    await beat(first, heartbeat("c1", "T"))
    await beat(second, heartbeat("c2", "T"))
    for _ in range(2):
        waiting = status(wire)
        wire.post(waiting)
        assert (await wire.ask(status(wire))).code == ResponseCode.SYSTEM_BUSY
        for member in (first, second):
            await asked(member, 1)
            push = next(push for push in member.pushed if push.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
            member.pushed.clear()
            body = b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'
            member.post(RemotingCommand(0, opaque=push.opaque, flag=1, body=body + b" " * 600))
        answer = await wire.answer(waiting.opaque)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.body.count(b'"queueId"') == 1, "the second answer found no room"
