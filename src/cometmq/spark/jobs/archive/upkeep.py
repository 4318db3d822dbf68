"""Archive upkeep: join small files, remove old hours, and delete files that the table does not name.

* :func:`compact` joins files that are adjacent in offset order, up to a maximum size. Tasks write the new files, and
  one commit replaces the old ones: readers see either the old files or the new files. A killed run leaves at most some
  files that no commit names, and the next run continues with the remaining files.
* :func:`expire` removes, in one commit, all files whose last message was stored before the keep window. Each queue's
  archived end remains the same.
* Both jobs leave the old files on disk for readers that are using them; :func:`vacuum` deletes them later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.archive.commits import BodyColumn
from cometmq.archive.files import DataFile, hour_ended_ms, place_of
from cometmq.clock import SYSTEM_CLOCK
from cometmq.quantity import quantity
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.job import job
from cometmq.spark.jobs.options import CompactOptions, ExpireOptions, VacuumOptions
from cometmq.spark.jobs.report.parts import Notes, Part, Table
from cometmq.spark.jobs.report.plots import Bars, Plot, bars
from cometmq.spark.jobs.report.report import PARTLY_DONE, Report
from cometmq.spark.jobs.run import job_session, run_tasks
from cometmq.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACT: Final = "compact"
EXPIRE: Final = "expire"
VACUUM: Final = "vacuum"
_WORDS: Final = {
    COMPACT: ("joined", "would be joined"),
    EXPIRE: ("taken out of the archive", "would be taken out of the archive"),
    VACUUM: ("deleted", "would be deleted"),
}


@dataclass(frozen=True, slots=True)
class HourChange:
    """The changes to the files that contain one topic's messages from one hour."""

    topic: str
    hour: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    """Number of messages in these files; 0 for files that no table names."""


@dataclass(frozen=True)
class UpkeepReport(Report):
    """The files that one run joined, removed or deleted; in a dry run, the files that a run would change."""

    TITLE = "{0.what} of {0.directory}"
    COMPUTED = ("files_before", "files_after", "bytes_before", "rows")

    what: str
    """``compact``, ``expire`` or ``vacuum``."""
    directory: str
    format: str
    dry_run: bool
    finished: bool
    """False if the run was stopped before it was finished."""
    commits: int
    hours: tuple[HourChange, ...]
    seconds: float

    @property
    def files_before(self) -> int:
        """Return the number of files that were joined, removed or deleted."""
        return sum(hour.files_before for hour in self.hours)

    @property
    def files_after(self) -> int:
        """Return the number of files that replace the joined files."""
        return sum(hour.files_after for hour in self.hours)

    @property
    def bytes_before(self) -> int:
        """Return the total size of the files that were joined, removed or deleted, in bytes."""
        return sum(hour.bytes_before for hour in self.hours)

    @property
    def rows(self) -> int:
        """Return the number of messages in the files that were joined, removed or deleted."""
        return sum(hour.rows for hour in self.hours)

    @property
    def exit_code(self) -> int:
        """Return exit code 3 if the run was stopped."""
        return 0 if self.finished else PARTLY_DONE

    @property
    def verdict(self) -> str:
        """Return a sentence that states whether the run finished or was stopped."""
        return "The run is complete" if self.finished else "The run was stopped before its end"

    def _figures(self) -> list[tuple[str, str]]:
        figures = [(f"{self.files_before:,}", f"files {_WORDS[self.what][self.dry_run]}")]
        if self.what == COMPACT:
            figures.append((f"{self.files_after:,}", "files in their place"))
        figures += [(f"{self.bytes_before / 1e6:,.1f} MB", "in the old files"), (f"{self.rows:,}", "messages in them")]
        return [*figures, (f"{self.seconds:.1f} s", "duration")]

    def _parts(self) -> Iterator[Part]:
        word = _WORDS[self.what][self.dry_run]
        into = f" into {self.files_after:,}" if self.what == COMPACT else ""
        held = f" with {quantity(self.rows, 'message')}" if self.rows else ""
        yield (
            f"{self.directory} ({self.format}): {quantity(self.files_before, 'file')} "
            f"({self.bytes_before / 1e6:,.1f} MB){held} {word}{into}, {self.seconds:.1f} s"
        )
        if self.hours:
            rows = [
                (of.topic, of.hour, of.files_before, of.files_after, f"{of.bytes_before / 1e6:,.1f}", of.rows)
                for of in self.hours
            ]
            heads = ("<topic", "<hour", ">files", ">then", ">MB", ">messages")
            yield Table(heads, rows, "Hours", most=40, what="hours")
        if not self.finished:
            yield Notes((), "stopped before the end; run it again to go on", urgent=True)

    def _plots(self) -> list[Plot]:
        names = [f"{of.topic} {of.hour}" for of in self.hours]
        files = {"before": [of.files_before for of in self.hours], "after": [of.files_after for of in self.hours]}
        sizes = zip(names, (of.bytes_before / 1e6 for of in self.hours), strict=True)
        return [Bars("Files by hour", "files", names, files), bars("Bytes by hour", "MB", sizes)]


