"""``cometmq cluster slaves`` without a master: up to where each slave has the log, to choose the one to promote."""

from __future__ import annotations

import socket

from tests.cli.conftest import CommandLine
from tests.helpers.waiting import wait_for

from cometmq.client import Message
from cometmq.testing import Cluster, SyncCluster


def end_of(cluster: Cluster, number: int) -> int:
    """The end of a slave's log."""
    return cluster.slave(0, number).store.max_physical_offset


def test_slaves_whose_master_is_away_say_up_to_where_they_have_the_log() -> None:
    with SyncCluster(slaves=2, broker_keys={"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3"}) as cluster:
        cometmq = CommandLine(cluster.namesrv_address)
        wait_for(lambda: len(cometmq("cluster", "slaves", "-o", "json").json()) == 2, "both slaves are connected")
        cluster.send(Message("T", b"both have it"))
        cluster.call(cluster.cluster.stop_slave(0, 2))
        cluster.send(Message("T", b"one has it"))
        master = cluster.run(lambda inner: inner.broker(0).store.max_physical_offset)
        wait_for(lambda: cluster.run(lambda inner: end_of(inner, 1)) == master, "the other slave has it")
        cluster.stop_broker(0)
        cluster.start_slave(0, 2)
        done = cometmq("cluster", "slaves", "-o", "json")
        ends = cluster.run(lambda inner: {inner.slave(0, number).address: end_of(inner, number) for number in (1, 2)})
    assert done.code == 3
    assert {row["slave"]: row["has_up_to"] for row in done.json()} == ends
    assert len(set(ends.values())) == 2
    assert {row["state"] for row in done.json()} == {"its master is away"}
    assert all("in_sync_at" in row for row in done.json())


def test_a_slave_that_is_no_member_of_the_set_is_a_learner_with_its_lag() -> None:
    with SyncCluster(replicas=2) as cluster:
        cometmq = CommandLine(cluster.namesrv_address)
        found = cluster.cluster.replica_set()
        assert found.master is not None
        port = found.members[found.master].broker.ha.port
        with socket.create_connection(("127.0.0.1", port)) as apache:
            apache.sendall(bytes(8))  # its first report: its log is empty
            wait_for(lambda: len(cometmq("cluster", "slaves", "-o", "json").json()) == 2, "both are connected")
            cluster.send(Message("T", b"one"))
            rows = {row["state"]: row for row in cometmq("cluster", "slaves", "-o", "json").json()}
            assert set(rows) == {"in sync", "learner: follows, never counts"}
            assert rows["learner: follows, never counts"]["behind_bytes"] > 0
            doctor = cometmq("doctor", "--cluster").out
            assert "2 slaves, at most" in doctor
            assert "run cometmq cluster slaves" not in doctor
