"""Clients with thousands of groups, and thousands of clients, come and go slice by slice; the rest finds its place."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from typing import NoReturn, cast

import pytest
from tests.broker.conftest import ConnectTo
from tests.broker.heartbeats import beat, heartbeat
from tests.broker.wire import Connect, Wire, pull_header
from tests.helpers.waiting import until

import cometmq.broker.clients.client_manage
import cometmq.broker.slices
import cometmq.broker.tables.clients
from cometmq.broker.controller import Broker
from cometmq.broker.limits import CLIENT_EXPIRY_SECONDS, CLIENTS_PER_SLICE, LARGE_HEARTBEAT_BYTES, SLICED_WORKS
from cometmq.broker.slices import do_in_slices
from cometmq.broker.tables.clients import ClientRegistry
from cometmq.broker.tables.consumer_group import ClientChannel
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.server_connection import ServerConnection
from cometmq.testing import VirtualClock, settle

GROUPS = 1_000


class Connection:
    """The parts of a connection that the registry uses."""

    def __init__(self) -> None:
        self.on_close: list[object] = []


def large(client: str, *, consumers: int = 0, producers: int = 0) -> bytes:
    subscriptions = [SubscriptionData(topic="T")]
    body = encode_body(
        HeartbeatData(
            client_id=client,
            consumer_data_set=[
                ConsumerData(group_name=f"g{number}", subscription_data_set=subscriptions)
                for number in range(consumers)
            ],
            producer_data_set=[ProducerData(group_name=f"p{number}") for number in range(producers)],
        )
    )
    assert len(body) > LARGE_HEARTBEAT_BYTES
    return body


@pytest.fixture
def steps_of(clock: VirtualClock) -> tuple[ClientRegistry, list[Iterator[None]]]:
    """A registry whose work in slices a test does step by step."""
    works: list[Iterator[None]] = []
    return ClientRegistry(clock=clock, do=works.append), works


def enter(registry: ClientRegistry, connection: ServerConnection, *, groups: int) -> None:
    channel = registry.channel(connection, "c", "PYTHON", 409)
    for number in range(groups):
        registry.producers.register(f"p{number}", channel)
        registry.consumers.register(
            ConsumerData(group_name=f"g{number}", subscription_data_set=[SubscriptionData(topic="T")]), channel
        )


def members(registry: ClientRegistry) -> int:
    return registry.producers.members + registry.consumers.members


def test_a_client_of_thousands_of_groups_leaves_slice_by_slice(
    steps_of: tuple[ClientRegistry, list[Iterator[None]]],
) -> None:
    registry, works = steps_of
    connection = cast(ServerConnection, Connection())
    enter(registry, connection, groups=GROUPS)
    registry.connection_closed(connection)
    left = [members(registry), *(members(registry) for _ in works[0]), members(registry)]
    assert (left[0], left[-1]) == (2 * GROUPS, 0)
    assert max(before - after for before, after in itertools.pairwise(left)) == CLIENTS_PER_SLICE


def test_connections_that_close_together_are_one_work(steps_of: tuple[ClientRegistry, list[Iterator[None]]]) -> None:
    registry, works = steps_of
    connections = [cast(ServerConnection, Connection()) for _ in range(101)]
    for connection in connections:
        enter(registry, connection, groups=5)
    for connection in connections[:100]:
        registry.connection_closed(connection)
    assert len(works) == 1
    left = [members(registry), *(members(registry) for _ in works[0]), members(registry)]
    assert left[-1] == 10
    assert max(before - after for before, after in itertools.pairwise(left)) == CLIENTS_PER_SLICE
    registry.connection_closed(connections[100])
    assert list(works[1]) == [], "it is done with its first slice"
    assert members(registry) == 0


def test_a_scan_looks_at_silent_clients_alone(
    steps_of: tuple[ClientRegistry, list[Iterator[None]]], clock: VirtualClock
) -> None:
    registry, works = steps_of
    connections = [cast(ServerConnection, Connection()) for _ in range(100)]
    for connection in connections:
        enter(registry, connection, groups=20)
    clock.advance(CLIENT_EXPIRY_SECONDS - 1)
    for connection in connections[1:]:
        enter(registry, connection, groups=20)
    registry.expire()
    assert works == []
    clock.advance(2)
    assert len(registry._beats.before(clock.monotonic() - CLIENT_EXPIRY_SECONDS)) == 1, "of 100 clients in 40 groups"
    registry.expire()
    for _ in works[0]:
        pass
    assert members(registry) == 99 * 40
    assert len(registry._beats._groups) == 99


def test_a_client_that_beats_while_it_is_taken_out_stays(
    steps_of: tuple[ClientRegistry, list[Iterator[None]]], clock: VirtualClock
) -> None:
    registry, works = steps_of
    connection = cast(ServerConnection, Connection())
    enter(registry, connection, groups=GROUPS)
    clock.advance(CLIENT_EXPIRY_SECONDS + 1)
    registry.expire()
    next(works[0])
    enter(registry, connection, groups=GROUPS)
    for _ in works[0]:
        pass
    assert members(registry) == 2 * GROUPS


class Unwalked(dict[ServerConnection, ClientChannel]):
    """The members of a group, which may not be gone through one by one."""

    def __iter__(self) -> Iterator[ServerConnection]:
        raise AssertionError

    def keys(self) -> NoReturn:
        raise AssertionError


def test_a_member_joins_and_beats_without_a_look_at_the_others(
    steps_of: tuple[ClientRegistry, list[Iterator[None]]],
) -> None:
    registry, _ = steps_of
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    group = None
    for number in range(100):
        connection = cast(ServerConnection, Connection())
        registry.consumers.register(data, registry.channel(connection, f"c{number}", "JAVA", 397))
        registry.consumers.register(data, registry.channel(connection, f"c{number}", "JAVA", 397))
        if group is None:
            group = registry.consumers.get("g")
            assert group is not None
            group.channels = Unwalked(group.channels)
    assert registry.consumers.members == 100


async def test_a_large_heartbeat_is_answered_when_all_its_groups_are_there(broker: Broker, wire: Wire) -> None:
    await beat(wire, large("c", consumers=GROUPS // 2, producers=GROUPS // 2))
    assert (broker.clients.consumers.members, broker.clients.producers.members) == (GROUPS // 2, GROUPS // 2)
    for _ in range(2):
        await beat(wire, large("c", consumers=GROUPS // 2, producers=GROUPS // 2))
    assert (broker.clients.consumers.members, broker.clients.producers.members) == (GROUPS // 2, GROUPS // 2)


async def test_a_turn_ends_between_two_slices_of_all_heartbeats(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients begin at once, others are answered after a slice of each that is under way."""
    monkeypatch.setattr(cometmq.broker.slices, "SLICES_SECONDS", 0.0)
    wires = [await connect() for _ in range(20)]
    other = await connect()
    seen = [0]
    for number, wire in enumerate(wires):
        wire.post(wire.command(RequestCode.HEART_BEAT, body=large(f"c{number}", producers=GROUPS)))
    while broker.clients.producers.members < 20 * GROUPS:
        assert (await other.call(RequestCode.GET_MIN_OFFSET, ext={"topic": "TBW102", "queueId": "0"})).code == 0
        seen.append(broker.clients.producers.members)
    growth = [after - before for before, after in itertools.pairwise(seen)]
    assert max(growth) <= 20 * CLIENTS_PER_SLICE, "a few rounds of the loop for each answer"
    assert len(seen) > 20


