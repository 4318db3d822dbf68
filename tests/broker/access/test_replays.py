"""What somebody who listens sends again to a broker: it is not done again; honest clients do not notice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import BILLING, OPERATORS, acl, send
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire, send_header

from cometmq.broker.controller import Broker
from cometmq.client import Security
from cometmq.remoting.admin_headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.signing import STAMP, Stamps
from cometmq.testing import VirtualClock

__all__ = ("acl",)


@pytest.fixture
async def broker(start_broker: StartBroker, acl: Path, clock: VirtualClock) -> Broker:
    started = await start_broker(acl_enable=True, acl_path=str(acl.parent), require_fresh_signatures=True)
    await clock.run_for(1)
    return started


@pytest.fixture
async def wire(broker: Broker, connect_to: ConnectTo, clock: VirtualClock) -> Wire:
    wire = await connect_to(broker)
    topic = CreateTopicRequestHeader("Orders", "TBW102", 4, 4, 6, "SINGLE_TAG", order=False)
    command = wire.command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    OPERATORS.sign(command, Stamps(clock.now_ms).next())
    assert (await wire.ask(command)).code == 0
    return wire


def stamped(wire: Wire, stamps: Stamps, body: bytes = b"once", **fields: Any) -> RemotingCommand:
    command = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("Orders", **fields), body)
    BILLING.sign(command, stamps.next())
    return command


async def test_a_request_that_was_listened_to_is_not_done_again(
    broker: Broker, wire: Wire, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    stamps = Stamps(clock.now_ms)
    for number in range(4):  # the first is checked by Python, the others by the core where it is installed
        captured = stamped(wire, stamps, b"order %d" % number)
        assert (await wire.ask(captured)).code == 0
        for listener in (wire, await connect_to(broker)):
            again = await listener.ask(captured)
            assert again.code == ResponseCode.SYSTEM_ERROR
            assert "is a replay" in (again.remark or "")
    assert broker.store.extent("Orders", 0)[1] == 4
    deletion = wire.command(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("Orders"))
    OPERATORS.sign(deletion, Stamps(clock.now_ms).next())
    assert (await wire.ask(deletion)).code == 0
    assert "is a replay" in ((await wire.ask(deletion)).remark or "")


async def test_the_stamp_is_part_of_what_is_signed(wire: Wire, clock: VirtualClock) -> None:
    stamps = Stamps(clock.now_ms)
    for field, value in ((STAMP, stamps.next()), (STAMP, None), ("AccessAs", "")):
        spoilt = stamped(wire, stamps)
        if value is None:
            del spoilt.ext_fields[field]
        else:
            spoilt.ext_fields[field] = value
        answer = await wire.ask(spoilt)
        assert answer.code == ResponseCode.SYSTEM_ERROR, field
    moved = stamped(wire, stamps)
    text = moved.ext_fields[STAMP]
    moved.ext_fields |= {"AccessAs": text[:1], STAMP: text[1:] + "o"}  # another cut through the same signed text
    assert (await wire.ask(moved)).code == ResponseCode.SYSTEM_ERROR


async def test_requests_without_a_stamp_are_refused_where_stamps_are_required(wire: Wire) -> None:
    refused = await send(wire, BILLING, "Orders")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "requireFreshSignatures=true rejects all others" in (refused.remark or "")


async def test_stamps_are_checked_where_they_are_not_required_too(
    start_broker: StartBroker, connect_to: ConnectTo, acl: Path, clock: VirtualClock
) -> None:
    wire = await connect_to(await start_broker(acl_enable=True, acl_path=str(acl.parent)))
    await clock.run_for(1)
    assert (await send(wire, OPERATORS, "Orders")).code == 0
    captured = stamped(wire, Stamps(clock.now_ms))
    assert (await wire.ask(captured)).code == 0
    assert "is a replay" in ((await wire.ask(captured)).remark or "")


async def test_a_client_sends_as_ever_and_says_so_when_its_clock_is_wrong(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    header = send_header("Orders", queue_id=1)
    async with RemotingClient(security=Security(BILLING), clock=clock) as client:
        answers = [client.invoke(broker.address, RequestCode.SEND_MESSAGE_V2, header, b"x") for _ in range(50)]
        assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
    slow = VirtualClock()
    async with RemotingClient(security=Security(BILLING), clock=slow) as client:
        await clock.run_for(400)
        answer = await client.invoke(broker.address, RequestCode.SEND_MESSAGE_V2, header, b"x")
    assert "synchronize the clocks of client and server with NTP" in (answer.remark or "")
