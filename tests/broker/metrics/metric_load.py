"""A load that gives each family of metrics a value, at any broker, and the form of the metrics that it leaves."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.broker.pop.popping import Popper
from tests.broker.wire import Wire

from cometmq.client import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.admin import Admin
from cometmq.client.instance import ClientInstance

FIRST = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=1)
POP_GROUP = "pops"
OF_SERVERS = {"otel_scope_name"}
"""Labels that Apache's library adds."""

Shape = tuple[str, frozenset[str], frozenset[str]]


@dataclass(frozen=True)
class Target:
    """A broker that gets the load."""

    instance: Callable[[], ClientInstance]
    """Makes an instance of clients that finds the broker."""
    broker: str
    """The broker's address."""
    clock: Any
    run_for: Callable[[float], Awaitable[object]]
    """Lets so many seconds of the broker's time pass."""


@asynccontextmanager
async def loaded(target: Target) -> AsyncIterator[None]:
    """Messages of every kind, transactions in three states, pops of which one is late; clients are connected meanwhile.

    Of two groups one fails until its messages are dead letters.
    """
    await prepare(target)
    await transact(target)
    async with Producer("pg", instance=target.instance()) as producer:
        await send(producer)
        instance = target.instance()
        good = PushConsumer("good", take, instance=instance, config=FIRST)
        bad = PushConsumer("bad", fail, instance=instance, config=FIRST)
        await good.subscribe("Normal")
        await bad.subscribe("Normal")
        async with good, bad:
            await pop(target)
            yield


async def prepare(target: Target) -> None:
    """The topics, and a group."""
    async with Admin(instance=target.instance()) as admin:
        await admin.create_topic("Normal")
        await admin.create_topic("Popped", queues=1)
        await admin.create_group(POP_GROUP)


async def send(producer: Producer) -> None:
    """Messages to two topics."""
    for _ in range(5):
        await producer.send(Message("Normal", b"x" * 100))
    await producer.send(Message("Normal", b"x" * 3_000))
    await producer.send(Message("Normal", b"f", properties={"__SHARDINGKEY": "s"}))
    await producer.send(Message("Normal", b"level", delay_level=1))
    await producer.send(Message("Normal", b"soon", delay=timedelta(seconds=2)))
    await producer.send(Message("Normal", b"late", delay=timedelta(hours=2)))
    for body in (b"acked", b"changed", b"late"):
        await producer.send(Message("Popped", body))


async def transact(target: Target) -> None:
    """A transaction of each state."""
    states = {b"1": TransactionState.COMMIT, b"2": TransactionState.ROLLBACK, b"3": TransactionState.UNKNOWN}
    transactions = TransactionProducer(
        "tg",
        lambda message, arg, transaction_id: states[message.body],
        lambda message: TransactionState.UNKNOWN,
        instance=target.instance(),
    )
    async with transactions:
        for body in states:
            await transactions.send_in_transaction(Message("Tran", body))


async def take(messages: Sequence[MessageExt]) -> None:
    """A listener."""


async def fail(messages: Sequence[MessageExt]) -> ConsumeResult:
    """A listener that wants them again."""
    return ConsumeResult.RECONSUME_LATER


async def pop(target: Target) -> None:
    """Of three messages one is acknowledged, one gets another time, and one is late; both are popped again."""
    host, _, port = target.broker.rpartition(":")
    wire = Wire(*await asyncio.open_connection(host, int(port)))
    popper = Popper(wire, target.clock, POP_GROUP, "Popped")
    popped = {message.body: message for message in await popper.pop(invisible_time=2_000)}
    await popper.ack(popped[b"acked"])
    await popper.change(popped[b"changed"], 3_000)
    await target.run_for(15)
    for again in await popper.pop():
        await popper.ack(again)
    await target.run_for(15)
    await wire.close()


async def read(url: str) -> str:
    """What a server answers at an address."""

    def get() -> str:
        with urllib.request.urlopen(url) as answer:
            text: str = answer.read().decode()
            return text

    return await asyncio.to_thread(get)


def shapes(text: str) -> dict[str, Shape]:
    """Of each family its kind, labels and bounds."""
    found = {}
    for family in text_string_to_metric_families(text):
        labels = {name for sample in family.samples for name in sample.labels}
        bounds = {sample.labels["le"] for sample in family.samples if "le" in sample.labels}
        found[family.name] = family.type, frozenset(labels - OF_SERVERS), frozenset(bounds)
    return found