async def test_a_client_that_closes_amid_its_heartbeat_leaves_nothing(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.slices, "SLICES_SECONDS", 0.0)
    gone = await connect()
    gone.post(gone.command(RequestCode.HEART_BEAT, body=large("c", producers=GROUPS)))
    async with asyncio.timeout(10):
        while not broker.clients.producers.members:
            await asyncio.sleep(0)
    assert broker.clients.producers.members < GROUPS
    gone.writer.transport.abort()
    await until(lambda: broker.clients.producers.members == 0)
    await settle()
    assert not broker.clients.producers.groups


async def test_room_that_others_took_amid_a_heartbeat_is_not_given_twice(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.tables.clients, "MAX_GROUP_MEMBERS", GROUPS + 500)
    first, second = await connect(), await connect()
    asked = [
        (wire, wire.command(RequestCode.HEART_BEAT, body=large(f"c{number}", producers=GROUPS)))
        for number, wire in enumerate((first, second))
    ]
    for wire, command in asked:
        wire.post(command)
    answers = [await wire.answer(command.opaque) for wire, command in asked]
    assert ResponseCode.SYSTEM_ERROR in [answer.code for answer in answers]
    assert broker.clients.producers.members <= GROUPS + 500


async def test_a_few_long_works_are_under_way_at_a_time_and_each_gets_its_turn() -> None:
    begun: dict[int, int] = {}
    most = 0

    def slice_of(number: int) -> bool:
        nonlocal most
        begun[number] = begun.get(number, 0) + 1
        most = max(most, sum(count < 5 for count in begun.values()))
        return begun[number] < 5

    lane = cometmq.broker.slices._slice_queue()
    for number in range(3 * SLICED_WORKS):
        lane.add(partial(slice_of, number))
    async with asyncio.timeout(10):
        while sum(begun.values()) < 5 * 3 * SLICED_WORKS:
            await asyncio.sleep(0)
    assert most <= SLICED_WORKS


