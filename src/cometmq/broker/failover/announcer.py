"""The presence that a member announces to the engine: again whenever it changes, and after its lease was lost."""

from __future__ import annotations

from typing import Final

from cometmq.broker.failover.document import Member
from cometmq.broker.failover.election import Ballot
from cometmq.broker.failover.engines.interface import Presence, Standing
from cometmq.broker.failover.events import Announce
from cometmq.broker.failover.options import MemberOptions
from cometmq.broker.limits import MAX_FAILOVER_REASON_CHARS


class Announcer:
    """Knows what was announced last."""

    def __init__(self, me: Member, options: MemberOptions) -> None:
        self._me: Final = me
        self._options: Final = options
        self._announced: tuple[int, Standing | None, str] | None = None
        self._is_silent = False

    def forget(self) -> None:
        """The engine does not have the presence any more."""
        self._announced = None

    def silence(self) -> None:
        """Announce nothing any more: the name is another process's, whose presence must remain."""
        self._is_silent = True

    def announce(self, serves: int, ballot: Ballot | None, trouble: str) -> list[Announce]:
        """Return the request to announce the presence, if it has changed.

        :param serves: the epoch in which this member is the master; otherwise 0.
        :param ballot: that of a frozen member, which publishes the end of its log.
        :param trouble: the reason why the disk cannot be written, or an empty text.
        """
        standing = None if ballot is None else ballot.standing
        trouble = trouble[:MAX_FAILOVER_REASON_CHARS]
        if self._is_silent or (serves, standing, trouble) == self._announced:
            return []
        self._announced = (serves, standing, trouble)
        at = self._options
        return [Announce(Presence(self._me, at.process, at.address, at.ha_address, serves, standing, trouble))]
