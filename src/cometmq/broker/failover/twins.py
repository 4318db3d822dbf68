"""Two live processes with one member's name: a copied configuration or store, or only a lease that an earlier process
of this member has left.

At its start, a member that finds its name taken asks the process that has announced it. If that process answers, this
member halts before it has announced or copied anything, so that an older copy of a store never counts. If nobody
answers, a presence of the same store is an earlier process's, and is replaced. A presence of another store must end by
itself; one that never ends is that of a process that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.broker.failover.document import Member
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.events import AskTwin
from cometmq.broker.failover.options import MemberOptions

_LEASES: Final = 8
"""Number of leases after which a presence with this member's name cannot be that of its earlier process."""


class Twins:
    """Knows which process has announced this member's name, and whether it was asked."""

    def __init__(self, me: Member, options: MemberOptions, now: float) -> None:
        self._me: Final = me
        self._process: Final = options.process
        self._old_s: Final = _LEASES * options.lease_s
        self._since = now
        self._asked = self._silent = ""

    def waits_again(self, now: float) -> None:
        """Give a lease its full time again, because the engine or this process was away."""
        self._since = now

    def is_old(self, now: float) -> bool:
        """Return whether the presence cannot be that of an earlier process any more, since its lease would be over."""
        return now - self._since > self._old_s

    def other(self, presences: Mapping[str, Presence]) -> Presence | None:
        """Return the presence for which this member waits, because another process may have its name."""
        presence = presences.get(self._me.name)
        if presence is None or presence.process == self._process:
            return None
        return None if presence.process == self._silent and presence.member == self._me else presence

    def ask(self, presence: Presence) -> list[AskTwin]:
        """Return the request to ask a process, once."""
        if presence.process == self._asked:
            return []
        self._asked = presence.process
        return [AskTwin(presence)]

    def was_silent(self, presence: Presence) -> None:
        """Note that nobody has answered."""
        self._silent = presence.process
