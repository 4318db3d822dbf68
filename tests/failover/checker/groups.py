"""Committed offsets of a group: never ahead of what was committed, and at most a second behind it.

A *disruption* is a change of the broker that answers, or an answer that did not come. What was committed up to a second
before the last answer that precedes a disruption may be lost; everything else must be there.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from tests.failover.checker.findings import Finding
from tests.failover.checker.history import Commit, History, Outcome, Queue

BEHIND_S = 1.0
"""A failover may take offsets back to those of this time before it."""


def check_groups(history: History, behind_s: float = BEHIND_S) -> list[Finding]:
    """Return the offsets that are ahead of all commits, or behind those that no disruption can have lost."""
    groups: dict[str, list[Commit]] = defaultdict(list)
    for one in history.commits:
        groups[one.group].append(one)
    found: list[Finding] = []
    for commits in groups.values():
        disruptions = list(_disruptions(commits))
        queues: dict[Queue, list[Commit]] = defaultdict(list)
        for one in commits:
            queues[one.queue].append(one)
        for some in queues.values():
            found += _check(some, disruptions, behind_s)
    return found


def _disruptions(commits: list[Commit]) -> Iterator[tuple[float, float]]:
    """Yield the end of the last answer before each disruption, and the beginning of the next one."""
    answered = [one for one in commits if one.outcome is Outcome.OK]
    lost = [one.began for one in commits if one.outcome is not Outcome.OK]
    for before, after in itertools.pairwise(answered):
        if before.server != after.server or any(before.ended <= at <= after.began for at in lost):
            yield before.ended, after.began


def _check(commits: list[Commit], disruptions: list[tuple[float, float]], behind_s: float) -> Iterator[Finding]:
    writes = [one for one in commits if one.is_write and one.outcome is not Outcome.FAIL]
    for read in commits:
        if read.is_write or read.outcome is not Outcome.OK:
            continue
        ahead = max((one.offset for one in writes if one.began < read.ended), default=0)
        between = [last for last, following in disruptions if following <= read.began]

        def is_kept(one: Commit, read: Commit = read, between: list[float] = between) -> bool:
            may_be_lost = any(one.ended <= last and one.ended > last - behind_s for last in between)
            return one.outcome is Outcome.OK and one.ended < read.began and not may_be_lost

        kept = max((one.offset for one in writes if is_kept(one)), default=0)
        place = frozenset({(read.queue, read.offset)})
        if read.offset > ahead:
            yield Finding("offset ahead", f"{read}; nobody has committed more than {ahead}", frozenset(), place)
        if read.offset < kept:
            text = f"{read}; {kept} was committed more than {behind_s:g} s before each failover"
            yield Finding("offset behind", text, frozenset(), place)
