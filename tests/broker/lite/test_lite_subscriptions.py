"""Subscriptions to lite topics over the wire: their actions, quotas, exclusive and wildcard groups, and restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import GROUP, PARENT, Reader, bodies, got, make_group, make_parent, send
from tests.broker.snapshots import copy_store
from tests.broker.wire import Connect, Wire

import cometmq.broker.lite.subscription_ctl
from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.lite.bodies import OffsetOption, OffsetOptionType
from cometmq.testing import VirtualClock


@pytest.fixture
async def parent(wire: Wire) -> None:
    await make_parent(wire)


async def lites_of(wire: Wire, client_id: str, group: str = GROUP) -> set[str]:
    fields = {"parentTopic": PARENT, "group": group, "clientId": client_id, "maxCount": "100"}
    answer = await wire.call(RequestCode.GET_LITE_CLIENT_INFO, ext=fields)
    return set(json.loads(answer.body).get("liteTopicSet", []))


async def notice_of(wire: Wire) -> RemotingCommand:
    """Wait for the next request of the broker."""
    while not wire.pushed:
        await wire.read()
    notice = wire.pushed.pop(0)
    assert notice.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
    return notice


@pytest.mark.usefixtures("parent")
async def test_the_actions_change_the_set_of_a_client(wire: Wire, clock: VirtualClock) -> None:
    await make_group(wire)
    reader = Reader(wire, clock)
    await reader.sync("a", "b")
    await reader.add("c")
    assert await lites_of(wire, "c1") == {"a", "b", "c"}
    await reader.control("PARTIAL_REMOVE", "a", "unknown")
    assert await lites_of(wire, "c1") == {"b", "c"}
    await reader.sync("d")
    assert await lites_of(wire, "c1") == {"d"}
    reader.version -= 2
    await reader.sync("old")
    assert await lites_of(wire, "c1") == {"d"}
    await reader.control("COMPLETE_REMOVE")
    assert await lites_of(wire, "c1") == set()


@pytest.mark.usefixtures("parent")
@pytest.mark.parametrize("slices", ["_NAMES_AT_ONCE", "_LITES_AT_ONCE"])
@pytest.mark.parametrize("action", ["PARTIAL_ADD", "COMPLETE_ADD"])
async def test_a_topic_that_is_deleted_meanwhile_does_not_come_back(
    broker: Broker,
    connect: Connect,
    wire: Wire,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    action: str,
    slices: str,
) -> None:
    """Many lite topics are added in slices, and the parent topic is deleted between two of them."""
    monkeypatch.setattr(cometmq.broker.lite.subscription_ctl, slices, 1)
    await make_group(wire)
    reader = Reader(await connect(), clock)
    control = asyncio.create_task(reader.control(action, *map(str, range(50))))
    deleted = await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": PARENT})
    assert deleted.code == ResponseCode.SUCCESS
    assert (await control).code == ResponseCode.TOPIC_NOT_EXIST
    assert PARENT not in broker.lite.indexes.by_parent
    assert not broker.lite.subscriptions.clients


@pytest.mark.usefixtures("parent")
async def test_a_new_client_of_an_exclusive_group_evicts_the_old_one(wire: Wire, connect: Connect, clock: Any) -> None:
    await make_group(wire, model="Exclusive", reset_offset_exclusive="true")
    old, new = Reader(wire, clock, "old"), Reader(await connect(), clock, "new")
    await old.sync("a", "b")
    await send(new.wire, "a", b"a0")
    await old.ack(*await old.pop())
    await new.add("a")
    notice = await notice_of(wire)
    assert notice.ext_fields == {"liteTopic": "a", "consumerGroup": GROUP, "clientId": "old"}
    assert (await lites_of(wire, "old"), await lites_of(wire, "new")) == ({"b"}, {"a"})
    assert bodies(await new.pop()) == [b"a0"]  # the group reads it again
    await old.sync("a", "b")  # it did not hear of this
    again = await notice_of(wire)
    assert again.ext_fields == notice.ext_fields
    assert await lites_of(wire, "new") == {"a"}


@pytest.mark.usefixtures("parent")
async def test_a_thousand_clients_of_an_exclusive_lite_topic_leave_one(wire: Wire, broker: Broker, clock: Any) -> None:
    await make_group(wire, model="Exclusive")
    for number in range(1_000):
        await Reader(wire, clock, f"c{number}").sync("a")
    index = broker.lite.indexes.of(PARENT)
    assert [client.client_id for client in broker.lite.subscriptions.of(index, index.find("a"))] == ["c999"]
    assert broker.lite.subscriptions.count == 1


@pytest.mark.usefixtures("parent")
async def test_a_client_of_a_wildcard_group_reads_every_lite_topic(wire: Wire, connect: Connect, clock: Any) -> None:
    await make_group(wire, wildcard="true")
    reader = Reader(wire, clock)
    other = await connect()
    await send(other, "a", b"a0")
    answer = await reader.control("PARTIAL_ADD", "a")
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    await reader.sync()
    assert bodies(await reader.pop()) == [b"a0"]
    waiting = reader.command(poll_time=20_000)
    wire.post(waiting)
    await send(other, "b", b"b0")
    assert bodies(got(await wire.answer(waiting.opaque))) == [b"b0"]


@pytest.mark.usefixtures("parent")
async def test_two_groups_read_for_themselves_and_two_clients_share(wire: Wire, clock: Any) -> None:
    await make_group(wire)
    await make_group(wire, "others")
    first, second, other = Reader(wire, clock, "1"), Reader(wire, clock, "2"), Reader(wire, clock, "3", "others")
    for reader in (first, second, other):
        await reader.sync("a")
    await send(wire, "a", b"a0", b"a1")
    assert bodies(await first.pop(max_msg_num=1)) == [b"a0"]
    assert await second.pop() == []
    assert bodies(await other.pop()) == [b"a0", b"a1"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ((OffsetOptionType.POLICY, 0), [b"m3", b"m4"]),
        ((OffsetOptionType.POLICY, 1), [b"m0", b"m1", b"m2", b"m3", b"m4"]),
        ((OffsetOptionType.POLICY, 2), []),
        ((OffsetOptionType.OFFSET, 4), [b"m4"]),
        ((OffsetOptionType.OFFSET, 99), []),
        ((OffsetOptionType.TAIL_N, 2), [b"m1", b"m2", b"m3", b"m4"]),
        ((OffsetOptionType.TIMESTAMP, 2), [b"m2", b"m3", b"m4"]),
    ],
)
@pytest.mark.usefixtures("parent")
async def test_a_client_chooses_where_it_begins(wire: Wire, clock: VirtualClock, option: Any, expected: Any) -> None:
    await make_group(wire)
    reader = Reader(wire, clock)
    await reader.sync("a")
    began = clock.now_ms()
    for number in range(5):
        await send(wire, "a", b"m%d" % number)
        await send(wire, "b", b"other")
        await clock.run_for(1)
    await reader.ack(*await reader.pop(max_msg_num=3))
    kind, value = option
    value = began + value * 1_000 if kind is OffsetOptionType.TIMESTAMP else value
    await reader.add("a", option=OffsetOption(type=kind, value=value))
    assert bodies(await reader.pop()) == expected


@pytest.mark.parametrize("name", ["a$b", "x" * 65, "\u00e9" * 33, "  ", "a\x01b"])
@pytest.mark.usefixtures("parent")
async def test_wrong_names_are_refused(wire: Wire, clock: VirtualClock, name: str) -> None:
    await make_group(wire)
    answer = await Reader(wire, clock).control("COMPLETE_ADD", "good", name)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert await lites_of(wire, "c1") == set()
    sent = await wire.send(PARENT, properties=f"__LITE_TOPIC\x01{name.replace(chr(1), chr(3))}")
    assert sent.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.usefixtures("parent")
async def test_names_of_every_language_work(wire: Wire, clock: VirtualClock) -> None:
    await make_group(wire)
    reader = Reader(wire, clock)
    await reader.sync("\u4f1a\u8bdd", "x" * 64)
    await send(wire, "\u4f1a\u8bdd", b"1")
    await send(wire, "x" * 64, b"2")
    assert bodies(await reader.pop()) == [b"1", b"2"]


@pytest.mark.usefixtures("parent")
async def test_a_client_has_no_more_lite_topics_than_its_group_allows(wire: Wire, clock: VirtualClock) -> None:
    await make_group(wire, client_quota="2")
    reader = Reader(wire, clock)
    await reader.sync("a", "b")
    for action, names in (("PARTIAL_ADD", ("c",)), ("COMPLETE_ADD", ("c", "d", "e"))):
        answer = await reader.control(action, *names)
        assert answer.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert await lites_of(wire, "c1") == {"a", "b"}


async def test_the_broker_has_no_more_subscriptions_and_lite_topics_than_it_may(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker(max_lite_subscription_count=3, enable_lmq_quota=True, max_lmq_consume_queue_num=4)
    wire = await connect_to(broker)
    await make_parent(wire)
    await make_group(wire)
    await Reader(wire, clock, "1").sync("a", "b")
    answer = await Reader(wire, clock, "2").control("COMPLETE_ADD", "a", "b")
    assert answer.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    await send(wire, "c", b"")
    await send(wire, "d", b"")
    await send(wire, "a", b"")
    sent = await wire.send(PARENT, properties="__LITE_TOPIC\x01e")
    assert sent.code == ResponseCode.LMQ_QUOTA_EXCEEDED


@pytest.mark.parametrize(
    ("group", "topic", "code"),
    [
        ("readers", "Elsewhere", ResponseCode.TOPIC_NOT_EXIST),
        ("readers", "Plain", ResponseCode.INVALID_PARAMETER),
        ("readers", "Second", ResponseCode.INVALID_PARAMETER),
        ("unbound", PARENT, ResponseCode.INVALID_PARAMETER),
    ],
)
@pytest.mark.usefixtures("parent")
async def test_topic_and_group_must_belong_together(
    wire: Wire, clock: VirtualClock, group: str, topic: str, code: int
) -> None:
    await make_parent(wire, "Second")
    await make_parent(wire, "Plain", "+message.type=NORMAL")
    await make_group(wire)
    reader = Reader(wire, clock, group=group, topic=topic)
    assert (await reader.control("COMPLETE_ADD", "a")).code == code
    assert (await wire.ask(reader.command())).code == code


@pytest.mark.parametrize("body", [b"", b"{}", b'{"subscriptionSet":[]}'])
async def test_an_empty_request_is_refused(wire: Wire, body: bytes) -> None:
    answer = await wire.call(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.usefixtures("parent")
async def test_a_silent_client_is_forgotten(wire: Wire, broker: Broker, clock: VirtualClock) -> None:
    await make_group(wire)
    reader, silent = Reader(wire, clock), Reader(wire, clock, "silent")
    await reader.sync("a")
    await silent.sync("a")
    for _ in range(12):
        await clock.run_for(30)
        await reader.sync("a")
    assert set(broker.lite.subscriptions.clients) == {("c1", GROUP)}


@pytest.mark.usefixtures("parent")
async def test_subscriptions_survive_a_crash(
    wire: Wire, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    await make_group(wire)
    await Reader(wire, clock).sync("a")
    await send(wire, "a", b"a0")
    await broker.lite.save()
    copy_store(tmp_path / "store", tmp_path / "again")
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    again = Reader(await connect_to(restarted), clock)
    assert bodies(await again.pop()) == [b"a0"]


@pytest.mark.usefixtures("parent")
async def test_a_client_with_many_lite_topics_holds_nobody_up(
    wire: Wire, broker: Broker, clock: VirtualClock, connect: Connect
) -> None:
    await make_group(wire, client_quota="-1")
    reader, other = Reader(wire, clock), await connect()
    names = [f"lite-{number:06d}" for number in range(20_000)]
    await send(other, names[7], b"first")
    await reader.sync(*names)
    assert broker.lite.subscriptions.count == 20_000
    assert bodies(await reader.pop()) == [b"first"]
    await reader.sync()
    assert broker.lite.subscriptions.count == 0
