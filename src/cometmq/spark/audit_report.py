"""What an audit found, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cometmq.quantity import quantity
from cometmq.spark.report_table import table


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing that does not agree."""

    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class QueueAudit:
    """What each party says of one queue; what it says nothing of is ``None``."""

    broker: str
    queue_id: int
    first: int | None
    """Stored: the broker's offsets ``first <= offset < end``."""
    end: int | None
    stored: int | None
    archived: int | None
    """Rows in the archive's files."""
    archived_from: int | None
    archived_to: int | None
    consumed: Mapping[str, int]
    """Next offset of each group that has one."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long messages took for a part of their way, ms."""

    way: str
    median_ms: int
    p99_ms: int
    longest_ms: int


@dataclass(frozen=True, slots=True)
class Span:
    """Messages by the time they were stored at, in one of at most some hundred equal spans."""

    at_ms: int
    stored: int
    archived: int
    consumed: int
    """By the group that is furthest behind; 0 where no group is looked at."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found."""

    topic: str
    archive: str | None
    groups: tuple[str, ...]
    produced: int | None
    """Sends that the trace topic tells of; ``None`` where there is no trace."""
    queues: tuple[QueueAudit, ...]
    spans: tuple[Span, ...]
    lateness: tuple[Lateness, ...]
    disagreements: tuple[Disagreement, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether nothing was found that disagrees."""
        return not self.disagreements

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"agrees": self.agrees}

    def render(self) -> str:
        """A report to read in a terminal."""
        lines = [f"{self.topic}: {self._summary()} ({self.seconds:.1f} s)", ""]
        lines += table(
            ("<broker", ">queue", ">offsets stored", ">stored", ">archived up to", ">archived"),
            (
                (
                    of.broker,
                    of.queue_id,
                    None if of.first is None or of.end is None else f"{of.first:,} to {of.end:,}",
                    of.stored,
                    of.archived_to,
                    of.archived,
                )
                for of in self.queues
            ),
        )
        for group in self.groups:
            behind = [of.end - of.consumed[group] for of in self.queues if of.end is not None and group in of.consumed]
            lines.append(
                f"  group {group}: {quantity(sum(behind), 'message')} behind, in {quantity(len(behind), 'queue')}"
            )
        if self.lateness:
            late = ((of.way, of.median_ms, of.p99_ms, of.longest_ms) for of in self.lateness)
            lines += ["", *table(("<lateness, ms", ">median", ">99 %", ">longest"), late)]
        lines += ["", *(f"note: {note}" for note in self.notes)] if self.notes else []
        if self.disagreements:
            lines += ["", f"✘ {quantity(len(self.disagreements), 'disagreement')}, the first of each kind:"]
            for found in self.disagreements:
                lines += [f"  {found.what}", f"    → {found.next_step}"]
        else:
            lines += ["", "✔ everything agrees"]
        return "\n".join(lines)

    def _summary(self) -> str:
        said = [
            f"{sum(of.stored or 0 for of in self.queues):,} stored",
            "no trace" if self.produced is None else f"{self.produced:,} produced by trace",
        ]
        if self.archive is not None:
            said.append(f"{sum(of.archived or 0 for of in self.queues):,} archived")
        return ", ".join(said)


def moment(timestamp_ms: int) -> str:
    """A time for people, UTC, to the minute; also one of a year beyond 9999."""
    return str(np.datetime64(timestamp_ms // 60_000, "m")).replace("T", " ") + " UTC"