async def test_a_work_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def failing() -> Iterator[None]:
        yield
        raise RuntimeError("something that nobody expected")

    def working() -> Iterator[None]:
        for number in range(3):
            yield
            done.append(number)

    do_in_slices(failing())
    do_in_slices(working())
    await settle()
    assert done == [0, 1, 2]
    assert "something that nobody expected" in caplog.text


async def test_a_small_heartbeat_does_not_wait_for_large_ones(
    broker: Broker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.slices, "SLICES_SECONDS", 0.0)
    large_one, small = await connect_to(broker), await connect_to(broker)
    large_one.post(large_one.command(RequestCode.HEART_BEAT, body=large("c", producers=GROUPS)))
    await beat(small, heartbeat("d", producer="p"))
    assert broker.clients.producers.members < GROUPS


async def test_a_client_whose_heartbeat_is_under_way_gets_notices_and_messages(
    broker: Broker, connect: Connect
) -> None:
    busy, other = await connect(), await connect()
    await other.send("T")
    await beat(busy, heartbeat("busy", "T"))
    pull = busy.command(RequestCode.PULL_MESSAGE, pull_header("T", consumer_group="g", queue_offset=1, wait_ms=30_000))
    busy.post(pull)
    await until(lambda: len(broker.hold) == 1)
    others_work = True

    def work() -> Iterator[None]:
        while others_work:
            yield

    for _ in range(SLICED_WORKS):
        do_in_slices(work())
    beaten = busy.command(RequestCode.HEART_BEAT, body=large("busy", producers=GROUPS))
    busy.post(beaten)
    (group,) = broker.clients.consumers.groups.values()
    (connection,) = group.channels
    await until(lambda: bool(connection._paused))
    busy.pushed.clear()
    await beat(other, heartbeat("other", "T"))
    await other.send("T")
    assert (await busy.answer(pull.opaque)).code == ResponseCode.SUCCESS
    assert [notice.code for notice in busy.pushed] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert not broker.clients.producers.members
    others_work = False
    assert (await busy.answer(beaten.opaque)).code == ResponseCode.SUCCESS


async def test_expressions_of_many_groups_are_compiled_over_many_turns(broker: Broker, connect: Connect) -> None:
    wire, other = await connect(), await connect()
    expression = " OR ".join(f"a = '{number}'" for number in range(40))
    consumers = [
        ConsumerData(
            group_name=f"g{number}",
            subscription_data_set=[SubscriptionData(topic="T", sub_string=expression, expression_type="SQL92")],
        )
        for number in range(80)
    ]
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=consumers))
    seen = {0}
    asked = wire.command(RequestCode.HEART_BEAT, body=body)
    wire.post(asked)
    while len(broker.filters) < len(consumers):
        assert (await other.call(RequestCode.GET_MIN_OFFSET, ext={"topic": "TBW102", "queueId": "0"})).code == 0
        seen.add(len(broker.filters))
    assert (await wire.answer(asked.opaque)).code == ResponseCode.SUCCESS
    assert len(seen) > 4


async def test_others_are_answered_while_hundreds_of_clients_join_at_once(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a broker's start; here each turn has time for two of them."""
    monkeypatch.setattr(cometmq.broker.clients.client_manage, "SHORT_HEARTBEATS_PER_ROUND", 1)
    monkeypatch.setattr(cometmq.broker.slices, "SLICES_SECONDS", 1e-9)
    wires = [await connect() for _ in range(200)]
    other = await connect()
    asked = [
        (wire, wire.command(RequestCode.HEART_BEAT, body=heartbeat(f"c{number}", "T", producer="p")))
        for number, wire in enumerate(wires)
    ]
    for wire, command in asked:
        wire.post(command)
    seen = {0}
    while broker.clients.consumers.members < len(wires):
        assert (await other.call(RequestCode.GET_MIN_OFFSET, ext={"topic": "TBW102", "queueId": "0"})).code == 0
        seen.add(broker.clients.consumers.members)
    assert len(seen) > 20
    for wire, command in asked:
        assert (await wire.answer(command.opaque)).code == ResponseCode.SUCCESS
