"""What the dlq job found, and what it sent again, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any


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
        """A summary to read in a terminal of 100 columns."""
        lines = [f"{self.letters:,} dead letters of {len(self.groups)} groups in {self.source}; {self.seconds:.1f} s"]
        if self.groups:
            lines += ["", f"  {'group':<40} {'letters':>10}  {'oldest (UTC)':<19}  {'newest (UTC)':<19}"]
            lines += [
                f"  {of.group:<40} {of.letters:>10,}  {_moment(of.oldest_ms):<19}  {_moment(of.newest_ms):<19}"
                for of in self.groups
            ]
        for title, counts in (
            ("sent to", self.topics),
            ("tag", self.tags),
            ("key", self.keys),
            ("reason", self.reasons),
        ):
            if counts:
                lines += ["", f"  {title:<60} {'letters':>10} {'groups':>8}"]
                lines += [f"  {of.value or '–':<60} {of.letters:>10,} {of.groups:>8,}" for of in counts]
        if self.over_time:
            most = max(count for _, count in self.over_time)
            lines += ["", f"  {'from (UTC)':<19} {'letters':>10}"]
            lines += [
                f"  {_moment(at):<19} {count:>10,}  {'█' * max(1, count * 40 // most)}" for at, count in self.over_time
            ]
        if self.resent:
            verb = "would be sent" if self.dry_run else "sent again"
            lines += ["", f"  {'group':<40} {verb:>14} {'before':>10} {'failed':>10}"]
            for of in self.resent:
                lines.append(f"  {of.group:<40} {of.sent:>14,} {of.sent_before:>10,} {of.failed:>10,}")
                lines += [f"    {of.first_failure}"] if of.first_failure else []
        return "\n".join(lines)


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
