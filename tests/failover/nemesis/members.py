"""Three members as processes, with three nameservers and an engine; all connections of members go over relays."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.failover.nemesis.engines import ETCD, NemesisEngine, running_engine
from tests.failover.nemesis.relays import Relays, Route

from cometmq.broker.failover.document import Document, Member
from cometmq.message.hosts import format_address
from cometmq.message.ports import HA_PORT_DISTANCE
from cometmq.testing.cluster_keys import HOST, LINK_HOST, SMALL_STORE
from cometmq.testing.ports import free_port
from cometmq.testing.processes import ServerProcess

NAMES: Final = ("a", "b", "c")
ENGINE: Final = "engine"
"""The party of all members of the engine."""
NAMESRVS: Final = 3
CLUSTER: Final = "Nemesis"
SET: Final = "set"
LEASE_S: Final = 4.0


class MemberProcess:
    """A member: its process, store and ports."""

    def __init__(self, name: str, port: int, server: ServerProcess, store: Path) -> None:
        self.name = name
        self.port = port
        self.server = server
        self.store = store
        self.is_paused = False

    @property
    def address(self) -> str:
        """The address that it advertises."""
        return format_address(LINK_HOST, self.port)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if (pid := self.server.pid) is not None:
            os.kill(pid, number)

    def pause(self) -> None:
        """Stop the process without its knowledge."""
        self.signal(signal.SIGSTOP)
        self.is_paused = True

    def go_on(self) -> None:
        """Let a paused process run."""
        self.signal(signal.SIGCONT)
        self.is_paused = False


class RunningSet:
    """The processes of a set."""

    def __init__(self, data: Path, engine: NemesisEngine, keys: Mapping[str, str]) -> None:
        self.data = data
        self.engine = engine
        self._pids: dict[str, int] = {}
        self.relays = Relays(self._processes)
        self.namesrvs = [self._namesrv(number) for number in range(NAMESRVS)]
        self._keys = keys
        self.members: dict[str, MemberProcess] = {}

    def _processes(self) -> dict[str, int]:
        """Return process ids, as the relays' thread asks for them: it must not ask the processes themselves."""
        return dict(self._pids)

    def _namesrv(self, number: int) -> tuple[str, ServerProcess]:
        port, kv_path = free_port(HOST), self.data / f"namesrv-{number}" / "kvConfig.json"
        words = ("namesrv", "-p", str(port), "--host", HOST, "-o", f"kvConfigPath={kv_path}")
        return format_address(HOST, port), ServerProcess(
            f"namesrv-{number}", words, self.data / f"namesrv-{number}.log"
        )

    def _member(self, name: str) -> MemberProcess:
        port, store = free_port(HOST), self.data / name
        namesrvs = self._ways(name, {f"namesrv-{n}": address for n, (address, _) in enumerate(self.namesrvs)})
        engines = self._ways(name, {ENGINE: [(one.host, one.port) for one in self.engine.endpoints]})
        keys = {
            **SMALL_STORE,
            "brokerClusterName": CLUSTER,
            "brokerName": SET,
            "failoverMember": name,
            "failoverLeaseMs": str(round(LEASE_S * 1000)),
            **self.engine.keys(engines),
            "namesrvAddr": ";".join(namesrvs),
            "brokerIP1": LINK_HOST,
            "brokerIP2": LINK_HOST,
            "bindAddress": HOST,
            "listenPort": str(port),
            "storePathRootDir": str(store),
            **self._keys,
        }
        words = [word for key, value in keys.items() for word in ("-o", f"{key}={value}")]
        server = self.engine.process(name, ["broker", *words], self.data / f"{name}.log", engines)
        self.relays.open(Route((LINK_HOST, one), (HOST, one), name) for one in (port, port + HA_PORT_DISTANCE))
        return MemberProcess(name, port, server, store)

    def _ways(self, source: str, targets: Mapping[str, Any]) -> list[str]:
        """Open relays from a member to servers; return their addresses."""
        routes = []
        for to, places in targets.items():
            for host, port in places if isinstance(places, list) else [parse(places)]:
                routes.append(Route((HOST, free_port(HOST)), (host, port), to, source))
        self.relays.open(routes)
        return [format_address(*route.listen) for route in routes]

    # --- processes --------------------------------------------------------------------------------
    @contextmanager
    def running(self) -> Iterator[RunningSet]:
        """Run nameservers, relays and members inside the block."""
        with self.relays.running(), ExitStack() as undo:
            for _, server in self.namesrvs:
                undo.callback(server.kill)
                server.start()
            for name in NAMES:
                self.members[name] = self._member(name)
                undo.callback(self.members[name].server.kill)
                self.start(name)
            yield self

    def start(self, name: str) -> None:
        """Start a member, if it does not run; do not wait for it."""
        member = self.members[name]
        if member.server.pid is None:
            member.server.kill()  # forgets a process that has ended
            member.is_paused = False
            self._pids[name] = member.server.begin().pid
            self.relays.accept(name)

    def kill(self, name: str) -> None:
        """Kill a member's process; its ports refuse."""
        self._pids.pop(name, None)
        self.members[name].server.kill()
        self.relays.refuse(name)

    def stop(self, name: str) -> None:
        """Ask a member to stop, and wait for its end."""
        self.members[name].server.stop()
        self.relays.refuse(name)

    def wipe(self, name: str) -> None:
        """Remove the store of a member that does not run."""
        assert self.members[name].server.pid is None
        shutil.rmtree(self.members[name].store, ignore_errors=True)

    @property
    def namesrv_addresses(self) -> list[str]:
        """For clients."""
        return [address for address, _ in self.namesrvs]

    def name_at(self, address: str) -> str:
        """Return the name of the member with an address."""
        return next((name for name, one in self.members.items() if one.address == address), address)

    # --- the engine's document --------------------------------------------------------------------
    def document(self) -> Document | None:
        """Return the document; ``None`` if there is none, or the engine does not answer."""
        return self.engine.document()

    def documents(self) -> list[Document]:
        """Return all documents of the set's history."""
        return self.engine.documents()

    def master(self) -> str | None:
        """Return the name of the document's master."""
        document = self.document()
        return None if document is None else document.master.name

    def in_sync(self) -> frozenset[Member]:
        """Return the document's in-sync set."""
        document = self.document()
        return frozenset() if document is None else document.in_sync


def parse(address: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


@contextmanager
def running_set(
    data: Path, *, engine: str = ETCD, engines: int = 1, keys: Mapping[str, str] | None = None
) -> Iterator[RunningSet]:
    """Run a set and its engine inside the block.

    :param engine: ``etcd`` or ``kubernetes``.
    :param engines: the number of members of etcd.
    :raises ToolMissingError: there is no etcd on this machine.
    """
    directory = data / engine
    directory.mkdir(parents=True)
    with (
        running_engine(engine, directory, engines, CLUSTER, SET) as running,
        RunningSet(data, running, keys or {}).running() as members,
    ):
        yield members
