"""The commit log of an archive: which files belong to it, and how far each queue is archived. No Spark here.

Layout below the archive's directory::

    topic=<topic>/hour=<YYYY-MM-DD-HH>/part-<broker>-<queue>-<first>-<end>.parquet
    _commits/<sequence, 20 digits>.json     one for each batch that holds something
    _lock                                   held while a job writes

A file is part of the archive exactly if a commit names it. Names follow from topic, broker, queue and the offsets
inside, so a batch that is written again gives the same names. A commit appears whole or not at all (written aside,
synced, renamed); killing the job at any point leaves at most files that no commit names, which readers do not see,
the next run overwrites and ``vacuum`` removes. Each commit also sums up everything before it, so that the last one
tells where every queue stands; a batch that would overlap or belongs to another query is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.durable import replace_file
from cometmq.spark.errors import ArchiveError
from cometmq.spark.job_lock import locked
from cometmq.spark.queues import OffsetRange, Offsets, Queue

COMMITS: Final = "_commits"
_DIGITS: Final = 20


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file: messages of a queue from offset ``first`` to before ``end``, all of one hour."""

    path: str
    """Relative to the archive's directory."""
    topic: str
    broker: str
    queue_id: int
    first: int
    end: int
    rows: int
    bytes: int
    min_store_ms: int
    max_store_ms: int
    bad_bodies: int


class Covered(msgspec.Struct, frozen=True):
    """Offsets of a queue that a batch has read, whether or not there were messages in them."""

    topic: str
    broker: str
    queue_id: int
    first: int
    end: int


class QueueTotals(msgspec.Struct, frozen=True):
    """What an archive holds of a queue: ``rows`` messages with ``first <= offset < next``."""

    topic: str
    broker: str
    queue_id: int
    first: int
    next: int
    rows: int


class Commit(msgspec.Struct, frozen=True):
    """One batch in the archive."""

    sequence: int
    query_id: str
    batch_id: int
    committed_ms: int
    covered: list[Covered]
    files: list[DataFile]
    queues: list[QueueTotals]
    """Totals of the archive after this commit."""
    gaps: list[str]
    """Offsets that were skipped since their messages were gone."""

    @property
    def rows(self) -> int:
        """Messages in this batch."""
        return sum(file.rows for file in self.files)


def part_path(queue: Queue, hour: str, first: int, end: int) -> str:
    """Name the file of some messages of a queue, relative to the archive's directory."""
    directory = f"topic={quote(queue.topic, safe='')}/hour={hour}"
    return f"{directory}/part-{quote(queue.broker, safe='')}-{queue.queue_id}-{first:020d}-{end:020d}.parquet"


