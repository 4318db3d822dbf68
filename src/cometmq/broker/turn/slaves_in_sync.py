"""The slaves that must have a message before its send returns ``SEND_OK`` (no sockets, no clock).

Theory of operation. A slave counts, or it does not. A slave that counts is waited for: a position of the log is
*confirmed* once every slave that counts has reported it, and at least ``minimum`` of them. Only confirmed messages are
answered with ``SEND_OK``. A slave that cannot keep up stops counting, so that nobody waits for it for long. It counts
again once it also has the messages that were confirmed without it.

=========== =================================================================== ===========
state       event                                                               next state
=========== =================================================================== ===========
catching up CLOSE: it has all that was stored until the last mark (one second)  joining
joining     COMPLETE: it has all that was confirmed when it began to join       in sync
joining     BEHIND, LATE or SHORTER                                             catching up
in sync     BEHIND, LATE or SHORTER                                             catching up
=========== =================================================================== ===========

BEHIND: it lacks ``fall_behind_max`` bytes or more. LATE: a send has waited too long for it. SHORTER: its log has become
shorter. A slave starts in the state *catching up*, and its connection may end in every state.

The slaves in sync are the confirmed set. Those that join are a change of this set that is not confirmed yet; sends
already wait for both. The steps are in this order because messages are confirmed all the time: if sends waited for a
slave only after it has everything, then it would lack what was confirmed in between.

Invariants.

* A slave in sync has every confirmed byte: if it is promoted, no message that returned ``SEND_OK`` is lost.
* The confirmed position never goes back. A master that starts does not know what it confirmed before: its first mark is
  the end of its log, so that a slave in sync has all of it.
* A slave with two connections, one of which the master believes to be open, is waited for on both, and counts once
  towards the minimum.

Source of the rule: Kafka's in-sync replicas, ``AutoSwitchHAService.getSyncStateSet`` of RocketMQ 5 with
``allAckInSyncStateSet``. RocketMQ without a controller answers when the required number of slaves, no matter which
ones, have reported.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final


class State(Enum):
    """The state of a slave that has reported."""

    CATCHING_UP = "catching up"
    JOINING = "joining"
    IN_SYNC = "in sync"


class Event(Enum):
    """A reason for a new state."""

    CLOSE = "it is close to the end of the log"
    COMPLETE = "it has every confirmed message"
    BEHIND = "it is haSlaveFallbehindMax bytes behind"
    LATE = "sends have waited too long for it"
    SHORTER = "its log has become shorter"


TRANSITIONS: Final = {
    (State.CATCHING_UP, Event.CLOSE): State.JOINING,
    (State.JOINING, Event.COMPLETE): State.IN_SYNC,
    **{
        (state, event): State.CATCHING_UP
        for state in (State.JOINING, State.IN_SYNC)
        for event in (Event.BEHIND, Event.LATE, Event.SHORTER)
    },
}
"""The next state by state and event; every other event changes nothing."""


@dataclass(frozen=True)
class Change:
    """A change of a slave's state."""

    slave: Hashable
    before: State
    after: State
    event: Event


class _Slave:
    __slots__ = ("doubted_until", "end", "name", "state", "target")

    def __init__(self, name: Hashable) -> None:
        self.name: Final = name
        self.end = 0
        """The end of its log, as last reported."""
        self.state = State.CATCHING_UP
        self.target = 0
        """The confirmed position when it began to join."""
        self.doubted_until = -1
        """The log offset that a report must exceed, if this may be the old connection of a slave that counts already.

        Such a report shows that the slave receives what is sent on this connection.
        """


