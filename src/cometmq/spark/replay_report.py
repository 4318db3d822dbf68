"""What a replay did, or would do, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cometmq.quantity import are, quantity
from cometmq.spark.queues import Queue
from cometmq.spark.report_table import table


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """One step that has just been done."""

    step: int
    messages: int
    found: int
    total: int
    """Messages of this run so far."""
    seconds: float
    """Of this run so far."""


@dataclass(frozen=True, slots=True)
class QueueReplayed:
    """What one queue of the topic got, or in a dry run would get."""

    broker: str
    queue_id: int
    messages: int
    found: int
    """Of them there already, after a run that died or a request that was not answered."""
    first: int | None
    """New offsets: the first, and the one after the last; none in a dry run."""
    next: int | None


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """Where a group goes on in one queue of the new topic."""

    group: str
    broker: str
    queue_id: int
    offset: int
    note: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What one run of a replay did, or with ``dry_run`` would do."""

    archive: str
    topic: str
    to: str
    ledger: str
    replay_id: str
    dry_run: bool
    finished: bool
    """False if the run was stopped before its end."""
    messages: int
    found: int
    earlier: int
    """Messages that earlier runs with this ledger have sent."""
    steps: tuple[ReplayedStep, ...]
    queues: tuple[QueueReplayed, ...]
    translated: tuple[TranslatedOffset, ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether it came to its end and nothing is to be warned of."""
        return self.finished and not self.warnings

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"complete": self.complete}

    def render(self) -> str:
        """A summary to read in a terminal."""
        speed = self.messages / self.seconds if self.seconds else 0.0
        if self.dry_run:
            lines = [
                f"would send {quantity(self.messages, 'message')} of {self.topic} in {self.archive} to {self.to}; "
                "sent nothing"
            ]
        else:
            lines = [
                f"{quantity(self.messages, 'message')} of {self.topic} in {self.archive} {are(self.messages)} "
                f"now in {self.to}, {self.seconds:.1f} s ({speed:,.0f} messages/s)"
            ]
            if self.found:
                lines.append(
                    f"{self.found:,} of them were there already, after a run or a request that failed, "
                    "and were not sent again"
                )
        if self.earlier:
            lines.append(f"earlier runs with {self.ledger} have sent {self.earlier:,}")
        if self.queues:
            sent = ((of.broker, of.queue_id, of.messages, of.first, of.next) for of in self.queues)
            lines += ["", *table(("<broker", ">queue", ">messages", ">from offset", ">to before"), sent)]
        if self.translated:
            verb = "would go on" if self.dry_run else "go on"
            lines += ["", f"groups {verb} in {self.to} at:", ""]
            translated = ((of.group, of.broker, of.queue_id, of.offset, of.note) for of in self.translated)
            lines += table(("<group", "<broker", ">queue", ">offset", "<note"), translated)
        if not self.finished:
            lines += ["", "stopped before the end; run it again with the same ledger to go on"]
        lines += ["", *(f"warning: {warning}" for warning in self.warnings)] if self.warnings else []
        return "\n".join(lines)


def queues_replayed(
    queues: Sequence[Queue], counts: Mapping[int, tuple[int, int, int | None, int | None]]
) -> tuple[QueueReplayed, ...]:
    """Queues with what they got: messages, found, first and next, by the queue's number in the plan."""
    return tuple(
        QueueReplayed(queues[at].broker, queues[at].queue_id, *counts[at]) for at in sorted(counts) if counts[at][0]
    )
