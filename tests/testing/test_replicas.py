"""Clusters whose brokers have replicas: a user's test kills the master, and its application notices little."""

from __future__ import annotations

import pytest
from tests.helpers.waiting import wait_for

from cometmq.broker.failover.options import CommandRefusedError
from cometmq.client import Message
from cometmq.client.sync import SyncProducer
from cometmq.testing import Cluster, SyncCluster, VirtualClock, wait_until

TOPIC = "orders"
KEYS = {"failoverLeaseMs": "4000"}


@pytest.mark.cometmq(replicas=3)
async def test_a_master_that_is_killed_is_replaced_and_nothing_is_lost(
    cometmq_cluster: Cluster, cometmq_topic: str
) -> None:
    cluster = cometmq_cluster
    assert cluster.is_in_sync()
    async with cluster.inbox(cometmq_topic) as inbox:
        await cluster.send(Message(cometmq_topic, b"before"))
        killed = await cluster.kill_master()
        await cluster.send(Message(cometmq_topic, b"after"))
        arrived = await inbox.expect(2, within=30)
        assert {one.body for one in arrived} == {b"before", b"after"}
        assert cluster.replica_set().master not in (None, killed)
        await cluster.start_member(killed)
        assert await wait_until(cluster.clock, cluster.is_in_sync, 60)
        await inbox.expect_none(within=10)


async def test_failover_takes_less_than_two_seconds_after_a_kill_and_less_than_one_after_a_handover() -> None:
    clock = VirtualClock()
    async with Cluster(replicas=3, clock=clock) as cluster:
        for change, limit_s in ((cluster.kill_master, 2.0), (cluster.hand_over, 1.0)):
            began, old = clock.monotonic(), cluster.replica_set().master
            await change()
            await cluster.send(Message(TOPIC, b"again"))
            assert clock.monotonic() - began < limit_s
            assert cluster.replica_set().master not in (None, old)


async def test_a_handover_names_its_successor() -> None:
    async with Cluster(replicas=3, clock=VirtualClock()) as cluster:
        successor = next(name for name in "abc" if name != cluster.replica_set().master)
        await cluster.hand_over(successor)
        assert await wait_until(cluster.clock, cluster.is_in_sync, 30)
        assert cluster.replica_set().master == successor
        with pytest.raises(CommandRefusedError):
            await cluster.hand_over("nobody")


async def test_a_topic_that_was_just_created_is_the_next_masters_too() -> None:
    async with Cluster(replicas=3, clock=VirtualClock()) as cluster:
        for _ in range(3):
            assert await wait_until(cluster.clock, cluster.is_in_sync, 30)
            name = f"{TOPIC}-{cluster.replica_set().master}"
            await cluster.create_topic(name, queues=7)
            killed = await cluster.kill_master()
            assert await wait_until(cluster.clock, cluster.is_in_sync, 30)
            topic = cluster.broker(0).topics.get(name)
            assert topic is not None
            assert topic.write_queue_nums == 7
            await cluster.start_member(killed)


async def test_offsets_are_the_next_masters_too() -> None:
    clock = VirtualClock()
    async with Cluster(replicas=3, clock=clock) as cluster:
        await cluster.create_topic(TOPIC)
        async with cluster.inbox(TOPIC, group="readers") as inbox:
            for number in range(20):
                await cluster.send(Message(TOPIC, b"%d" % number))
            await inbox.expect(20)
        await clock.run_for(1)
        await cluster.kill_master()
        assert await wait_until(clock, cluster.is_in_sync, 30)
        async with cluster.inbox(TOPIC, group="readers") as inbox:
            await inbox.expect_none(within=30)


async def test_without_the_engine_the_master_goes_on_and_nobody_replaces_it() -> None:
    clock = VirtualClock()
    async with Cluster(replicas=2, clock=clock) as cluster:
        replicas = cluster.replica_set()
        with replicas.silence_engine():
            await clock.run_for(60)
            await cluster.send(Message(TOPIC, b"without the engine"))
            await cluster.kill_master()
            await clock.run_for(60)
            assert replicas.master is None
            assert cluster.brokers == []
        assert await wait_until(clock, cluster.is_in_sync, 30)
        await cluster.send(Message(TOPIC, b"with the engine"))


async def test_two_brokers_fail_over_independently() -> None:
    clock = VirtualClock()
    async with Cluster(2, replicas=2, clock=clock) as cluster:
        first = cluster.replica_set(1).master
        await cluster.kill_master(0)
        assert await wait_until(clock, cluster.is_in_sync, 30)
        assert cluster.replica_set(1).master == first
        assert [broker.config.broker_name for broker in cluster.brokers] == ["broker-0", "broker-1"]


def test_a_cluster_in_a_thread_fails_over_in_real_time() -> None:
    with SyncCluster(replicas=2, broker_keys=KEYS) as cluster:
        with cluster.inbox(TOPIC) as inbox, SyncProducer("customer", cluster.namesrv_address) as producer:
            producer.send(Message(TOPIC, b"before"))
            killed = cluster.kill_master()
            producer.send(Message(TOPIC, b"after"))
            assert {one.body for one in inbox.expect(2, within=60)} == {b"before", b"after"}
        cluster.start_member(killed)
        wait_for(cluster.is_in_sync, "the killed member is in sync again")
        cluster.hand_over(killed)


async def test_clients_of_rocketmq_5_find_the_next_master() -> None:
    clock = VirtualClock()
    async with Cluster(replicas=2, clock=clock, grpc=True) as cluster:
        old = cluster.grpc_address
        await cluster.kill_master()
        assert await wait_until(clock, cluster.is_in_sync, 30)
        assert cluster.grpc_address != old
        assert cluster.endpoint(0).is_open


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"replicas": 3, "slaves": 1}, "slaves, which a test promotes, or replicas"),
        ({"replicas": 3, "links": True}, "both replicas and links"),
        ({"replicas": -1}, "at most 7 replicas"),
        ({"replicas": 8}, "at most 7 replicas"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Cluster(**options)  # type: ignore[arg-type]


async def test_a_cluster_without_replicas_says_how_to_get_them() -> None:
    async with Cluster() as cluster:
        with pytest.raises(ValueError, match="replicas=3"):
            await cluster.kill_master()
