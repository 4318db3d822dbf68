"""SYNC_MASTER with several slaves: ``inSyncReplicas`` says how many brokers have what is answered as stored."""

from __future__ import annotations

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
from cometmq.remoting.codes import ResponseCode
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
        for slave in connected:  # they count again after the others of this machine have come
            await in_sync(slave, master)
        return master, Sender(await connect_to(master)), connected

    return started


@pytest.mark.parametrize(("replicas", "reports"), [(1, 0), (2, 1), (3, 2), (4, 3)])
async def test_an_answer_waits_for_so_many_slaves(start: Start, replicas: int, reports: int) -> None:
    master, sender, slaves = await start(3, in_sync_replicas=replicas)
    await sender.post()
    for slave in slaves[:reports]:
        assert await sender.codes() == []
        await in_sync(slave, master)
    assert await sender.codes() == [OK]


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


async def test_only_one_of_two_slaves_in_time_is_a_time_out(start: Start, clock: VirtualClock) -> None:
    master, sender, slaves = await start(2, in_sync_replicas=3)
    await sender.post()
    await in_sync(slaves[0], master)
    await clock.run_for(3)
    assert await sender.codes() == [TIMEOUT]


async def test_a_number_that_adapts_asks_for_the_slaves_that_are_in_sync(start: Start) -> None:
    master, sender, slaves = await start(2, in_sync_replicas=3, enable_auto_in_sync_replicas=True)
    await sender.post()
    await in_sync(slaves[0], master)
    assert await sender.codes() == [], "both are there, both are asked"
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
    assert await sender.codes() == [], "two connections have it, and one slave"
    await in_sync(other, master)
    assert await sender.codes() == [OK]


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


@pytest.mark.parametrize("number", [1, 2])
async def test_with_both_slaves_asked_either_may_be_promoted(clock: VirtualClock, number: int) -> None:
    """What only one of them has is not answered as stored."""
    async with one_slave_lags(clock, in_sync_replicas=3) as cluster:
        assert await send(cluster, clock, [b"lags"]) == [TIMEOUT]
        connection = cluster.slave(0, 2).slave.follower._connection
        assert connection is not None
        assert connection._transport is not None
        connection._transport.resume_reading()
        assert await send(cluster, clock, [b"1", b"2"]) == [OK, OK]
        await cluster.kill_broker(0)
        promoted = await cluster.promote_slave(0, number)
        assert (await bodies(promoted, "T"))[-2:] == [b"1", b"2"]


async def test_with_one_slave_asked_the_one_that_has_more_is_to_be_promoted(clock: VirtualClock) -> None:
    """Every slave's log is a part of the longest one, so that has all that was answered as stored."""
    async with one_slave_lags(clock, in_sync_replicas=2) as cluster:
        assert await send(cluster, clock, [b"1", b"2"]) == [OK, OK]
        ends = {number: cluster.slave(0, number).store.max_physical_offset for number in (1, 2)}
        assert ends[1] > ends[2]
        await cluster.kill_broker(0)
        promoted = await cluster.promote_slave(0, max(ends, key=ends.__getitem__))
        assert await bodies(promoted, "T") == [b"1", b"2"]
