"""The test kit: clusters in the test's own loop, and as processes that may be killed."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.helpers.contents import topic_bodies
from tests.helpers.waiting import process_runs, wait_for

from cometmq.client import (
    Admin,
    ClientInstance,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from cometmq.client.errors import RemotingError, SendFailedError
from cometmq.options import ConfigError
from cometmq.store.disk import Disk
from cometmq.testing import Cluster, ProcessCluster, SyncCluster, VirtualClock, settle, wait_until
from cometmq.testing.processes import ServerProcess


@pytest.fixture(autouse=True)
def started_as_users_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have the servers of their clusters forked."""
    monkeypatch.setattr(ServerProcess, "popen", subprocess.Popen)


async def test_messages_survive_a_restart_in_the_loop() -> None:
    async with Cluster() as cluster:
        root = cluster.store_root(0)
        async with Producer("p", cluster.namesrv_address) as producer:
            await producer.send(Message("t", b"before"))
            port = cluster.broker(0).server.port
            await cluster.restart_broker(0)
            assert cluster.broker(0).server.port == port
            await producer.send(Message("t", b"after"))
        assert await topic_bodies(cluster.namesrv_address, "t") == [b"after", b"before"]
    assert not root.exists(), "the temporary directory is gone"


async def test_two_brokers_have_stores_of_their_own(tmp_path: Path) -> None:
    async with Cluster(brokers=2, data=tmp_path) as cluster:
        async with Admin(cluster.namesrv_address) as admin:
            assert list(await admin.masters()) == ["broker-0", "broker-1"]
            await cluster.stop_broker(1)
            assert len(cluster.brokers) == 1
        assert (cluster.store_root(0) / "commitlog").is_dir()
        assert (cluster.store_root(1) / "commitlog").is_dir()


async def test_the_clock_is_the_tests_own() -> None:
    clock = VirtualClock(start_ms=1_234_567_890_000)
    async with Cluster(clock=clock) as cluster:
        async with Producer("p", cluster.namesrv_address) as producer:
            result = await producer.send(Message("t", b"when"))
        async with Admin(cluster.namesrv_address) as admin:
            message = await admin.message_by_id(result.offset_msg_id)
        assert message.store_timestamp == 1_234_567_890_000


async def test_a_killed_broker_leaves_what_sigkill_leaves_and_recovers() -> None:
    clock = VirtualClock()
    consumed: list[bytes] = []

    async def listener(messages: Sequence[MessageExt]) -> None:
        consumed.extend(message.body for message in messages)

    async with Cluster(clock=clock, broker_keys={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        instance = partial(ClientInstance, cluster.namesrv_address, clock=clock)
        consumer = PushConsumer("g", listener, instance=instance())
        await consumer.subscribe("t")
        async with Producer("p", instance=instance()) as producer:
            await producer.send(Message("t", b"before"))
            async with consumer:
                await clock.run_for(0)
                queue = MessageQueue("t", "broker-0", 0)
                under_way = asyncio.create_task(producer.send(Message("t", b"under way"), queue=queue))
                await asyncio.sleep(0)
                await cluster.kill_broker(0)
                with pytest.raises(RemotingError):
                    await under_way
                assert (cluster.store_root(0) / "abort").exists()
                assert not (cluster.store_root(0) / "checkpoint").exists()
                seen = cluster.namesrv.routes.cluster_info().broker_addr_table
                assert not seen, "the nameserver saw the connection end"
                with pytest.raises(SendFailedError):
                    await clock.run_until(producer.send(Message("t", b"meanwhile")), 60)
                await cluster.start_broker(0)
                assert any(line.startswith("abort: ") for line in cluster.broker(0).store.findings)
                await clock.run_for(60)
                await producer.send(Message("t", b"after"))
                await clock.run_for(1)
        assert consumed.count(b"before") in (1, 2), "its offset had perhaps not been reported"
        assert b"after" in consumed
        assert set(await topic_bodies(cluster.namesrv_address, "t")) - {b"under way"} == {b"before", b"after"}


async def test_a_month_passes_within_a_moment() -> None:
    clock = VirtualClock(start_ms=0)
    async with Cluster(clock=clock) as cluster:
        instance = partial(ClientInstance, cluster.namesrv_address, clock=clock)
        got: list[int] = []

        async def listener(messages: Sequence[MessageExt]) -> None:
            got.extend(message.store_timestamp for message in messages)

        consumer = PushConsumer("g", listener, instance=instance())
        await consumer.subscribe("t")
        async with Producer("p", instance=instance()) as producer:
            await producer.send(Message("t", b"first"))
            async with consumer:
                await clock.skip(30 * 86_400)
                await clock.run_for(150)  # longer than any lease
                await producer.send(Message("t", b"a month later"))
                await settle()
        assert got == [0, 30 * 86_400_000 + 150_000]


async def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="noSuchKey"):
        async with Cluster(broker_keys={"noSuchKey": "1"}):
            pass


@pytest.mark.crash
async def test_acknowledged_messages_survive_sigkill() -> None:
    with ProcessCluster() as cluster:
        async with Producer("p", cluster.namesrv_address) as producer:
            for number in range(20):
                await producer.send(Message("t", b"%02d" % number))
        await asyncio.to_thread(cluster.kill_broker, 0)
        assert (cluster.store_root(0) / "abort").exists()
        await asyncio.to_thread(cluster.start_broker, 0)
        assert await topic_bodies(cluster.namesrv_address, "t") == [b"%02d" % number for number in range(20)]


STARTER = """
import signal
from cometmq.testing import ProcessCluster

with ProcessCluster() as cluster:
    print(cluster.namesrv.pid, cluster.brokers[0].pid, cluster.data, flush=True)
    signal.pause()
"""


@pytest.mark.crash
def test_servers_end_with_the_process_that_started_them() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        *servers, data = starter.stdout.readline().split()
        assert all(process_runs(int(server)) for server in servers)
        starter.kill()
    wait_for(lambda: not any(process_runs(int(server)) for server in servers), "the servers are gone")
    shutil.rmtree(data)


def test_messages_are_taken_however_full_the_disk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "used_ratio", lambda *_: 0.999)
    with SyncCluster() as cluster:
        cluster.send(Message("t", b"taken"))


