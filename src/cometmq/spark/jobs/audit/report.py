"""The audit report, and the data from each party: the brokers, the archive's log, and the consumer groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cometmq.archive.commits import QueueTotals
from cometmq.client.blocking.offsets import Bounds
from cometmq.quantity import quantity
from cometmq.spark.jobs.report.parts import Notes, Part, Table, TextOnly, moment
from cometmq.spark.jobs.report.plots import Bars, Line, Plot
from cometmq.spark.jobs.report.report import PARTLY_DONE, Report
from cometmq.spark.records.queues import Queue


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One disagreement."""

    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class QueueAudit:
    """Each party's figures for one queue, or ``None`` if a party has no figure."""

    broker: str
    queue_id: int
    first: int | None
    """Offsets of the stored messages on the broker: ``first <= offset < end``."""
    end: int | None
    stored: int | None
    archived: int | None
    """Number of rows in the archive's files."""
    archived_from: int | None
    archived_to: int | None
    consumed: Mapping[str, int]
    """Next offset of each group that consumes the queue."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """The latency of one stage that messages pass through, in ms."""

    way: str
    median_ms: int
    p99_ms: int
    longest_ms: int


@dataclass(frozen=True, slots=True)
class Span:
    """Each party's number of messages in one of several hundred equal intervals of store time."""

    at_ms: int
    stored: int
    archived: int
    consumed: int
    """Number of messages that the slowest group has consumed, or 0 if there are no groups."""


