"""The brokers of one set, with stand-ins for their members: what tools see of them is real, replication is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.stand_ins import StandIn

from cometmq.broker.admin.failover import FailoverAdmin
from cometmq.broker.config import SLAVE, BrokerConfig
from cometmq.broker.context import BrokerContext
from cometmq.broker.controller import Broker
from cometmq.broker.failover.engines.memory import MemoryStore
from cometmq.remoting.codes import RequestCode
from cometmq.testing.ports import free_port
from cometmq.testing.sync import SyncCluster


class MemberBroker(Broker):
    """A broker that answers tools for a stand-in."""

    stand_in: StandIn

    def _build(self, host: bytes) -> BrokerContext:
        context = super()._build(host)
        admin = FailoverAdmin(context, self.stand_in)
        self.processors.add(admin)
        runtime_info = self.processors.get(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert runtime_info is not None
        of_broker: Any = runtime_info.handler.__self__  # type: ignore[attr-defined]
        of_broker._reporters = (*of_broker._reporters, admin)
        return context


class BrokerSet:
    """A set whose first member is the master; all others are in sync."""

    def __init__(self, cluster: SyncCluster, directory: Path, name: str, members: tuple[str, ...], **keys: Any) -> None:
        self._cluster = cluster
        self.name = name
        self.members: dict[str, StandIn] = {}
        self.brokers: dict[str, MemberBroker] = {}
        store = MemoryStore()
        for number, member in enumerate(members):
            port = free_port()
            stand_in = StandIn(member, store, self.members, address=f"127.0.0.1:{port}")
            config = BrokerConfig(
                broker_name=name,
                broker_id=number,
                broker_role=SLAVE if number else "ASYNC_MASTER",
                namesrv_addr=cluster.namesrv_address,
                listen_port=port,
                bind_address="127.0.0.1",
                broker_ip1="127.0.0.1",
                store_path_root_dir=str(directory / member),
                mapped_file_size_commit_log=5 * 1024 * 1024,
                mapped_file_size_consume_queue=20 * 10_000,
                max_hash_slot_num=1_000,
                max_index_num=10_000,
                **keys,
            )
            self.brokers[member] = MemberBroker(config)
            self.brokers[member].stand_in = stand_in

    def address(self, member: str) -> str:
        return self.members[member].machine.options.address

    def serial(self) -> int:
        """The serial number of the document, as the members know it."""
        found = {one.machine.view.document.serial for one in self.members.values() if one.machine.view.document}
        return max(found)

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.stand_in.run()
            self._cluster.call(broker.start())

    def stop(self) -> None:
        for broker in self.brokers.values():
            self._cluster.call(broker.stop())

    def kill(self, member: str) -> None:
        """End a member: its broker answers no more, its lease is gone, and the others notice."""
        self._cluster.call(self.brokers[member].cut_off())
        self._cluster.call(self.brokers[member].stop())
        gone = self.members.pop(member)
        for one in self.members.values():
            one.lose(gone.machine.options.name)


@contextmanager
def broker_set(
    cluster: SyncCluster, directory: Path, name: str = "orders", members: tuple[str, ...] = ("a", "b", "c"), **keys: Any
) -> Iterator[BrokerSet]:
    """Run the brokers of a set."""
    running = BrokerSet(cluster, directory, name, members, **keys)
    running.start()
    try:
        yield running
    finally:
        running.stop()