class SlavesInSync:
    """The slaves of a master by state, and the confirmed position.

    :param minimum: number of slaves that must have a message, at least.
    :param fall_behind_max: number of bytes by which a slave that counts is always less behind.
    """

    def __init__(self, minimum: int, fall_behind_max: int) -> None:
        self.minimum: Final = minimum
        self.confirmed = 0
        """The log offset up to which every slave that counts has the log."""
        self.removals = 0
        """Number of times that a connected slave has fallen out of sync."""
        self._fall_behind_max = fall_behind_max
        self._slaves: dict[Hashable, _Slave] = {}
        self._counted: list[_Slave] = []
        """The slaves that are in sync or join."""
        self._end = 0
        self._mark = 0
        self._changes: list[Change] = []

    # --- questions ------------------------------------------------------------------------------
    def state_of(self, slave: Hashable) -> State | None:
        """Return a slave's state, or ``None`` before its first report."""
        found = self._slaves.get(slave)
        return None if found is None else found.state

    @property
    def slaves_in_sync(self) -> int:
        """Return the number of slaves that have every confirmed message."""
        return sum(slave.state is State.IN_SYNC for slave in self._slaves.values())

    @property
    def waited_for(self) -> int:
        """Return the number of slaves that sends wait for; a slave with two connections may count twice."""
        return len(self._counted)

    @property
    def connected(self) -> int:
        """Return the number of slaves that have reported."""
        return len(self._slaves)

    def take_changes(self) -> list[Change]:
        """Return what has changed since the last call."""
        if not self._changes:
            return []
        changes, self._changes = self._changes, []
        return changes

    # --- events ---------------------------------------------------------------------------------
    def marked(self, end: int) -> None:
        """Remember the end of the log, about once per second."""
        self.stored(end)
        self._mark = end

    def stored(self, end: int) -> None:
        """The log has grown to ``end``: slaves that are too far behind stop counting."""
        self._end = end
        behind = [slave for slave in self._counted if end - slave.end >= self._fall_behind_max]
        for slave in behind:
            self._apply(slave, Event.BEHIND)
        self._confirm()

    def reported(self, name: Hashable, slave_end: int) -> None:
        """A slave reports the end of its log."""
        slave = self._slaves.get(name)
        if slave is None:
            slave = self._slaves[name] = _Slave(name)
        if slave_end < slave.end:
            self._apply(slave, Event.SHORTER)
        slave.end = slave_end
        if slave.state is not State.IN_SYNC:
            if slave_end >= self._mark and self._end - slave_end < self._fall_behind_max:
                self._apply(slave, Event.CLOSE)
            if slave_end >= slave.target:
                self._apply(slave, Event.COMPLETE)
        self._confirm()

    def waited(self, position: int, *, if_enough: bool = False) -> None:
        """A send of ``position`` has waited too long: slaves that lack it stop counting.

        :param if_enough: change nothing if fewer slaves than the minimum would count: the send would wait anyway.
        """
        late = [slave for slave in self._counted if slave.end < position]
        if if_enough and len(self._counted) - len(late) < self.minimum:
            return
        for slave in late:
            self._apply(slave, Event.LATE)
        self._confirm()

    def doubted(self, name: Hashable, sent: int) -> None:
        """A slave may have connected again: its other connection is waited for, but does not count towards the minimum
        until it reports more than the ``sent`` bytes, since reports may still be on their way.
        """
        if name in self._slaves:
            self._slaves[name].doubted_until = sent

    def removed(self, name: Hashable) -> None:
        """A slave's connection has ended."""
        self._slaves.pop(name, None)
        self._count()
        self._confirm()

    # --- the machine ----------------------------------------------------------------------------
    def _apply(self, slave: _Slave, event: Event) -> None:
        before = slave.state
        after = TRANSITIONS.get((before, event))
        if after is None:
            return
        slave.state = after
        if after is State.JOINING:
            slave.target = self.confirmed
        elif before is State.IN_SYNC:
            self.removals += 1
        self._changes.append(Change(slave.name, before, after, event))
        self._count()

    def _count(self) -> None:
        self._counted = [slave for slave in self._slaves.values() if slave.state is not State.CATCHING_UP]

    def _confirm(self) -> None:
        certain, least = 0, self._end
        for slave in self._counted:
            certain += slave.end > slave.doubted_until
            least = min(least, slave.end)
        if certain >= self.minimum and least > self.confirmed:
            self.confirmed = least
