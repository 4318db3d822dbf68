"""Disks that fail under sends: nothing is acknowledged that is not stored, and everyone is told why."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.disks import FailingDisk
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire, records, send_header
from tests.helpers.waiting import until

import cometmq.broker.turn.plain_sends
import cometmq.broker.turn.store_turn
import cometmq.broker.turn.waiters
from cometmq.broker.controller import Broker
from cometmq.broker.limits import TABLE_RETRY_SECONDS
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.remoting.admin_headers import CreateTopicRequestHeader
from cometmq.remoting.codes import NOT_STORED, RequestCode, ResponseCode
from cometmq.store.table_journal import TableJournal
from cometmq.testing import VirtualClock


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


StartOn = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_on(tmp_path: Path, clock: VirtualClock, disk: FailingDisk) -> AsyncIterator[StartOn]:
    """Starts a broker on the failing disk."""
    started: list[Broker] = []

    async def start(**options: Any) -> Broker:
        broker = Broker(small_config(tmp_path, **options), clock=clock, disk=disk)
        await broker.start()
        started.append(broker)
        return broker

    yield start
    disk.write_error = disk.flush_error = None
    for broker in started:
        await broker.stop()


async def post_turn(wire: Wire, count: int) -> list[int]:
    """Send so many messages by one write, and return the codes of their answers."""
    commands = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"%d" % n) for n in range(count)]
    wire.writer.write(b"".join(command.encode() for command in commands))
    return [(await wire.answer(command.opaque)).code for command in commands]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_failed_write_fails_the_whole_turn(
    start_on: StartOn, connect_to: ConnectTo, disk: FailingDisk, error: int
) -> None:
    broker = await start_on()
    wire = await connect_to(broker)
    await wire.send("T", b"before")
    disk.write_error = error
    assert set(await post_turn(wire, 10)) == {ResponseCode.SERVICE_NOT_AVAILABLE}
    answer = await wire.send("T", b"alone")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark is not None
    assert answer.remark.startswith("service not available now: ")
    assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert [record.body for record in records(await wire.pull("T"))] == [b"before"], "consumers go on"
    disk.write_error = None
    if error == errno.ENOSPC:
        assert (await wire.send("T", b"after")).ext_fields["queueOffset"] == "1", "room again"
        assert [record.body for record in records(await wire.pull("T"))] == [b"before", b"after"]
    assert broker.stats.put_failed >= 10


async def test_failed_write_of_a_batch(start_on: StartOn, connect_to: ConnectTo, disk: FailingDisk) -> None:
    from cometmq.message.batch import BatchPiece, encode_batch

    wire = await connect_to(await start_on())
    await wire.send("T")
    disk.write_error = errno.ENOSPC
    body = encode_batch([BatchPiece(0, b"a", ""), BatchPiece(0, b"b", "")])
    answer = await wire.call(RequestCode.SEND_BATCH_MESSAGE, send_header("T", batch=True), body)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_failed_flush_is_never_believed_again(
    start_on: StartOn, connect_to: ConnectTo, disk: FailingDisk
) -> None:
    wire = await connect_to(await start_on(flush_disk_type="SYNC_FLUSH"))
    assert (await wire.send("T", b"safe")).code == ResponseCode.SUCCESS
    disk.flush_error = errno.EIO
    lost = await wire.send("T", b"lost")
    assert (lost.code, lost.ext_fields.get(NOT_STORED)) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    disk.flush_error = None
    later = await wire.send("T", b"later")
    assert (later.code, later.ext_fields.get(NOT_STORED)) == (ResponseCode.SERVICE_NOT_AVAILABLE, "true")
    assert (await wire.pull("T")).code == ResponseCode.SUCCESS, "consumers go on"


async def test_sync_flush_is_bounded(start_on: StartOn, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.turn.waiters, "MAX_UNFLUSHED_CONNECTION_BYTES", 4000)
    broker = await start_on(flush_disk_type="SYNC_FLUSH")
    flushes: list[Callable[[Any], None]] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    wire, other = await connect_to(broker), await connect_to(broker)
    waiting = []
    for number in range(2):
        command = wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), bytes(2000))
        waiting.append(command.opaque)
        wire.post(command)
        while len(flushes) <= number:
            await wire.call(9999)
    refused = await wire.send("T")
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "[OVERLOAD]system busy, start flow control for a while",
    )
    other.post(other.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"not concerned"))
    while len(flushes) < 3:
        await wire.call(9999)
    for flushed in flushes:
        flushed(None)
    for opaque in waiting:
        assert (await wire.answer(opaque)).code == ResponseCode.SUCCESS
    monkeypatch.undo()
    assert (await wire.send("T")).code == ResponseCode.SUCCESS


async def test_a_large_turn_is_written_in_parts(
    start_on: StartOn, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cometmq.broker.turn.store_turn, cometmq.broker.turn.plain_sends):
        monkeypatch.setattr(module, "MAX_TURN_BYTES", 1000)
    broker = await start_on()
    commits = 0
    commit = broker.store.batch.commit

    def counted() -> int:
        nonlocal commits
        commits += 1
        return commit()

    monkeypatch.setattr(broker.store.batch, "commit", counted)
    wire = await connect_to(broker)
    assert set(await post_turn(wire, 100)) == {ResponseCode.SUCCESS}
    assert commits >= 10


async def test_sync_flush_counts_what_waits_with_the_message(
    start_on: StartOn, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.turn.waiters, "MAX_UNFLUSHED_CONNECTION_BYTES", 20_000)
    broker = await start_on(flush_disk_type="SYNC_FLUSH")
    wire = await connect_to(broker)
    topic = CreateTopicRequestHeader("T", "TBW102", 1, 1, 6, "SINGLE_TAG", order=False)
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, _callback: None)
    header = send_header("T", producer_group="p" * 30_000)
    wire.post(wire.command(RequestCode.SEND_MESSAGE_V2, header, b"small"))
    await wire.call(9999)
    assert (await wire.send("T", b"small")).code == ResponseCode.SYSTEM_BUSY
    monkeypatch.undo()
    broker.clock.advance(60)  # type: ignore[attr-defined]  # the tests' brokers have a virtual clock


async def test_messages_of_a_topic_that_is_in_no_file_are_never_acknowledged(
    start_on: StartOn, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_on()
    wire = await connect_to(broker)
    await wire.send("Old")

    def no_room(_journal: TableJournal, _changes: Iterable[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    words = "service not available now: the table of topics cannot be written (free some space, or check the disk)"
    end = broker.store.max_physical_offset
    with monkeypatch.context() as patch:
        patch.setattr(TableJournal, "append", no_room)
        for topic in ("New", "New", "Newer"):
            answer = await wire.send(topic)
            assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, words)
            assert answer.ext_fields[NOT_STORED] == "true", "it can be sent again or elsewhere"
        assert broker.store.max_physical_offset == end
        assert (await wire.send("Old")).code == ResponseCode.SUCCESS, "known topics go on"
        clock.advance(TABLE_RETRY_SECONDS)
        assert (await wire.send("New")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    clock.advance(TABLE_RETRY_SECONDS)
    await until(lambda: not broker.topics.cannot_be_saved)
    answer = await wire.send("New")
    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
    copy_store(broker.config.root, tmp_path / "copy")
    found = TopicConfigManager(broker.live, tmp_path / "copy" / "config" / "topics.json", clock=clock)
    found.load()
    assert found.get("New") is not None
