"""Many clients of one lite topic, and of one wildcard group: a message wakes one of them, and none is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.lite.subscribing import PARENT, Reader, bodies, got, make_group, make_parent, send
from tests.broker.wire import Connect, Wire

from cometmq.broker.controller import Broker
from cometmq.testing import VirtualClock, settle

CLIENTS = 40
GROUPS = {"readers": {}, "wild": {"wildcard": "true"}}


async def readers(connect: Connect, clock: VirtualClock, group: str, *lites: str) -> list[Reader]:
    found = []
    for number in range(CLIENTS):
        reader = Reader(await connect(), clock, f"c{number}", group)
        await reader.sync(*lites)
        found.append(reader)
    return found


@pytest.fixture
async def prepared(wire: Wire) -> Wire:
    await make_parent(wire)
    for group, attributes in GROUPS.items():
        await make_group(wire, group, **attributes)
    return wire


def count_looks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each client whose pop looks for messages."""
    looks: list[str] = []
    pop = broker.lite.pops._pop

    def noted(connection: Any, request: Any) -> bool:
        looks.append(request.header.client_id)
        return pop(connection, request)

    monkeypatch.setattr(broker.lite.pops, "_pop", noted)
    return looks


@pytest.mark.parametrize("group", GROUPS)
async def test_a_message_wakes_one_of_the_clients_that_wait(
    prepared: Wire, broker: Broker, connect: Connect, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    crowd = await readers(connect, clock, group, "a")
    waiting = [asyncio.create_task(reader.pop(poll_time=20_000)) for reader in crowd]
    await settle()
    looks = count_looks(broker, monkeypatch)
    taken = []
    for number in range(CLIENTS):
        await send(prepared, "a", b"%d" % number)
        await settle()
        (done,) = [at for at, task in enumerate(waiting) if task.done() and at not in taken]
        taken.append(done)
        found = waiting[done].result()
        assert bodies(found) == [b"%d" % number]
        await crowd[done].ack(*found)
    assert len(looks) <= 2 * CLIENTS
    await send(prepared, "a", b"last")
    assert bodies(await crowd[0].pop()) == [b"last"]


@pytest.mark.parametrize("group", GROUPS)
async def test_each_message_reaches_someone_at_once(
    prepared: Wire, connect: Connect, clock: VirtualClock, group: str
) -> None:
    crowd = await readers(connect, clock, group, "a", "b", "c")
    seen: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}

    async def work(reader: Reader, most: int) -> None:
        while True:
            for message in await reader.pop(poll_time=20_000, max_msg_num=most):
                seen[message.lite].append(message.body)
                await reader.ack(message)

    began = clock.now_ms()
    working = [asyncio.create_task(work(reader, 1 + at % 3)) for at, reader in enumerate(crowd)]
    for number in range(150):
        await send(prepared, "abc"[number % 3], b"%d" % (number // 3))
        if number % 10 == 9:
            await settle()
            leaving = working.pop()
            leaving.cancel()
            await asyncio.wait([leaving])
            await crowd.pop().control("COMPLETE_REMOVE")
    await settle()
    assert seen == {lite: [b"%d" % number for number in range(50)] for lite in "abc"}
    assert clock.now_ms() == began
    for task in working:
        task.cancel()
    await asyncio.wait(working)


@pytest.mark.parametrize("group", GROUPS)
async def test_a_message_that_a_client_holds_goes_to_the_others_when_it_is_due(
    prepared: Wire, connect: Connect, clock: VirtualClock, group: str
) -> None:
    crowd = await readers(connect, clock, group, "a")
    await send(prepared, "a", b"a0")
    assert bodies(await crowd[0].pop(invisible_time=10_000)) == [b"a0"]
    commands = [reader.command(poll_time=20_000) for reader in crowd[1:]]
    for reader, command in zip(crowd[1:], commands, strict=True):
        reader.wire.post(command)
    await settle()
    await crowd[0].control("COMPLETE_REMOVE")
    await clock.run_for(10.1)
    await clock.run_for(15)
    answers = [await reader.wire.answer(command.opaque) for reader, command in zip(crowd[1:], commands, strict=True)]
    assert [bodies(found) for found in map(got, answers) if found] == [[b"a0"]]


async def test_questions_about_a_crowd_name_its_clients(
    prepared: Wire, broker: Broker, connect: Connect, clock: VirtualClock
) -> None:
    crowd = await readers(connect, clock, "readers", "a")
    await readers(connect, clock, "wild")
    subscriptions = broker.lite.subscriptions
    index = broker.lite.indexes.of(PARENT)
    number = index.find("a")
    assert subscriptions.count == subscriptions.count_of(index, number) == 2 * CLIENTS
    assert {client.key for client in subscriptions.of(index, number)} == {
        (f"c{at}", group) for at in range(CLIENTS) for group in GROUPS
    }
    for reader in crowd:
        await reader.sync()
    assert not subscriptions.is_read(index, number)
    assert (subscriptions.count, subscriptions.groups_with_wildcard(index)) == (CLIENTS, {"wild"})
