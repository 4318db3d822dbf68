"""Committed offsets of a group: never ahead of what was committed, and at most a second behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.failover.checker.findings import Finding
from tests.failover.checker.history import Commit, History, Outcome, Queue

BEHIND_S = 1.0
"""A failover may take offsets back to those of this time before it."""


def check_groups(history: History, behind_s: float = BEHIND_S) -> list[Finding]:
    """Return the offsets that are ahead of all commits, or behind those that are older than ``behind_s``."""
    queues: dict[tuple[str, Queue], list[Commit]] = defaultdict(list)
    for one in history.commits:
        queues[one.group, one.queue].append(one)
    return [finding for some in queues.values() for finding in _check(some, behind_s)]


def _check(commits: list[Commit], behind_s: float) -> Iterator[Finding]:
    writes = [one for one in commits if one.is_write and one.outcome is not Outcome.FAIL]
    for read in commits:
        if read.is_write or read.outcome is not Outcome.OK:
            continue
        ahead = max((one.offset for one in writes if one.began < read.ended), default=0)
        old = max(
            (one.offset for one in writes if one.outcome is Outcome.OK and one.ended < read.began - behind_s), default=0
        )
        place = frozenset({(read.queue, read.offset)})
        if read.offset > ahead:
            yield Finding("offset ahead", f"{read}; nobody has committed more than {ahead}", frozenset(), place)
        if read.offset < old:
            yield Finding(
                "offset behind", f"{read}; {old} was committed over {behind_s:g} s before", frozenset(), place
            )
