"""What the checks find, and its print with the part of the history that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.failover.checker.history import Commit, History, Note, Operation, Poll, Queue, Send

AROUND = 3
"""Offsets before and after one that was found, whose operations are printed too."""
MOST_LINES = 400
MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that does not hold.

    :param kind: the anomaly, in Jepsen's word where it has one.
    :param values: the messages that are concerned.
    :param places: the queues and offsets that are concerned.
    """

    kind: str
    text: str
    values: frozenset[str] = frozenset()
    places: frozenset[tuple[Queue, int]] = frozenset()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def report(history: History, findings: Sequence[Finding]) -> str:
    """Return the findings, and the operations that concern them, among all faults."""
    if not findings:
        return "nothing found"
    shown = findings[:MOST_FINDINGS]
    values = frozenset().union(*(one.values for one in shown))
    places = frozenset().union(*(one.places for one in shown))
    near = {(queue, offset + step) for queue, offset in places for step in range(-AROUND, AROUND + 1)}
    part = History([_part(one, values, near) for one in history.operations if _concerns(one, values, near)])
    lines = list(part.lines())
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES // 2], f"… {len(lines) - MOST_LINES} lines …", *lines[-MOST_LINES // 2 :]]
    rest = [f"… and {len(findings) - len(shown)} more"] if len(findings) > len(shown) else []
    return "\n".join([*map(str, shown), *rest, "", "the part of the history that concerns them:", *lines])


def _part(one: Operation, values: frozenset[str], near: set[tuple[Queue, int]]) -> Operation:
    """Return an operation with only those of its messages that concern the findings."""
    if not isinstance(one, Poll):
        return one
    return replace(one, read=tuple(pair for pair in one.read if pair[1] in values or (one.queue, pair[0]) in near))


def _concerns(one: Operation, values: frozenset[str], near: set[tuple[Queue, int]]) -> bool:
    match one:
        case Note():
            return True
        case Send():
            return one.value in values or (one.offset is not None and (one.queue, one.offset) in near)
        case Poll():
            return any(value in values or (one.queue, offset) in near for offset, value in one.read)
        case Commit():
            return any((one.queue, one.offset + step) in near for step in (0, -1))
