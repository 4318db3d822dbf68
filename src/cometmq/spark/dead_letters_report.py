"""What the dlq job found, and what it sent again, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cometmq.quantity import quantity
from cometmq.spark.delay_report import moment
from cometmq.spark.report_table import table


@dataclass(frozen=True, slots=True)
class GroupLetters:
    """The dead letters of one consumer group."""

    group: str
    letters: int
    oldest_ms: int
    """When the first became a dead letter, ms since 1970."""
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Counted:
    """How many dead letters have something in common."""

    value: str
    """Empty where a dead letter does not say."""
    letters: int
    groups: int
    """Of how many consumer groups."""


@dataclass(frozen=True, slots=True)
class Resent:
    """What became of the chosen dead letters of one group."""

    group: str
    sent: int
    """In a dry run: that would be sent."""
    sent_before: int
    failed: int
    first_failure: str
    """In words; empty if none failed."""


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """Why messages die: dead letters by group, topic of origin, tag, key, time and reason."""

    source: str
    groups: tuple[GroupLetters, ...]
    topics: tuple[Counted, ...]
    """By the topic that they were sent to."""
    tags: tuple[Counted, ...]
    keys: tuple[Counted, ...]
    reasons: tuple[Counted, ...]
    """By the property that was said to tell the reason; empty if none was."""
    over_time: tuple[tuple[int, int], ...]
    """(begin of a stretch in ms since 1970, dead letters); stretches without any are left out."""
    stretch_ms: int
    """Length of a stretch: an hour, or where there would be too many, a multiple of it."""
    resent: tuple[Resent, ...]
    dry_run: bool
    seconds: float

    @property
    def letters(self) -> int:
        """Dead letters of all groups."""
        return sum(of.letters for of in self.groups)

    @property
    def failed(self) -> int:
        """Dead letters that could not be sent again."""
        return sum(of.failed for of in self.resent)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self) | {"letters": self.letters, "failed": self.failed}

    def render(self) -> str:
        """A summary to read in a terminal."""
        lines = [
            f"{quantity(self.letters, 'dead letter')} of {quantity(len(self.groups), 'group')} in {self.source}; "
            f"{self.seconds:.1f} s"
        ]
        if self.groups:
            groups = ((of.group, of.letters, moment(of.oldest_ms), moment(of.newest_ms)) for of in self.groups)
            lines += ["", *table(("<group", ">letters", "<oldest (UTC)", "<newest (UTC)"), groups)]
        for title, counts in (
            ("sent to", self.topics),
            ("tag", self.tags),
            ("key", self.keys),
            ("reason", self.reasons),
        ):
            if counts:
                counted = ((of.value or None, of.letters, of.groups) for of in counts)
                lines += ["", *table((f"<{title}", ">letters", ">groups"), counted)]
        if self.over_time:
            most = max(count for _, count in self.over_time)
            bars = ((moment(at), count, "█" * max(1, count * 40 // most)) for at, count in self.over_time)
            lines += ["", *table(("<from (UTC)", ">letters", "<"), bars)]
        if self.resent:
            verb = "would be sent" if self.dry_run else "sent again"
            resent = ((of.group, of.sent, of.sent_before, of.failed) for of in self.resent)
            lines += ["", *table(("<group", f">{verb}", ">before", ">failed"), resent)]
            lines += [f"    {of.group}: {of.first_failure}" for of in self.resent if of.first_failure]
        return "\n".join(lines)
