"""1,000 connections from outside to a master's port for slaves keep no member out, and hold up nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from tests.fuzz.held_up import longest_hold_up
from tests.helpers.pace import slowness_of_processor
from tests.helpers.waiting import wait_for

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.testing.sync import SyncCluster

_FLOOD = """
import socket, sys
kept = []
for number in range(1_000):
    stranger = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
    if number % 2:
        stranger.sendall(bytes(8))  # the first report of an empty slave
    kept.append(stranger)
print(len(kept), flush=True)
sys.stdin.read()
"""
_HELD_UP_S = 0.05
"""Of processor time of the event loop between a question and its answer."""


async def _this_thread() -> int:
    return threading.get_ident()


def test_a_flood_of_strangers_keeps_no_member_out_and_holds_up_nobody() -> None:
    with SyncCluster(replicas=3) as cluster:
        found = cluster.cluster.replica_set()
        assert found.master is not None
        master = found.members[found.master]
        follower = next(name for name in found.names if name != found.master)
        flooder = subprocess.Popen(
            [sys.executable, "-c", _FLOOD, "127.0.0.1", str(master.broker.ha.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        opened: list[bytes] = []
        try:
            out = flooder.stdout
            assert out is not None
            held_up_s = longest_hold_up(
                master.address,
                os.getpid(),
                RemotingCommand(RequestCode.GET_BROKER_CONFIG),
                lambda: opened.append(out.readline()),
                thread=cluster.call(_this_thread()),
            )
            assert opened == [b"1000\n"]
            assert held_up_s < _HELD_UP_S or held_up_s < _HELD_UP_S * slowness_of_processor()
            cluster.call(found.kill(follower))
            cluster.call(found.start(follower))
            wait_for(cluster.is_in_sync, "the member is in sync again")
        finally:
            flooder.kill()
            flooder.communicate()
