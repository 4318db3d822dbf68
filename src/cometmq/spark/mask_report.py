"""What the mask job did, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cometmq.quantity import quantity
from cometmq.spark.replay_report import ReplayReport
from cometmq.spark.report_table import table

_SHOWN: Final = 400
"""Characters of a sampled body in a table."""


@dataclass(frozen=True, slots=True)
class MaskedSample:
    """One message before and after."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    before: str
    """The body as text; this is not masked."""
    after: str
    """The masked body, or why it would go apart."""
    properties_before: dict[str, str]
    properties_after: dict[str, str]


@dataclass(frozen=True, slots=True)
class MaskedStep:
    """One step of a copy."""

    messages: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MaskReport:
    """What one run copied."""

    source: str
    to: str
    """Directory of the copy."""
    dry_run: bool
    finished: bool
    messages: int
    """Copied by this run; in a dry run: that would be."""
    total: int
    """That the copy holds now."""
    values: dict[str, int]
    """Masked values, by the field of the rule."""
    apart: dict[str, int]
    """Messages that are not in the copy, by reason."""
    steps: tuple[MaskedStep, ...]
    warnings: tuple[str, ...]
    replayed: ReplayReport | None
    """What was sent to a topic."""
    seconds: float
    samples: tuple[MaskedSample, ...] = ()
    """Of a dry run only."""

    @property
    def complete(self) -> bool:
        """Whether everything was copied."""
        return self.finished and not self.apart and (self.replayed is None or self.replayed.complete)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the samples, which are not masked, as plain values, for JSON."""
        replayed = None if self.replayed is None else self.replayed.to_dict()
        told = asdict(replace(self, samples=()))
        del told["samples"]
        return told | {"complete": self.complete, "replayed": replayed}

    def render(self) -> str:
        """A summary to read in a terminal, without samples."""
        verb = "would be copied" if self.dry_run else "copied"
        lines = [f"{quantity(self.messages, 'message')} of {self.source} {verb} to {self.to}; {self.seconds:.1f} s"]
        if not self.dry_run:
            lines.append(f"  the copy holds {self.total:,}" + ("" if self.finished else "; stopped before the end"))
        lines += [f"  {warning}" for warning in self.warnings]
        lines += ["", *table(("<field", ">values masked"), self.values.items())]
        if self.apart:
            lines += ["", *table(("<not copied", ">messages"), sorted(self.apart.items()))]
        if self.replayed is not None:
            lines += ["", self.replayed.render()]
        return "\n".join(lines)

    def render_samples(self) -> str:
        """The samples of a dry run; they show what is not masked yet."""
        lines = []
        for of in self.samples:
            lines += ["", f"{of.topic} at {of.broker}, queue {of.queue_id}, offset {of.queue_offset}:"]
            lines += [f"  before  {of.before[:_SHOWN]}", f"  after   {of.after[:_SHOWN]}"]
            for name, value in of.properties_before.items():
                if of.properties_after.get(name) != value:
                    lines.append(f"  {name}: {value} → {of.properties_after.get(name, 'dropped')}"[:_SHOWN])
        return "\n".join(lines)