@dataclass(frozen=True)
class AuditReport(Report):
    """The result of an audit."""

    TITLE = "Audit of {0.topic}"
    COMPUTED = ("agrees",)

    topic: str
    archive: str | None
    groups: tuple[str, ...]
    produced: int | None
    """Number of sends in the trace topic, or ``None`` if the topic has no traces."""
    queues: tuple[QueueAudit, ...]
    spans: tuple[Span, ...]
    lateness: tuple[Lateness, ...]
    disagreements: tuple[Disagreement, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def agrees(self) -> bool:
        """Return True if there is no disagreement."""
        return not self.disagreements

    @property
    def exit_code(self) -> int:
        """Return exit code 3 if something disagrees."""
        return 0 if self.agrees else PARTLY_DONE

    @property
    def verdict(self) -> str:
        """Return a sentence that states whether the parties agree."""
        return quantity(len(self.disagreements), "disagreement") if self.disagreements else "Everything agrees"

    def _figures(self) -> list[tuple[str, str]]:
        figures = [(f"{sum(of.stored or 0 for of in self.queues):,}", "stored")]
        if self.produced is not None:
            figures.insert(0, (f"{self.produced:,}", "produced, by trace"))
        if self.archive is not None:
            figures.append((f"{sum(of.archived or 0 for of in self.queues):,}", "archived"))
        return [*figures, (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        yield f"{self.topic}: {self._summary()} ({self.seconds:.1f} s)"
        yield Table(
            ("<broker", ">queue", ">offsets stored", ">stored", ">archived up to", ">archived"),
            [
                (
                    of.broker,
                    of.queue_id,
                    None if of.first is None or of.end is None else f"{of.first:,} to {of.end:,}",
                    of.stored,
                    of.archived_to,
                    of.archived,
                )
                for of in self.queues
            ],
            "Queues",
        )
        if self.groups:
            yield Notes([self._behind(group) for group in self.groups])
        if self.lateness:
            late = [(of.way, of.median_ms, of.p99_ms, of.longest_ms) for of in self.lateness]
            yield Table(("<lateness, ms", ">median", ">99 %", ">longest"), late, "Lateness")
        if self.notes:
            yield Notes([f"note: {note}" for note in self.notes])
        if not self.disagreements:
            yield TextOnly("✔ everything agrees")
            return
        yield Notes(
            [found.what for found in self.disagreements],
            f"✘ {quantity(len(self.disagreements), 'disagreement')}, the first of each kind:",
            [found.next_step for found in self.disagreements],
            urgent=True,
        )

    def _behind(self, group: str) -> str:
        behind = [of.end - of.consumed[group] for of in self.queues if of.end is not None and group in of.consumed]
        return f"group {group}: {quantity(sum(behind), 'message')} behind, in {quantity(len(behind), 'queue')}"

    def _plots(self) -> list[Plot]:
        names = [f"{of.broker} {of.queue_id}" for of in self.queues]
        counts = {"stored": [of.stored or 0 for of in self.queues]}
        curves = {"stored": [span.stored for span in self.spans]}
        if self.groups:
            curves["consumed"] = [span.consumed for span in self.spans]
        if self.archive is not None:
            counts["archived"] = [of.archived or 0 for of in self.queues]
            curves["archived"] = [span.archived for span in self.spans]
        plots: list[Plot] = [Bars("By queue", "messages", names, counts)]
        if len(self.spans) > 1:
            first = self.spans[0].at_ms
            minutes = [(span.at_ms - first) / 60_000 for span in self.spans]
            label = f"minutes since {moment(first, 'm')} UTC"
            plots.append(Line("By the time they were stored", "messages", label, minutes, curves))
        return plots

    def _summary(self) -> str:
        said = [
            f"{sum(of.stored or 0 for of in self.queues):,} stored",
            "no trace" if self.produced is None else f"{self.produced:,} produced by trace",
        ]
        if self.archive is not None:
            said.append(f"{sum(of.archived or 0 for of in self.queues):,} archived")
        return ", ".join(said)


@dataclass(frozen=True, slots=True)
class Parties:
    """The offsets that each party reports."""

    topic: str
    bounds: Mapping[Queue, Bounds]
    """Offsets on the brokers when the audit began, …"""
    held_from: Mapping[Queue, int]
    """… and, for each queue, the first of these offsets that was not deleted during the audit."""
    totals: Mapping[Queue, QueueTotals]
    """Totals from the archive's log, or empty if there is no archive."""
    consumed: Mapping[str, Mapping[Queue, int]]
    """Each group's next offsets."""

    @property
    def held(self) -> int:
        """Return the number of messages on the brokers when the audit began."""
        return sum(held.end - held.first for held in self.bounds.values())

    @property
    def archived(self) -> int:
        """Return the number of messages in the archive according to its log."""
        return sum(of.rows for of in self.totals.values())

    def without_deleted(self, now: Mapping[Queue, Bounds]) -> Parties:
        """Return the parties' offsets, limited to the offsets ``now`` that are still on the brokers."""
        held_from = {
            queue: min(max(held.first, self.bounds[queue].first), self.bounds[queue].end) for queue, held in now.items()
        }
        return replace(self, held_from={**self.held_from, **held_from})

    def deleted(self) -> list[int]:
        """Count each queue's messages that brokers deleted during the audit."""
        return [self.held_from[queue] - held.first for queue, held in self.bounds.items()]

    def limits(self) -> list[tuple[str, int, int, int, int, int, int]]:
        """Return the limits of each queue for :func:`.frames.minutes_of`."""
        limits = []
        for queue, held in self.bounds.items():
            of = self.totals.get(queue)
            first, end = (0, 0) if of is None else (max(self.held_from[queue], of.first), min(held.end, of.next))
            expired = (0, 0) if of is None else (of.expired_to, of.expired_before_ms)
            reached = [offsets.get(queue, 0) for offsets in self.consumed.values()]
            limits.append((queue.broker, queue.queue_id, first, max(first, end), *expired, min(reached, default=0)))
        return limits

    def queues(self, counted: Mapping[Queue, Any]) -> tuple[QueueAudit, ...]:
        """Return a report row for every queue.

        :param counted: the result of :func:`.frames.counted`.
        """
        found = []
        for queue in sorted({*self.bounds, *self.totals}):
            held, of, row = self.bounds.get(queue), self.totals.get(queue), counted.get(queue)
            found.append(
                QueueAudit(
                    broker=queue.broker,
                    queue_id=queue.queue_id,
                    first=None if held is None else held.first,
                    end=None if held is None else held.end,
                    stored=None if held is None else (row["stored"] if row else 0),
                    archived=None if of is None else (row["archived"] if row else 0),
                    archived_from=None if of is None else of.first,
                    archived_to=None if of is None else of.next,
                    consumed={g: offsets[queue] for g, offsets in self.consumed.items() if queue in offsets},
                )
            )
        return tuple(found)
