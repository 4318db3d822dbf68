"""A broker whose set has not confirmed its messages yet gives them to nobody, whatever is asked; afterwards to all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.delayed import send_delayed, send_later
from tests.broker.pop.popping import got, pop_command
from tests.broker.pull.test_queries import query_header
from tests.broker.transacting import join, next_checks, round_of_checks, send_half
from tests.broker.wire import Wire, pull_header, records
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.admin_headers import QueryConsumeQueueRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetMaxOffsetRequestHeader, SearchOffsetRequestHeader, ViewMessageRequestHeader
from cometmq.store.message_store import MessageStore
from cometmq.testing import VirtualClock


@pytest.fixture
async def broker(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker of a set that answers sends at once, so that clients know of messages that nobody may read."""
    real = MessageStore.open

    def open_in_a_set(*args: Any, **options: Any) -> MessageStore:
        return real(*args, **(options | {"readable": 0}))

    monkeypatch.setattr(MessageStore, "open", open_in_a_set)
    broker = await start_broker(transaction_time_out=5_000)
    yield broker
    broker.store.give_up()


@pytest.fixture
async def wire(broker: Broker, connect_to: ConnectTo) -> Wire:
    return await connect_to(broker)


def confirm(broker: Broker) -> None:
    """All members have everything."""
    broker.turn.end()
    broker.store.confirm(broker.store.max_physical_offset)


async def max_offset(wire: Wire, topic: str) -> int:
    answer = await wire.call(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=0))
    return int(answer.ext_fields["offset"])


async def test_pulls_and_offsets(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    time_ms = clock.now_ms() + 10
    for number in range(3):
        await wire.send("T", b"%d" % number)
        clock.advance(1)
    assert (await wire.pull("T")).code == ResponseCode.PULL_NOT_FOUND
    assert await max_offset(wire, "T") == 0
    header = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=time_ms)
    assert (await wire.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)).ext_fields["offset"] == "0"
    confirm(broker)
    assert [record.body for record in records(await wire.pull("T"))] == [b"0", b"1", b"2"]
    assert await max_offset(wire, "T") == 3
    await wire.send("T", b"3")
    answer = await wire.pull("T", queue_offset=2)
    assert [record.body for record in records(answer)] == [b"2"]
    assert answer.ext_fields["maxOffset"] == "3"
    latest = SearchOffsetRequestHeader(topic="T", queue_id=0, timestamp=clock.now_ms() + 1_000)
    assert (await wire.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, latest)).ext_fields["offset"] == "2"
    units = QueryConsumeQueueRequestHeader(topic="T", queue_id=0, index=0, count=10)
    assert (await wire.call(RequestCode.QUERY_CONSUME_QUEUE, units)).body.count(b'"physicOffset"') == 3


async def test_a_waiting_pull_is_answered_when_its_message_is_confirmed(
    broker: Broker, wire: Wire, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    other = await connect_to(broker)
    await other.send("T", b"before")
    confirm(broker)
    waiting = wire.command(RequestCode.PULL_MESSAGE, pull_header("T", queue_offset=1, wait_ms=60_000))
    wire.post(waiting)
    await until(lambda: len(broker.hold) == 1)
    await other.send("T", b"new")
    clock.advance(6)
    await other.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert len(broker.hold) == 1
    confirm(broker)
    assert [record.body for record in records(await wire.answer(waiting.opaque))] == [b"new"]


async def test_queries_by_key_and_by_id(broker: Broker, wire: Wire) -> None:
    ids = []
    for number in range(2):
        answer = await wire.send("T", b"%d" % number, properties="KEYS\x01k")
        ids.append(decode_offset_msg_id(answer.ext_fields["msgId"])[2])
    view = [ViewMessageRequestHeader(offset=offset) for offset in ids]
    for header in view:
        assert (await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, header)).code == ResponseCode.SYSTEM_ERROR
    by_key = query_header("k")
    assert (await wire.call(RequestCode.QUERY_MESSAGE, by_key)).code == ResponseCode.QUERY_NOT_FOUND
    broker.store.confirm(ids[1])
    assert (await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, view[0])).code == 0
    assert (await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, view[1])).code == ResponseCode.SYSTEM_ERROR
    assert [record.body for record in records(await wire.call(RequestCode.QUERY_MESSAGE, by_key))] == [b"0"]
    confirm(broker)
    assert len(records(await wire.call(RequestCode.QUERY_MESSAGE, by_key))) == 2


