"""Clusters beside each other, and endings that are not clean."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from cometmq.client import Message, Producer
from cometmq.testing import Cluster, SyncCluster, VirtualClock


async def test_two_clusters_on_one_loop_know_nothing_of_each_other() -> None:
    first, second = VirtualClock(start_ms=0), VirtualClock(start_ms=0)
    async with (
        Cluster(clock=first, links=True) as one,
        Cluster(clock=second, links=True) as other,
        one.inbox("orders") as inbox,
        other.inbox("orders") as other_inbox,
    ):
        async with Producer("p", instance=one.client_instance()) as producer:
            await producer.send(Message("orders", b"mine"))
        with other.pause_broker(0):
            assert [message.body for message in await inbox.expect(1)] == [b"mine"]
            await first.skip(86_400)
        await other_inbox.expect_none(within=1)
        assert (first.now_ms() >= 86_400_000, second.now_ms()) == (True, 1000)


def test_clusters_in_threads_beside_each_other() -> None:
    with SyncCluster() as one, SyncCluster(clock=VirtualClock()) as other:
        for number, cluster in enumerate((one, other)):
            with cluster.inbox("orders") as inbox:
                cluster.send(Message("orders", b"%d" % number))
                assert [message.body for message in inbox.expect(1, within=30)] == [b"%d" % number]
        other.run_for(1)
        one.run_for(0.01)
        with pytest.raises(TypeError, match="real_time=False"):
            one.skip(1)


CLOSED_LOOP = """
import asyncio
from cometmq.testing import Cluster
from cometmq.testing.own_loop import OtherLoopError

cluster = Cluster()
loop = asyncio.new_event_loop()
loop.run_until_complete(cluster.start())

async def use():
    cluster.client_instance()

def attempt(work):
    try:
        asyncio.run(work())
    except OtherLoopError as error:
        print(error)

attempt(use)
loop.close()
attempt(cluster.stop)
print("directory", cluster.data.exists())
"""


def test_a_cluster_on_another_loop_or_a_closed_one_says_so_and_leaves_no_files() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED_LOOP], capture_output=True, text=True, timeout=240, check=True)
    on_another, closed, directory = done.stdout.splitlines()
    assert on_another.startswith("this cluster belongs to another event loop (use and stop it on the loop")
    assert closed.startswith("this cluster belongs to another event loop, which is closed (")
    assert closed.endswith("(asyncio_default_fixture_loop_scope))")
    assert directory == "directory False"


def test_a_cluster_that_cannot_start_ends_its_thread() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        SyncCluster(0)
    cluster = SyncCluster(broker_keys={"flushDiskType": "NEVER"})
    with pytest.raises(Exception, match="flushDiskType"):
        cluster.__enter__()
    assert not [thread for thread in threading.enumerate() if thread.name == "cometmq-cluster"]
    assert not cluster.cluster.data.exists()
