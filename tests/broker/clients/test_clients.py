"""Heartbeats, members of groups, notices about changes, and the ways to leave."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.heartbeats import beat, heartbeat
from tests.broker.wire import Connect, Wire, pull_header
from tests.helpers.pace import slowness_of_thread
from tests.helpers.waiting import until

import cometmq.broker.clients.client_manage
import cometmq.broker.tables.clients
from cometmq.broker.clients.client_manage import FEW_NOTICES
from cometmq.broker.controller import Broker
from cometmq.broker.limits import (
    CLIENTS_PER_SLICE,
    LARGE_GROUP_MEMBERS,
    NOTICES_PER_ROUND,
)
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.fastjson import loads
from cometmq.proxy.backend.local import LocalConnection
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.disk import Disk
from cometmq.store.table_journal import TableJournal
from cometmq.testing import VirtualClock, settle


def subscribed(group: str = "g", **fields: Any) -> ConsumerData:
    return ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic="T", **fields)])


async def members(wire: Wire, group: str = "g") -> list[str]:
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    answer = await wire.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert answer.remark == f"no consumer for this group, {group}"
        return []
    ids: list[str] = loads(answer.body)["consumerIdList"]
    return ids


async def notices(wire: Wire, count: int) -> None:
    """Wait until the broker has told this connection so many times that group ``g`` changed."""
    while len(wire.pushed) < count:
        await wire.read()
    assert all(
        (push.code, push.ext_fields, push.is_oneway)
        == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, True)
        for push in wire.pushed
    )


async def test_newcomer_hears_of_itself_before_its_answer(wire: Wire) -> None:
    await beat(wire, heartbeat("c1", "T", "%RETRY%g"))
    await notices(wire, 1)
    assert await members(wire) == ["c1"]


async def test_heartbeat_makes_the_group_and_its_retry_topic(broker: Broker, wire: Wire) -> None:
    await beat(wire, heartbeat("c1", "T"))
    assert broker.groups.get("g") is not None
    topic = broker.topics.get("%RETRY%g")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


async def test_all_members_hear_of_changes_only(wire: Wire, connect: Connect) -> None:
    other = await connect()
    await beat(wire, heartbeat("c1", "T"))
    await beat(other, heartbeat("c2", "T"))
    await notices(wire, 2)
    await notices(other, 1)
    await beat(wire, heartbeat("c1", "T", version=2))
    await beat(other, heartbeat("c2", "T"))
    assert sorted(await members(wire)) == ["c1", "c2"]
    assert (len(wire.pushed), len(other.pushed)) == (2, 1)
    await beat(wire, heartbeat("c1", "T", "U", version=3))
    await notices(other, 2)


async def test_unregister(wire: Wire, connect: Connect, broker: Broker) -> None:
    leaving = await connect()
    await beat(wire, heartbeat("c1", "T"))
    await beat(leaving, heartbeat("c2", "T", producer="p"))
    assert set(broker.clients.producers.groups) == {"p"}
    header = UnregisterClientRequestHeader(client_id="c2", producer_group="p", consumer_group="g")
    assert (await leaving.call(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
    await notices(wire, 3)
    assert await members(wire) == ["c1"]
    assert not broker.clients.producers.groups


async def test_closed_connection_leaves_its_groups(wire: Wire, connect: Connect, broker: Broker) -> None:
    leaving = await connect()
    await beat(wire, heartbeat("c1", "T"))
    await beat(leaving, heartbeat("c2", "T", producer="p"))
    await leaving.close()
    await notices(wire, 3)
    assert await members(wire) == ["c1"]
    assert not broker.clients.producers.groups


@pytest.mark.parametrize(
    "consumers",
    [
        b'{"groupName":"g","subscriptionDataSet":[' + b'{"topic":""},' * 79_000 + b'{"topic":""}]}',
        b'{"groupName":""},' * 60_000,
    ],
    ids=["subscriptions", "groups"],
)
async def test_a_heartbeat_with_too_many_objects_is_refused_before_it_is_decoded(wire: Wire, consumers: bytes) -> None:
    """Decoding 79,000 subscriptions takes 100 ms, and twice as long if accounts are checked."""
    body = b'{"clientID":"c","consumerDataSet":[' + consumers.removesuffix(b",") + b"]}"
    began = time.thread_time()
    answer = await wire.call(RequestCode.HEART_BEAT, body=body)
    took_s = time.thread_time() - began
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the maximum is 10000" in (answer.remark or "")
    assert took_s < 0.05 or took_s < 0.05 * slowness_of_thread()


async def test_silent_client_expires(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await beat(wire, heartbeat("c1", "T", producer="p"))
    clock.advance(100)
    await beat(wire, heartbeat("c1", "T", producer="p"))
    clock.advance(110)
    assert await members(wire) == ["c1"]
    clock.advance(30)
    assert await members(wire) == []
    assert not broker.clients.producers.groups


async def test_group_may_switch_notices_off(broker: Broker, wire: Wire, connect: Connect) -> None:
    group = broker.groups.find("g")
    assert group is not None
    broker.groups.put(msgspec.structs.replace(group, notify_consumer_ids_changed_enable=False))
    await beat(wire, heartbeat("c1", "T"))
    await beat(await connect(), heartbeat("c2", "T"))
    assert len(await members(wire)) == 2
    assert not wire.pushed


async def test_subscription_version_decides(broker: Broker, wire: Wire) -> None:
    for version, expression in ((5, "new"), (4, "old")):
        subscription = SubscriptionData(topic="T", sub_string=expression, sub_version=version)
        consumer = ConsumerData(group_name="g", subscription_data_set=[subscription])
        await beat(wire, encode_body(HeartbeatData(client_id="c", consumer_data_set=[consumer])))
    group = broker.clients.consumers.get("g")
    assert group is not None
    assert group.subscriptions["T"].sub_string == "new"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"consumerDataSet":[]}',
        b'{"clientID":"c","consumerDataSet":[{"consumeType":"CONSUME_PASSIVELY"}]}',
        heartbeat("c", "T", group="x/../../../../y"),
        heartbeat("c", "T", group=""),
        heartbeat("c", "T", group="g" * 128),
        heartbeat("c", "../T"),
        heartbeat("c", producer="../p"),
        heartbeat("c" * 2000, "T"),
        encode_body(HeartbeatData(client_id="c", consumer_data_set=[subscribed(sub_string="t" * 20_000)])),
        encode_body(HeartbeatData(client_id="c", consumer_data_set=[subscribed(tags_set=["t" * 200] * 100)])),
        encode_body(HeartbeatData(client_id="c", consumer_data_set=[subscribed(code_set=["9" * 200] * 100)])),
        encode_body(
            HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="g", consume_type="c" * 65)])
        ),
        encode_body(
            HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=f"p{n}") for n in range(1001)])
        ),
    ],
    ids=[
        "empty",
        "not JSON",
        "not an object",
        "no client",
        "no group name",
        "group is a path",
        "group is empty",
        "group is long",
        "topic is a path",
        "producer group is a path",
        "client id is long",
        "expression is long",
        "tags are long",
        "codes are long",
        "consume type is long",
        "many groups",
    ],
)
async def test_bad_heartbeats_change_nothing(broker: Broker, wire: Wire, body: bytes) -> None:
    groups, topics = dict(broker.groups.table), dict(broker.topics.table)
    answer = await wire.call(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert (dict(broker.groups.table), dict(broker.topics.table)) == (groups, topics)
    assert not broker.clients.consumers.groups
    assert not broker.clients.producers.groups
    assert (await wire.send("T")).code == ResponseCode.SUCCESS


async def test_codes_as_texts_as_go_sends_them(wire: Wire) -> None:
    body = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"Clustering","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":'
        b'[{"classFilterMode":false,"topic":"T","subString":"a","tagsSet":["a"],"codeSet":["97"],'
        b'"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}'
    )
    await beat(wire, body)
    assert await members(wire) == ["c"]


async def test_groups_survive_a_restart(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    first = await start_broker()
    await beat(await connect_to(first), heartbeat("c1", "T"))
    version = first.groups.version
    await first.stop()
    second = await start_broker(auto_create_subscription_group=False)
    assert second.groups.get("g") is not None
    assert second.groups.version == version


async def test_new_groups_of_a_slice_are_written_together(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    append, write_text = JournaledFile.append, JournaledFile.write_text

    def counted_append(file: JournaledFile, changes: Iterable[bytes]) -> bool:
        written.append(file.path)
        return append(file, changes)

    def counted_write(file: JournaledFile, text: Iterable[bytes]) -> None:
        written.append(file.path)
        write_text(file, text)

    monkeypatch.setattr(JournaledFile, "append", counted_append)
    monkeypatch.setattr(JournaledFile, "write_text", counted_write)
    groups = [ConsumerData(group_name=f"g{number}") for number in range(1000)]
    await beat(wire, encode_body(HeartbeatData(client_id="c", consumer_data_set=groups)))
    assert len(written) <= 2 * len(groups) / CLIENTS_PER_SLICE
    assert {path.name for path in written} == {"subscriptionGroup.json", "topics.json"}
    for path, name in zip(sorted(set(written)), ("g999", "%RETRY%g999"), strict=True):
        (journal,) = TableJournal(path, Disk()).paths
        assert f'"{name}":' in journal.read_text(), "on disk before the answer"


async def test_live_groups_and_subscriptions_are_bounded(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.tables.clients, "MAX_GROUPS", 2)
    monkeypatch.setattr(cometmq.broker.tables.clients, "MAX_LIVE_SUBSCRIPTION_CHARS", 1000)
    wire, other = await connect(), await connect()
    await beat(wire, heartbeat("c1", "T", group="a", producer="p1"))
    await beat(wire, heartbeat("c1", "T", group="b", producer="p2"))
    for refused in (
        heartbeat("c1", "T", group="c"),
        heartbeat("c1", producer="p3"),
        heartbeat("c1", *(f"T{number}" for number in range(10)), group="a"),
    ):
        answer = await other.call(RequestCode.HEART_BEAT, body=refused)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "this broker already has the maximum number of groups and subscriptions",
        )
    await beat(other, heartbeat("c2", "T", group="a", producer="p1"))
    await wire.close()
    await until(lambda: "b" not in broker.clients.consumers.groups)
    await beat(other, heartbeat("c2", "T", group="c", producer="p3"))


async def test_a_member_that_does_not_read_gets_no_more_notices(
    broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, restless = await connect(), await connect()
    await silent.send("T", bytes(4_000_000))
    await beat(silent, heartbeat("silent", "T"))
    pull = silent.command(RequestCode.PULL_MESSAGE, pull_header("T", consumer_group="g")).encode()
    silent.writer.write(pull * 10)
    groups = broker.clients.consumers.groups
    await until(lambda: "g" in groups and any(connection.is_behind for connection in groups["g"].channels))
    connections = list(groups["g"].channels)
    noticed = 0
    write = ServerConnection.write

    def counted(connection: ServerConnection, *chunks: bytes) -> None:
        nonlocal noticed
        noticed += connection is connections[0]
        write(connection, *chunks)

    monkeypatch.setattr(ServerConnection, "write", counted)
    for _ in range(10):
        await beat(restless, heartbeat("restless", "T"))
        await beat(restless, heartbeat("restless", "T", "U"))
    assert noticed == 0
    await notices(restless, 20)


async def test_members_of_groups_are_bounded(broker: Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.tables.clients, "MAX_GROUP_MEMBERS", 2)
    wire, other = await connect(), await connect()
    await beat(wire, heartbeat("c1", "T", group="a", producer="p1"))
    await beat(wire, heartbeat("c1", "T", group="b", producer="p2"))
    for body in (heartbeat("c2", "T", group="a"), heartbeat("c2", producer="p1")):
        answer = await other.call(RequestCode.HEART_BEAT, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    await beat(wire, heartbeat("c1", "T", "U", group="a", producer="p1"))
    header = UnregisterClientRequestHeader(client_id="c1", producer_group="p1", consumer_group="a")
    assert (await wire.call(RequestCode.UNREGISTER_CLIENT, header)).code == ResponseCode.SUCCESS
    await beat(other, heartbeat("c2", "T", group="b", producer="p2"))
    await other.close()
    await until(lambda: len(broker.clients.consumers.groups["b"].channels) < 2)
    await beat(wire, heartbeat("c1", "T", group="a", producer="p1"))


async def test_who_leaves_many_groups_has_their_notices_sent_over_turns_and_each_once(
    broker: Broker, connect: Connect, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [ConsumerData(group_name=f"g{number}") for number in range(100)]
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=data, producer_data_set=[]))
    for _ in range(20):
        await beat(await connect(), body)
    await settle()
    for _ in range(3):
        clock.advance(1)
        await settle()
    leaving, back = list(broker.clients.consumers.groups["g0"].channels)[:2]
    written = 0
    write = ServerConnection.write

    def counted(to: ServerConnection, *chunks: bytes) -> None:
        nonlocal written
        written += 1
        write(to, *chunks)

    monkeypatch.setattr(ServerConnection, "write", counted)
    monkeypatch.setattr(cometmq.broker.clients.client_manage, "NOTICES_PER_ROUND", 1)
    broker.clients.connection_closed(leaving)
    assert written == 1, "one to a turn"
    broker.clients.connection_closed(back)
    for _ in range(3_000):
        await asyncio.sleep(0)
    assert written == 19 + 18 + 99 * 18, "the second leave has only those told again whose notices had begun"


async def test_notices_of_many_groups_cost_the_loop_little(broker: Broker, connect: Connect) -> None:
    data = [ConsumerData(group_name=f"g{number}") for number in range(300)]
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=data, producer_data_set=[]))
    wires = [await connect() for _ in range(50)]
    for wire in wires:
        await beat(wire, body)
    connection = next(iter(broker.clients.consumers.groups["g0"].channels))
    began = time.thread_time()
    broker.clients.connection_closed(connection)
    assert time.thread_time() - began < 0.05, "14,700 notices, each made for itself, would be 0.4 s"


async def test_thousands_of_members_that_join_at_once_get_few_notices_each(
    broker: Broker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: Counter[ServerConnection] = Counter()
    clients = broker.clients

    def count(to: ServerConnection, *_chunks: bytes) -> None:
        notified[to] += 1

    def join() -> ServerConnection:
        connection = ServerConnection(broker.server)
        clients.consumers.register(subscribed(), clients.channel(connection, "c", "JAVA", 1))
        return connection

    monkeypatch.setattr(ServerConnection, "write", count)
    joined = [join() for _ in range(LARGE_GROUP_MEMBERS)]
    assert notified == {joined[0]: 1}, "a first change is told at once, further ones of its round are told together"
    await settle()
    assert notified == Counter(joined) + Counter(joined[:1])
    notified.clear()
    joined.append(join())
    assert notified.total() == NOTICES_PER_ROUND, "after a quiet round they are notified at once"
    joined += [join() for _ in range(2_000)]
    await settle()
    assert notified == Counter(joined[: LARGE_GROUP_MEMBERS + 1]), "a large group rests for longer"
    clock.advance(1)
    await all_notified(notified, LARGE_GROUP_MEMBERS + 1 + len(joined))
    assert notified == Counter(joined[: LARGE_GROUP_MEMBERS + 1]) + Counter(joined)
    clock.advance(1)
    notified.clear()
    joined.append(join())
    await all_notified(notified, len(joined))
    assert notified == Counter(joined), "after a quiet time they are notified at once"
    for connection in joined[:1_000]:
        clients.consumers.unregister("g", connection)
    clock.advance(1)
    await all_notified(notified, 2 * len(joined) - 1_000)
    assert notified == Counter(joined) + Counter(joined[1_000:])


async def all_notified(notified: Counter[ServerConnection], notices: int) -> None:
    """Wait for a number of notices, which come some in each round of the loop."""
    while notified.total() < notices:
        before = notified.total()
        await asyncio.sleep(0)
        assert notified.total() - before <= NOTICES_PER_ROUND


async def test_members_of_many_groups_that_join_at_once_get_few_notices_each(
    broker: Broker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, when the members of all groups come in any order."""
    notified = 0

    def count(_to: ServerConnection, *_chunks: bytes) -> None:
        nonlocal notified
        notified += 1

    def join(group: str) -> None:
        connection = ServerConnection(broker.server)
        clients.consumers.register(subscribed(group), clients.channel(connection, "c", "JAVA", 1))

    clients = broker.clients
    monkeypatch.setattr(ServerConnection, "write", count)
    groups = [f"g{number}" for number in range(40)]
    for _ in range(LARGE_GROUP_MEMBERS):
        for group in groups:
            join(group)
        await settle()
        clock.advance(0.005)
    members = len(groups) * LARGE_GROUP_MEMBERS
    assert notified <= FEW_NOTICES + len(groups) * LARGE_GROUP_MEMBERS, "at each join, they would be 51,000 notices"
    clock.advance(1)
    while notified < members:
        await settle()
    assert notified <= 2 * members, "all are told once after the rest"
    clock.advance(1)
    notified = 0
    for group in groups[:10]:
        join(group)
    await settle()
    assert notified == 10 * (LARGE_GROUP_MEMBERS + 1), "after a quiet time they are notified at once"
    assert clients.consumers.members == members + 10


async def test_consumers_of_grpc_take_no_notices(broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_connection: LocalConnection, *_chunks: bytes) -> None:
        pytest.fail("a notice")

    monkeypatch.setattr(LocalConnection, "write", fail)
    await beat(wire, heartbeat("c1", "T"))
    local = LocalConnection(broker, ("127.0.0.1", 1), lambda _request: None)
    broker.clients.consumers.register(subscribed(), broker.clients.channel(local, "c2", "JAVA", 1))
    await notices(wire, 2)