async def test_pops(broker: Broker, wire: Wire, connect_to: ConnectTo, clock: VirtualClock) -> None:
    other = await connect_to(broker)
    await other.send("PopTopic", b"first")
    pop = pop_command(wire, clock.now_ms(), topic="PopTopic")
    assert got(await wire.ask(pop), topic="PopTopic") == []
    waiting = pop_command(wire, clock.now_ms(), topic="PopTopic", poll_time=60_000)
    wire.post(waiting)
    await other.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert waiting.opaque not in wire.answers
    confirm(broker)
    answer = await wire.answer(waiting.opaque)
    assert [found.body for found in got(answer, topic="PopTopic")] == [b"first"]


async def test_delay_levels_deliver_only_what_is_confirmed(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await send_delayed(wire, b"late", 1)
    clock.advance(30)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert broker.store.stored_end("Delayed", 0) == 0
    confirm(broker)
    await until(lambda: broker.store.stored_end("Delayed", 0) == 1)
    assert (await wire.pull("Delayed")).code == ResponseCode.PULL_NOT_FOUND
    confirm(broker)
    assert [record.body for record in records(await wire.pull("Delayed"))] == [b"late"]


async def test_timers_deliver_only_what_is_confirmed(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await send_later(wire, b"later", 2)
    clock.advance(30)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert broker.store.stored_end("Later", 0) == 0
    assert not (broker.store.config.root / "comet" / "timer").exists()
    confirm(broker)

    def is_delivered() -> bool:
        clock.advance(0.1)
        return broker.store.stored_end("Later", 0) == 1

    await until(is_delivered)
    assert (await wire.pull("Later")).code == ResponseCode.PULL_NOT_FOUND
    confirm(broker)
    assert [record.body for record in records(await wire.pull("Later"))] == [b"later"]


async def test_checks_of_transactions_ask_only_for_what_is_confirmed(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await join(wire)
    half = await send_half(wire, "k")
    clock.advance(60)
    await round_of_checks(broker)
    assert await next_checks(wire) == []
    assert broker.transactions.open.offsets() == []
    confirm(broker)
    await round_of_checks(broker)
    [(asked, _)] = await next_checks(wire)
    assert asked.key == half.key


async def test_a_start_restores_what_is_stored_though_nobody_may_read_it_yet(
    start_broker: StartBroker, connect_to: ConnectTo, broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    """Offsets of groups, delay levels and transactions do not go back because their messages are not confirmed."""
    await send_delayed(wire, b"delivered", 1)
    confirm(broker)
    clock.advance(30)
    await until(lambda: broker.store.stored_end("Delayed", 0) == 1)
    confirm(broker)
    await send_half(wire, "k")
    header = {"consumerGroup": "g", "topic": "Delayed", "queueId": "0", "commitOffset": "1"}
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext=header)).code == 0
    confirm(broker)
    await broker.schedule.save()
    await broker.stop()
    again = await start_broker(transaction_time_out=5_000)
    assert again.store.readable_end == 0
    assert again.offsets.query("g", "Delayed", 0) == 1
    clock.advance(30)
    again.turn.end()
    assert again.store.stored_end("Delayed", 0) == 1
    assert again.transactions.open.count == 1
    confirm(again)
    clock.advance(30)
    again.turn.end()
    assert again.store.stored_end("Delayed", 0) == 1, "nothing is delivered twice"
    again.store.give_up()
