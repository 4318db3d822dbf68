"""The decisions of a master: who enters or leaves the in-sync set, and who takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cometmq.broker.failover.document import Document, Member
from cometmq.broker.failover.engine_view import EngineView
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.events import SignedIn, Swap
from cometmq.broker.failover.in_sync import InSyncSet
from cometmq.broker.failover.options import NEVER, MemberOptions
from cometmq.broker.failover.replicas import Replicas


class Leader:
    """One member's time as the master of one epoch.

    :param start: log offset after the epoch's marker.
    :param wall_ms: returns the wall time.
    """

    def __init__(
        self, me: Member, options: MemberOptions, document: Document, start: int, now: float, wall_ms: Callable[[], int]
    ) -> None:
        self._me = me
        self._lag_s = options.silent_s
        self._min_in_sync = options.min_in_sync
        self._handover_s = options.heartbeat_s
        self._wall_ms = wall_ms
        self.in_sync: Final = InSyncSet(me, document.in_sync, start, now, options.silent_s)
        self.replicas: Final = Replicas(options.name, options.address, options.ha_address)
        self._successor = ""
        self.handover_ends_at = NEVER
        """Time at which a handover is given up."""

    def deadline(self, *, judges: bool) -> float:
        """Return the time at which a handover is given up or, if the set may change now, a member is late."""
        late_at = self.in_sync.deadline() if judges else None
        return self.handover_ends_at if late_at is None else min(self.handover_ends_at, late_at)

    @property
    def refusal(self) -> str:
        """The reason why too few members are in sync to append messages, or an empty text."""
        certain = len(self.in_sync.certain)
        if certain >= self._min_in_sync:
            return ""
        return f"{certain} members are in sync, fewer than minInSyncReplicas={self._min_in_sync}"

    def begin_handover(self, successor: str, now: float) -> None:
        """Wait until a successor has everything."""
        self._successor = successor
        self.handover_ends_at = now + self._handover_s

    def signed_in(
        self, event: SignedIn, document: Document, presences: Mapping[str, Presence], own_end: int, now: float
    ) -> None:
        """Begin a replica's connection, if the document has or gets an entry for it."""
        in_use = presences.keys() | {member.name for member in self.in_sync.counted}
        if self.replicas.signed_in(event.member.name, (event.address, event.ha_address), document, in_use):
            self.in_sync.signed_in(event.member, own_end, now)

    def propose(self, document: Document | None, view: EngineView) -> list[Swap]:
        """Return the request to swap the document, if one is given; the members of its set count from now on."""
        if document is None:
            return []
        return [view.propose(self._counted(document))]

    def repeat(self, view: EngineView) -> Swap:
        """Return the next try of the pending swap, without a handover to a member that has lost bytes since."""
        document = self._without_dead_successor(view)
        return view.repeat(document=None if document is None else self._counted(document))

    def _counted(self, document: Document) -> Document:
        """Return a document as it is proposed; the members of its set count from now on."""
        self.in_sync.propose(document.in_sync)
        return self.replicas.into(document)

    def _without_dead_successor(self, view: EngineView) -> Document | None:
        """Return the document to propose in place of a handover whose successor has lost bytes since, or ``None``.

        The successor's name is announced with another generation. If the handover landed, nobody could be elected.
        """
        document = view.document
        if document is None or view.pending is None:
            return None
        successor = view.pending.document.master
        presence = view.presences.get(successor.name)
        if successor == self._me or presence is None or presence.member == successor:
            return None
        why = f"{successor} has lost bytes: it is {presence.member} now"
        return document.changed(self.in_sync.confirmed - {successor}, why, self._wall_ms())

    def next_document(self, document: Document, presences: Mapping[str, Presence], now: float) -> Document | None:
        """Return the document to propose, or ``None`` if the present one is right."""
        present = frozenset(one.member for one in presences.values())
        members = self.in_sync.next_change(present, now)
        if members is not None:
            return document.changed(members, self._describe(self.in_sync.confirmed, members), self._wall_ms())
        gone = self.replicas.gone_from(document)
        if gone:
            why = f"the replica {', '.join(sorted(gone))} was removed"
            return document.changed(self.in_sync.confirmed, why, self._wall_ms())
        if self.replicas.into(document) is not document:
            return document.changed(self.in_sync.confirmed, "a replica has signed in", self._wall_ms())
        return None

    def handover_document(self, document: Document, why: str, *, disk_trouble: str) -> Document | None:
        """Return the document that makes the successor the master; ``None`` if it is no longer in sync.

        A member whose disk fails leaves the in-sync set.
        """
        successor = next((member for member in self.in_sync.certain if member.name == self._successor), None)
        if successor is None:
            return None
        leaves = {self._me} if disk_trouble else set()
        return document.elected(successor, self.in_sync.confirmed - leaves, why, self._wall_ms())

    def gives_up(self, elected: Document | None, now: float, *, disk_trouble: str) -> bool:
        """Return whether a handover has taken too long; one because of a disk gets more time while it is possible.

        :param elected: the document that makes the successor the master.
        """
        if now < self.handover_ends_at:
            return False
        self.handover_ends_at = now + self._handover_s
        return not disk_trouble or elected is None

    def _describe(self, before: frozenset[Member], after: frozenset[Member]) -> str:
        new = ", ".join(str(member) for member in sorted(after - before))
        if new:
            return f"{new} caught up"
        gone = ", ".join(str(member) for member in sorted(before - after))
        return f"{gone} was not caught up for {self._lag_s:g} s, or is gone"
