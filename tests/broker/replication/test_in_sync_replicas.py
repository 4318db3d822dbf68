"""SYNC_MASTER with several slaves: every slave in sync is waited for, and ``inSyncReplicas`` is the least of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.replication.conftest import ConnectSlave
from tests.broker.replication.following import PATIENCE_S, bodies, connect
from tests.broker.replication.sender import Sender, in_sync
from tests.broker.replication.slave import RawSlave

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import Cluster, VirtualClock, settle, wait_until

OK = ResponseCode.SUCCESS
NOT_AVAILABLE, TIMEOUT = ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT

Start = Callable[..., Awaitable[tuple[Broker, Sender, list[RawSlave]]]]


@pytest.fixture
def start(start_broker: StartBroker, connect_to: ConnectTo, connect_slave: ConnectSlave) -> Start:
    """A SYNC_MASTER, a sender, and slaves that have reported."""

    async def started(slaves: int, **options: Any) -> tuple[Broker, Sender, list[RawSlave]]:
        master = await start_broker(broker_role="SYNC_MASTER", **options)
        connected = [await connect_slave(master) for _ in range(slaves)]
        for slave in connected:
            await in_sync(slave, master)
        return master, Sender(await connect_to(master)), connected

    return started


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
async def test_an_answer_waits_for_every_slave_in_sync(start: Start, replicas: int) -> None:
    master, sender, slaves = await start(3, in_sync_replicas=replicas)
    await sender.post()
    for slave in slaves:
        assert await sender.codes() == []
        await in_sync(slave, master)
    assert await sender.codes() == [OK]


@pytest.mark.parametrize(("replicas", "slaves"), [(1, 0), (2, 1), (3, 2)])
async def test_so_many_slaves_are_needed_at_least(start: Start, replicas: int, slaves: int) -> None:
    master, sender, connected = await start(3, in_sync_replicas=replicas)
    for slave in connected[slaves:]:
        slave.close()
    await sender.post()
    for slave in connected[:slaves]:
        await in_sync(slave, master)
    assert await sender.codes() == [OK]
    for slave in connected[:slaves]:
        slave.close()
        await settle()
        await sender.post()
        assert (await sender.codes())[-1] == NOT_AVAILABLE


async def test_with_fewer_slaves_it_is_stored_and_said_so_at_once(start: Start) -> None:
    _, sender, slaves = await start(2, in_sync_replicas=3)
    await sender.post()
    assert await sender.codes() == []
    slaves[0].close()
    assert await sender.codes() == [NOT_AVAILABLE], "the one that waited"
    await sender.post()
    assert await sender.codes() == [NOT_AVAILABLE, NOT_AVAILABLE]


async def test_a_slave_far_behind_does_not_count(start: Start) -> None:
    master, sender, slaves = await start(2, in_sync_replicas=3, ha_slave_fallbehind_max=100_000)
    for _ in range(3):
        await sender.post(body=bytes(60_000), properties="WAIT\x01false\x02")
    await in_sync(slaves[0], master)
    await sender.post()
    assert (await sender.codes())[3:] == [NOT_AVAILABLE]
    await in_sync(slaves[1], master)
    await sender.post()
    for slave in slaves:
        await in_sync(slave, master)
    assert (await sender.codes())[4:] == [OK]


async def test_only_one_of_two_required_slaves_in_time_is_a_time_out(start: Start, clock: VirtualClock) -> None:
    master, sender, slaves = await start(2, in_sync_replicas=3)
    await sender.post()
    await in_sync(slaves[0], master)
    await clock.run_for(3)
    assert await sender.codes() == [TIMEOUT]


async def test_a_slave_that_is_late_is_not_waited_for_any_more(
    start: Start, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """No send times out, and only the first ones wait."""
    master, sender, (quick, frozen) = await start(2)
    await sender.post()
    await in_sync(quick, master)
    await clock.run_for(1.9)
    assert await sender.codes() == []
    await clock.run_for(0.1)
    assert await sender.codes() == [OK], "after two thirds of slaveTimeout"
    assert "is not in sync any more: sends have waited too long for it" in caplog.text
    assert master.ha.in_sync.slaves_in_sync == 1
    await sender.post()
    await in_sync(quick, master)
    assert await sender.codes() == [OK, OK], "at once"
    await in_sync(frozen, master)
    assert master.ha.in_sync.slaves_in_sync == 2
    await sender.post()
    await in_sync(quick, master)
    assert await sender.codes() == [OK, OK], "it is waited for again"


async def test_a_slave_that_is_late_and_required_gives_the_reason_at_once(start: Start, clock: VirtualClock) -> None:
    """Only the first sends wait for as long as slaveTimeout."""
    master, sender, (slave,) = await start(1)
    await sender.post()
    await clock.run_for(3)
    await sender.post()
    assert await sender.codes() == [TIMEOUT, NOT_AVAILABLE]
    await in_sync(slave, master)
    await sender.post()
    await in_sync(slave, master)
    assert (await sender.codes())[2:] == [OK]


async def test_after_a_start_of_the_master_a_slave_must_have_its_whole_log(
    start: Start, connect_slave: ConnectSlave
) -> None:
    """The master does not know any more what it acknowledged before."""
    master, sender, _ = await start(0)
    await sender.post()
    slave = await connect_slave(master)
    await slave.report(master.store.max_physical_offset - 1)
    assert master.ha.in_sync.slaves_in_sync == 0
    await in_sync(slave, master)
    assert master.ha.in_sync.slaves_in_sync == 1


async def test_a_slave_returns_while_a_lone_master_acknowledges_all_the_time(
    start: Start, connect_slave: ConnectSlave, clock: VirtualClock
) -> None:
    """Its report is always older than the last acknowledged message: sends wait for it before it is in sync."""
    master, sender, _ = await start(0, in_sync_replicas=1)
    await sender.post()
    slave = await connect_slave(master)
    await slave.report(master.store.max_physical_offset)
    before = 0
    for _ in range(5):
        before = master.store.max_physical_offset
        await sender.post()
        await slave.report(before)
    assert await sender.codes() == [OK] * 5, "the last one waits"
    assert master.ha.in_sync.slaves_in_sync == 1


async def test_a_number_that_adapts_asks_for_the_slaves_that_are_in_sync(start: Start) -> None:
    master, sender, slaves = await start(2, in_sync_replicas=3, enable_auto_in_sync_replicas=True)
    await sender.post()
    await in_sync(slaves[0], master)
    assert await sender.codes() == [], "both are in sync, both are waited for"
    await in_sync(slaves[1], master)
    slaves[0].close()
    await settle()
    await sender.post()
    await in_sync(slaves[1], master)
    slaves[1].close()
    await settle()
    await sender.post()
    assert await sender.codes() == [OK, OK, OK]


async def test_a_number_that_adapts_has_a_least(start: Start) -> None:
    options = {"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True, "min_in_sync_replicas": 2}
    master, sender, slaves = await start(2, **options)
    slaves[0].close()
    await settle()
    await sender.post()
    assert await sender.codes() == []
    await in_sync(slaves[1], master)
    assert await sender.codes() == [OK]
    slaves[1].close()
    await settle()
    await sender.post()
    assert await sender.codes() == [OK, NOT_AVAILABLE]


async def test_a_slave_that_comes_back_before_its_old_connection_ends_counts_once(
    start: Start, connect_slave: ConnectSlave
) -> None:
    """The network between a slave and its master broke, which the master does not know yet."""
    master, sender, (cut_off, other) = await start(2, in_sync_replicas=3)
    await sender.post()
    await in_sync(cut_off, master)
    back = await connect_slave(master)
    await in_sync(back, master)
    await in_sync(cut_off, master)
    assert await sender.codes() == [], "two connections have it, and one slave, whose last report came late"
    cut_off.close()
    await sender.post()
    for slave in (back, other):
        await in_sync(slave, master)
    assert await sender.codes() == [OK, OK]


# --- promotion ----------------------------------------------------------------------------------
@asynccontextmanager
async def one_slave_lags(clock: VirtualClock, in_sync_replicas: int) -> AsyncIterator[Cluster]:
    """A master and two slaves of which the second does not read any more."""
    keys = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": str(in_sync_replicas)}
    async with Cluster(slaves=2, clock=clock, broker_keys=keys) as cluster:
        end = cluster.broker(0).store.max_physical_offset

        def has_all() -> bool:
            acks = [slave.ack_offset for slave in cluster.broker(0).ha.slaves]
            return len(acks) == 2 and min(acks) >= end

        assert await wait_until(clock, has_all, PATIENCE_S)
        connection = cluster.slave(0, 2).slave.follower._connection
        assert connection is not None
        assert connection._transport is not None
        connection._transport.pause_reading()
        yield cluster


async def send(cluster: Cluster, clock: VirtualClock, bodies: list[bytes]) -> list[int]:
    """Send messages to queue 0 of T; the codes of the answers."""
    wire = await connect(cluster.broker(0))
    try:
        return [(await clock.run_until(wire.send("T", body), PATIENCE_S)).code for body in bodies]
    finally:
        await wire.close()


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("number", [1, 2])
async def test_every_slave_in_sync_may_be_promoted(clock: VirtualClock, number: int, replicas: int) -> None:
    async with one_slave_lags(clock, in_sync_replicas=replicas) as cluster:
        sending = asyncio.ensure_future(send(cluster, clock, [b"1", b"2"]))
        await clock.run_for(1)
        assert not sending.done(), "the slave that lags is in sync: what it lacks is not acknowledged"
        connection = cluster.slave(0, 2).slave.follower._connection
        assert connection is not None
        assert connection._transport is not None
        connection._transport.resume_reading()
        assert await sending == [OK, OK]
        await cluster.kill_broker(0)
        promoted = await cluster.promote_slave(0, number)
        assert await bodies(promoted, "T") == [b"1", b"2"]


async def test_a_slave_that_lags_is_shown_as_not_in_sync(clock: VirtualClock) -> None:
    """The other slave has everything that was acknowledged, and its log is the longest."""
    async with one_slave_lags(clock, in_sync_replicas=2) as cluster:
        assert await send(cluster, clock, [b"1", b"2"]) == [OK, OK]
        ha = cluster.broker(0).ha
        assert [slave.is_in_sync for slave in sorted(ha.slaves, key=lambda one: one.ack_offset)] == [False, True]
        ends = {number: cluster.slave(0, number).store.max_physical_offset for number in (1, 2)}
        assert ends[1] > ends[2]
        await cluster.kill_broker(0)
        promoted = await cluster.promote_slave(0, 1)
        assert await bodies(promoted, "T") == [b"1", b"2"]


async def test_a_slave_knows_when_it_was_in_sync(clock: VirtualClock) -> None:
    """Once the master is lost, an operator asks the slaves which of them may be promoted."""
    async with one_slave_lags(clock, in_sync_replicas=2) as cluster:

        def in_sync_at(number: int) -> int:
            return cluster.slave(0, number).slave.tables.in_sync_at_ms

        assert await wait_until(clock, lambda: in_sync_at(1) and in_sync_at(2), PATIENCE_S)
        assert await send(cluster, clock, [b"1"]) == [OK]
        fell_at_ms = clock.now_ms()
        await clock.run_for(5)
        assert in_sync_at(2) <= fell_at_ms < in_sync_at(1)
        await cluster.kill_broker(0)
        wire = await connect(cluster.slave(0, 2))
        status = json.loads((await wire.call(RequestCode.GET_BROKER_HA_STATUS)).body)
        await wire.close()
        assert status["haClientRuntimeInfo"]["inSyncTimestamp"] == in_sync_at(2)
