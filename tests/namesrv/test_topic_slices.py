"""Brokers with many topics come, change and go slice by slice, and no answer shows what has gone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator, Iterator

import pytest
from tests.helpers.waiting import until
from tests.namesrv.registering import MASTER, register
from tests.namesrv.wire import Connect, topic

import cometmq.namesrv.topic_queues
from cometmq.namesrv.limits import TOPICS_PER_SLICE
from cometmq.namesrv.registrations import RegistrationReader
from cometmq.namesrv.routes import BrokerIdentity, Registered, RouteRegistration, RouteTable, queues_of
from cometmq.namesrv.server import NameServer
from cometmq.remoting.admin_headers import WipeWritePermOfBrokerRequestHeader
from cometmq.remoting.bodies import DataVersion, QueueData, TopicConfig
from cometmq.remoting.headers import GetRouteInfoRequestHeader

TOPICS = 20_000
MANY = {f"topic-{number}": TopicConfig(topic_name=f"topic-{number}") for number in range(TOPICS)}
BROKERS = [BrokerIdentity("C", name, 0, f"10.0.0.{number}:10911") for number, name in enumerate("bcd", 1)]


def entering(
    table: RouteTable, identity: BrokerIdentity, connection: object = None
) -> Generator[None, None, Registered]:
    registration = RouteRegistration(
        identity,
        queues_of(identity, MANY),
        ha_address="",
        data_version=DataVersion(counter=1, timestamp=1),
        filter_servers=[],
        connection=connection,
        now_s=0.0,
    )
    return table.register(registration)


def most_of_a_step(table: RouteTable, steps: Iterator[None]) -> int:
    """Do all steps; return the most pairs of topic and broker that came or went in one."""
    counts = [table._topics._pairs]
    counts += [table._topics._pairs for _ in steps]
    counts.append(table._topics._pairs)
    return max(abs(after - before) for before, after in itertools.pairwise(counts))


def test_three_brokers_of_20_000_topics_come_and_go_a_slice_at_a_time() -> None:
    table = RouteTable()
    for identity in BROKERS:
        assert most_of_a_step(table, entering(table, identity)) <= TOPICS_PER_SLICE
    assert len(table.topics()) == TOPICS
    assert most_of_a_step(table, entering(table, BROKERS[0])) == 0, "nothing is new"
    for identity in BROKERS:
        before = table._topics._pairs
        table.unregister(identity)
        assert before - table._topics._pairs <= TOPICS_PER_SLICE
        assert all(data.broker_name != identity.name for data in queues_at(table, "topic-7"))
        assert most_of_a_step(table, table.sweep()) <= TOPICS_PER_SLICE
        assert before - table._topics._pairs == TOPICS
    assert table.topics() == []


def queues_at(table: RouteTable, name: str) -> list[QueueData]:
    route = table.route(name)
    return [] if route is None else list(route.queue_datas)


def test_topics_of_a_broker_that_has_gone_are_in_no_answer_before_they_are_dropped() -> None:
    table = RouteTable()
    list(entering(table, BROKERS[0]))
    register(table, MASTER, topic("topic-1"))
    table.unregister(BROKERS[0])
    assert table._topics._pairs > TOPICS_PER_SLICE, "most of them are still to be dropped"
    assert table.topics() == table.topics_of_cluster("C") == table.topics_with_flag(0) == ["topic-1"]
    assert table.route("topic-2") is None
    assert [data.broker_name for data in queues_at(table, "topic-1")] == ["a"]


def test_a_broker_that_is_back_before_its_topics_are_dropped_has_those_that_it_registers() -> None:
    table = RouteTable()
    list(entering(table, BROKERS[0]))
    table.unregister(BROKERS[0])
    register(table, BROKERS[0], {**topic("topic-3"), **topic("New")})
    assert sorted(table.topics()) == ["New", "topic-3"]
    list(table.sweep())
    assert sorted(table.topics()) == ["New", "topic-3"]
    assert table._topics._pairs == 2


def test_a_broker_that_leaves_while_its_table_is_taken_leaves_nothing() -> None:
    table = RouteTable()
    connection = object()
    steps = entering(table, BROKERS[0], connection)
    next(steps)
    assert table.query_data_version(BROKERS[0], DataVersion(counter=1, timestamp=1), 0.0)[0], "not whole yet"
    assert table.remove_if_from(BROKERS[0], connection)
    list(steps)
    list(table.sweep())
    assert (table.topics(), table._topics._pairs, len(table._topics)) == ([], 0, 0)


@pytest.mark.parametrize("size", [100, 100_000])
def test_no_compressed_registration_is_read_on_the_loop(size: int) -> None:
    assert RegistrationReader().needs_thread(b"x" * size, compressed=True)


async def test_others_are_answered_while_a_table_is_taken(
    server: NameServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.namesrv.topic_queues, "TOPICS_PER_SLICE", 1)
    broker, client = await connect(), await connect()
    seen: set[int] = set()
    some = dict(list(MANY.items())[:2_000])
    registering = asyncio.create_task(broker.register(name="b", topics=some))
    while not registering.done():
        assert (await client.call(105, GetRouteInfoRequestHeader(topic="no"))).code == 17
        seen.add(len(server.routes.topics()))
    assert (await registering).code == 0
    assert len(seen) > 3, "answers came between the slices"
    wiped = await client.call(205, WipeWritePermOfBrokerRequestHeader(broker_name="b"))
    assert wiped.ext_fields == {"wipeTopicCount": "2000"}
    await broker.close()
    await until(lambda: server.routes.topic_count == 0)