class ArchiveLog:
    """The commits of the archive in a directory."""

    def __init__(self, root: str | Path, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root = Path(root)
        self._clock = clock

    # Reading --------------------------------------------------------------------------------------

    def sequences(self) -> list[int]:
        """List the numbers of all commits, in order."""
        directory = self.root / COMMITS
        if not directory.is_dir():
            return []
        return sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))

    def read(self, sequence: int) -> Commit:
        """Read one commit.

        :raises ArchiveError: it is damaged.
        """
        path = self._path(sequence)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Commit)
        except msgspec.MsgspecError as error:
            raise ArchiveError(
                f"the commit {path} is damaged: {error}", next_step="restore it from a backup"
            ) from error

    def commits(self) -> Iterator[Commit]:
        """Read all commits, in order."""
        return map(self.read, self.sequences())

    def last(self) -> Commit | None:
        """Read the last commit, if there is one."""
        sequences = self.sequences()
        return self.read(sequences[-1]) if sequences else None

    def files(self) -> list[DataFile]:
        """List every committed file."""
        return [file for commit in self.commits() for file in commit.files]

    def queues(self) -> list[QueueTotals]:
        """Sum up each queue over all commits."""
        last = self.last()
        return [] if last is None else last.queues

    def next_offsets(self) -> Offsets:
        """Tell where each queue in the archive goes on."""
        return {Queue(of.topic, of.broker, of.queue_id): of.next for of in self.queues()}

    def holds(self, query_id: str, batch_id: int) -> bool:
        """Tell whether a batch is committed; batches of a query are committed in order."""
        last = self.last()
        return last is not None and last.query_id == query_id and last.batch_id >= batch_id

    def last_batch_of(self, query_id: str) -> int | None:
        """Find the last batch that a query committed here; None if it never did."""
        for sequence in reversed(self.sequences()):
            commit = self.read(sequence)
            if commit.query_id == query_id:
                return commit.batch_id
        return None

    # Writing --------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the archive for one writer; the lock goes with the process, however it ends.

        :raises ArchiveError: another process holds it.
        """
        with locked(self.root):
            yield

    def demand_new(self, ranges: Iterable[OffsetRange]) -> None:
        """Demand that nothing of ``ranges`` is archived, before a file of an equal name is overwritten.

        :raises ArchiveError: some of it is.
        """
        following = self.next_offsets()
        for part in ranges:
            if part.first < following.get(part.queue, part.first):
                raise _overlap(part.queue, following[part.queue], part.first)

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
        if self.holds(query_id, batch_id):
            return None
        merged = _merged(covered)
        for file in files:
            self._demand_file(file)
        last = self.last()
        queues, gaps = _advanced([] if last is None else last.queues, merged, files)
        commit = Commit(
            sequence=0 if last is None else last.sequence + 1,
            query_id=query_id,
            batch_id=batch_id,
            committed_ms=self._clock.now_ms(),
            covered=merged,
            files=sorted(files, key=lambda file: file.path),
            queues=queues,
            gaps=[*gaps, *(f"{_queue(part)} [{part.first}, {part.end})" for part in lost)],
        )
        self._write(commit)
        return commit

    def _demand_file(self, file: DataFile) -> None:
        path = self.root / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise ArchiveError(
                f"an executor wrote {path} with {file.bytes} bytes, but the driver does not see it so",
                next_step="the archive's directory must be the same for driver and executors",
            )

    def _write(self, commit: Commit) -> None:
        path = self._path(commit.sequence)
        replace_file(path, msgspec.json.format(msgspec.json.encode(commit), indent=1))

    def _path(self, sequence: int) -> Path:
        return self.root / COMMITS / f"{sequence:0{_DIGITS}d}.json"

    def vacuum(self, *, dry_run: bool = False) -> list[str]:
        """Remove data files that no commit names; return their paths, relative to the archive.

        :raises ArchiveError: a job is writing.
        """
        with self.locked():
            committed = {file.path for file in self.files()}
            orphans = [
                str(path.relative_to(self.root))
                for path in sorted(self.root.glob("topic=*/hour=*/*"))
                if str(path.relative_to(self.root)) not in committed
            ]
            if not dry_run:
                for orphan in orphans:
                    (self.root / orphan).unlink()
            return orphans


def _merged(covered: Iterable[Covered]) -> list[Covered]:
    """Join neighbouring offsets of each queue; tasks may have shared a queue."""
    merged: list[Covered] = []
    for part in sorted(covered, key=lambda c: (c.topic, c.broker, c.queue_id, c.first)):
        before = merged[-1] if merged else None
        if before is not None and _queue(before) == _queue(part) and before.end == part.first:
            merged[-1] = msgspec.structs.replace(before, end=part.end)
        else:
            merged.append(part)
    return merged


def _queue(of: Covered | DataFile | QueueTotals) -> Queue:
    return Queue(of.topic, of.broker, of.queue_id)


def _advanced(
    totals: Sequence[QueueTotals], covered: Sequence[Covered], files: Sequence[DataFile]
) -> tuple[list[QueueTotals], list[str]]:
    """Totals after a batch, and what it left out."""
    found = {_queue(of): of for of in totals}
    rows: dict[Queue, int] = {}
    for file in files:
        rows[_queue(file)] = rows.get(_queue(file), 0) + file.rows
    gaps: list[str] = []
    for part in covered:
        queue = _queue(part)
        before = found.get(queue) or QueueTotals(*queue, part.first, part.first, 0)
        if part.first < before.next:
            raise _overlap(queue, before.next, part.first)
        if part.first > before.next:
            gaps.append(f"{queue} [{before.next}, {part.first})")
        found[queue] = msgspec.structs.replace(before, next=part.end, rows=before.rows + rows.pop(queue, 0))
    return [found[queue] for queue in sorted(found)], gaps


def _overlap(queue: Queue, archived: int, first: int) -> ArchiveError:
    return ArchiveError(
        f"{queue} is archived up to offset {archived}, and this batch would add it again from {first}",
        next_step="if the topic was deleted and made anew, archive it into another directory; otherwise use the "
        "checkpoint that wrote the archive, or a new one",
    )
