"""The presence that a member announces to the engine: again whenever it changes, and after its lease was lost."""

from __future__ import annotations

from typing import Final

from cometmq.broker.failover.document import Member
from cometmq.broker.failover.election import Ballot
from cometmq.broker.failover.engines.interface import Presence, Standing
from cometmq.broker.failover.events import Announce
from cometmq.broker.failover.options import MemberOptions


class Announcer:
    """Knows what was announced last."""

    def __init__(self, me: Member, options: MemberOptions) -> None:
        self._me: Final = me
        self._options: Final = options
        self._announced: tuple[int, Standing | None] | None = None
        self._is_silent = False

    def forget(self) -> None:
        """The engine does not have the presence any more."""
        self._announced = None

    def silence(self) -> None:
        """Announce nothing any more: the name is another process's, whose presence must remain."""
        self._is_silent = True

    def announce(self, serves: int, ballot: Ballot | None) -> list[Announce]:
        """Return the request to announce the presence, if it has changed.

        :param serves: the epoch in which this member is the master; otherwise 0.
        :param ballot: that of a frozen member, which publishes the end of its log.
        """
        standing = None if ballot is None else ballot.standing
        if self._is_silent or (serves, standing) == self._announced:
            return []
        self._announced = (serves, standing)
        at = self._options
        return [Announce(Presence(self._me, at.process, at.address, at.ha_address, serves, standing))]
