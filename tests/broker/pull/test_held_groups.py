"""Many waiting pulls: the same filters are looked at once, tags are looked up, and no round of the loop takes long."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest
from tests.broker.pull.holding import held, post_pull
from tests.broker.wire import Connect, Wire, records

import cometmq.broker.pull.pull_request_hold
from cometmq.broker.controller import Broker
from cometmq.filter import parse_selector
from cometmq.limits import CACHED_FILTERS
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.queue.get_message import GetResult


@pytest.fixture
async def broker(start_broker: Callable[..., Awaitable[Broker]]) -> Broker:
    return await start_broker(enable_property_filter=True)


def loop_cpu_of(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


async def hold_many(broker: Broker, connect: Connect, subscriptions: Sequence[str], **fields: str) -> list[Wire]:
    """Hold a pull of T for each of the subscriptions, over as few connections as may."""
    wires: list[Wire] = []
    for first in range(0, len(subscriptions), 1_000):
        wire = await connect()
        for subscription in subscriptions[first : first + 1_000]:
            post_pull(wire, queue_offset=1, subscription=subscription, **fields)
        await held(broker, first + len(subscriptions[first : first + 1_000]))
        wires.append(wire)
    return wires


@pytest.mark.parametrize("kind", ["the same tag", "each its own tag"])
async def test_pulls_of_other_tags_cost_an_arriving_message_nothing_each(
    broker: Broker, wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await wire.send("T")
    many = ["never" if kind == "the same tag" else f"never{number}" for number in range(4_000)]
    wires = await hold_many(broker, connect, many)
    reads = 0
    read = broker.store.get_message

    def counted(*args: Any, **kwargs: Any) -> GetResult:
        nonlocal reads
        reads += 1
        return read(*args, **kwargs)

    monkeypatch.setattr(broker.store, "get_message", counted)
    spent = 0.0
    arrived = broker.hold.arrived

    def timed(queues: Iterable[ConsumeQueue]) -> None:
        nonlocal spent
        spent += loop_cpu_of(lambda: arrived(queues))

    monkeypatch.setattr(broker.store.batch, "on_arrival", [timed])
    for _ in range(100):
        await wire.send("T", properties="TAGS\x01other")
    assert reads == 0
    assert spent / 100 < 0.001, "4,000 looks would be 15 ms"
    await wire.send("T", b"at last", properties="TAGS\x01never7\x02" if "own" in kind else "TAGS\x01never\x02")
    await held(broker, 3_999 if "own" in kind else 0)
    assert len(wires) == 4


async def test_expressions_take_slices_of_turns_and_the_same_one_is_evaluated_once(
    broker: Broker, wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.send("T")
    expressions = [f"a{number} > {number} AND b IN ('x', 'y') OR c IS NOT NULL" for number in range(300)]
    await hold_many(broker, connect, expressions * 4, expression_type="SQL92")
    reads = 0
    read = broker.store.get_message

    def counted(*args: Any, **kwargs: Any) -> GetResult:
        nonlocal reads
        reads += 1
        return read(*args, **kwargs)

    monkeypatch.setattr(broker.store, "get_message", counted)
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "HELD_SLICE_SECONDS", 0.0)
    await wire.send("T", properties="d\x011\x02")
    assert reads < 300, "the producer is answered before all have looked"
    while reads < 300:
        await asyncio.sleep(0)
    for _ in range(400):
        await asyncio.sleep(0)
    assert reads == 300
    assert len(broker.hold) == 1_200
    await wire.send("T", properties="c\x011\x02")
    await held(broker, 0)


async def test_pulls_by_tags_do_not_wait_for_those_by_expressions(
    broker: Broker, wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.send("T")
    await hold_many(broker, connect, [f"a > {number}" for number in range(500)], expression_type="SQL92")
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "HELD_SLICE_SECONDS", 0.0)
    waiting = post_pull(wire, queue_offset=1, subscription="wanted")
    await held(broker, 501)
    producer = await connect()
    await producer.send("T")
    await producer.send("T", b"found", properties="TAGS\x01wanted\x02")
    assert [record.body for record in records(await wire.answer(waiting.opaque))] == [b"found"]
    assert len(broker.hold) == 500


async def test_a_message_that_wakes_thousands_answers_them_over_turns(
    broker: Broker, wire: Wire, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.send("T")
    await hold_many(broker, connect, ["*"] * 500)
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "HELD_SLICE_SECONDS", 0.0)
    await (await connect()).send("T", b"all")
    assert len(broker.hold) > 250, "the producer is answered before most of them"
    await held(broker, 0)


async def test_compiled_expressions_of_waiting_pulls_are_bounded(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.pull.pull_request_hold, "MAX_HELD_PULL_CHARS", 10_000)
    await wire.send("T")
    post_pull(wire, queue_offset=1, subscription="a > 1", expression_type="SQL92")
    post_pull(wire, queue_offset=1, subscription="a > 1", expression_type="SQL92")
    post_pull(wire, queue_offset=1, subscription="a > 2", expression_type="SQL92")
    await held(broker, 3)
    more = await wire.pull("T", queue_offset=1, wait_ms=15_000, subscription="a > 3", expression_type="SQL92")
    assert more.code == ResponseCode.PULL_NOT_FOUND
    await wire.send("T", properties="a\x012\x02")
    await held(broker, 1)


async def test_tags_wake_at_a_topic_made_anew(broker: Broker, wire: Wire, connect: Connect) -> None:
    for _ in range(3):
        await wire.send("T")
    waiting = post_pull(wire, queue_offset=3, subscription="b")
    await held(broker)
    producer = await connect()
    answer = await producer.ask(producer.command(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"}))
    assert answer.code == ResponseCode.SUCCESS
    await producer.send("T", properties="TAGS\x01b\x02")
    assert (await wire.answer(waiting.opaque)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_messages_from_before_a_pull_do_not_wake_it(broker: Broker, wire: Wire, connect: Connect) -> None:
    await wire.send("T")
    everything = post_pull(wire, queue_offset=1)
    await held(broker)
    producer = await connect()
    await producer.send("T", properties="TAGS\x01b\x02")
    await wire.answer(everything.opaque)
    everything = post_pull(wire, queue_offset=2)
    await held(broker)
    post_pull(wire, queue_offset=2, subscription="b")
    await held(broker, 2)
    await producer.send("T")
    await wire.answer(everything.opaque)
    assert len(broker.hold) == 1
    await producer.send("T", properties="TAGS\x01b\x02")
    await held(broker, 0)


def test_an_expression_that_nobody_wants_any_longer_leaves_memory_at_once() -> None:
    gc.disable()
    try:
        selector = parse_selector("a > 5 AND b IN ('x', 'left at once')")
        evaluated = weakref.ref(selector.matches_block)
        del selector
        for number in range(CACHED_FILTERS):
            parse_selector(f"a > {number}")
        assert evaluated() is None
    finally:
        gc.enable()
