"""The engine in the simulator: the content of the engine in memory, behind a network that loses and delays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.failover import events as e
from cometmq.broker.failover.engines.interface import NameTakenError, Presence
from cometmq.broker.failover.engines.memory import MemoryStore

if TYPE_CHECKING:
    from tests.failover.simulator.node import Node
    from tests.failover.simulator.world import World

LEASE_S: Final = 4.0
GIVE_UP_S: Final = 1.0
"""Time after which a member knows that its request has no answer."""


class SimulatedEngine:
    """Executes each request at one moment between its sending and its answer, or later, or never."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = MemoryStore()
        self.is_down = False
        self.cut_to: set[str] = set()
        """Members whose requests do not arrive."""
        self.cut_from: set[str] = set()
        """Members that get no answers and no news."""
        self.store.listeners.add(self._changed)
        self._is_telling = False

    def read(self, node: Node, request: e.Read) -> None:
        """Answer a read."""
        self._call(node, request)

    def swap(self, node: Node, request: e.Swap) -> None:
        """Answer a swap."""
        self._call(node, request)

    def _call(self, node: Node, request: e.Read | e.Swap) -> None:
        world = self.world
        answered: list[bool] = []
        delay = world.latency()
        if world.rng.random() < world.rates.late_share:
            delay += world.rng.random() * 8
        world.at(world.now + delay, self._execute, node, node.incarnation, request, answered)
        node.later(GIVE_UP_S, self._give_up, node, request.number, answered)

    def _give_up(self, node: Node, number: int, answered: list[bool]) -> None:
        if not answered:
            answered.append(False)
            node.give(e.EngineSilent(number, "timeout"))

    def _execute(self, node: Node, incarnation: int, request: e.Read | e.Swap, answered: list[bool]) -> None:
        world = self.world
        if self.is_down or node.name in self.cut_to:
            return
        answer: e.Event
        if isinstance(request, e.Read):
            snapshot = self.store.snapshot(world.now)
            answer = e.DocumentRead(request.number, snapshot.document, snapshot.version, snapshot.presences)
        else:
            before, presences = self.store.document, self.store.presences()
            outcome = self.store.swap(request.document, request.version, request.guard, world.now)
            answer = e.SwapAnswered(request.number, outcome.is_done, outcome.document, outcome.version)
            if outcome.is_done:
                world.note(None, "the document is now", request.document)
                world.check.swapped(before, request, presences, node)
        if world.rng.random() < world.rates.lost_share or node.name in self.cut_from:
            return
        world.at(world.now + world.latency(), node._mine, incarnation, self._answer, (node, answer, answered))

    def _answer(self, node: Node, answer: e.Event, answered: list[bool]) -> None:
        if not answered:
            answered.append(True)
            node.give(answer)

    def announce(self, node: Node, presence: Presence) -> None:
        """Announce or renew a presence."""
        self.world.at(self.world.now + self.world.latency(), self._announce, node, node.incarnation, presence)

    def _announce(self, node: Node, incarnation: int, presence: Presence) -> None:
        if self.is_down or node.name in self.cut_to or incarnation != node.incarnation:
            return
        event: e.Event
        try:
            was_there = self.store.announce(presence, LEASE_S, self.world.now)
            if was_there or not node.is_announced:
                node.is_announced = True
                return
            event = e.LeaseLost()
        except NameTakenError:
            event = e.NameTaken("another machine")
        if node.name in self.cut_from or presence is not node.presence:
            return
        if isinstance(event, e.NameTaken):  # its earlier life
            return
        self.world.at(self.world.now + self.world.latency(), node._mine, incarnation, node.give, (event,))

    def _changed(self) -> None:
        if not self._is_telling:
            self._is_telling = True
            self.world.at(self.world.now, self._tell)

    def _tell(self) -> None:
        self._is_telling = False
        for node in self.world.nodes.values():
            if not self.is_down and node.name not in self.cut_from and node.is_up:
                self.world.at(
                    self.world.now + self.world.latency(), node._mine, node.incarnation, node.give, (e.EngineChanged(),)
                )

    def expire(self) -> None:
        """Let leases end, four times in a second."""
        if not self.is_down:
            self.store.expire(self.world.now)
        self.world.at(self.world.now + 0.25, self.expire)

    def come_up(self) -> None:
        """Answer again; as in etcd after a change of its leader, all leases begin anew."""
        self.is_down = False
        for presence in self.store.presences().values():
            self.store.announce(presence, LEASE_S, self.world.now)
        self._changed()
