"""A master and a follower of a set on real connections: the log, the tables, a handover, TLS, accounts, learners."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import BILLING, make_topics
from tests.broker.access.test_access import send as send_signed
from tests.broker.conftest import ConnectTo
from tests.broker.replication.following import bodies, log_of
from tests.broker.replication.members.conftest import FILE_BYTES, Follower, Master, StartFollower, StartMaster
from tests.broker.replication.members.raw import sign_in
from tests.broker.replication.members.sides import replica
from tests.broker.replication.test_access import write_accounts
from tests.broker.replication.test_tls import keys

from cometmq.broker.controller import Broker
from cometmq.broker.failover.document import Member
from cometmq.broker.replication import table_changes
from cometmq.broker.replication.frames import encode_report
from cometmq.testing import VirtualClock, settle, wait_until

PATIENCE_S = 60


def follow(follower: Follower, master: Master, epoch: int = 1) -> None:
    ports = master.broker.ha.port, master.broker.server.port
    follower.broker.slave.follow(epoch, replica(ports[0], requests=ports[1]))


async def has_all(follower: Follower, master: Master, clock: VirtualClock) -> None:
    """Wait until the follower has the master's log, and its reports have arrived."""

    def is_same() -> bool:
        return master.end == follower.end and ("reported", "f#3", master.end) in master.side.events

    assert await wait_until(clock, is_same, PATIENCE_S), follower.broker.slave.follower.trouble


async def fill(wire: Any, size: int, topic: str = "T") -> None:
    for _ in range(0, size, 4000):
        await wire.send(topic, random.randbytes(4000))


@pytest.fixture
async def pair(
    start_master: StartMaster, start_follower: StartFollower, clock: VirtualClock
) -> tuple[Master, Follower]:
    master, follower = await start_master(), await start_follower()
    follow(follower, master)
    await has_all(follower, master, clock)
    return master, follower


# --- the log -------------------------------------------------------------------------------------
async def test_the_log_is_the_same_byte_by_byte_through_cuts_of_the_connection(
    pair: tuple[Master, Follower], connect_to: ConnectTo, clock: VirtualClock
) -> None:
    master, follower = pair
    wire = await connect_to(master.broker)
    for number in range(12):
        await fill(wire, 20_000)
        if number % 3 == 0:
            next(iter(master.broker.ha.slaves)).abort()
        elif number % 3 == 1:
            follow(follower, master)
        await clock.run_for(0.3)
    await has_all(follower, master, clock)
    stores = [Path(one.broker.config.store_path_root_dir) for one in (master, follower)]
    assert log_of(stores[0]) == log_of(stores[1])


async def test_a_new_follower_gets_all_that_the_master_keeps(
    start_master: StartMaster, start_follower: StartFollower, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    master = await start_master()
    await fill(await connect_to(master.broker), 4 * FILE_BYTES)
    follower = await start_follower()
    follow(follower, master)
    await has_all(follower, master, clock)
    assert await bodies(follower.broker, "T") == await bodies(master.broker, "T")


async def test_another_size_of_log_files_is_refused_with_the_next_step(
    start_master: StartMaster, start_follower: StartFollower, clock: VirtualClock
) -> None:
    master = await start_master()
    follower = await start_follower(mapped_file_size_commit_log=2 * FILE_BYTES)
    follow(follower, master)
    await clock.run_for(1)
    trouble = follower.broker.slave.follower.trouble
    assert trouble is not None
    assert "set mappedFileSizeCommitLog to the master's value" in trouble
    assert follower.end == 0


# --- tables --------------------------------------------------------------------------------------
async def test_offsets_are_at_most_one_second_old_and_never_ahead(
    pair: tuple[Master, Follower], connect_to: ConnectTo, clock: VirtualClock
) -> None:
    master, follower = pair
    wire = await connect_to(master.broker)
    await wire.send("T", b"first")
    await has_all(follower, master, clock)
    history: list[tuple[float, int]] = []
    for number in range(1, 60):
        await wire.send("T", b"x")
        master.broker.offsets.commit("group", "T", 0, number)
        history.append((clock.monotonic(), number))
        await clock.run_for(0.1)
        copied = follower.broker.offsets.query("group", "T", 0)
        old_enough = [offset for at, offset in history if at <= clock.monotonic() - 1.0]
        assert copied <= number
        assert copied >= max(old_enough, default=-1), f"after {number}"
    assert follower.broker.offsets.query("group", "T", 0) > 50


async def test_tables_are_copied_from_the_next_master_and_nothing_that_is_held_from_the_last_one(
    pair: tuple[Master, Follower], brokers: Callable[..., Broker], clock: VirtualClock, connect_to: ConnectTo
) -> None:
    """Files say from which log offset on they are true, and that is an offset in the log of one master."""
    master, follower = pair
    tables = follower.broker.slave.tables
    holders: list[Any] = [*tables._files, tables._timer]
    for one in holders:
        one._held = object()
    tables._marks["topics"] = "old.1"
    follow(follower, master)
    assert all(one._held is None for one in holders)
    wire = await connect_to(master.broker)
    await wire.send("Fresh", b"x")
    await clock.run_for(2)
    assert follower.broker.topics.get("Fresh") is not None
    assert tables.trouble == ""


async def test_a_copy_under_way_from_the_last_master_is_given_up(
    pair: tuple[Master, Follower], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, follower = pair
    tables = follower.broker.slave.tables
    gate = asyncio.Event()
    changes = table_changes.MasterTables.changes

    async def slow(*args: Any, **options: Any) -> Any:
        answer = await changes(*args, **options)
        await gate.wait()
        return answer

    monkeypatch.setattr(table_changes.MasterTables, "changes", slow)
    await clock.run_for(0.6)
    under_way = tables._task
    assert under_way is not None
    assert not under_way.done()
    monkeypatch.undo()
    follow(follower, master)
    gate.set()
    await settle()
    assert under_way.cancelled()
    await clock.run_for(1.5)
    assert tables.trouble == ""
    assert tables._marks


# --- a handover ----------------------------------------------------------------------------------
async def test_a_handover_leaves_no_offset_behind(
    pair: tuple[Master, Follower], connect_to: ConnectTo, clock: VirtualClock
) -> None:
    master, follower = pair
    wire = await connect_to(master.broker)
    await wire.send("T", b"first")
    await has_all(follower, master, clock)
    master.broker.offsets.commit("group", "T", 0, 1)
    before = clock.monotonic()
    assert await clock.run_until(master.broker.ha.copy_tables(Member("f", 3)), 1)
    assert follower.broker.offsets.query("group", "T", 0) == 1
    assert clock.monotonic() - before < 0.4


# --- TLS and accounts ----------------------------------------------------------------------------
async def test_a_follower_signs_in_over_tls(
    start_master: StartMaster, start_follower: StartFollower, tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    tls = keys(tmp_path)
    master = await start_master(**tls)
    follower = await start_follower(**tls)
    stranger = await start_follower("stranger", {"me": Member("s", 1)}, **(tls | {"tls_client_cert_path": ""}))
    plain = await start_follower("plain", {"me": Member("p", 1)})
    for one in (stranger, plain, follower):
        follow(one, master)
    await has_all(follower, master, clock)
    await clock.run_for(1)
    for one in (stranger, plain):
        assert one.end == 0
        assert one.broker.slave.follower.trouble is not None
    assert {event[1] for event in master.side.events} == {"f#3"}


async def test_a_master_over_tls_that_dies_is_dead_at_once(
    start_master: StartMaster, start_follower: StartFollower, tmp_path: Path, clock: VirtualClock
) -> None:
    tls = keys(tmp_path)
    master = await start_master(**tls)
    follower = await start_follower(**tls)
    follow(follower, master)
    await has_all(follower, master, clock)
    await master.broker.cut_off()
    await clock.run_for(0.5)
    assert follower.side.losses == [False, True]


async def test_a_follower_signs_in_with_its_account(
    start_master: StartMaster, start_follower: StartFollower, tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    accounts = write_accounts(tmp_path)
    tools = tmp_path / "tools.yml"
    tools.write_text("accessKey: operators\nsecretKey: secret-of-operators\n")
    master = await start_master(**accounts)
    follower = await start_follower(**accounts)
    tools.write_text("accessKey: operators\nsecretKey: another-secret\n")
    stranger = await start_follower("stranger", {"me": Member("s", 1)}, **accounts)
    for one in (stranger, follower):
        follow(one, master)
    wire = await connect_to(master.broker)
    await make_topics(wire, "Orders")
    assert (await send_signed(wire, BILLING, "Orders")).code == 0
    await has_all(follower, master, clock)
    assert await wait_until(clock, lambda: follower.broker.topics.get("Orders") is not None, PATIENCE_S)
    assert stranger.end == 0
    assert "may not copy the log" in (stranger.broker.slave.follower.trouble or "")


# --- learners ------------------------------------------------------------------------------------
async def test_a_slave_made_by_hand_follows_as_a_learner(
    pair: tuple[Master, Follower], brokers: Callable[..., Broker], connect_to: ConnectTo, clock: VirtualClock
) -> None:
    master, follower = pair
    master.side.confirmed = master.end
    learner = brokers(
        "learner", broker_role="SLAVE", broker_id=7, ha_master_address=f"127.0.0.1:{master.broker.ha.port}"
    )
    await learner.start()
    learner.slave.master.remoting = f"127.0.0.1:{master.broker.server.port}"
    learner.slave.master.changed.set()
    wire = await connect_to(master.broker)
    await fill(wire, 20_000)
    await has_all(follower, master, clock)
    await clock.run_for(6)
    assert learner.store.max_physical_offset <= master.side.confirmed < master.end
    master.side.confirmed = master.end
    master.broker.ha.confirmed()
    assert await wait_until(clock, lambda: learner.store.max_physical_offset == master.end, PATIENCE_S)
    assert {event[1] for event in master.side.events} == {"f#3"}
    assert await bodies(learner, "T") == await bodies(master.broker, "T")
    await learner.stop()


async def test_a_refused_member_gets_nothing_over_tls_whatever_it_sends_with_its_sign_in(
    start_master: StartMaster, tmp_path: Path, connect_to: ConnectTo
) -> None:
    """The records of TLS arrive together; after the first one the connection is closing."""
    tls = keys(tmp_path)
    master = await start_master(**tls)
    context = ssl.create_default_context(cafile=tls["tls_client_trust_cert_path"])
    context.load_cert_chain(tls["tls_client_cert_path"])
    reader, writer = await asyncio.open_connection("127.0.0.1", master.broker.ha.port, ssl=context)
    writer.write(sign_in(setId="ffffffff"))
    for _ in range(5):
        writer.write(encode_report(0))
    data = await reader.read(-1)
    assert b"failoverPrefix" in data
    assert len(data) < 1000
    assert master.side.events == []
    writer.close()
