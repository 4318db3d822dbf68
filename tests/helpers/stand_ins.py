"""Members of a set without replication: the real state machine with the engine in memory, for tests of their tools."""

from __future__ import annotations

from collections import deque

from cometmq.broker.failover import events as e
from cometmq.broker.failover.changes import ChangeLog
from cometmq.broker.failover.document import Member
from cometmq.broker.failover.engines.memory import MemoryStore
from cometmq.broker.failover.history import History
from cometmq.broker.failover.identity import Identity
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.options import MemberOptions
from cometmq.clock import SYSTEM_CLOCK, Clock

SET_ID = "5e7a1d5e"
MARKER_BYTES = 100


class StandIn:
    """A :class:`~cometmq.broker.failover.status.FailoverMember` whose peers are other stand-ins.

    :param peers: all members of the set by name; this one adds itself.
    """

    engine_name = "memory"
    trouble = ""

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        peers: dict[str, StandIn],
        *,
        address: str = "",
        clock: Clock = SYSTEM_CLOCK,
        min_in_sync: int = 1,
    ) -> None:
        self._clock = clock
        self._store = store
        self._peers = peers
        peers[name] = self
        self.is_cut = False
        """True while the engine does not answer this member."""
        self.epochs: list[tuple[int, int]] = []
        self.end = 0
        at = address or f"{name}:1"
        options = MemberOptions(name, at, f"{name}:2", f"process-{name}", SET_ID, min_in_sync=min_in_sync)
        self.machine = MemberMachine(options, Identity(1, "boot"), self._log(), clock.monotonic(), clock.now_ms)
        self.changes = ChangeLog(clock.now_ms)
        self._asked: deque[e.Request] = deque(self.machine.start())

    def _log(self) -> e.LogState:
        return e.LogState(self.end, self.end, self.epochs[-1][0] if self.epochs else 0)

    def history(self) -> History:
        return History(tuple(self.epochs), self.end)

    def give(self, event: e.Event) -> None:
        """Give the machine an event, and do what follows."""
        self._asked += self.machine.handle(event, self._clock.monotonic())
        self.changes.observe(self.machine)
        self.run()

    def run(self) -> None:
        """Do what the machine asks for, until it asks for nothing."""
        while self._asked:
            self._do(self._asked.popleft())

    def _do(self, request: e.Request) -> None:
        now, machine = self._clock.monotonic(), self.machine
        match request:
            case e.Read() | e.Swap() if self.is_cut:
                self.give(e.EngineSilent(request.number, "no endpoint of the engine answers"))
            case e.Read():
                found = self._store.snapshot(now)
                self.give(e.DocumentRead(request.number, found.document, found.version, found.presences))
            case e.Swap():
                done = self._store.swap(request.document, request.version, request.guard, now)
                self.give(e.SwapAnswered(request.number, done.is_done, done.document, done.version))
                for peer in tuple(self._peers.values()):
                    if peer is not self:
                        peer.give(e.EngineChanged())
            case e.Announce():
                self._store.announce(request.presence, 1e9, now)
            case e.SaveIdentity():
                self.give(e.IdentitySaved(request.identity))
            case e.TakeOffice():
                self.epochs.append((request.epoch, self.end))
                self.end += MARKER_BYTES
                self.give(e.InOffice(request.epoch, self.end, self._log()))
            case e.Freeze():
                self.give(e.FrozenLog(self._log()))
            case e.Follow() if request.master is not None:
                master = self._peers[request.master.name]
                self.give(e.MasterHistory(request.epoch, self.history(), master.history()))
            case e.CopyFrom():
                self.copy()
        assert machine is self.machine

    def append(self, size: int) -> None:
        """Store messages, which the others copy."""
        self.end += size
        self.give(e.LogMoved(self._log()))
        for peer in self._peers.values():
            if peer.machine.copies(self.machine.epoch):
                peer.copy()

    def copy(self) -> None:
        """Copy the master's log, and report it."""
        document = self.machine.view.document
        assert document is not None
        master = self._peers[document.master.name]
        self.epochs, self.end = list(master.epochs), master.end
        self.give(e.LogMoved(self._log()))
        at = self.machine.options
        master.give(e.SignedIn(self.machine.me, self.machine.epoch, at.address, at.ha_address))
        master.give(e.Reported(self.machine.me, self.machine.epoch, self.end))
        self.give(e.Heard(self.machine.epoch, master.machine.confirmed))

    def lose(self, name: str) -> None:
        """End the presence and the connection of a replica."""
        self._store.remove(name)
        self.give(e.ReplicaLost(Member(name, 1)))
        self.give(e.EngineChanged())

    async def hand_over(self, to: str, why: str) -> None:
        self.give(e.HandOver(to, why))

    async def force(self, why: str) -> None:
        self.give(e.Force(why))

    async def forget(self, name: str) -> None:
        self.give(e.Forget(name))


def stand_ins(*names: str, clock: Clock = SYSTEM_CLOCK, min_in_sync: int = 1) -> dict[str, StandIn]:
    """Return the members of a set; the first one is the master, and all are in sync."""
    store, peers = MemoryStore(), dict[str, StandIn]()
    for name in names:
        StandIn(name, store, peers, clock=clock, min_in_sync=min_in_sync).run()
    return peers
