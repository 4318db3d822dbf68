"""A follower's connection to its master: what it appends and reports, and what it says about a master that is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from tests.broker.replication.members.conftest import FILE_BYTES, Follower, StartFollower, StartMaster
from tests.broker.replication.members.raw import RawMaster, accepted, answered, silent_port
from tests.broker.replication.members.sides import replica
from tests.store.conftest import StoreBench, fill

from cometmq.broker.failover.epochs import EpochLog
from cometmq.broker.failover.history import History
from cometmq.broker.limits import MAX_FAILOVER_EPOCHS, MAX_HISTORY_BYTES, MAX_TRANSFER_BYTES
from cometmq.broker.replication.frames import COPY_TABLES, member_transfer_head
from cometmq.broker.replication.master_connection import MasterConnection
from cometmq.remoting.codes import RequestCode
from cometmq.store.errors import StoreError
from cometmq.testing import VirtualClock, free_port, settle, wait_until


@pytest.fixture
async def raw() -> AsyncIterator[RawMaster]:
    master = RawMaster()
    await master.start()
    yield master
    await master.stop()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The beginning of a master's log: 20 messages."""
    bench = StoreBench(tmp_path_factory.mktemp("master"))
    store = bench.open()
    fill(store, 20)
    end = store.max_physical_offset
    bench.close_all()
    return bench.log_files[0].read_bytes()[:end]


async def follow(follower: Follower, master: RawMaster, epoch: int = 1) -> None:
    follower.broker.slave.follow(epoch, replica(master.port))
    await settle()


# --- following -----------------------------------------------------------------------------------
async def test_it_signs_in_compares_copies_and_reports(follower: Follower, raw: RawMaster, log: bytes) -> None:
    await follow(follower, raw)
    assert raw.request is not None
    assert raw.request.code == RequestCode.GET_BROKER_EPOCH_CACHE
    assert raw.request.ext_fields == {
        "member": "f#3",
        "epoch": "1",
        "setId": "5f3c5f3c",
        "address": "127.0.0.1:1",
        "haAddress": "127.0.0.1:2",
        "process": "p1",
        "logFileBytes": str(FILE_BYTES),
        "heartbeatMs": "1000",
        "haReport": "0",
    }
    assert [event[:2] for event in follower.side.events] == [("compared", 1)]
    assert raw.reports == [0, 0], "where to begin, then what it has"
    await raw.transfer(0, log[:1000], confirmed=7)
    end = follower.end
    assert 0 < end <= 1000, "complete records count"
    assert raw.reports[2:] == [end]
    await raw.transfer(1000, log[1000:], confirmed=500)
    assert raw.reports[3:] == [len(log)]
    assert follower.side.ends == [end, len(log)]
    assert follower.side.heard_confirmed == [7, 500]
    assert follower.broker.slave.follower.is_following


