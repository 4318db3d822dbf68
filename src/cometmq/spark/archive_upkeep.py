"""What an upkeep of an archive (compaction, retention, vacuum) did, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.quantity import quantity
from cometmq.spark.archive_commit import DataFile, place_of
from cometmq.spark.report_table import table

if TYPE_CHECKING:
    from cometmq.spark.archive_log import ArchiveLog

COMPACT: Final = "compact"
EXPIRE: Final = "expire"
VACUUM: Final = "vacuum"
_WORDS: Final = {
    COMPACT: ("joined", "would be joined"),
    EXPIRE: ("taken out of the archive", "would be taken out of the archive"),
    VACUUM: ("deleted", "would be deleted"),
}
_MOST_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Change:
    """Files of a queue's hour before and after."""

    topic: str
    path: str
    before: tuple[DataFile, ...]
    after: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class HourChange:
    """What has changed of a topic's hour of store time."""

    topic: str
    hour: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    """Messages in the files that were looked at; 0 for files that no table names."""


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What one run did, or would do."""

    what: str
    """``compact``, ``expire`` or ``vacuum``."""
    directory: str
    format: str
    dry_run: bool
    finished: bool
    """False if the run was stopped before its end."""
    commits: int
    hours: tuple[HourChange, ...]
    seconds: float

    @property
    def files_before(self) -> int:
        """Files that were joined, taken out or deleted."""
        return sum(hour.files_before for hour in self.hours)

    @property
    def files_after(self) -> int:
        """Files in their place."""
        return sum(hour.files_after for hour in self.hours)

    @property
    def bytes_before(self) -> int:
        """Bytes of the files that were joined, taken out or deleted."""
        return sum(hour.bytes_before for hour in self.hours)

    @property
    def rows(self) -> int:
        """Messages in them."""
        return sum(hour.rows for hour in self.hours)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        sums = {name: getattr(self, name) for name in ("files_before", "files_after", "bytes_before", "rows")}
        return asdict(self) | sums

    def render(self) -> str:
        """A summary to read in a terminal."""
        word = _WORDS[self.what][self.dry_run]
        into = f" into {self.files_after:,}" if self.what == COMPACT else ""
        held = f" with {quantity(self.rows, 'message')}" if self.rows else ""
        lines = [
            f"{self.directory} ({self.format}): {quantity(self.files_before, 'file')} "
            f"({self.bytes_before / 1e6:,.1f} MB){held} {word}{into}, {self.seconds:.1f} s"
        ]
        if self.hours:
            rows = (
                (of.topic, of.hour, of.files_before, of.files_after, f"{of.bytes_before / 1e6:,.1f}", of.rows)
                for of in self.hours[:_MOST_LINES]
            )
            lines += ["", *table(("<topic", "<hour", ">files", ">then", ">MB", ">messages"), rows)]
            if len(self.hours) > _MOST_LINES:
                lines.append(f"  … and {len(self.hours) - _MOST_LINES:,} more hours (-o json has all)")
        if not self.finished:
            lines += ["", "stopped before the end; run it again to go on"]
        return "\n".join(lines)


class Upkeep:
    """What a run has done so far; ``on_step`` is told after each commit."""

    def __init__(
        self, what: str, log: ArchiveLog, dry_run: bool, on_step: Callable[[Upkeep], None] = lambda _: None
    ) -> None:
        self._what = what
        self._log = log
        self._dry_run = dry_run
        self._on_step = on_step
        self._began = SYSTEM_CLOCK.monotonic()
        self._hours: dict[tuple[str, str], list[int]] = {}
        self.commits = 0

    @property
    def files(self) -> int:
        """Files that are done."""
        return sum(sums[0] for sums in self._hours.values())

    def changed(self, change: Change) -> None:
        """Take note of a change."""
        self._add(
            place_of(change.path),
            len(change.before),
            len(change.after),
            sum(file.bytes for file in change.before),
            sum(file.bytes for file in change.after),
            sum(file.rows for file in change.before),
        )

    def deleted(self, path: str, size: int) -> None:
        """Take note of a file that no table named."""
        self._add(place_of(path), 1, 0, size, 0, 0)

    def _add(self, place: tuple[str, str], *more: int) -> None:
        sums = self._hours.setdefault(place, [0] * 5)
        for index, value in enumerate(more):
            sums[index] += value

    def stepped(self) -> None:
        """Tell of a commit."""
        self.commits += 1
        self._on_step(self)

    def report(self, *, finished: bool) -> UpkeepReport:
        """Sum the run up."""
        return UpkeepReport(
            what=self._what,
            directory=str(self._log.root),
            format=self._log.format,
            dry_run=self._dry_run,
            finished=finished,
            commits=self.commits,
            hours=tuple(HourChange(*place, *sums) for place, sums in sorted(self._hours.items())),
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )
