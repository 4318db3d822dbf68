"""Slaves that belong to no set follow the master of a set: they have its log, through a failover, and never count."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, member_set, until
from tests.broker.wire import Wire
from tests.interop import builds, systems
from tests.interop.conftest import unavailable
from tests.interop.systems import Server, System

from cometmq.remoting.codes import ResponseCode
from cometmq.testing.cluster_keys import SMALL_STORE

pytestmark = pytest.mark.interop

PATIENCE_S = 90.0
"""Apache's slaves ask the nameservers each ten seconds who their master is."""
LEARNER = {
    "mappedFileSizeCommitLog": SMALL_STORE["mappedFileSizeCommitLog"],
    "brokerName": "set",
    "brokerRole": "SLAVE",
    "brokerId": "9",
    "registerNameServerPeriod": "10000",
}


def bytes_of(commitlog: Path, end: int) -> bytes:
    """The first bytes of a log."""
    return b"".join(file.read_bytes() for file in sorted(commitlog.iterdir()) if file.name.isdigit())[:end]


async def send(members: MemberSet, count: int) -> int:
    """Send messages to the master, all of which are confirmed; return the end of its log."""
    master = members.master
    assert master is not None
    wire = Wire(*await asyncio.open_connection("127.0.0.1", master.broker.server.port))
    for _ in range(count):
        assert (await wire.send("T", random.randbytes(3_000))).code == ResponseCode.SUCCESS
    await wire.close()
    return master.broker.store.max_physical_offset


async def same_log(members: MemberSet, learner: Server, end: int) -> None:
    """Wait until the learner has the master's log up to its end, byte by byte."""
    master = members.master
    assert master is not None
    ours = bytes_of(Path(master.config.store_path_root_dir) / "commitlog", end)
    theirs = learner.directory / "store" / "commitlog"

    def is_same() -> bool:
        return theirs.exists() and bytes_of(theirs, end) == ours

    try:
        await until(is_same, PATIENCE_S)
    except AssertionError:
        raise AssertionError(f"the logs differ\n{learner.logs()}") from None


@pytest.mark.parametrize("system", [System.APACHE, System.APACHE55, System.COMETMQ])
async def test_a_slave_follows_the_master_of_a_set_and_then_the_next_one(tmp_path: Path, system: System) -> None:
    async with member_set(tmp_path, 2) as members:
        before = members.in_sync
        try:
            learner = await asyncio.to_thread(
                systems.start_broker, system, tmp_path / "learner", members.namesrv, LEARNER
            )
        except builds.ToolMissingError as problem:
            unavailable(problem)
        try:
            await same_log(members, learner, await send(members, 200))
            first = members.master
            assert first is not None
            assert sum(slave.is_learner for slave in first.broker.ha.slaves) == 1
            await members.kill(first.machine.me.name)
            await until(lambda: members.master is not None)
            await same_log(members, learner, await send(members, 200))
            assert members.in_sync < before
        finally:
            await asyncio.to_thread(learner.close)
