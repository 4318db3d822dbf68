"""SYNC_MASTER: a send is answered once a slave has its message, or with what is missing; combined with SYNC_FLUSH."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, small_config
from tests.broker.replication.conftest import ConnectSlave
from tests.broker.replication.sender import Sender, in_sync
from tests.broker.replication.slave import log_of
from tests.broker.snapshots import copy_store
from tests.broker.wire import records

import cometmq.broker.turn.waiters
from cometmq.broker.controller import Broker
from cometmq.message.batch import BatchPiece, encode_batch
from cometmq.message.names import retry_topic
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.store.disk import Disk
from cometmq.testing import VirtualClock, settle

Codes = Callable[[], list[int]]
NOT_AVAILABLE, TIMEOUT = ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT


class HoldingDisk(Disk):
    """A disk that can refuse to flush."""

    refuses = False

    def flush(self, fd: int) -> None:
        if self.refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().flush(fd)


@pytest.fixture
def disk() -> HoldingDisk:
    return HoldingDisk()


StartMaster = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start_master(tmp_path: Path, clock: VirtualClock, disk: HoldingDisk) -> AsyncIterator[StartMaster]:
    started: list[Broker] = []

    async def start(**options: Any) -> Broker:
        options = {"broker_role": "SYNC_MASTER", "mapped_file_size_commit_log": 1024 * 1024} | options
        started.append(Broker(small_config(tmp_path, **options), clock=clock, disk=disk))
        await started[-1].start()
        return started[-1]

    yield start
    disk.refuses = False
    for broker in started:
        await broker.stop()


@pytest.fixture
async def master(start_master: StartMaster) -> Broker:
    return await start_master()


@pytest.fixture
async def sender(master: Broker, connect_to: ConnectTo) -> Sender:
    return Sender(await connect_to(master))


async def test_without_a_slave_it_is_stored_and_said_so_at_once(master: Broker, sender: Sender) -> None:
    await sender.post()
    assert await sender.codes() == [NOT_AVAILABLE]
    assert [record.body for record in records(await sender.wire.pull("T"))] == [b"x"]


async def test_a_connection_without_a_report_is_no_slave(
    master: Broker, sender: Sender, connect_slave: ConnectSlave
) -> None:
    await connect_slave(master)
    await sender.post()
    assert await sender.codes() == [NOT_AVAILABLE]


async def test_it_is_answered_when_the_slave_has_it_and_not_before(
    master: Broker, sender: Sender, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post()
    end = master.store.max_physical_offset
    assert slave.log == log_of(master, 0)
    await slave.report(end - 1)
    await clock.run_for(2.9)
    assert await sender.codes() == []
    await slave.report(end)
    assert await sender.codes() == [ResponseCode.SUCCESS]


async def test_every_slave_in_sync_is_waited_for(master: Broker, sender: Sender, connect_slave: ConnectSlave) -> None:
    slow, quick = await connect_slave(master), await connect_slave(master)
    await slow.report(0)
    await quick.report(0)
    await sender.post()
    await in_sync(quick, master)
    assert await sender.codes() == [], "the slow one may be promoted, and it does not have the message"
    await in_sync(slow, master)
    assert await sender.codes() == [ResponseCode.SUCCESS]


async def test_a_slave_that_is_late_is_said_so(
    master: Broker, sender: Sender, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post()
    await clock.run_for(3)
    assert await sender.codes() == [TIMEOUT]
    await in_sync(slave, master)
    await sender.post()
    await in_sync(slave, master)
    assert await sender.codes() == [TIMEOUT, ResponseCode.SUCCESS]


async def test_slaves_far_behind_are_not_waited_for(
    start_master: StartMaster, connect_to: ConnectTo, connect_slave: ConnectSlave
) -> None:
    master = await start_master(ha_slave_fallbehind_max=100_000)
    sender = Sender(await connect_to(master))
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post(body=bytes(60_000))
    await sender.post(body=bytes(60_000))
    assert await sender.codes() == [NOT_AVAILABLE], "of the second; the first waits"
    await in_sync(slave, master)
    assert await sender.codes() == [ResponseCode.SUCCESS, NOT_AVAILABLE]


async def test_a_slave_that_comes_back_with_nothing_is_not_waited_for_until_it_has_caught_up(
    start_master: StartMaster, connect_to: ConnectTo, connect_slave: ConnectSlave
) -> None:
    """Reports from before it lost its disk do not count."""
    master = await start_master(ha_slave_fallbehind_max=100_000)
    sender = Sender(await connect_to(master))
    before = await connect_slave(master)
    for _ in range(3):
        await sender.post(body=bytes(60_000), properties="WAIT\x01false\x02")
    await in_sync(before, master)
    before.close()
    after = await connect_slave(master)
    await after.report(0)
    await sender.post()
    assert (await sender.codes())[3:] == [NOT_AVAILABLE]
    await in_sync(after, master)
    await sender.post()
    await in_sync(after, master)
    assert (await sender.codes())[4:] == [ResponseCode.SUCCESS]


async def test_when_the_last_slave_leaves_nobody_waits_any_longer(
    master: Broker, sender: Sender, connect_slave: ConnectSlave
) -> None:
    first, last = await connect_slave(master), await connect_slave(master)
    await first.report(0)
    await last.report(0)
    await sender.post()
    first.close()
    assert await sender.codes() == []
    last.close()
    assert await sender.codes() == [NOT_AVAILABLE]


async def test_who_does_not_want_to_wait_does_not(master: Broker, sender: Sender, connect_slave: ConnectSlave) -> None:
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post(properties="WAIT\x01false")
    assert await sender.codes() == [ResponseCode.SUCCESS]


async def test_a_batch_waits_as_a_whole(master: Broker, sender: Sender, connect_slave: ConnectSlave) -> None:
    slave = await connect_slave(master)
    await slave.report(0)
    body = encode_batch([BatchPiece(0, b"a", ""), BatchPiece(0, b"b", "")])
    await sender.post(RequestCode.SEND_BATCH_MESSAGE, body, batch=True)
    await slave.report(master.store.max_physical_offset - 1)
    assert await sender.codes() == []
    await in_sync(slave, master)
    assert await sender.codes() == [ResponseCode.SUCCESS]


async def test_a_message_that_goes_back_waits_for_the_slave_but_goes_back_without_one(
    master: Broker, sender: Sender, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    await sender.post()
    await sender.codes()
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="consumers", delay_level=0)
    assert (await sender.wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS
    slave = await connect_slave(master)
    await slave.report(0)
    await in_sync(slave, master)
    back = sender.wire.command(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    sender.posted = [back.opaque]
    sender.wire.post(back)
    assert await sender.codes() == []
    await in_sync(slave, master)
    assert await sender.codes() == [ResponseCode.SUCCESS]
    await clock.run_for(15)
    await clock.skip(15)
    answer = await sender.wire.pull(retry_topic("consumers"))
    assert len(records(answer)) == 2, "delayed messages are delivered, slave or not"


async def test_a_delivery_that_waits_for_the_slave_is_not_made_again_after_a_crash(
    start_master: StartMaster, connect_to: ConnectTo, connect_slave: ConnectSlave, clock: VirtualClock, tmp_path: Path
) -> None:
    master = await start_master()
    sender = Sender(await connect_to(master))
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post(properties="DELAY\x011")
    await in_sync(slave, master)
    assert await sender.codes() == [ResponseCode.SUCCESS]
    await clock.run_for(1.5)
    assert len(records(await sender.wire.pull("T"))) == 1, "delivered, and the slave has not said that it has it"
    await master.schedule.save()
    copy_store(tmp_path / "store", tmp_path / "left")
    slave.close()
    await master.stop()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "left").rename(tmp_path / "store")
    wire = await connect_to(await start_master())
    await clock.run_for(15)
    assert len(records(await wire.pull("T"))) == 1


@pytest.mark.parametrize(
    ("disk_works", "slave_works", "code"),
    [
        (True, True, ResponseCode.SUCCESS),
        (True, False, TIMEOUT),
        (False, True, ResponseCode.SERVICE_NOT_AVAILABLE),
        (False, False, ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
async def test_with_sync_flush_both_must_have_it(
    start_master: StartMaster,
    connect_to: ConnectTo,
    connect_slave: ConnectSlave,
    clock: VirtualClock,
    disk: HoldingDisk,
    disk_works: bool,
    slave_works: bool,
    code: int,
) -> None:
    master = await start_master(flush_disk_type="SYNC_FLUSH")
    sender = Sender(await connect_to(master))
    slave = await connect_slave(master)
    await slave.report(0)
    disk.refuses = not disk_works
    await sender.post()
    if disk_works:
        assert await sender.codes() == [], "on the disk, but at no slave"
    if slave_works:
        await in_sync(slave, master)
    await clock.run_for(6)
    assert await sender.codes() == [code]


@pytest.mark.parametrize(
    ("reported_after_s", "code"), [(1.0, ResponseCode.FLUSH_DISK_TIMEOUT), (4.0, TIMEOUT)], ids=["disk", "both"]
)
async def test_when_both_are_late_the_slave_is_named(
    start_master: StartMaster,
    connect_to: ConnectTo,
    connect_slave: ConnectSlave,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    reported_after_s: float,
    code: int,
) -> None:
    master = await start_master(flush_disk_type="SYNC_FLUSH")
    monkeypatch.setattr(master.store, "when_flushed", lambda _position, _callback: None)
    sender = Sender(await connect_to(master))
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post()
    await clock.run_for(reported_after_s)
    await in_sync(slave, master)
    assert await sender.codes() == []
    await clock.run_for(5)
    assert await sender.codes() == [code]
    monkeypatch.undo()


async def test_with_sync_flush_and_no_slave_it_is_on_the_disk_when_answered(
    start_master: StartMaster, connect_to: ConnectTo
) -> None:
    master = await start_master(flush_disk_type="SYNC_FLUSH")
    sender = Sender(await connect_to(master))
    await sender.post()
    assert await sender.codes() == [NOT_AVAILABLE]
    assert master.store.flushed_position == master.store.max_physical_offset


async def test_whoever_is_stored_first_is_told_first_however_long_the_flush_takes(
    start_master: StartMaster, connect_to: ConnectTo, connect_slave: ConnectSlave, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await start_master(flush_disk_type="SYNC_FLUSH")
    sender = Sender(await connect_to(master))
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post()
    await in_sync(slave, master)
    assert await sender.codes() == [ResponseCode.SUCCESS]
    flushes: list[Callable[[Any], None]] = []
    monkeypatch.setattr(master.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="consumers", delay_level=0)
    back = sender.wire.command(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    sender.posted = [back.opaque]
    sender.wire.post(back)
    await settle()
    end_of_first = master.store.max_physical_offset
    await sender.post()
    for flushed in flushes:
        flushed(None)
    await slave.report(end_of_first)
    assert await sender.codes() == [ResponseCode.SUCCESS], "of what goes back"
    await in_sync(slave, master)
    assert await sender.codes() == [ResponseCode.SUCCESS] * 2
    monkeypatch.undo()


async def test_a_master_that_stops_waits_for_its_slave_first(
    master: Broker, sender: Sender, connect_slave: ConnectSlave
) -> None:
    slave = await connect_slave(master)
    await slave.report(0)
    await sender.post()
    end = master.store.max_physical_offset
    stopping = asyncio.ensure_future(master.stop())
    reading = asyncio.ensure_future(sender.wire.read_to_the_end())
    await settle()
    assert not stopping.done()
    assert slave.end == end
    await slave.report(end)
    await asyncio.gather(stopping, reading)
    assert await sender.codes() == [ResponseCode.SUCCESS]


async def test_what_waits_is_bounded(
    master: Broker, sender: Sender, connect_slave: ConnectSlave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cometmq.broker.turn.waiters, "MAX_UNFLUSHED_CONNECTION_BYTES", 4_000)
    slave = await connect_slave(master)
    await slave.report(0)
    for _ in range(6):
        await sender.post(body=bytes(1_000))
    assert set(await sender.codes()) == {ResponseCode.SYSTEM_BUSY}
    await in_sync(slave, master)
    codes = await sender.codes()
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
    assert len(codes) == 6
    await sender.post()
    await in_sync(slave, master)
    assert (await sender.codes())[-1] == ResponseCode.SUCCESS


async def test_an_async_master_does_not_wait_for_its_slaves(
    start_master: StartMaster, connect_to: ConnectTo, connect_slave: ConnectSlave
) -> None:
    master = await start_master(broker_role="ASYNC_MASTER")
    slave = await connect_slave(master)
    await slave.report(0)
    assert (await (await connect_to(master)).send("T")).code == ResponseCode.SUCCESS
