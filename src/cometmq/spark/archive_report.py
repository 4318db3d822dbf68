"""What an archive job did, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK
from cometmq.quantity import quantity
from cometmq.spark.archive_commit import Commit, QueueTotals
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.queues import OffsetRange
from cometmq.spark.report_table import table


@dataclass(frozen=True, slots=True)
class ArchivedBatch:
    """One batch that has just been committed."""

    batch_id: int
    rows: int
    bytes: int
    files: int
    total_rows: int
    """Of this run so far."""
    seconds: float
    """Of this run so far."""


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What a run of the archive job wrote, and what the archive holds now."""

    directory: str
    rows: int
    bytes: int
    files: int
    batches: int
    seconds: float
    finished: bool
    """False if the run was stopped before it reached the end that it set out for."""
    warnings: tuple[str, ...]
    queues: tuple[QueueTotals, ...]
    """Every queue in the archive, with the messages of all runs; of a dry run, as they would be then."""
    dry_run: bool = False
    """Whether nothing was written, and ``rows`` is what a run would bring."""

    @property
    def total_rows(self) -> int:
        """Messages in the archive."""
        return sum(queue.rows for queue in self.queues)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing: it came to its end, no messages were gone, every body was unpacked."""
        return self.finished and not self.warnings

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        plain = asdict(self) | {"total_rows": self.total_rows, "complete": self.complete}
        plain["queues"] = [msgspec.structs.asdict(queue) for queue in self.queues]
        return plain

    def render(self) -> str:
        """A summary to read in a terminal."""
        speed = self.rows / self.seconds if self.seconds else 0.0
        plural = "" if self.batches == 1 else "es"
        done = (
            f"{quantity(self.rows, 'message')} in {quantity(self.files, 'file')} ({self.bytes / 1e6:,.1f} MB), "
            f"{self.batches:,} batch{plural}, {self.seconds:.1f} s ({speed:,.0f} messages/s)"
        )
        holds = "would then hold" if self.dry_run else "now holds"
        lines = [
            f"{quantity(self.rows, 'message')} would be archived" if self.dry_run else done,
            f"{self.directory} {holds} {quantity(self.total_rows, 'message')} of "
            f"{quantity(len(self.queues), 'queue')}:",
            "",
            *table(
                ("<topic", "<broker", ">queue", ">first", ">next", ">messages"),
                ((of.topic, of.broker, of.queue_id, of.first, of.next, of.rows) for of in self.queues),
            ),
        ]
        if not self.finished:
            lines += ["", "stopped before the end; run it again with the same checkpoint to go on"]
        lines += ["", *(f"warning: {warning}" for warning in self.warnings)] if self.warnings else []
        return "\n".join(lines)


def expected(log: ArchiveLog, new: Mapping[OffsetRange, int], *, seconds: float) -> ArchiveReport:
    """The report of a dry run.

    :param new: messages that a run would bring, by the offsets of a queue in which they lie.
    :param seconds: how long it took to find them.
    """
    totals = {of.queue: of for of in log.queues()}
    for part, rows in new.items():
        before = totals.get(part.queue) or QueueTotals(*part.queue, part.first, part.first, 0)
        after = max(part.end, before.next)
        totals[part.queue] = QueueTotals(*part.queue, before.first, after, before.rows + rows)
    return ArchiveReport(
        directory=str(log.root),
        rows=sum(new.values()),
        bytes=0,
        files=0,
        batches=0,
        seconds=seconds,
        finished=True,
        warnings=(),
        queues=tuple(totals[queue] for queue in sorted(totals)),
        dry_run=True,
    )


_MOST_GAPS: Final = 100
"""Gaps that a report names; a run may go on for months."""


class ArchiveRun:
    """What one run has committed so far, as sums; ``on_batch`` is told of each commit."""

    def __init__(self, log: ArchiveLog, on_batch: Callable[[ArchivedBatch], None] | None = None) -> None:
        self._log = log
        self._on_batch = on_batch
        self._began = SYSTEM_CLOCK.monotonic()
        self._rows = self._bytes = self._files = self._batches = self._bad_bodies = self._gap_count = 0
        self._gaps: list[str] = []

    def committed(self, commit: Commit) -> None:
        """Take note of a commit."""
        size = sum(file.bytes for file in commit.files)
        self._batches += 1
        self._rows += commit.rows
        self._bytes += size
        self._files += len(commit.files)
        self._bad_bodies += sum(file.bad_bodies for file in commit.files)
        self._gap_count += len(commit.gaps)
        self._gaps += commit.gaps[: _MOST_GAPS - len(self._gaps)]
        if self._on_batch is not None:
            self._on_batch(
                ArchivedBatch(
                    batch_id=commit.batch_id,
                    rows=commit.rows,
                    bytes=size,
                    files=len(commit.files),
                    total_rows=self._rows,
                    seconds=SYSTEM_CLOCK.monotonic() - self._began,
                )
            )

    def report(self, *, finished: bool) -> ArchiveReport:
        """Sum the run up."""
        warnings = [f"messages {gap} were gone before they were read" for gap in self._gaps]
        if self._gap_count > len(self._gaps):
            warnings.append(f"{self._gap_count - len(self._gaps):,} more gaps: see gaps in the archive's commits")
        if self._bad_bodies:
            told = f"{self._bad_bodies} bodies could not be unpacked; they are kept as stored in column storedBody"
            warnings.append(told)
        return ArchiveReport(
            directory=str(self._log.root),
            rows=self._rows,
            bytes=self._bytes,
            files=self._files,
            batches=self._batches,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            finished=finished,
            warnings=tuple(warnings),
            queues=tuple(self._log.queues()),
        )
