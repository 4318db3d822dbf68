"""The log of an archive: which files belong to it, and how far each queue is archived. No Spark here.

Files and offsets are committed in one transaction of the archive's table (:mod:`~.archive_table`). Tasks write files
aside (:mod:`~.archive_writer`), and only who commits them puts them into their places, just before: so a file that is
committed is never written to again. Killing a job at any point leaves at most files that no commit names, which readers
do not see, the next run removes or overwrites, and a sweep removes. Each commit also sums up everything before it, so
that the last one tells where every queue stands; a batch that would overlap or belongs to another query is refused.

Three locks go with their processes: ``_lock`` is held while a job archives, ``_upkeep_lock`` while one compacts,
expires or sweeps, so that both can go on side by side; ``_commit_lock`` only from reading the last commit until the
next one is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.durable import flush_directory
from cometmq.spark.archive_commit import (
    COMPACTED,
    EXPIRED,
    Commit,
    Covered,
    DataFile,
    QueueTotals,
    advanced,
    merged,
    part_path,
    told,
    without,
)
from cometmq.spark.archive_table import TableFormat, table_at
from cometmq.spark.errors import ArchiveError, OptionError
from cometmq.spark.job_lock import locked, locked_if_free
from cometmq.spark.missing_topics import demand_present
from cometmq.spark.queues import Offsets, Queue

REMOVED_KEPT_MS: Final = 7 * 24 * 3_600_000
"""How long files that were compacted or expired stay on the disk for readers of an older version: Delta's default."""
WRITING_SPARED_MS: Final = 24 * 3_600_000
"""Age from which on a file that no commit names is no part of a batch that a running job is about to commit."""
WRITING: Final = "_writing"
"""Directory where tasks of the job that holds the archive write files; no commit names any there."""
JOINING: Final = "_joining"
"""The same for the upkeep."""
_UPKEEP_LOCK: Final = "_upkeep_lock"
_COMMIT_LOCK: Final = "_commit_lock"