async def test_it_repeats_its_report_with_each_heartbeat(
    follower: Follower, raw: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    await raw.transfer(0, log)
    before = len(raw.reports)
    for _ in range(3):
        await clock.run_for(1)
        await raw.transfer(len(log), b"", confirmed=9)
    assert raw.reports[before:] == [len(log)] * 3
    assert follower.side.heard_confirmed[1:] == [9, 9, 9]


async def test_bytes_may_come_one_by_one(follower: Follower, raw: RawMaster, log: bytes) -> None:
    raw.epoch = 0
    await follow(follower, raw)
    assert raw.request is not None
    for byte in accepted(raw.request.opaque):
        await raw.send(bytes([byte]))
    for byte in member_transfer_head(0, 300, 5) + log[:300]:
        await raw.send(bytes([byte]))
    assert follower.broker.store.replicated.end == 300
    assert follower.side.heard_confirmed == [5]


async def test_only_the_end_that_counts_is_reported(start_follower: StartFollower, raw: RawMaster, log: bytes) -> None:
    follower = await start_follower(side={"counts": 0})
    await follow(follower, raw)
    await raw.transfer(0, log)
    assert set(raw.reports) == {0}
    follower.side.counts = None
    follower.broker.slave.report()
    await settle()
    assert raw.reports[-1] == len(log)


async def test_with_sync_flush_what_is_reported_is_on_the_disk(
    start_follower: StartFollower, raw: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    follower = await start_follower(side={"flushes": True}, flush_disk_type="SYNC_FLUSH")
    await follow(follower, raw)
    await raw.transfer(0, log)
    assert await wait_until(clock, lambda: raw.reports[-1] == len(log), 5)
    assert follower.broker.store.flushed_position == len(log)
    assert all(report <= follower.broker.store.flushed_position for report in raw.reports)


async def test_an_empty_log_begins_where_the_masters_begins(follower: Follower, raw: RawMaster) -> None:
    """Also with the epochs whose markers the master no longer has."""
    begin = 4 * FILE_BYTES
    raw.history = {"epochs": [[1, 100], [2, 5000]], "begin": begin, "end": begin + 10_000}
    await follow(follower, raw)
    assert raw.reports == [begin, begin]
    assert EpochLog(follower.broker.store).history() == History(((1, 100), (2, 5000)), begin, begin)
    await follow(follower, raw)
    assert raw.reports == [begin, begin]


async def test_a_log_that_must_be_cut_is_left_to_the_driver(
    start_follower: StartFollower, raw: RawMaster, clock: VirtualClock
) -> None:
    follower = await start_follower(side={"cuts": True})
    await follow(follower, raw)
    await clock.run_for(5)
    assert raw.connections == 1
    assert not raw.is_open
    assert follower.side.losses == []
    follower.side.cuts = False
    await follow(follower, raw)
    assert raw.reports == [0, 0]


async def test_messages_of_topics_that_nobody_knows_are_reported_without_the_master(
    follower: Follower, raw: RawMaster, log: bytes, clock: VirtualClock
) -> None:
    """The master of a set answers requests only once its followers have reported: nobody may wait for the other."""
    await follow(follower, raw)
    await raw.transfer(0, log)
    await raw.close_connection()
    follower.broker.topics.delete("TopicTest")
    raw.history = {"end": len(log)}
    follower.broker.slave.leave()
    await follow(follower, raw)
    assert await wait_until(clock, lambda: raw.reports == [len(log), len(log)], 1)
    assert follower.broker.topics.get("TopicTest") is not None


# --- leaving -------------------------------------------------------------------------------------
async def test_after_leaving_nothing_is_appended_or_reported(follower: Follower, raw: RawMaster, log: bytes) -> None:
    await follow(follower, raw)
    await raw.transfer(0, log[:1000])
    reports, end = list(raw.reports), follower.end
    assert raw._writer is not None
    raw._writer.write(member_transfer_head(1000, len(log) - 1000, 9) + log[1000:])  # on its way
    follower.broker.slave.leave()
    follower.broker.slave.report()
    await settle()
    assert follower.end == end
    assert raw.reports == reports
    assert not raw.is_open
    assert follower.side.losses == [], "it left by itself"


async def test_bytes_of_an_epoch_that_is_over_are_not_appended(follower: Follower, raw: RawMaster, log: bytes) -> None:
    """The machine has frozen, and its driver has not come to leave yet."""
    await follow(follower, raw)
    follower.side.is_copying = False
    await raw.transfer(0, log)
    assert follower.end == 0
    assert raw.reports == [0, 0]


async def test_a_report_that_waits_for_topics_is_not_sent_to_the_next_master(
    follower: Follower, raw: RawMaster, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Callable[[], None]] = []
    await follow(follower, raw)
    monkeypatch.setattr(follower.broker.slave.follower._copied, "when_topics_saved", waiting.append)
    await raw.transfer(0, log)
    assert waiting
    monkeypatch.undo()
    await follow(follower, raw, epoch=1)
    before = list(raw.reports)
    for work in waiting:
        work()
    await settle()
    assert raw.reports == before


async def test_another_master_is_followed_at_once(follower: Follower, raw: RawMaster) -> None:
    await follow(follower, raw)
    other = RawMaster(epoch=2)
    await other.start()
    await follow(follower, other, epoch=2)
    assert not raw.is_open
    assert other.reports == [0, 0]
    assert follower.broker.slave.follower.is_following
    await other.stop()


# --- a master that is gone -----------------------------------------------------------------------
async def test_a_master_is_dead_if_it_closed_the_connection_and_then_refuses(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    await raw.stop()
    assert follower.side.losses == [False]
    await clock.run_for(0.06)
    assert follower.side.losses == [False, True], "within a tenth of a second"
    await clock.run_for(3)
    assert follower.side.losses == [False, True], "the engine is not asked each time"


async def test_a_port_that_refuses_proves_nothing_before_a_connection_was_accepted(
    follower: Follower, clock: VirtualClock
) -> None:
    follower.broker.slave.follow(1, replica(free_port()))
    await clock.run_for(3)
    assert follower.side.losses == [False]


async def test_a_master_that_closes_without_an_answer_and_then_refuses_proves_nothing(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    """This member has nothing of the epoch: a relay may have answered."""
    raw.epoch = 0
    await follow(follower, raw)
    await raw.stop()
    await clock.run_for(3)
    assert follower.side.losses == [False]


async def test_a_master_that_has_just_been_elected_is_found_within_50_ms(
    follower: Follower, clock: VirtualClock
) -> None:
    port = free_port()
    follower.broker.slave.follow(2, replica(port))
    await clock.run_for(0.71)
    master = RawMaster(epoch=2)
    await master.start(port)
    await clock.run_for(0.06)
    assert master.reports == [0, 0]
    await master.stop()


async def test_a_port_that_refuses_proves_nothing_about_the_master_of_another_epoch(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    await raw.stop()
    follower.broker.slave.follow(2, replica(free_port()))
    await clock.run_for(3)
    assert follower.side.losses == [False, False]


async def test_a_port_that_refuses_after_silence_proves_nothing(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    """A firewall may refuse in the place of a master that lives."""
    await follow(follower, raw)
    await clock.run_for(1.9)
    assert follower.side.losses == []
    assert raw._server is not None
    raw._server.close()
    await clock.run_for(3)
    assert follower.side.losses == [False]


async def test_a_process_that_dies_while_the_kernel_still_accepts_is_dead(
    follower: Follower, raw: RawMaster, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt after the reset may reach the old port's queue, and is reset too."""
    await follow(follower, raw)
    original = MasterConnection.open
    attempts = iter([ConnectionResetError("reset"), None])

    async def opened(self: MasterConnection, address: str, limit_s: float, tls: object) -> None:
        error = next(attempts, None)
        if error is not None:
            self.is_closed_by_master = True
            raise error
        await original(self, address, limit_s, None)

    monkeypatch.setattr(MasterConnection, "open", opened)
    await raw.stop()
    await clock.run_for(0.5)
    assert follower.side.losses == [False, True]


async def test_a_master_that_accepts_again_is_not_dead(follower: Follower, raw: RawMaster, clock: VirtualClock) -> None:
    await follow(follower, raw)
    await raw.close_connection()
    assert follower.side.losses == [False]
    await clock.run_for(0.06)
    assert raw.connections == 2
    assert follower.broker.slave.follower.is_following
    await raw.close_connection()
    await clock.run_for(0.06)
    assert follower.side.losses == [False, False]


async def test_a_silent_master_is_lost_after_two_heartbeats(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    await clock.run_for(1.5)
    await raw.transfer(0, b"")
    await clock.run_for(1.9)
    assert follower.side.losses == []
    await clock.run_for(0.2)
    assert follower.side.losses == [False]


async def test_a_master_with_a_longer_lease_may_be_silent_for_longer(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    raw.history = {"heartbeatMs": 4000}
    await follow(follower, raw)
    await clock.run_for(7.9)
    assert follower.side.losses == []
    await clock.run_for(0.2)
    assert follower.side.losses == [False]


async def test_a_pause_of_this_process_is_not_the_masters_silence(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    clock._elapsed += 60
    await clock.run_for(0.5)
    await raw.transfer(0, b"")
    await clock.run_for(1)
    assert follower.side.losses == []
    assert raw.connections == 1


@pytest.mark.parametrize("sends", [b"", b"\0"])
async def test_a_peer_that_accepts_and_says_nothing_is_left(
    follower: Follower, raw: RawMaster, clock: VirtualClock, sends: bytes
) -> None:
    raw.epoch = 0
    await follow(follower, raw)
    await raw.send(sends)
    await clock.run_for(2.1)
    assert not raw.is_open
    assert follower.side.losses == [False]
    await clock.run_for(0.2)
    assert raw.connections == 2


async def test_a_port_that_nobody_serves_is_left(follower: Follower, clock: VirtualClock) -> None:
    listener, port = silent_port()
    follower.broker.slave.follow(1, replica(port))
    await clock.run_for(5)
    assert follower.side.losses == [False]
    listener.close()


async def test_a_connection_attempt_is_shorter_than_a_heartbeat(follower: Follower, clock: VirtualClock) -> None:
    """A port whose queue is full drops connections, as a machine that is gone does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        await asyncio.sleep(0.05)
        follower.broker.slave.follow(1, replica(port))
        await clock.run_for(0.8)
        assert follower.side.losses == [False]
        for filler in fillers:
            filler.close()


# --- refusals and hostile bytes ------------------------------------------------------------------
async def test_a_refusal_with_a_higher_epoch_is_seen(follower: Follower, raw: RawMaster, clock: VirtualClock) -> None:
    raw.epoch = 0
    await follow(follower, raw)
    assert raw.request is not None
    await raw.send(answered(raw.request.opaque, 14, epoch=4, remark="not the master"))
    assert ("epoch seen", 4) in follower.side.events
    assert follower.broker.slave.follower.trouble is not None
    assert "not the master" in follower.broker.slave.follower.trouble
    follower.side.events.clear()
    for epoch in (1, 0, -9, "x", "9" * 100, "²"):
        await clock.run_for(0.21)
        await raw.send(answered(raw.request.opaque, 14, epoch=epoch, remark="no"))
        assert all(event[0] != "epoch seen" or event[1] == 2**62 for event in follower.side.events), epoch


HOSTILE_ANSWERS = [
    (lambda opaque: b"\x7f\xff\xff\xff", "malformed"),
    (lambda opaque: (MAX_HISTORY_BYTES + 1).to_bytes(4, "big"), "malformed"),
    (lambda opaque: b"\0\0\0\x08\0\0\0\x04nope", "malformed"),
    (lambda opaque: answered(opaque, 0, b"[]"), "malformed"),
    (lambda opaque: answered(opaque, 0, b"[" * 100_000), "malformed"),
    (lambda opaque: accepted(opaque, epochs=[[1, 2, 3]]), "malformed"),
    (lambda opaque: accepted(opaque, heartbeatMs=0), "malformed"),
    (lambda opaque: accepted(opaque, heartbeatMs=2**63), "malformed"),
    (lambda opaque: accepted(opaque, epoch=2), "epoch 2 instead of 1"),
    (lambda opaque: accepted(opaque, epochs=[[2, 0], [1, 5]], end=9), "invalid list of epochs"),
    (lambda opaque: accepted(opaque, epochs=[[1, 0], [2, 0]], end=9), "invalid list of epochs"),
    (lambda opaque: accepted(opaque, epochs=[[1, 9]], end=9), "invalid list of epochs"),
    (lambda opaque: accepted(opaque, begin=9, end=5), "invalid list of epochs"),
    (lambda opaque: accepted(opaque, end=-1), "invalid list of epochs"),
    (
        lambda opaque: accepted(opaque, epochs=[[i + 1, i] for i in range(MAX_FAILOVER_EPOCHS + 1)], end=10**6),
        "invalid list of epochs",
    ),
    (lambda opaque: accepted(opaque) + b"\0", "followed by other bytes"),
    (lambda opaque: accepted(opaque) + accepted(opaque), "followed by other bytes"),
]


@pytest.mark.parametrize(("answer", "reason"), HOSTILE_ANSWERS)
async def test_a_hostile_answer_ends_the_connection_and_reaches_no_machine(
    follower: Follower, raw: RawMaster, answer: Callable[[int], bytes], reason: str, clock: VirtualClock
) -> None:
    raw.epoch = 0
    await follow(follower, raw)
    assert raw.request is not None
    await raw.send(answer(raw.request.opaque))
    await settle()
    trouble = follower.broker.slave.follower.trouble
    assert trouble is not None
    assert reason in trouble
    assert not [event for event in follower.side.events if event[0] == "compared"]
    assert not raw.is_open
    raw.epoch = 1
    await clock.run_for(1.1)
    assert follower.broker.slave.follower.is_following


async def test_the_longest_history_is_accepted(follower: Follower, raw: RawMaster) -> None:
    start = 2**61
    epochs = [[2**31 + i, start + i] for i in range(MAX_FAILOVER_EPOCHS)]
    raw.history = {"epochs": epochs, "begin": 0, "end": 2**62}
    await follow(follower, raw)
    await settle()
    assert len(follower.side.events[0][2].epochs) == MAX_FAILOVER_EPOCHS


HOSTILE_TRANSFERS = [
    member_transfer_head(0, MAX_TRANSFER_BYTES + 1, 0),
    member_transfer_head(0, -2, 0),
    member_transfer_head(-1, 0, 0),
    member_transfer_head(0, 0, -1),
    member_transfer_head(5, 0, 0),
    member_transfer_head(5, 3, 0) + b"abc",
    member_transfer_head(0, 300, 0) + b"\x7f" * 300,
]


@pytest.mark.parametrize("hostile", HOSTILE_TRANSFERS)
async def test_hostile_transfers_end_the_connection_and_leave_the_log(
    follower: Follower, raw: RawMaster, log: bytes, hostile: bytes, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    await raw.send(hostile)
    await settle()
    assert not raw.is_open
    assert follower.end == 0
    await clock.run_for(0.25)
    await raw.transfer(0, log)
    assert follower.end == len(log)


async def test_the_log_before_it_was_asked_for_is_refused(follower: Follower, raw: RawMaster, log: bytes) -> None:
    """While the own log is being compared."""
    gate = asyncio.Event()
    compared = follower.side.compared

    async def slow(epoch: int, masters: object) -> int | None:
        await gate.wait()
        return await compared(epoch, masters)  # type: ignore[arg-type]

    follower.side.compared = slow  # type: ignore[method-assign]
    await follow(follower, raw)
    await raw.transfer(0, log)
    gate.set()
    await settle()
    assert follower.end == 0
    assert not raw.is_open


async def test_a_slow_comparison_is_not_the_masters_silence(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    gate = asyncio.Event()
    compared = follower.side.compared

    async def slow(epoch: int, masters: object) -> int | None:
        await gate.wait()
        return await compared(epoch, masters)  # type: ignore[arg-type]

    follower.side.compared = slow  # type: ignore[method-assign]
    await follow(follower, raw)
    await clock.run_for(10)
    gate.set()
    await settle()
    assert follower.broker.slave.follower.is_following
    assert raw.connections == 1


async def test_an_error_of_the_member_itself_is_logged_and_tried_again(
    follower: Follower, raw: RawMaster, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    compared = follower.side.compared

    async def broken(_epoch: int, _masters: object) -> int | None:
        follower.side.compared = compared  # type: ignore[method-assign]
        raise RuntimeError("a defect")

    follower.side.compared = broken  # type: ignore[assignment,method-assign]
    await follow(follower, raw)
    assert "a defect" in caplog.text
    await clock.run_for(0.25)
    assert follower.broker.slave.follower.is_following


async def test_a_disk_that_is_full_ends_the_connection_and_heals(
    follower: Follower, raw: RawMaster, log: bytes, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await follow(follower, raw)
    monkeypatch.setattr(type(follower.broker.store), "writable", lambda _self: StoreError("the disk is full"))
    await raw.transfer(0, log)
    assert follower.end == 0
    assert follower.side.losses == [False]
    monkeypatch.undo()
    await clock.run_for(0.25)
    await raw.transfer(0, log)
    assert follower.end == len(log)
    assert follower.broker.slave.follower.trouble is None


# --- tables --------------------------------------------------------------------------------------
async def test_tables_are_copied_when_the_master_asks_and_then_it_is_told(
    start_master: StartMaster, start_follower: StartFollower, clock: VirtualClock
) -> None:
    master = await start_master()
    follower = await start_follower()
    await settle()
    port = master.broker.server.port
    follower.broker.slave.follow(1, replica(master.broker.ha.port, requests=port))
    assert await wait_until(clock, lambda: follower.end == master.end, 5)
    await clock.run_for(3)
    asking = asyncio.ensure_future(master.broker.ha.copy_tables(follower.side.me))
    assert await clock.run_until(asking, 1)


async def test_tables_that_cannot_be_copied_are_not_confirmed(
    follower: Follower, raw: RawMaster, clock: VirtualClock
) -> None:
    await follow(follower, raw)
    await raw.send(member_transfer_head(0, COPY_TABLES, 0))
    await clock.run_for(1)
    assert raw.tables_copied == 0
