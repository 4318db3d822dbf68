"""The decisions of a candidate: whether the master is gone, who has the longest log, and under which condition it may
be elected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.broker.failover.document import Document, Member
from cometmq.broker.failover.engines.interface import Guard, Presence, Standing

COLLECT_S: Final = 0.3
"""Time in which present members of the in-sync set freeze and publish the ends of their logs."""


def is_serving(document: Document, presences: Mapping[str, Presence]) -> bool:
    """Return whether the document's master is present and serves the document's epoch."""
    presence = presences.get(document.master.name)
    return presence is not None and presence.member == document.master and presence.serves == document.epoch


def has_returned(document: Document, me: Member, presences: Mapping[str, Presence], *, is_dead: bool) -> bool:
    """Return whether a master that seemed to be gone is there.

    :param is_dead: its port has refused after its connection was reset.
    """
    return is_serving(document, presences) and document.master.name != me.name and not is_dead


def guard_for(document: Document, me: Member, presences: Mapping[str, Presence], *, is_dead: bool) -> Guard | None:
    """Return the condition of an election that the old master is gone; ``None`` if it is this replica itself.

    :param is_dead: its process is known to be dead, so its presence may be removed.
    """
    name = document.master.name
    if name == me.name:
        return None
    presence = presences.get(name)
    if presence is None:
        return Guard(name, "")
    return Guard(name, presence.version, is_dead and is_serving(document, presences))


def suspects(
    document: Document, me: Member, presences: Mapping[str, Presence], *, is_dead: bool, is_silent: bool
) -> str:
    """Return the reason why the master seems to be gone, or an empty text.

    :param is_dead: its port has refused after its connection was reset.
    :param is_silent: nothing has come from it for two heartbeats.
    """
    master = document.master
    if master == me:
        return f"{master} was restarted, and never resumes an epoch"
    if is_dead:
        return f"the process of {master} is dead: its port refuses connections"
    if is_silent and not is_serving(document, presences):
        return f"{master} is silent, and its lease is gone"
    return ""


class Ballot:
    """One candidate's comparison with the other frozen members.

    :param pause_s: time by which the second waits for the first, the third for the second, and so on.
    """

    def __init__(self, standing: Standing, now: float, pause_s: float) -> None:
        self.standing: Final = standing
        self.voters: frozenset[Member] = frozenset()
        """This member, and those that have published the ends of their logs."""
        self.decide_at = now
        """Time at which this member stands."""
        self._begun_at = now
        self._pause_s = pause_s

    def count(self, document: Document, me: Member, presences: Mapping[str, Presence], *, collects: bool) -> None:
        """Compare this log with the published ones, and set ``decide_at``."""
        others = [
            presence for presence in presences.values() if presence.member in document.in_sync and presence.member != me
        ]
        rivals = [
            (presence.standing, presence.member)
            for presence in others
            if presence.standing is not None and presence.standing.document_epoch == document.epoch
        ]
        better = sum(rival > (self.standing, me) for rival in rivals)
        silent = len(others) - len(rivals) - (document.master in [one.member for one in others])
        self.voters = frozenset(member for _, member in rivals) | {me}
        wait_s = (better * self._pause_s + (COLLECT_S if silent > 0 else 0)) if collects else 0
        self.decide_at = self._begun_at + wait_s
