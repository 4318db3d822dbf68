"""The invariants of failover, which are checked after each step of a history.

*Truth* is what was confirmed: every record that was acknowledged, or that a consumer could read, at its place. It only
grows. The rules of the protocol and the checks:

====  ============================================================================================================
1     each member of the engine's in-sync set holds the truth; a master counts each of them (``counted``)
2     only a member of the in-sync set is elected; a frozen member appends and reports nothing (``elected``, ``frozen``)
3     the document changes only as the protocol says, and not while the old master's lease is there (``swap``)
4     nobody can read what is not the truth (``read``)
5     a member that was shown a higher epoch confirms nothing (``epoch``)
6     an epoch is served in one process only (``resumed``)
7     a master counts each in-sync set that may be the engine's (``counted``)
====  ============================================================================================================

A history that ends with everything healthy must have a working master (``stuck``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.broker.failover import events as e
from cometmq.broker.failover.document import Document
from cometmq.broker.failover.election import is_serving
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.states import LEADING, State

if TYPE_CHECKING:
    from tests.failover.simulator.log import Entry
    from tests.failover.simulator.node import Node
    from tests.failover.simulator.world import World


class Violation(AssertionError):  # noqa: N818
    """An invariant does not hold."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Check:
    """The truth of one history, and the checks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth: list[Entry] = []
        self.served: dict[int, str] = {}
        self.elections = self.changes = self.losses = 0
        self.is_forcing = False
        self.forced_epoch = 0

    # --- rules 1 and 4: the truth -------------------------------------------------------------------
    def confirmed(self, node: Node, offset: int) -> None:
        """A master acknowledges up to an offset."""
        log = node.disk.log
        if node.machine.state not in LEADING:
            raise Violation("epoch", f"{node.name} acknowledges while it is {node.machine.state.value}")
        if offset > len(log):
            raise Violation("read", f"{node.name} confirms {offset}, but its log ends at {len(log)}")
        known = min(offset, len(self.truth))
        if not log.is_right(self.truth, known):
            at = next(i for i in range(known) if log[i] != self.truth[i])
            raise Violation("lost", f"{node.name} confirms {log[at]} at {at}, where {self.truth[at]} was confirmed")
        if offset > known:
            self.truth += log[known:offset]
            self.world.is_dirty = True

    def holders(self) -> None:
        """Each member of the in-sync set holds the truth, or is another member by now."""
        document = self.world.engine.store.document
        if document is None:
            return
        for member in document.in_sync:
            node = self.world.nodes[member.name]
            if node.member == member and not node.disk.log.is_right(self.truth, len(self.truth)):
                log, truth = node.disk.log, self.truth
                at = next((i for i, entry in enumerate(truth) if i >= len(log) or log[i] != entry), 0)
                raise Violation(
                    "lost", f"{member} is in sync, but lacks {truth[at]} at {at}; its log ends at {len(log)}"
                )

    def readable(self, node: Node) -> None:
        """A consumer can read the truth only."""
        if node.machine.epoch < self.forced_epoch:
            return
        end = node.machine.readable
        if end > len(self.truth) or not node.disk.log.is_right(self.truth, end):
            raise Violation("read", f"{node.name} lets consumers read up to {end}, the truth ends at {len(self.truth)}")

    # --- rules 2, 5, 6: the members -----------------------------------------------------------------
    def copies(self, node: Node) -> None:
        """A follower appends what the master has sent."""
        if node.machine.state is not State.FOLLOWER:
            raise Violation("frozen", f"{node.name} appends while it is {node.machine.state.value}")

    def reports(self, node: Node) -> None:
        """A follower reports its end."""
        if node.machine.state is not State.FOLLOWER:
            raise Violation("frozen", f"{node.name} reports while it is {node.machine.state.value}")

    def appends(self, node: Node) -> None:
        """A master appends records of clients."""
        last = node.log_state().last_epoch
        if node.machine.state is not State.MASTER or last != node.machine.epoch:
            raise Violation("resumed", f"{node.name} appends in epoch {node.machine.epoch}, its last marker is {last}")

    def takes_office(self, node: Node, epoch: int) -> None:
        """A member appends the marker of its epoch."""
        self.elections += 1
        if epoch in self.served:
            raise Violation("resumed", f"{node.name} serves epoch {epoch}, in which {self.served[epoch]} has served")
        self.served[epoch] = node.name
        document = self.world.engine.store.document
        is_current = document is not None and document.epoch == epoch  # a paused one may be late, and confirms nothing
        if is_current and not node.disk.log.is_right(self.truth, len(self.truth)):
            raise Violation("lost", f"{node.name} takes office in epoch {epoch} without all acknowledged records")

    def after_event(self, node: Node, event: e.Event, epoch: int, confirmed: int) -> None:
        """Check a member after an event."""
        machine = node.machine
        shown = getattr(event, "epoch", 0)
        if shown > epoch and (machine.state is State.MASTER or machine.confirmed > confirmed) and epoch:
            raise Violation("epoch", f"{node.name} goes on in epoch {epoch} after it was shown {shown}")
        self.counts(node)

    def counts(self, node: Node) -> None:
        """A master counts every member that the engine has in its set."""
        machine, document = node.machine, self.world.engine.store.document
        if machine.state not in LEADING or document is None or document.epoch != machine.epoch:
            return
        assert machine.in_sync is not None
        if not document.in_sync <= machine.in_sync.counted:
            missing = ", ".join(map(str, document.in_sync - machine.in_sync.counted))
            raise Violation("counted", f"{node.name} does not wait for {missing}, which can be elected")

    # --- rule 3: the document -----------------------------------------------------------------------
    def swapped(self, before: Document | None, swap: e.Swap, presences: Mapping[str, Presence], node: Node) -> None:
        """The engine has changed the document."""
        after = swap.document
        self.changes += 1
        self.world.is_dirty = True
        if before is None:
            return
        if swap.version == "" or after.serial != before.serial + 1 or after.set_id != before.set_id:
            raise Violation("swap", f"{after} follows {before}")
        if after.epoch == before.epoch:
            if after.master != before.master:
                raise Violation("swap", f"epoch {after.epoch} has the masters {before.master} and {after.master}")
        elif after.epoch != before.epoch + 1:
            raise Violation("swap", f"epoch {after.epoch} follows {before.epoch}")
        elif after.master not in before.in_sync:
            if not self.is_forcing:
                raise Violation("elected", f"{after.master} was elected, but was not in sync")
            self._forget(node.disk.log)
            self.forced_epoch = after.epoch
        else:
            has_left = node.name == before.master.name or (swap.guard is not None and swap.guard.removes)
            if is_serving(before, presences) and not has_left:
                raise Violation("swap", f"{after.master} was elected while {before.master} holds its lease")
        for one in self.world.nodes.values():
            if one.is_up:
                self.counts(one)

    def _forget(self, log: list[Entry]) -> None:
        """A person has accepted the loss of what this log lacks."""
        same = next((i for i, entry in enumerate(self.truth) if i >= len(log) or log[i] != entry), len(self.truth))
        del self.truth[same:]
        for node in self.world.nodes.values():
            node.disk.log.compare_again(same)

    def halted(self, node: Node, request: e.Halt) -> None:
        """No history of these faults needs a person for the document or the names."""
        raise Violation("halted", f"{node.name}: {request.reason}")
