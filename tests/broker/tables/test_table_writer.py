"""Changes of tables are answered when they are on the disk, or with an error; other requests do not wait for them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.disks import HeldDisk
from tests.broker.heartbeats import beat, heartbeat
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, send_header
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.pop.request_modes import RequestMode
from cometmq.broker.tables import table_writer
from cometmq.remoting.admin_bodies import CreateTopicListRequestBody, SubscriptionGroupList
from cometmq.remoting.admin_headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing import VirtualClock


@pytest.fixture
async def killed(tmp_path: Path, start_broker: StartBroker, clock: VirtualClock) -> Callable[[], Awaitable[Broker]]:
    """Gives a broker on the files as they are now, as after SIGKILL."""

    async def start() -> Broker:
        copy_store(tmp_path / "store", tmp_path / "copy" / "store")
        return await start_broker(store_path_root_dir=str(tmp_path / "copy" / "store"))

    return start


def create(topic: str, queues: int = 4) -> CreateTopicRequestHeader:
    return CreateTopicRequestHeader(topic, "TBW102", queues, queues, 6, "SINGLE_TAG", order=False)


Ask = Callable[[Wire], Awaitable[RemotingCommand]]


def asks(code: RequestCode, header: Any = None, body: bytes = b"") -> Ask:
    return lambda wire: wire.call(code, header, body)


GROUP = encode_body(SubscriptionGroupConfig(group_name="New", retry_max_times=3))
TOPICS = encode_body(CreateTopicListRequestBody(topic_config_list=[TopicConfig(topic_name="New")]))
GROUPS = encode_body(SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig(group_name="New")]))
MODE = encode_body(RequestMode(topic="Old", consumer_group="g", mode="POP"))
CHANGES: dict[str, tuple[Ask, Callable[[Broker], object]]] = {
    "create a topic": (asks(RequestCode.UPDATE_AND_CREATE_TOPIC, create("New")), lambda b: b.topics.get("New")),
    "create topics": (asks(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, TOPICS), lambda b: b.topics.get("New")),
    "update a topic": (
        asks(RequestCode.UPDATE_AND_CREATE_TOPIC, create("Old", 9)),
        lambda b: b.topics.table["Old"].read_queue_nums == 9,
    ),
    "delete a topic": (
        asks(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="Old")),
        lambda b: b.topics.get("Old") is None and not b.store.queue("Old", 0).max_offset(),
    ),
    "make a group": (
        asks(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, GROUP),
        lambda b: b.groups.get("New"),
    ),
    "make groups": (
        asks(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, GROUPS),
        lambda b: b.groups.get("New"),
    ),
    "delete a group": (
        asks(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader(group_name="Old")),
        lambda b: b.groups.get("Old") is None,
    ),
    "set a mode": (asks(RequestCode.SET_MESSAGE_REQUEST_MODE, None, MODE), lambda b: b.pops.modes.get("Old", "g")),
}


async def with_old(broker: Broker, connect_to: ConnectTo) -> Wire:
    """A connection to a broker that has a topic and a group."""
    wire = await connect_to(broker)
    assert (await wire.send("Old")).code == 0
    old = encode_body(SubscriptionGroupConfig(group_name="Old"))
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, old)).code == 0
    return wire


@pytest.mark.parametrize("error", ["write_error", "flush_error"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_the_disk_does_not_take_is_an_error_and_succeeds_when_it_is_repeated(
    tables_disk: HeldDisk,
    broker: Broker,
    connect_to: ConnectTo,
    killed: Callable[[], Awaitable[Broker]],
    change: str,
    error: str,
) -> None:
    ask, is_done = CHANGES[change]
    wire = await with_old(broker, connect_to)
    assert not is_done(broker)
    setattr(tables_disk, error, errno.ENOSPC)
    for _ in range(2):
        answer = await ask(wire)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "in effect but not on disk (no space left on device)" in (answer.remark or "")
        assert "repeat the request" in (answer.remark or "")
        assert is_done(broker), "the change stays, whole"
    setattr(tables_disk, error, None)
    assert (await ask(wire)).code == 0
    assert is_done(await killed())


async def test_what_could_not_be_written_is_written_by_itself_when_there_is_room(
    tables_disk: HeldDisk,
    broker: Broker,
    connect_to: ConnectTo,
    killed: Callable[[], Awaitable[Broker]],
    clock: VirtualClock,
) -> None:
    wire = await with_old(broker, connect_to)
    tables_disk.write_error = errno.ENOSPC
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, create("New"))).code == ResponseCode.SYSTEM_ERROR
    refused = await wire.send("ByASend")
    assert (refused.code, broker.topics.get("ByASend")) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    tables_disk.write_error = None
    clock.advance(60)
    await until(lambda: not broker.topics.cannot_be_saved)
    assert (await killed()).topics.get("New") is not None


async def test_a_slow_flush_holds_up_what_it_is_for_and_nothing_else(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo
) -> None:
    wire, other = await with_old(broker, connect_to), await connect_to(broker)
    assert (await wire.send("Earlier")).code == 0
    earlier = DeleteTopicRequestHeader(topic="Earlier")  # the first deletion creates a topic of the broker itself
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, earlier)).code == 0
    before = tables_disk.flushes
    tables_disk.hold()
    first = asyncio.create_task(wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, create("New")))
    await until(lambda: tables_disk.flushes != before)
    by_send = other.command(RequestCode.SEND_MESSAGE_V2, send_header("BySend"), b"first")
    other.post(by_send)
    second = other.command(RequestCode.SEND_MESSAGE_V2, send_header("BySend"), b"second")
    other.post(second)
    deletion = other.command(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="New"))
    other.post(deletion)
    assert (await other.send("Old")).code == 0, "while the disk flushes"
    assert not first.done()
    assert not other.answers.keys() & {by_send.opaque, second.opaque, deletion.opaque}
    assert not broker.store.queue("BySend", 0).max_offset(), "a crash would hide these messages"
    tables_disk.go_on()
    assert (await first).code == 0
    for one in (by_send, second, deletion):
        assert (await other.answer(one.opaque)).code == 0
    assert broker.store.queue("BySend", 0).max_offset() == 2
    assert broker.topics.get("New") is None


async def test_a_thousand_deletions_share_their_flushes_and_survive_a_kill(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo, killed: Callable[[], Awaitable[Broker]]
) -> None:
    wire = await connect_to(broker)
    names = [f"T{number}" for number in range(1_000)]
    for asked in (
        [wire.command(RequestCode.SEND_MESSAGE_V2, send_header(name), b"body") for name in names],
        [wire.command(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=name)) for name in names],
    ):
        before = tables_disk.flushes
        for one in asked:
            wire.post(one)
        for one in asked:
            assert (await wire.answer(one.opaque)).code == 0
        assert tables_disk.flushes - before < 100
    again = await killed()
    assert not again.topics.table.keys() & set(names)
    assert (await (await connect_to(again)).send("T1")).code == 0
    assert again.store.queue("T1", 0).max_offset() == 1, "a topic that is made anew begins anew"


async def with_changes_that_wait(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo, count: int
) -> tuple[Wire, list[RemotingCommand]]:
    """A connection to a broker whose disk is held, and requests whose changes wait for it."""
    wire = await with_old(broker, connect_to)
    assert (await wire.send("Earlier")).code == 0
    earlier = DeleteTopicRequestHeader(topic="Earlier")  # the first deletion creates a topic of the broker itself
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, earlier)).code == 0
    tables_disk.hold()
    before = tables_disk.flushes
    first = wire.command(RequestCode.UPDATE_AND_CREATE_TOPIC, create("Other0"))
    wire.post(first)
    await until(lambda: tables_disk.flushes > before)
    others = [wire.command(RequestCode.UPDATE_AND_CREATE_TOPIC, create(f"Other{n}")) for n in range(1, count)]
    for other in others:
        wire.post(other)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return wire, [first, *others]


@pytest.mark.parametrize("change", CHANGES)
async def test_while_too_many_changes_wait_further_ones_are_refused_and_change_nothing(
    tables_disk: HeldDisk,
    broker: Broker,
    connect_to: ConnectTo,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    monkeypatch.setattr(table_writer, "MAX_PENDING_CHANGES", 3)
    ask, is_done = CHANGES[change]
    wire, waiting = await with_changes_that_wait(tables_disk, broker, connect_to, 4)
    answer = await ask(wire)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "waiting for the disk; check the broker's disk, then try again" in (answer.remark or "")
    assert not is_done(broker)
    assert (await wire.send("Old")).code == 0, "others are served"
    await beat(wire, heartbeat("c1", "Old", group="new"))
    tables_disk.go_on()
    for one in waiting:
        assert (await wire.answer(one.opaque)).code == 0
    assert (await ask(wire)).code == 0
    assert is_done(broker)


async def test_changes_that_a_broken_disk_keeps_undone_are_limited_too(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock
) -> None:
    monkeypatch.setattr(table_writer, "MAX_PENDING_CHANGES", 3)
    wire = await with_old(broker, connect_to)
    for number in range(4):
        assert (await wire.send(f"T{number}")).code == 0
    tables_disk.write_error = errno.ENOSPC
    codes = [
        (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=f"T{number}"))).code
        for number in range(4)
    ]
    assert codes == [*[ResponseCode.SYSTEM_ERROR] * 3, ResponseCode.SYSTEM_BUSY]
    tables_disk.write_error = None
    clock.advance(60)
    await until(lambda: not broker.topics.cannot_be_saved)
    deletion = await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T3"))
    assert deletion.code == 0


async def test_a_heartbeat_waits_for_its_own_changes_only(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo
) -> None:
    known = await connect_to(broker)
    await beat(known, heartbeat("known", "Old"))
    wire, waiting = await with_changes_that_wait(tables_disk, broker, connect_to, 2)
    await beat(known, heartbeat("known", "Old"))
    fresh = wire.command(RequestCode.HEART_BEAT, None, heartbeat("fresh", "Old", group="fresh"))
    wire.post(fresh)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert fresh.opaque not in wire.answers
    assert broker.topics.is_unsaved("%RETRY%fresh")
    tables_disk.go_on()
    for one in (*waiting, fresh):
        assert (await wire.answer(one.opaque)).code == 0
    assert not broker.topics.is_unsaved("%RETRY%fresh")


async def test_changes_of_a_client_that_leaves_before_the_answer_are_made(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo, killed: Callable[[], Awaitable[Broker]]
) -> None:
    wire, _ = await with_changes_that_wait(tables_disk, broker, connect_to, 3)
    wire.post(wire.command(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="Other2")))
    wire.post(wire.command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, GROUP))
    wire.post(wire.command(RequestCode.HEART_BEAT, None, heartbeat("gone", "Old", group="gone")))
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    await wire.close()
    await until(lambda: not broker.server.connections)
    tables_disk.go_on()
    other = await connect_to(broker)
    assert (await other.call(RequestCode.UPDATE_AND_CREATE_TOPIC, create("Last"))).code == 0
    again = await killed()
    assert [again.topics.get(f"Other{number}") is not None for number in range(3)] == [True, True, False]
    assert again.groups.get("New") is not None
    assert again.topics.get("%RETRY%gone") is not None


async def test_changes_of_one_topic_are_made_in_their_order(
    tables_disk: HeldDisk, broker: Broker, connect_to: ConnectTo, killed: Callable[[], Awaitable[Broker]]
) -> None:
    wire, waiting = await with_changes_that_wait(tables_disk, broker, connect_to, 1)
    deletion = DeleteTopicRequestHeader(topic="Old")
    for code, header in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, create("Old", 5)),
        (RequestCode.DELETE_TOPIC_IN_BROKER, deletion),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, create("Old", 6)),
        (RequestCode.DELETE_TOPIC_IN_BROKER, deletion),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, create("Old", 7)),
    ):
        waiting.append(wire.command(code, header))
        wire.post(waiting[-1])
    tables_disk.go_on()
    for one in waiting:
        assert (await wire.answer(one.opaque)).code == 0
    again = await killed()
    assert again.topics.table["Old"].read_queue_nums == 7
    assert not again.store.queue("Old", 0).max_offset(), "its message belongs to the first life"


async def test_a_full_disk_is_in_the_log_once_for_each_file(
    tables_disk: HeldDisk,
    start_broker: StartBroker,
    connect_to: ConnectTo,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log may be on the same disk, and each second brings another attempt."""
    caplog.set_level("INFO", "cometmq.broker.tables.table_file")
    wire = await connect_to(await start_broker())
    for round_ in range(2):
        caplog.clear()
        tables_disk.write_error = errno.ENOSPC
        for number in range(3):
            answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, create(f"T{round_}{number}"))
            assert answer.code != ResponseCode.SUCCESS
        await clock.run_for(60)
        failed = [line for line in caplog.messages if line.startswith("cannot write")]
        assert len(failed) == len(set(failed)) > 0
        assert all(line.endswith("No space left on device; will retry") for line in failed)
        tables_disk.write_error = None
        async with asyncio.timeout(60):
            while len([line for line in caplog.messages if line.startswith("can write")]) < len(failed):
                await clock.run_for(1)
