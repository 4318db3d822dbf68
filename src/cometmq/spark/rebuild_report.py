"""What a rebuild made, or how what is there compares with what should be, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from cometmq.quantity import quantity
from cometmq.spark.report_table import table

_MOST_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """The units of one consume queue."""

    topic: str
    queue_id: int
    units: int
    """Messages of the log that have one."""
    differ: int
    """Units of the files that are not what the log says; 0 for a queue that was rebuilt."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was rebuilt, or compared."""

    store: str
    dry_run: bool
    queues: tuple[QueueUnits, ...]
    indexed: int
    """Messages that have index entries; 0 in a dry run, which does not look at the index."""
    seconds: float

    @property
    def messages(self) -> int:
        """Of all queues."""
        return sum(of.units for of in self.queues)

    @property
    def differ(self) -> int:
        """Units that are not what the log says, of all queues."""
        return sum(of.differ for of in self.queues)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"messages": self.messages, "differ": self.differ}

    def render(self) -> str:
        """A summary to read in a terminal."""
        what = f"{quantity(self.messages, 'message')} of {quantity(len(self.queues), 'queue')}"
        if self.dry_run:
            lines = [f"{self.store}: compared {what} in {self.seconds:.1f} s, {self.differ:,} differ from the log"]
        else:
            lines = [
                f"{self.store}: rebuilt {what}, {self.indexed:,} of them in the index, in {self.seconds:.1f} s; "
                "what was there before is in comet/quarantine"
            ]
        shown = sorted(self.queues, key=lambda of: (-of.differ, of.topic, of.queue_id))[:_MOST_LINES]
        if shown:
            rows = ((of.topic, of.queue_id, of.units, of.differ) for of in shown)
            lines += ["", *table(("<topic", ">queue", ">messages", ">differ"), rows)]
        if len(self.queues) > len(shown):
            lines.append(f"  … and {len(self.queues) - len(shown):,} more queues (-o json has all)")
        return "\n".join(lines)
