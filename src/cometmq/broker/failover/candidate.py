"""A follower that may become the master: from the suspicion that the master is gone to the swap that elects it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.failover.document import Document, Member
from cometmq.broker.failover.election import Ballot, guard_for, has_returned, suspects
from cometmq.broker.failover.engine_view import EngineView
from cometmq.broker.failover.engines.interface import Guard, Standing
from cometmq.broker.failover.events import LogState, Request, Swap
from cometmq.broker.failover.master_link import MasterLink
from cometmq.broker.failover.options import NEVER, MemberOptions


class Candidate:
    """One member's candidacies, of which at most one is open.

    :param wall_ms: returns the wall time, which only people read.
    """

    def __init__(
        self, me: Member, options: MemberOptions, view: EngineView, link: MasterLink, wall_ms: Callable[[], int]
    ) -> None:
        self._me: Final = me
        self._options: Final = options
        self._view: Final = view
        self._link: Final = link
        self._wall_ms = wall_ms
        self.ballot: Ballot | None = None
        """The comparison with the other frozen members; ``None`` until the own log is frozen."""
        self._is_forced = False

    def suspicion(self, document: Document, now: float) -> str:
        """Return the reason why the master seems to be gone, or an empty text."""
        is_dead, is_silent = self._link.is_refused and self._link.is_connected, self._link.is_silent(now)
        return suspects(document, self._me, self._view.presences, is_dead=is_dead, is_silent=is_silent)

    def thaws(self, document: Document) -> str:
        """Return the reason why nobody must be elected after all, or an empty text."""
        is_there = has_returned(document, self._me, self._view.presences, is_dead=self._link.is_refused)
        return "the master's presence has returned" if is_there else ""

    def force(self) -> None:
        """Stand as soon as the log is frozen, and without the consent of others, because a person wants it."""
        self._is_forced = True

    def freeze(self, log: LogState, epoch: int, now: float) -> None:
        """Compare this log, which does not change any more, with those of the others."""
        standing = Standing(epoch, log.last_epoch, log.end, -self._options.priority)
        self.ballot = Ballot(standing, now, self._options.heartbeat_s)

    def end(self) -> None:
        """Forget the candidacy: this member is no longer frozen, or it is elected."""
        self.ballot = None
        self._is_forced = False

    @property
    def decide_at(self) -> float:
        """The time at which this member stands, if it is frozen."""
        return NEVER if self.ballot is None else self.ballot.decide_at

    def is_due(self, now: float) -> bool:
        """Return whether it is time to stand; the next time is a heartbeat later."""
        if self.ballot is None or now < self.ballot.decide_at:
            return False
        self.ballot.decide_at = now + self._options.heartbeat_s
        return True

    def may_stand(self, document: Document, now: float) -> bool:
        """Return whether nobody present has more, and enough time was given to show it."""
        if self.ballot is None:
            return False
        self.ballot.count(document, self._me, self._view.presences, collects=not self._is_forced)
        return now >= self.ballot.decide_at

    def stand(self, document: Document, reason: str) -> Swap:
        """Return the swap that makes this member the master."""
        assert self.ballot is not None
        members = frozenset({self._me}) if self._is_forced else self.ballot.voters
        elected = document.elected(self._me, members, f"{self._me} was elected: {reason}", self._wall_ms())
        return self._view.propose(self._options.into(elected), self._guard(document))

    def repeat(self, document: Document) -> list[Request]:
        """Return the next try of the swap, unless the master has returned."""
        reads: list[Request] = list(self._view.read())
        return reads if self.thaws(document) else [*reads, self._view.repeat(self._guard(document))]

    def _guard(self, document: Document) -> Guard | None:
        return guard_for(document, self._me, self._view.presences, is_dead=self._link.is_refused)
