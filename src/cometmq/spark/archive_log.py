"""The log of an archive: which files belong to it, and how far each queue is archived. No Spark here.

Files and offsets are committed in one transaction of the archive's table (:mod:`~.archive_table`); killing a job at
any point leaves at most files that no commit names, which readers do not see, the next run overwrites and ``vacuum``
removes. Each commit also sums up everything before it, so that the last one tells where every queue stands; a batch
that would overlap or belongs to another query is refused. ``_lock`` is held while a job writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.spark.archive_commit import Commit, Covered, DataFile, QueueTotals, advanced, merged, told
from cometmq.spark.archive_table import TableFormat, table_at
from cometmq.spark.errors import ArchiveError
from cometmq.spark.job_lock import locked
from cometmq.spark.queues import Offsets


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

    # Writing --------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the archive for one writer; the lock goes with the process, however it ends.

        :raises ArchiveError: another process holds it.
        """
        with locked(self.root):
            yield

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
        last = self.last()
        if last is not None and self.holds(query_id, batch_id):
            return None
        joined = merged(covered)
        for file in files:
            self._demand_file(file)
        queues, gaps = advanced([] if last is None else last.queues, joined, files)
        now = self._clock.now_ms()
        commit = Commit(
            sequence=0 if last is None else last.sequence + 1,
            query_id=query_id,
            batch_id=batch_id,
            committed_ms=now,
            covered=joined,
            files=[
                msgspec.structs.replace(file, committed_ms=now) for file in sorted(files, key=lambda file: file.path)
            ],
            queues=queues,
            gaps=[*gaps, *map(told, merged(lost))],
        )
        self._table.commit(commit, [])
        return commit

    def _demand_file(self, file: DataFile) -> None:
        path = self.root / file.path
        if not path.is_file() or path.stat().st_size != file.bytes:
            raise ArchiveError(
                f"an executor wrote {path} with {file.bytes} bytes, but the driver does not see it so",
                next_step="the archive's directory must be the same for driver and executors",
            )

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
