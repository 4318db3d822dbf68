"""The report of the table job, during a run and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cometmq.archive.commits import BodyColumn
from cometmq.quantity import quantity
from cometmq.spark.jobs.archive.report import ArchiveReport
from cometmq.spark.jobs.report.parts import Part, Table


@dataclass(frozen=True)
class TableReport(ArchiveReport):
    """The state of a fresh table."""

    TITLE = "Table {0.directory}"
    COMPUTED = (*ArchiveReport.COMPUTED, "mean_file_bytes")

    columns: tuple[BodyColumn, ...] = ()
    """Columns that are decoded from bodies."""
    bad_bodies: int = 0
    """Messages of this run with a ``bodyError``."""
    table_files: int = 0
    table_bytes: int = 0
    small_files: int = 0
    """Files that are smaller than a quarter of the target size."""
    read_behind: int = 0
    """Messages on the brokers that have not been read."""
    committed_behind: int = 0
    """Messages on the brokers that are not in the table."""
    seconds_behind: float = 0
    """Time since the newest message in the table was stored, in seconds; 0 if the table has all messages."""
    files_joined: int = 0
    files_deleted: int = 0
    upkeep_failures: int = 0
    running: bool = False
    taken_over: bool = False
    """True if the run ended because a newer run has taken the table over."""

    @property
    def mean_file_bytes(self) -> int:
        """Return the mean size of the table's files in bytes."""
        return self.table_bytes // self.table_files if self.table_files else 0

    @property
    def verdict(self) -> str:
        """State how fresh the table is."""
        taken = "taken over by a newer run; " if self.taken_over else ""
        return (
            f"{taken}{quantity(self.committed_behind, 'message')} and {self.seconds_behind:.0f} s behind, "
            f"{quantity(self.table_files, 'file')} of {self.mean_file_bytes / 1e6:.1f} MB on average"
        )

    def _figures(self) -> list[tuple[str, str]]:
        return [
            (f"{self.total_rows:,}", "messages in the table"),
            (f"{self.committed_behind:,}", "messages behind"),
            (f"{self.table_files:,}", "files"),
            (f"{self.mean_file_bytes / 1e6:,.1f} MB", "mean file size"),
            (f"{self.bad_bodies:,}", "bodies with an error"),
        ]

    def _parts(self) -> Iterator[Part]:
        plural = "" if self.batches == 1 else "s"
        yield (
            f"{self.directory}: {quantity(self.rows, 'message')} in {self.batches:,} commit{plural}; "
            f"{self.files_joined:,} files joined, {self.files_deleted:,} deleted"
        )
        yield self.verdict
        if self.columns:
            yield Table(("<column", "<type"), [(of.name, of.type) for of in self.columns], "Columns", most=40)
        yield Table(
            ("<topic", "<broker", ">queue", ">first", ">next", ">messages"),
            [(of.topic, of.broker, of.queue_id, of.first, of.next, of.rows) for of in self.queues],
            "Queues",
        )
        yield from self._ending("to continue")