class Upkeep:
    """The current totals of a run. ``on_step`` is called after each commit."""

    def __init__(
        self, what: str, log: ArchiveLog, dry_run: bool, on_step: Callable[[Upkeep], object] = lambda _: None
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
        """Return the number of files that have been joined."""
        return sum(sums[0] for sums in self._hours.values())

    def __str__(self) -> str:
        """Return a progress line."""
        return f"{quantity(self.files, 'file')} joined in {quantity(self.commits, 'commit')}"

    def add_change(self, before: Sequence[DataFile], after: Sequence[int] = ()) -> None:
        """Count files removed from one hour, and add the sizes of the files that replace them."""
        sizes, rows = sum(file.bytes for file in before), sum(file.rows for file in before)
        self._add(place_of(before[0].path), len(before), len(after), sizes, sum(after), rows)

    def add_deleted(self, path: str, size: int) -> None:
        """Count a file that was deleted because the table did not name it."""
        self._add(place_of(path), 1, 0, size, 0, 0)

    def _add(self, place: tuple[str, str], *more: int) -> None:
        sums = self._hours.setdefault(place, [0] * 5)
        for index, value in enumerate(more):
            sums[index] += value

    def add_commit(self) -> None:
        """Count a commit, and call ``on_step``."""
        self.commits += 1
        self._on_step(self)

    def report(self, *, finished: bool) -> UpkeepReport:
        """Build the run's report."""
        return UpkeepReport(
            what=self._what,
            directory=self._log.url,
            format=self._log.format,
            dry_run=self._dry_run,
            finished=finished,
            commits=self.commits,
            hours=tuple(HourChange(*place, *sums) for place, sums in sorted(self._hours.items())),
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )


COMMIT_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Number of bytes joined in one commit. After a crash, about a minute of work is repeated."""


@dataclass(frozen=True, slots=True)
class Joining:
    """Files with one queue's messages from one hour, in offset order, which are joined into one file."""

    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """Return the total size of the files, in bytes."""
        return sum(file.bytes for file in self.files)


@job(CompactOptions)
def compact(options: CompactOptions) -> UpkeepReport:
    """Join small files of an archive, and return the report.

    Files are joined up to ``target_bytes``; larger files remain unchanged.

    :raises OptionError: an argument is invalid, or the archive or a topic in it does not exist.
    :raises ArchiveError: another upkeep job is running on the archive, or a file is damaged.
    """
    topics, dry_run, clock = options.topics, options.dry_run, options.clock
    if options.target_bytes < 1:
        raise OptionError(f"invalid target size of {options.target_bytes} bytes")
    log = ArchiveLog(options.archive, storage=options.storage, clock=clock)
    log.demand_any(topics)
    work = Upkeep(COMPACT, log, dry_run, options.on_step)
    with log.locked_for_upkeep():
        files = [file for file in log.files() if not topics or file.topic in topics]
        planned = planned_joinings(files, options.target_bytes, clock.now_ms() - options.settled_ms)
        if dry_run or not planned:
            for joining in planned:
                work.add_change(joining.files, (joining.bytes,))
            return work.report(finished=True)
        with job_session(options, "cometmq archive compact") as session:
            return work.report(finished=join_planned(session, log, planned, work, options.stop))


def join_planned(
    spark: SparkSession,
    log: ArchiveLog,
    planned: Iterable[Joining],
    work: Upkeep,
    stop: threading.Event | None,
    *,
    commit_bytes: int = COMMIT_BYTES,
) -> bool:
    """Join files, commit by commit. Return False if the run was stopped before its end.

    :param commit_bytes: number of bytes after which the joined files are committed.
    :raises ArchiveError: a file is damaged, or was removed meanwhile.
    """
    for step in _divide_into_commits(planned, commit_bytes):
        if stop is not None and stop.is_set():
            return False
        made = run_tasks(spark, step, partial(_join_in_task, log.storage, log.body_columns()), DataFile)
        log.replace([file for joining in step for file in joining.files], made)
        for joining, file in zip(step, made, strict=True):
            work.add_change(joining.files, (file.bytes,))
        work.add_commit()
    return True


def planned_joinings(files: Iterable[DataFile], target_bytes: int, ended_before_ms: int) -> list[Joining]:
    """Choose the files to join: groups of at least two neighbours in offset order, with a total of up to
    ``target_bytes``.
    """
    hours: dict[tuple[str, str, int], list[DataFile]] = {}
    for file in files:
        if hour_ended_ms(file.path) <= ended_before_ms:
            hours.setdefault((file.path.rpartition("/")[0], file.broker, file.queue_id), []).append(file)
    planned = []
    for _, held in sorted(hours.items()):
        gathered: list[DataFile] = []
        for file in sorted(held, key=lambda file: file.first):
            if gathered and sum(of.bytes for of in gathered) + file.bytes > target_bytes:
                planned.append(Joining(tuple(gathered)))
                gathered = []
            gathered.append(file)
        planned.append(Joining(tuple(gathered)))
    return [joining for joining in planned if len(joining.files) > 1]


def _divide_into_commits(planned: Iterable[Joining], commit_bytes: int) -> Iterator[list[Joining]]:
    step: list[Joining] = []
    for joining in planned:
        step.append(joining)
        if sum(of.bytes for of in step) >= commit_bytes:
            yield step
            step = []
    if step:
        yield step


def _join_in_task(storage: Storage, body_columns: Sequence[BodyColumn], joining: Joining) -> list[DataFile]:
    return [join_files(storage, joining.files, body_columns)]


def join_files(storage: Storage, files: Sequence[DataFile], body_columns: Sequence[BodyColumn] = ()) -> DataFile:
    """Join files with one queue's messages from one hour: write the messages into one file, in offset order.

    :param body_columns: the table's columns that are decoded from bodies. Older files may lack some, or have narrower
        types.
    :raises ArchiveError: the files do not contain the number of messages that the table states.
    """
    import numpy as np

    from cometmq.spark.archives.files import QueueWriter, Uploads, read_batches
    from cometmq.spark.records.body_columns.conforming import conform, table_schema

    schema = table_schema(body_columns)
    with Uploads(storage, None) as uploads:
        writer = QueueWriter(uploads, files[0].queue, schema)
        for file in files:
            rows, last = 0, file.first - 1
            for batch in read_batches(storage, file):
                offsets = np.concatenate(([last], batch.column("queueOffset").to_numpy()))
                _demand_sound(bool((np.diff(offsets) > 0).all()), file)
                rows, last = rows + batch.num_rows, int(offsets[-1])
                writer.add(conform(batch, schema))
            _demand_sound((rows, last + 1) == (file.rows, file.end), file)
        made = writer.close()
        _demand_sound(len(made) == 1, files[0])
    return msgspec.structs.replace(made[0], committed_ms=max(file.committed_ms for file in files))


def _demand_sound(good: bool, file: DataFile) -> None:
    from cometmq.spark.archives.files import damaged

    if not good:
        raise damaged(file)


LEAST_KEPT_MS: Final = 3_600_000
"""Minimum keep window. It ensures that an hour that still receives messages is never removed."""


@job(ExpireOptions)
def expire(options: ExpireOptions) -> UpkeepReport:
    """Remove hours that ended more than ``keep_ms`` ago from an archive, and return the report.

    :raises OptionError: the window is shorter than an hour, or the archive or a topic in it does not exist.
    :raises ArchiveError: another upkeep job is running on the archive.
    """
    keep_ms, topics, dry_run, clock = options.keep_ms, options.topics, options.dry_run, options.clock
    if keep_ms < LEAST_KEPT_MS:
        raise OptionError(f"a keep window of {keep_ms} ms is too short", next_step="keep at least one hour")
    log = ArchiveLog(options.archive, storage=options.storage, clock=clock)
    log.demand_any(topics)
    work = Upkeep(EXPIRE, log, dry_run)
    before_ms = clock.now_ms() - keep_ms
    with log.locked_for_upkeep():
        old = expired_files([file for file in log.files() if not topics or file.topic in topics], before_ms)
        if old and not dry_run:
            log.expire(old)
            work.commits += 1
        for file in sorted(old, key=lambda file: file.path):
            work.add_change((file,))
    return work.report(finished=True)


def expired_files(files: Iterable[DataFile], before_ms: int) -> list[DataFile]:
    """Return the files whose hour ended and whose messages were all stored before a time."""
    return [file for file in files if hour_ended_ms(file.path) <= before_ms and file.max_store_ms < before_ms]


@job(VacuumOptions)
def vacuum(options: VacuumOptions) -> UpkeepReport:
    """Delete the files below an archive that its table does not name, and return the report.

    Files that belonged to the archive within the last ``keep_ms`` are kept for readers of an older version.

    :raises ArchiveError: another upkeep job is running on the archive.
    """
    log = ArchiveLog(options.archive, storage=options.storage, clock=options.clock)
    work = Upkeep(VACUUM, log, options.dry_run)
    for path, size in log.sweep(keep_ms=options.keep_ms, dry_run=options.dry_run):
        work.add_deleted(path, size)
    return work.report(finished=True)
