"""An archive's table as plain Parquet files, with a chain of commits next to them (:mod:`cometmq.archive.chain`)."""

from __future__ import annotations

from typing import Final

from cometmq.archive.chain import CommitChain, Writer
from cometmq.archive.commits import Commit
from cometmq.archive.files import DataFile
from cometmq.spark.archives.table import PARQUET, ArchiveTable, Decide
from cometmq.storage import Storage

_CLOCKS_APART_MS: Final = 3_600_000
"""Maximum difference between the clocks of machines that made the commits, in milliseconds."""


class ParquetArchive(ArchiveTable):
    """The table of a Parquet archive: the chain of its commits."""

    format = PARQUET

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._chain = CommitChain(storage)

    @property
    def storage(self) -> Storage:
        """The storage of commits and data files."""
        return self._storage

    def last(self) -> Commit | None:
        """Read the last commit.

        :raises ArchiveError: a commit is missing or damaged.
        """
        return self._chain.refresh().last()

    def batch_of(self, query_id: str) -> int | None:
        """Look up the query's last batch."""
        return self._chain.refresh().batch_of(query_id)

    def files(self) -> list[DataFile]:
        """Return the files that commits have added and not removed."""
        return self._chain.refresh().files()

    def epoch(self) -> int:
        """Return the epoch of the last writer."""
        return self._chain.refresh().epoch

    def open_writer(self, now_ms: int) -> Writer:
        """Append an ``open`` commit."""
        return self._chain.open_writer(now_ms)

    def append(self, writer: Writer, decide: Decide) -> Commit | None:
        """Append a commit, unless another job has opened the archive in the meantime."""
        return self._chain.append(writer, decide)

    def change(self, decide: Decide) -> Commit | None:
        """Append a commit. If another job has committed first, compute the commit again."""
        return self._chain.change(decide)

    def removed_since(self, time_ms: int) -> set[str]:
        """Collect the paths of removed files from the commits, beginning with the newest."""
        found: set[str] = set()
        for commit in self._chain.newest_first():
            if commit.committed_ms < time_ms - _CLOCKS_APART_MS:
                break
            if commit.committed_ms >= time_ms:
                found.update(commit.removed)
        return found
