"""A master's in-sync set: which members an acknowledgement waits for, and who enters or leaves.

*Counted* are all members of the confirmed set, of a change that is not yet decided, and those that are joining. The
*confirmed end* is the smallest end of the log of a counted member.

* A member that is nearly caught up joins: first it counts, then, once it has everything that was confirmed, the change
  is sent to the engine. So an acknowledgement never overtakes it, even while messages arrive without a pause.
* A member that leaves counts until the engine has confirmed the change: until then it may be elected.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cometmq.broker.failover.document import Member


@dataclass(slots=True)
class _Progress:
    """Reports of one replica on its present connection."""

    end: int = 0
    is_connected: bool = True
    caught_up_at: float = 0.0
    """The last time at which the replica had everything that the master's log had then."""
    mark_end: int = 0
    """The end of the master's log at ``mark_at``, the time of an earlier report."""
    mark_at: float = 0.0
    counts: bool = False
    """True if an acknowledgement waits for this replica."""


class InSyncSet:
    """The reports that a master has received in its epoch, and the set that follows from them.

    :param start: log offset after the epoch's marker; whoever has not reached it has nothing of this epoch.
    :param lag_s: time after which a replica that is not caught up leaves.
    """

    def __init__(self, me: Member, confirmed: frozenset[Member], start: int, now: float, lag_s: float) -> None:
        self._me = me
        self._start = start
        self._lag_s = lag_s
        self.confirmed = confirmed
        """The in-sync set of the document."""
        self.pending: frozenset[Member] | None = None
        """The in-sync set of a change that is not decided, or of several of which one may land, together."""
        self.certain = confirmed
        """The members that are in the set however the pending changes are decided."""
        self.joining: frozenset[Member] = frozenset()
        self._progress = {
            member: _Progress(is_connected=False, caught_up_at=now) for member in confirmed if member != me
        }
        self._confirmed_end = 0
        self.counted = confirmed
        """The members that an acknowledgement waits for."""
        self.is_alone = False
        """True if nobody else counts."""
        self._others: list[_Progress] = []
        """The progress of the counted members except this one."""
        self._count()

    def _needed(self) -> frozenset[Member]:
        return self.confirmed | (self.pending or frozenset()) | self.joining

    def _count(self) -> None:
        self.counted = self._needed()
        self.is_alone = self.counted == {self._me}
        for member, progress in self._progress.items():
            progress.counts = member in self.counted
        self._others = [self._progress.get(member) or _Progress() for member in self.counted - {self._me}]

    @property
    def known(self) -> frozenset[Member]:
        """The other members that count, or are connected."""
        return frozenset(self._progress)

    def is_connected(self, member: Member) -> bool:
        """Return whether a replica has a connection in this epoch."""
        progress = self._progress.get(member)
        return progress is not None and progress.is_connected

    def end_of(self, member: Member) -> int:
        """Return the reported end of a member's log; 0 if it has not reported."""
        progress = self._progress.get(member)
        return 0 if progress is None else progress.end

    def is_late(self, member: Member, now: float) -> bool:
        """Return whether a member has not been caught up for too long."""
        progress = self._progress.get(member)
        return progress is None or now >= progress.caught_up_at + self._lag_s

    def best_successor(self, name: str, now: float, *, but: Collection[Member] = ()) -> Member | None:
        """Return the member that is furthest, or the named one; ``None`` if nobody can take over.

        :param but: members that must not take over.
        """
        ready = [
            member
            for member in self.certain
            if member not in (self._me, *but) and name in ("", member.name) and not self.is_late(member, now)
        ]
        return max(ready, key=lambda member: (self.end_of(member), member.name), default=None)

    def propose(self, pending: frozenset[Member]) -> None:
        """Count the members of a change that is sent to the engine, and of earlier ones that may still land."""
        self.pending = pending | (self.pending or frozenset())
        self.certain &= pending
        self.joining -= pending
        self._count()

    def confirm(self, in_sync: frozenset[Member], now: float) -> None:
        """Take over the set of a document whose version has moved, so that no earlier change can land any more."""
        self.confirmed = self.certain = in_sync
        self.pending = None
        for member in in_sync - {self._me}:
            self._progress.setdefault(member, _Progress(is_connected=False, caught_up_at=now))
        self._count()

    def signed_in(self, member: Member, own_end: int, now: float) -> None:
        """Begin a replica's connection; it counts as late until it has what the master's log has now."""
        progress = self._progress.setdefault(member, _Progress(caught_up_at=now - self._lag_s))
        progress.is_connected = True
        progress.end, progress.mark_end, progress.mark_at = 0, own_end, now
        self._count()

    def reported(self, member: Member, end: int, own_end: int, now: float) -> bool:
        """Record that a member's log reaches ``end``; return whether an acknowledgement waits for the member.

        The caller has checked the epoch of the report.
        """
        progress = self._progress.get(member)
        if progress is None:
            return False
        if end > progress.end:
            progress.end = end
        if end >= own_end:
            progress.caught_up_at = now
        elif end >= progress.mark_end:
            progress.caught_up_at = max(progress.caught_up_at, progress.mark_at)
        if end >= progress.mark_end:
            progress.mark_end, progress.mark_at = own_end, now
        return progress.counts

    def disconnected(self, member: Member) -> None:
        """Forget a replica that is not counted; one that is counted leaves once it is late or its presence is gone."""
        progress = self._progress.get(member)
        if progress is None:
            return
        progress.is_connected = False
        if member in self.joining:
            self.joining -= {member}
            self._count()
        if member not in self.counted:
            del self._progress[member]

    def was_paused(self, now: float) -> None:
        """Give all replicas time again, because this process did not run and may have reports to read."""
        for progress in self._progress.values():
            progress.caught_up_at = now

    def confirmed_end(self, own_end: int) -> int:
        """Return the log offset up to which all counted members have the log; it never decreases.

        :param own_end: the end of the master's own log that counts.
        """
        end = own_end
        for progress in self._others:
            if progress.end < end:
                end = progress.end
        if end > self._confirmed_end:
            self._confirmed_end = end
        return self._confirmed_end

    def next_change(self, present: frozenset[Member], now: float) -> frozenset[Member] | None:
        """Return the in-sync set to propose, or ``None`` if the confirmed one is right. Also let replicas join.

        :param present: the members whose presence is known to the engine.
        """
        if self.pending is not None:
            return None
        gone = frozenset(member for member in self.confirmed if self._leaves(member, present, now))
        if gone:
            return self.confirmed - gone
        late = frozenset(member for member in self.joining if self.is_late(member, now))
        near = {
            member
            for member, progress in self._progress.items()
            if progress.is_connected
            and member not in self.confirmed
            and progress.end >= self._start
            and not self.is_late(member, now)
        }
        self.joining = (self.joining | near) - late
        self._count()
        ready = {member for member in self.joining if self.end_of(member) >= self._confirmed_end}
        if not ready:
            return None
        names = {member.name for member in ready}
        return frozenset(member for member in self.confirmed if member.name not in names) | ready

    def _leaves(self, member: Member, present: frozenset[Member], now: float) -> bool:
        if member == self._me:
            return False
        progress = self._progress.get(member)
        if progress is None or self.is_late(member, now):
            return True
        return not progress.is_connected and member not in present

    def deadline(self) -> float | None:
        """Return the time at which the next counted member is late."""
        times = [self._progress[member].caught_up_at for member in self.counted if member in self._progress]
        return min(times) + self._lag_s if times else None