class ArchiveLog:
    """The commits of the archive in a directory, whatever format its table has."""

    def __init__(self, root: str | Path, wanted: TableFormat | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Look at what is there.

        :param wanted: format of an archive that is not there yet, Parquet if left out.
        :raises OptionError: there is no such format.
        :raises ArchiveError: the archive has another format than ``wanted``, or its package is missing.
        """
        self.root = Path(root).absolute()
        self._table = table_at(self.root, wanted)
        self._clock = clock

    # Reading --------------------------------------------------------------------------------------

    @property
    def format(self) -> str:
        """Name of the format that its table has."""
        return self._table.format

    def last(self) -> Commit | None:
        """Read the last commit, if there is one; its files may be left out."""
        return self._table.last()

    def files(self) -> list[DataFile]:
        """List every file that belongs to the archive."""
        return self._table.files()

    def queues(self) -> list[QueueTotals]:
        """Sum up each queue over all commits."""
        last = self.last()
        return [] if last is None else last.queues

    def next_offsets(self) -> Offsets:
        """Tell where each queue in the archive goes on."""
        return {of.queue: of.next for of in self.queues()}

    def holds(self, query_id: str, batch_id: int) -> bool:
        """Tell whether a batch is committed; batches of a query are committed in order."""
        committed = self._table.batch_of(query_id)
        return committed is not None and committed >= batch_id

    def last_batch_of(self, query_id: str) -> int | None:
        """Find the last batch that a query committed here; None if it never did."""
        return self._table.batch_of(query_id)

    def demand_any(self, topics: Iterable[str] = ()) -> None:
        """Demand that there is an archive: what lies in another directory is none of our business.

        :param topics: that must be in it.
        :raises OptionError: nothing was ever committed here, or nothing of one of the topics.
        """
        last = self.last()
        if last is None:
            raise OptionError(f"{self.root} holds no archive", next_step="make one: cometmq pipeline archive")
        there = {of.topic for of in last.queues}
        told = f"the archive {self.root} has no topic"
        demand_present(topics, there, told, next_step=f"it has {', '.join(sorted(there))}")

    # Writing --------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the archive for one writer; the lock goes with the process, however it ends.

        What an earlier one has written and not committed is removed.

        :raises ArchiveError: another process holds it.
        """
        with locked(self.root):
            self.discard(WRITING)
            yield

    @contextmanager
    def kept_up(self) -> Iterator[None]:
        """Hold the archive for one upkeep, beside a job that may archive into it.

        :raises ArchiveError: another process holds it.
        """
        with locked(self.root, _UPKEEP_LOCK):
            yield

    def discard(self, place: str) -> None:
        """Remove what an earlier run has written in ``place`` and not committed; for who holds that place's lock."""
        for path in self.root.glob(f"{place}/*.parquet"):
            path.unlink(missing_ok=True)

    def append(
        self,
        query_id: str,
        batch_id: int,
        covered: Iterable[Covered],
        files: Sequence[DataFile],
        lost: Iterable[Covered] = (),
    ) -> Commit | None:
        """Commit a batch, also an empty one; None if it is committed already.

        :param lost: offsets within ``covered`` whose messages were gone before they could be read.
        :raises ArchiveError: it overlaps what is archived, or one of its files is not there.
        """
        joined = merged(covered)
        for file in files:
            self._demand_file(file)
        with locked(self.root, _COMMIT_LOCK, wait=True):
            last = self.last()
            if last is not None and self.holds(query_id, batch_id):
                return None
            queues, gaps = advanced([] if last is None else last.queues, joined, files)
            now = self._clock.now_ms()
            new = [msgspec.structs.replace(file, committed_ms=now) for file in self._placed(files)]
            commit = Commit(
                sequence=0 if last is None else last.sequence + 1,
                query_id=query_id,
                batch_id=batch_id,
                committed_ms=now,
                covered=joined,
                files=new,
                queues=queues,
                gaps=[*gaps, *map(told, merged(lost))],
            )
            self._table.commit(commit, [])
        return commit

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        """Put files in the place of others that hold the same messages.

        :raises ArchiveError: they are not as many messages of the same queues, or an old one left the archive.
        """
        for file in new:
            self._demand_file(file)
        if _rows(old) != _rows(new):
            raise ArchiveError(f"{len(new)} new files do not hold what {len(old)} old ones do: nothing was changed")
        with locked(self.root, _COMMIT_LOCK, wait=True):
            self._take(COMPACTED, old, new)

    def expire(self, old: Sequence[DataFile]) -> None:
        """Take files out of the archive; how far each queue is archived stays as it is.

        :raises ArchiveError: one of them left the archive meanwhile.
        """
        with locked(self.root, _COMMIT_LOCK, wait=True):
            self._take(EXPIRED, old, [])

    def _take(self, kind: str, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        last = self.last()
        there = {file.path: file for file in self.files()}
        gone = [there.pop(file.path) for file in old if file.path in there]
        if last is None or len(gone) != len(old):
            raise ArchiveError(
                f"{len(old) - len(gone)} files left the archive {self.root} meanwhile", next_step="run it again"
            )
        queues = last.queues if kind == COMPACTED else without(last.queues, gone, there.values())
        new = self._placed(new)
        commit = msgspec.structs.replace(
            last,
            sequence=last.sequence + 1,
            committed_ms=self._clock.now_ms(),
            covered=[],
            files=new,
            queues=queues,
            gaps=[],
            kind=kind,
            removed=[],
        )
        self._table.commit(commit, gone)

    def _placed(self, files: Iterable[DataFile]) -> list[DataFile]:
        """Put files that tasks have written where they belong, in the order of their names."""
        placed = []
        for file in files:
            path = part_path(file.queue, file.min_store_ms, file.first, file.end)
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / file.path).replace(self.root / path)
            placed.append(msgspec.structs.replace(file, path=path))
        hours = {(self.root / file.path).parent for file in placed}
        for directory in {above for hour in hours for above in (hour, hour.parent, self.root)}:
            flush_directory(directory)
        return sorted(placed, key=lambda file: file.path)

    def _demand_file(self, file: DataFile) -> None:
        path = self.root / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise ArchiveError(
                f"an executor wrote {path} with {file.bytes} bytes, but the driver does not see it so",
                next_step="the archive's directory must be the same for driver and executors",
            )

    def sweep(self, *, keep_ms: int = REMOVED_KEPT_MS, dry_run: bool = False) -> list[tuple[str, int]]:
        """Delete data files that the table does not name; return their paths, relative to the archive, and sizes.

        While a job archives, files that no commit has named yet stay until they are a day old.

        :param keep_ms: files that left the archive within this time stay.
        :raises ArchiveError: another upkeep is under way.
        :raises OptionError: there is no archive here.
        """
        self.demand_any()
        with self.kept_up(), locked_if_free(self.root) as alone:
            now = self._clock.now_ms()
            found = [
                path
                for pattern in ("topic=*/hour=*/*", f"{WRITING}/*.parquet", f"{JOINING}/*.parquet")
                for path in sorted(self.root.glob(pattern))
            ]
            with locked(self.root, _COMMIT_LOCK, wait=True):  # so that no file is put into its place meanwhile
                if not dry_run:
                    self._table.forget(now - keep_ms)
                kept = {file.path for file in self.files()} | self._table.removed_since(now - keep_ms)
                orphans = []
                for path in found:
                    name, about = str(path.relative_to(self.root)), _stat_of(path)
                    if name in kept or about is None:
                        continue
                    if alone or about.st_mtime * 1000 < now - WRITING_SPARED_MS:
                        orphans.append((name, about.st_size))
                if not dry_run:
                    for name, _ in orphans:
                        (self.root / name).unlink(missing_ok=True)
            return orphans


def _stat_of(path: Path) -> os.stat_result | None:
    """What is known of a file; None if it is not there any more."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _rows(files: Sequence[DataFile]) -> dict[Queue, int]:
    rows: dict[Queue, int] = {}
    for file in files:
        rows[file.queue] = rows.get(file.queue, 0) + file.rows
    return rows
