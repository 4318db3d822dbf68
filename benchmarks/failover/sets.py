"""Sets of brokers that elect their master: Apache's with its controller, and ours with etcd."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from benchmarks.servers import JAVA
from tests.failover.etcd_servers import etcd
from tests.helpers.waiting import wait_for
from tests.interop import probe
from tests.interop.systems import CLUSTER_NAME, Server, System, start_broker, start_controller, start_namesrv

from cometmq.client import Message
from cometmq.client.sync import SyncProducer
from cometmq.remoting.bodies import ClusterInfo, decode_body

TOPIC: Final = "Probe"
NAME: Final = "broker-a"
SMALL: Final = ("-Xms256m", "-Xmx256m")
"""Heap of Apache's nameserver and controller."""
BOTH_HAVE_IT: Final = {"allAckInSyncStateSet": "true"}
"""Apache's broker acknowledges a message when its whole in-sync set has it, as ours always does."""
READY_S: Final = 180.0
ELECT_MASTER: Final = 1002
GET_SYNC_STATE_DATA: Final = 1006


class ReplicaSet:
    """The members of a set, and who decides about it.

    :param controller: Apache's; a set of ours has none, its master answers.
    """

    def __init__(self, namesrv: Server, members: list[Server], controller: Server | None) -> None:
        self.namesrv = namesrv
        self.members = members
        self._controller = controller

    def master(self) -> Server:
        """The member that the nameserver has as master; wait for one."""
        found: list[Server] = []

        def has_master() -> bool:
            broker = decode_body(ClusterInfo, self._cluster()).broker_addr_table.get(NAME)
            address = None if broker is None else broker.broker_addrs.get(0)
            found[:] = [one for one in self.members if one.address == address and one.running]
            return bool(found)

        wait_for(has_master, "the set has a master", READY_S)
        return found[0]

    def _cluster(self) -> bytes:
        return probe.invoke(self.namesrv.address, probe.GET_BROKER_CLUSTER_INFO)

    def in_sync(self) -> int:
        """The number of members in the in-sync set, by whoever knows it."""
        with suppress(OSError, ValueError, KeyError):
            answer = json.loads(probe.invoke(self._elector(), GET_SYNC_STATE_DATA, json.dumps([NAME]).encode()))
            return len(answer["replicasInfoTable"][NAME]["inSyncReplicas"])
        return 0

    def _elector(self) -> str:
        return (self._controller or self.master()).address

    def wait_until_in_sync(self) -> None:
        """Wait until all members are in sync."""
        wait_for(lambda: self.in_sync() == len(self.members), "all members are in sync", READY_S)

    def hand_over(self) -> None:
        """Have another member elected, as ``mqadmin electMaster`` does."""
        master = self.master().address
        others: list[int] = []

        def has_another() -> bool:
            brokers = decode_body(ClusterInfo, self._cluster()).broker_addr_table[NAME].broker_addrs
            others[:] = [number for number, address in brokers.items() if address != master]
            return bool(others)

        wait_for(has_another, "another member has registered", READY_S)  # it may be in sync a moment before
        fields = {
            "clusterName": CLUSTER_NAME,
            "brokerName": NAME,
            "brokerId": str(others[0]),
            "designateElect": "true",
            "invokeTime": "0",
        }
        with suppress(OSError):
            probe.invoke(self._elector(), ELECT_MASTER, b"", **fields)


@contextmanager
def replica_set(system: System, replicas: int = 2, keys: Mapping[str, str] | None = None) -> Iterator[ReplicaSet]:
    """A fresh set with a nameserver; all members are in sync, and the topic exists."""
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", ignore_cleanup_errors=True) as name, ExitStack() as undo:
        directory = Path(name)
        namesrv = undo.enter_context(start_namesrv(system, directory / "namesrv", None, SMALL))
        if system is System.COMETMQ:
            endpoints = undo.enter_context(etcd(directory)).endpoints
            keys = {"failover": "etcd", "etcdEndpoints": ";".join(map(str, endpoints)), **(keys or {})}
            controller = None
        else:
            controller = undo.enter_context(start_controller(system, directory / "controller", None, SMALL))
            role = {"enableControllerMode": "true", "brokerRole": "SLAVE", "brokerId": "-1"}
            keys = {"controllerAddr": controller.address, **role, **BOTH_HAVE_IT, **(keys or {})}
        members: list[Server] = []
        for number in range(replicas):
            of = directory / f"member-{number}"
            members.append(undo.enter_context(start_broker(system, of, namesrv.address, keys, None, JAVA)))
        found = ReplicaSet(namesrv, members, controller)
        with SyncProducer("benchmark", namesrv.address) as producer:
            producer.send(Message(TOPIC, b"first"))
        found.wait_until_in_sync()
        yield found


def start_again(group: ReplicaSet, member: Server) -> None:
    """Start a member that was stopped or killed."""
    member.launch(*member.started_with)
    member.wait_ready(group.namesrv.address)
