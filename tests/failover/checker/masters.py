"""Exactly one member acknowledges: each acknowledgement comes from the master of the epoch in which it stands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from tests.failover.checker.findings import Finding
from tests.failover.checker.history import History, Outcome


def check_masters(history: History, epochs: Sequence[tuple[int, int]], masters: Mapping[int, str]) -> list[Finding]:
    """Return the acknowledgements of members that were not the master of the message's epoch.

    :param epochs: number and log offset of the first record of each epoch, in the log at the end.
    :param masters: the name of the master of each epoch, by the document's history.
    """
    starts = [start for _, start in epochs]
    findings = []
    for one in history.sends:
        if one.outcome is not Outcome.OK or one.log_offset is None or not one.server:
            continue
        at = bisect_right(starts, one.log_offset) - 1
        epoch = epochs[at][0] if at >= 0 else 0
        master = masters.get(epoch, "nobody")
        if master != one.server:
            findings.append(
                Finding(
                    "two masters",
                    f"{one.server} acknowledged {one.value} at the log's offset {one.log_offset}, which belongs to "
                    f"epoch {epoch} of {master}",
                    frozenset({one.value}),
                )
            )
    return findings