def test_a_full_disk_is_the_tests_own_choice_and_a_refused_send_moves_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two attempts the producer pauses, on a clock that nobody else moves."""
    monkeypatch.setattr(Disk, "used_ratio", lambda *_: 0.92)
    keys = {"diskSpaceWarningLevelRatio": "90"}
    with SyncCluster(clock=VirtualClock(), broker_keys=keys) as cluster:
        cluster.create_topic("t")
        with pytest.raises(SendFailedError, match="92% full"):
            cluster.send(Message("t", b"refused"))


def test_a_server_that_cannot_start_says_why() -> None:
    cluster = ProcessCluster(broker_keys={"flushDiskType": "NEVER"})
    with pytest.raises(Exception, match="flushDiskType=NEVER"):
        cluster.__enter__()
    assert cluster.namesrv.pid is None


async def test_a_failover_loses_nothing_and_clients_go_on() -> None:
    """The same producer and consumer before and after: the slave takes the master's place under its name."""
    clock = VirtualClock()
    async with Cluster(slaves=1, clock=clock, broker_keys={"brokerRole": "SYNC_MASTER"}) as cluster:
        assert await wait_until(clock, cluster.has_replicated, 60)
        instance = cluster.client_instance()
        async with cluster.inbox("orders") as orders, Producer("p", instance=instance) as producer:
            await producer.send(Message("orders", b"1"))
            await producer.send(Message("orders", b"2", delay_level=4))
            assert [message.body for message in await orders.expect(1, within=60)] == [b"1"]
            port = cluster.slave().server.port
            await cluster.kill_broker(0)
            master = await cluster.promote_slave()
            assert master.server.port == port
            assert cluster.store_root(0) == cluster.data / "broker-0-slave-1"
            assert b"2" in [message.body for message in await orders.expect(1, within=180)]
            with pytest.raises(KeyError):
                cluster.slave()
            await cluster.start_slave()
            assert await wait_until(clock, cluster.has_replicated, 60)
            await producer.send(Message("orders", b"3"))
            assert b"3" in [message.body for message in await orders.expect(1, within=60)]


async def test_slaves_and_links_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="cannot have both slaves and links"):
        Cluster(slaves=1, links=True)


def test_a_failover_without_an_event_loop() -> None:
    with SyncCluster(slaves=1) as cluster:
        replicated = wait_until(cluster.clock, cluster.cluster.has_replicated, 60)
        assert cluster.call(replicated)
        cluster.create_topic("orders", 1)
        cluster.send(Message("orders", b"1"))
        assert cluster.call(wait_until(cluster.clock, cluster.cluster.has_replicated, 60))
        cluster.kill_broker(0)
        cluster.promote_slave()
        with cluster.inbox("orders") as orders:
            assert [message.body for message in orders.expect(1, within=60)] == [b"1"]
        cluster.empty_slave()
        cluster.start_slave()
        cluster.kill_slave()
