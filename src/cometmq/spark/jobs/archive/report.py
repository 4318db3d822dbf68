"""The archive job's report, and the totals of a run from which it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from cometmq.archive.commits import Commit, Covered, QueueTotals
from cometmq.clock import SYSTEM_CLOCK
from cometmq.quantity import quantity
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.jobs.report.parts import Part, Table, per_second
from cometmq.spark.jobs.report.plots import Plot, bars
from cometmq.spark.jobs.report.report import RunReport, Step
from cometmq.spark.records.queues import OffsetRange, Offsets


@dataclass(frozen=True, slots=True)
class ArchivedBatch(Step):
    """One batch that has just been committed."""

    batch_id: int
    bytes: int
    files: int

    def _done(self) -> str:
        return (
            f"batch {self.batch_id}: {quantity(self.messages, 'message')} in {quantity(self.files, 'file')} committed"
        )


@dataclass(frozen=True)
class ArchiveReport(RunReport):
    """The messages that one run of the archive job wrote, and those that the archive now contains."""

    TITLE = "Archive {0.directory}"
    COMPUTED: ClassVar[tuple[str, ...]] = ("total_rows", "complete")

    directory: str
    rows: int
    bytes: int
    files: int
    batches: int
    seconds: float
    finished: bool
    warnings: tuple[str, ...]
    queues: tuple[QueueTotals, ...]
    """Every queue in the archive, with the messages from all runs. In a dry run, the numbers include the messages that
    a run would add.
    """
    dry_run: bool = False
    """True if nothing was written. In this case, ``rows`` is the number of messages that a run would add."""

    @property
    def total_rows(self) -> int:
        """Return the number of messages in the archive."""
        return sum(queue.rows for queue in self.queues)

    def _figures(self) -> list[tuple[str, str]]:
        figures = [(f"{self.rows:,}", "would be archived" if self.dry_run else "archived by this run")]
        figures.append((f"{self.total_rows:,}", "would be in the archive" if self.dry_run else "in the archive now"))
        if not self.dry_run:
            figures += [(f"{self.files:,}", "new files"), (f"{self.bytes / 1e6:,.1f} MB", "in them")]
        return [*figures, (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        speed = per_second(self.rows, self.seconds)
        plural = "" if self.batches == 1 else "es"
        if self.dry_run:
            yield f"{quantity(self.rows, 'message')} would be archived"
        else:
            yield (
                f"{quantity(self.rows, 'message')} in {quantity(self.files, 'file')} ({self.bytes / 1e6:,.1f} MB), "
                f"{self.batches:,} batch{plural}, {self.seconds:.1f} s ({speed:,.0f} messages/s)"
            )
        holds = "would then hold" if self.dry_run else "now holds"
        held = f"{quantity(self.total_rows, 'message')} of {quantity(len(self.queues), 'queue')}"
        yield f"{self.directory} {holds} {held}:"
        yield Table(
            ("<topic", "<broker", ">queue", ">first", ">next", ">messages"),
            [(of.topic, of.broker, of.queue_id, of.first, of.next, of.rows) for of in self.queues],
            "Queues",
        )
        yield from self._ending("with the same checkpoint to continue")

    def _plots(self) -> list[Plot]:
        counts = ((f"{of.topic} {of.broker} {of.queue_id}", of.rows) for of in self.queues)
        return [bars("By queue", "messages", counts)]


def dry_run_report(log: ArchiveLog, new: Mapping[OffsetRange, int], *, seconds: float) -> ArchiveReport:
    """Build the report of a dry run.

    :param new: offsets of the messages that a run would add, by queue.
    :param seconds: duration of the search for the messages.
    """
    totals = {of.queue: of for of in log.queues()}
    for part, rows in new.items():
        before = totals.get(part.queue) or QueueTotals(*part.queue, part.first, part.first, 0)
        after = max(part.end, before.next)
        totals[part.queue] = QueueTotals(*part.queue, before.first, after, before.rows + rows)
    return ArchiveReport(
        directory=log.url,
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
"""Maximum number of gaps that a report lists, since a run may last for months."""


class ArchiveRun:
    """The current totals of one run. ``on_batch`` is called with each commit."""

    def __init__(self, log: ArchiveLog, on_batch: Callable[[ArchivedBatch], object] | None = None) -> None:
        self._log = log
        self._on_batch = on_batch
        self._began = SYSTEM_CLOCK.monotonic()
        self._rows = self._bytes = self._files = self._batches = self._bad_bodies = self._gap_count = 0
        self._gaps: list[str] = []
        self.read_ends: Offsets = {}
        """The offset after each queue's last message that tasks have read, also before its commit."""

    def add_read(self, covered: Iterable[Covered]) -> None:
        """Record what tasks have read."""
        for part in covered:
            self.read_ends[part.queue] = max(part.end, self.read_ends.get(part.queue, 0))

    @property
    def bad_bodies(self) -> int:
        """The number of bodies that could not be decompressed or decoded."""
        return self._bad_bodies

    def add_commit(self, commit: Commit) -> None:
        """Add a commit to the totals, and call ``on_batch`` with it."""
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
                    messages=commit.rows,
                    total=self._rows,
                    seconds=SYSTEM_CLOCK.monotonic() - self._began,
                    batch_id=commit.batch_id,
                    bytes=size,
                    files=len(commit.files),
                )
            )

    def gap_warnings(self) -> list[str]:
        """Return a warning for each gap, up to a limit."""
        warnings = [f"messages {gap} were gone before they were read" for gap in self._gaps]
        if self._gap_count > len(self._gaps):
            warnings.append(f"{self._gap_count - len(self._gaps):,} more gaps: see gaps in the archive's commits")
        return warnings

    def report(self, *, finished: bool) -> ArchiveReport:
        """Build the run's report."""
        warnings = self.gap_warnings()
        if self._bad_bodies:
            words = f"{self._bad_bodies} bodies could not be unpacked; they are kept as stored in column storedBody"
            warnings.append(words)
        return ArchiveReport(
            directory=self._log.url,
            rows=self._rows,
            bytes=self._bytes,
            files=self._files,
            batches=self._batches,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            finished=finished,
            warnings=tuple(warnings),
            queues=tuple(self._log.queues()),
        )
