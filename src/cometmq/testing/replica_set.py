"""The members of a set that elects its master, in a test: their stores and ports, and an engine in memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.broker.failover.engines.memory import MemoryEngine, MemoryStore
from cometmq.broker.member.lives import Extend, LifeOptions
from cometmq.broker.member.set_member import SetMember
from cometmq.clock import Clock
from cometmq.proxy.embedded import BrokerEndpoint
from cometmq.testing.clock import wait_until
from cometmq.testing.killed import stop_as_killed

NAMES: Final = "abcdefg"
"""The names of members, in order."""
START_SECONDS: Final = 60.0
"""Seconds within which a set elects its first master, and a handover ends; both take much less."""


@dataclass(frozen=True, slots=True)
class Place:
    """A member that may not run: its configuration, store and gRPC port (0: it has none)."""

    config: BrokerConfig
    root: Path
    grpc_port: int = 0


class ReplicaSet:
    """A set of members named ``a``, ``b``, …, and their engine.

    :param places: the members' configurations and directories by name.
    """

    def __init__(self, places: Mapping[str, Place], *, clock: Clock) -> None:
        self._places = places
        self._clock = clock
        self._lease_s = next(iter(places.values())).config.failover_lease_ms / 1000
        self.engine: Final = MemoryStore()
        """The content of the engine: the set's document, and the presences of members."""
        self._connections: dict[str, MemoryEngine] = {}
        self._is_silent = False
        self._running: dict[str, SetMember] = {}
        self._endpoints: dict[str, BrokerEndpoint] = {}

    # --- what is there ------------------------------------------------------------------------
    @property
    def names(self) -> list[str]:
        """The names of all members, including stopped ones."""
        return list(self._places)

    @property
    def members(self) -> Mapping[str, SetMember]:
        """The running members by name: their state machines (``machine``) and brokers (``broker``)."""
        return self._running

    def address(self, name: str) -> str:
        """Return ``host:port`` of a member; raise KeyError if there is none."""
        config = self._places[name].config
        return f"{config.broker_ip1}:{config.listen_port}"

    def root(self, name: str) -> Path:
        """Return the directory of a member's store; raise KeyError if there is none."""
        return self._places[name].root

    @property
    def master(self) -> str | None:
        """The name of the member that serves as the master; ``None`` while there is none."""
        serving = [name for name, member in self._running.items() if member.is_serving]
        return max(serving, key=lambda name: self._running[name].machine.epoch, default=None)

    @property
    def broker(self) -> Broker:
        """The master's broker.

        :raises KeyError: there is no master now.
        """
        if (master := self.master) is None:
            raise KeyError("the set has no master now; let time pass, and wait for `master`")
        return self._running[master].broker

    @property
    def endpoint(self) -> BrokerEndpoint:
        """The master's gRPC endpoint.

        :raises KeyError: there is no master now, or it has no endpoint.
        """
        return self._endpoints[self.master or ""]

    def is_in_sync(self) -> bool:
        """Return whether the set has a master, and all running members are in its in-sync set.

        Wait for it with :func:`~cometmq.testing.wait_until`.
        """
        document = self.engine.document
        names = frozenset() if document is None else {member.name for member in document.in_sync}
        return self.master is not None and names >= self._running.keys()

    # --- members ------------------------------------------------------------------------------
    async def start_all(self) -> None:
        """Start all members, and wait until they are in sync.

        :raises TimeoutError: they are not after :data:`START_SECONDS`.
        """
        for name in self._places:
            await self.start(name)
        if not await wait_until(self._clock, self.is_in_sync, START_SECONDS):
            raise TimeoutError(f"the members {', '.join(self._places)} were not in sync within {START_SECONDS:g} s")

    async def start(self, name: str) -> SetMember:
        """Start a member that does not run, with its existing store and ports. It finds the set by itself."""
        assert name not in self._running, f"member {name} is already running"
        place = self._places[name]
        engine = self._connections[name] = MemoryEngine(self.engine, lease_s=self._lease_s, clock=self._clock)
        engine.is_cut = self._is_silent
        options = LifeOptions(clock=self._clock, extend=self._extend(name) if place.grpc_port else None)
        member = self._running[name] = SetMember(place.config, engine=engine, options=options)
        try:
            await member.start()
        except BaseException:
            del self._running[name]
            raise
        return member

    def _extend(self, name: str) -> Extend:
        async def open_endpoint(broker: Broker) -> None:
            endpoint = self._endpoints[name] = BrokerEndpoint(broker)
            broker.on_stop("the gRPC endpoint", endpoint.stop)
            await endpoint.start(self._places[name].grpc_port)

        return open_endpoint

    async def stop(self, name: str) -> None:
        """Stop a member cleanly; a master hands over first."""
        await self._running.pop(name).stop()

    async def stop_all(self) -> None:
        """Stop all members cleanly; the master is the last one, and hands over to nobody."""
        for name in sorted(self._running, key=lambda name: name == self.master):
            await self.stop(name)

    async def kill(self, name: str) -> None:
        """Kill a member like SIGKILL: its connections break, and its files remain in the state of that moment."""
        member = self._running.pop(name)
        if name in self._endpoints:
            self._endpoints.pop(name).cut_off()
        await member.cut_off()
        await stop_as_killed(member.stop, self._places[name].root)

    async def kill_master(self) -> str:
        """Kill the master like SIGKILL, and return its name. Another member replaces it as soon as time passes.

        :raises KeyError: there is no master now.
        """
        if (master := self.master) is None:
            raise KeyError("the set has no master now; let time pass, and wait for `master`")
        await self.kill(master)
        return master

    async def hand_over(self, to: str = "") -> None:
        """Make another member the master: ``to``, or the one that is furthest.

        :raises CommandRefusedError: nobody can take over now.
        """
        self.broker  # noqa: B018  a set without a master cannot hand over
        await self._running[self.master or ""].hand_over(to, "a test")

    # --- engine -------------------------------------------------------------------------------
    def silence_engine(self) -> ExitStack:
        """Let the engine answer nobody. ``with replica_set.silence_engine():`` ends it, even if the test fails."""
        self._silence(silent=True)
        until = ExitStack()
        until.callback(self._silence, silent=False)
        return until

    def _silence(self, *, silent: bool) -> None:
        self._is_silent = silent
        for connection in self._connections.values():
            connection.is_cut = silent
