"""Administrators list open transactions: GET_OPEN_TRANSACTIONS (30037) and the runtime information."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.transacting import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    end,
    half_properties,
    join,
    round_of_checks,
    send_half,
)
from tests.broker.wire import Connect, Wire

import cometmq.broker.admin.messages
from cometmq.broker.controller import Broker
from cometmq.fastjson import loads
from cometmq.remoting.admin_headers import GetOpenTransactionsRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock


async def listed(wire: Wire, **fields: Any) -> dict[str, Any]:
    answer = await wire.call(RequestCode.GET_OPEN_TRANSACTIONS, GetOpenTransactionsRequestHeader(**fields))
    assert answer.code == 0
    body: dict[str, Any] = loads(answer.body)
    return body


async def test_nothing_is_open(wire: Wire) -> None:
    assert await listed(wire) == {"count": 0, "transactions": []}


async def test_an_open_transaction_is_described(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker(transaction_check_interval=86_400_000)
    wire = await connect_to(broker)
    begun = clock.now_ms()
    await wire.send(TOPIC, queue_id=2, properties=half_properties("K1", CHECK_IMMUNITY_TIME_IN_SECONDS="10"))
    expected = {
        "halfOffset": 0,
        "group": GROUP,
        "topic": TOPIC,
        "queueId": 2,
        "uniqKey": "K1",
        "begun": begun,
        "checkTimes": 0,
        "immunityMs": 10_000,
    }
    assert await listed(wire) == {"count": 1, "transactions": [expected]}
    await join(wire)
    clock.advance(20)
    await round_of_checks(broker)
    assert (await listed(wire))["transactions"] == [expected | {"halfOffset": 1, "checkTimes": 1}]


async def test_many_come_in_pages(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.admin.messages, "MAX_LISTED_TRANSACTIONS", 20)
    monkeypatch.setattr(cometmq.broker.admin.messages, "MAX_SEARCHED_TRANSACTIONS", 30)
    for number in range(50):
        group = GROUP if number % 10 else "Others"
        await wire.send(TOPIC, properties=half_properties(f"K{number}", group))
    first = await listed(wire, max_num=1000)
    assert (first["count"], len(first["transactions"]), first["nextOffset"]) == (50, 20, 20)
    last = await listed(wire, offset=40, max_num=1000)
    assert [found["uniqKey"] for found in last["transactions"]] == [f"K{number}" for number in range(40, 50)]
    assert "nextOffset" not in last
    others = await listed(wire, group="Others")
    assert [found["uniqKey"] for found in others["transactions"]] == ["K0", "K10", "K20"]
    assert others["nextOffset"] == 30
    assert len((await listed(wire, max_num=-5))["transactions"]) == 1
    assert await listed(wire, offset=1 << 60) == {"count": 50, "transactions": []}


async def test_others_are_answered_while_many_are_listed(
    wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.admin.messages, "HALF_MESSAGES_PER_SLICE", 1)
    halves = [await send_half(wire, f"K{number}") for number in range(200)]
    other = await connect()
    listing = asyncio.create_task(listed(wire, max_num=1000))
    await end(other, halves[-1], COMMIT)
    assert not listing.done()
    assert [found["uniqKey"] for found in (await listing)["transactions"]] == [f"K{number}" for number in range(199)]


async def test_bad_numbers_are_refused(wire: Wire) -> None:
    answer = await wire.call(RequestCode.GET_OPEN_TRANSACTIONS, ext={"offset": "first"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_the_runtime_information_counts_transactions(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await join(wire)
    halves = [await send_half(wire, f"K{number}") for number in range(6)]
    for half in halves[:3]:
        await end(wire, half, COMMIT)
    await end(wire, halves[3], ROLLBACK)
    clock.advance(10)
    await round_of_checks(broker)
    table = loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert {name: table[name] for name in table if "ransaction" in name and "_" not in name and name[0] != "E"} == {
        "openTransactions": "2",
        "oldestOpenTransactionAgeMs": "10000",
        "oldestOpenTransactionChecks": "1",
        "oldestOpenTransactionGroup": GROUP,
        "transactionsCommitted": "3",
        "transactionsRolledBack": "1",
        "transactionChecksSent": "2",
        "transactionsGivenUp": "0",
    }


async def test_the_runtime_information_tells_of_the_oldest_wherever_its_half_message_stands(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker(transaction_check_interval=86_400_000)
    wire = await connect_to(broker)

    async def oldest() -> tuple[str, str, str]:
        table = loads((await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        told = (table[f"oldestOpenTransaction{what}"] for what in ("AgeMs", "Group", "Checks"))
        age_ms, group, checks = told
        return age_ms, group, checks

    assert await oldest() == ("0", "", "0")
    await wire.send(TOPIC, properties=half_properties("K0", "First"))
    clock.advance(5)
    second = await send_half(wire, "K1")
    assert await oldest() == ("5000", "First", "0")
    clock.advance(2)
    await round_of_checks(broker)
    assert await oldest() == ("7000", "First", "1"), "its copy stands behind the younger one now"
    await end(wire, second, COMMIT)
    assert await oldest() == ("7000", "First", "1")
    clock.advance(60)
    await send_half(wire, "K2")
    assert await oldest() == ("67000", "First", "1")


async def test_the_oldest_of_many_is_found_after_some_have_ended(broker: Broker, wire: Wire) -> None:
    await join(wire)
    halves = [await send_half(wire, f"K{number}") for number in range(200)]
    table = broker.transactions.open
    assert table.offsets() == list(range(200))
    await round_of_checks(broker)
    for half in halves[:99]:
        await end(wire, half, COMMIT)
    oldest = table.oldest()
    assert oldest is not None
    assert oldest.first_offset == 99
