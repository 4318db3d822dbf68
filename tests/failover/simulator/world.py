"""One history: three members, the engine and the network under a movable clock, with faults from one seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from tests.failover.simulator.check import Check, Violation
from tests.failover.simulator.engine import SimulatedEngine
from tests.failover.simulator.faults import Rates, choose_rates
from tests.failover.simulator.node import Node

from cometmq.broker.failover import events as e
from cometmq.broker.failover.machine import MemberMachine

MAX_STEPS: Final = 40_000
"""Steps of one history; a usual one has 2,000."""
NAMES: Final = ("a", "b", "c")
HEALING_S: Final = 20.0
"""Time in which a healthy set must have a working master, after late requests have arrived."""


@dataclass
class Result:
    """What happened in one history."""

    seed: int
    violation: Violation | None
    steps: int
    elections: int
    confirmed: int
    changes: int
    power_losses: int
    was_forced: bool


class World:
    """All parts of one history.

    :param machine_class: the state machine; tests leave out one rule in a subclass.
    """

    def __init__(
        self,
        seed: int,
        machine_class: type[MemberMachine] = MemberMachine,
        *,
        duration_s: float = 12.0,
        rates: Rates | None = None,
        trace: list[str] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.machine_class = machine_class
        self.duration_s = duration_s
        self.trace = trace
        self.now = 0.0
        self.number = 0
        self.steps = 0
        self.is_dirty = True
        self.power_losses = 0
        self.was_forced = False
        self.registered_epoch = 0
        self.set_id = "5e7a1d5e"
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = count()
        self._generations = count(1000, 1000)
        self.rates = choose_rates(self.rng) if rates is None else rates
        self.min_in_sync = self.rng.choice((1, 1, 2))
        self.is_fast = self.rng.random() < 0.5
        self.cuts: set[tuple[str, str]] = set()
        self.check = Check(self)
        self.engine = SimulatedEngine(self)
        flushes = self.rng.random() < 0.4
        self.nodes = {name: Node(self, name, flushes=flushes) for name in NAMES}
        self._arrivals: dict[tuple[str, str], float] = {}

    # --- time ---------------------------------------------------------------------------------------
    def at(self, when: float, action: Callable[..., None], *args: Any) -> None:
        """Do something at a time."""
        heapq.heappush(self._queue, (when, next(self._sequence), action, args))

    def wall_ms(self) -> int:
        """Return a wall time that means nothing."""
        return int(self.now * 1000)

    def first_generation(self) -> int:
        """Return the generation of a store without a file."""
        return next(self._generations)

    def latency(self) -> float:
        """Return the time of a message: mostly a millisecond, sometimes much more."""
        x = self.rng.random()
        return 0.0005 + x * 0.001 if x < 0.9 or self.is_fast else (x - 0.9) * 3

    def note(self, node: Node | None, text: str, value: object) -> None:
        """Write a line of the history, if it is printed."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f}  {'engine' if node is None else node.name}  {text} {value}")

    # --- network ------------------------------------------------------------------------------------
    def send(self, node: Node, name: str, action: str, args: tuple[Any, ...]) -> None:
        """Send a message; messages between two members arrive in order, or not at all."""
        if (node.name, name) in self.cuts:
            return
        way = (node.name, name)
        when = max(self.now + self.latency(), self._arrivals.get(way, 0.0))
        self._arrivals[way] = when
        target = self.nodes[name]
        self.at(when, target._mine, target.incarnation, getattr(target, action), args)

    def arrive(self, name: str, action: str, args: tuple[Any, ...]) -> None:
        """Let a late message arrive at whatever process there is."""
        target = self.nodes[name]
        target._mine(target.incarnation, getattr(target, action), args)

    def connections_reset(self, dead: Node) -> None:
        """Tell the peers of a killed process: its kernel resets connections and refuses new ones."""
        for node in self.nodes.values():
            if node is not dead and (dead.name, node.name) not in self.cuts and node.is_up:
                is_refused = (node.name, dead.name) not in self.cuts
                self.at(self.now + self.latency(), node._mine, node.incarnation, node.on_reset, (dead.name, is_refused))

    def register(self, node: Node) -> None:
        """Register a master at the nameserver, whose answer names the highest epoch that it has seen."""
        self.registered_epoch = max(self.registered_epoch, node.machine.epoch)
        if self.rng.random() < 0.8:
            node.later(self.latency(), node.on_epoch, self.registered_epoch)

    # --- faults -------------------------------------------------------------------------------------
    def _plan(self) -> None:
        rng = self.rng
        for name in Rates.__dataclass_fields__:
            rate = getattr(self.rates, name)
            if name.endswith("_share") or not rate:
                continue
            when = rng.expovariate(rate / 10)
            while when < self.duration_s:
                self.at(when, getattr(self, f"_do_{name}"), rng.choice(list(self.nodes.values())))
                when += rng.expovariate(rate / 10)
        when = 0.5
        while when < self.duration_s:
            self.at(when, self.load)
            when += rng.expovariate(12)

    def load(self) -> None:
        """Send messages to whichever member accepts them."""
        for node in self.nodes.values():
            node.append(self.rng.choice((1, 1, 3)))

    def _soon(self, mean_s: float) -> float:
        return self.now + self.rng.expovariate(1 / mean_s)

    def _do_kill(self, node: Node) -> None:
        node.kill()
        self.at(self._soon(self.rng.choice((0.1, 3.0))), node.start)

    def _do_kill_master(self, node: Node) -> None:
        document = self.engine.store.document
        self._do_kill(node if document is None else self.nodes[document.master.name])

    def _do_power(self, node: Node) -> None:
        self.power_losses += 1
        node.lose_power()
        self.at(self._soon(self.rng.choice((0.5, 4.0))), node.start)

    def _do_blackout(self, _: Node) -> None:
        for node in self.nodes.values():
            self._do_power(node)

    def _do_wipe(self, node: Node) -> None:
        node.wipe()
        self.at(self._soon(1.0), node.start)

    def _do_pause(self, node: Node) -> None:
        if node.is_up:
            self.note(node, "is paused", "")
            node.pause()
            self.at(self._soon(self.rng.choice((0.5, 3.0, 8.0))), self._resume, node, node.incarnation)

    def _resume(self, node: Node, incarnation: int) -> None:
        if node.incarnation == incarnation and node.is_up:
            self.note(node, "resumes", "")
            node.resume()

    def _do_cut(self, node: Node) -> None:
        other = self.rng.choice([name for name in NAMES if name != node.name])
        ways = {(node.name, other)} if self.rng.random() < 0.5 else {(node.name, other), (other, node.name)}
        self.note(node, "cut", ways)
        self.cuts |= ways
        self.at(self._soon(3.0), self.cuts.difference_update, ways)

    def _do_cut_engine(self, node: Node) -> None:
        way = self.rng.choice((self.engine.cut_to, self.engine.cut_from))
        self.note(node, "is cut from the engine", "to" if way is self.engine.cut_to else "from")
        way.add(node.name)
        self.at(self._soon(3.0), way.discard, node.name)

    def _do_engine_down(self, _: Node) -> None:
        self.note(None, "is down", "")
        self.engine.is_down = True
        self.at(self._soon(2.0), self.engine.come_up)

    def _do_jump(self, node: Node) -> None:
        node.offset += self.rng.choice((0.7, 3.0, 3600.0))

    def _do_disk(self, node: Node) -> None:
        node.is_disk_bad = True
        self.note(node, "has a full disk", "")
        if node.is_up and not node.is_paused:
            node.give(e.DiskFailed("the disk is full"))
        self.at(self._soon(2.0), self._heal_disk, node)

    def _heal_disk(self, node: Node) -> None:
        if node.is_disk_bad:
            node.is_disk_bad = False
            if node.is_up:
                node.later(0, node.give, e.DiskHealed())
                node.later(0, node.moved)

    def _do_slow_disk(self, node: Node) -> None:
        node.disk_delay = self.rng.choice((0.3, 1.0))
        self.at(self._soon(3.0), setattr, node, "disk_delay", 0.01)

    def _do_handover(self, node: Node) -> None:
        for one in self.nodes.values():
            if one.is_up and not one.is_paused and not one.machine.refusal:
                one.give(e.HandOver("", "a person asked for it"))
                return

    def _do_rumour(self, node: Node) -> None:
        if node.is_up and not node.is_paused:
            if node.link is not None:
                node.lose_link(is_refused=True)
            else:
                node.give(e.LinkLost(node.machine.epoch, is_refused=True))

    # --- the run ------------------------------------------------------------------------------------
    def _heal(self) -> None:
        self.note(None, "everything is healthy from now on", "")
        self.rates = Rates()
        self.cuts.clear()
        self.engine.cut_to.clear()
        self.engine.cut_from.clear()
        self.engine.come_up()
        for node in self.nodes.values():
            node.disk_delay = 0.01
            self._heal_disk(node)
            node.start()
            node.resume()

    def begin(self) -> None:
        """Start the members, each with its own clock."""
        rng = self.rng
        for node in self.nodes.values():
            node.rate = rng.choice((1.0, 1.0, 0.8, 1.25))
            node.offset = rng.random() * 1000
            self.at(rng.random() * 0.3, node.start)
        self.at(0.1, self.engine.expire)

    @property
    def master(self) -> Node:
        """The member that the document names."""
        document = self.engine.store.document
        assert document is not None
        return self.nodes[document.master.name]

    def run(self) -> Result:
        """Run the history; return what happened."""
        self.begin()
        self._plan()
        violation = None
        try:
            self.run_until(self.duration_s)
            self._heal()
            self._recover()
        except Violation as found:
            violation = found
            self.note(None, "VIOLATION", found)
        check = self.check
        return Result(
            self.seed,
            violation,
            self.steps,
            check.elections,
            len(check.truth),
            check.changes,
            self.power_losses,
            self.was_forced,
        )

    def run_until(self, end: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to ``end``, or until a condition holds; return whether it does.

        :raises Violation: a rule does not hold.
        """
        queue, nodes, check = self._queue, self.nodes.values(), self.check
        while queue and queue[0][0] <= end:
            when, _, action, args = heapq.heappop(queue)
            self.now = max(self.now, when)
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Violation("stuck", "the members do something all the time")
            action(*args)
            if self.is_dirty:
                self.is_dirty = False
                check.holders()
                for node in nodes:
                    if node.is_up:
                        check.readable(node)
            if until is not None and until():
                return True
        self.now = end
        return False

    def _is_working(self) -> bool:
        """Return whether new records are confirmed, and all members are in sync."""
        document = self.engine.store.document
        if document is None or {node.member for node in self.nodes.values()} != document.in_sync:
            return False
        master = self.nodes[document.master.name]
        return master.is_up and not master.machine.refusal and len(self.check.truth) >= self._goal

    def _recover(self) -> None:
        """The set must work again by itself, or after a person has decided, if no member of the set is left."""
        for _ in range(6):
            self.run_until(self.now + 4)
            document = self.engine.store.document
            if document is None or document.in_sync & {node.member for node in self.nodes.values()}:
                break
            self._force()
        self._goal = len(self.check.truth) + 1
        end = self.now + HEALING_S
        when = self.now
        while when < end:
            self.at(when, self.load)
            when += 0.5
        if not self.run_until(end, self._is_working):
            states = {node.name: node.machine.state.value for node in self.nodes.values()}
            raise Violation("stuck", f"no working master {HEALING_S:g} s after the last fault: {states}")

    def _force(self) -> None:
        best = max(self.nodes.values(), key=lambda node: (node.log_state().last_epoch, len(node.disk.log)))
        self.was_forced = self.check.is_forcing = True
        best.give(e.Force("a person decided"))

    _goal = 0
