"""An archive's table as plain Parquet files, with JSON commits next to them in ``_commits/<sequence>.json``.

A file belongs to the archive if one commit adds it and no later commit removes it. A commit is written under a
temporary name, flushed and renamed, so it appears completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cometmq.spark.archives.table import COMMITS, PARQUET, Commit, DataFile
from cometmq.spark.storage import Directory, NumberedFiles


class ParquetArchive:
    """The table of a Parquet archive: the commits in its directory."""

    format = PARQUET

    def __init__(self, directory: Directory) -> None:
        self._commits = NumberedFiles(directory, COMMITS, Commit, indented=True)

    def last(self) -> Commit | None:
        """Read the last commit.

        :raises ArchiveError: the commit is damaged.
        """
        sequences = self._commits.numbers()
        return self._commits.read(sequences[-1]) if sequences else None

    def batch_of(self, query_id: str) -> int | None:
        """Search the commits for the query's last batch, starting with the newest."""
        for sequence in reversed(self._commits.numbers()):
            commit = self._commits.read(sequence)
            if commit.query_id == query_id:
                return commit.batch_id
        return None

    def files(self) -> list[DataFile]:
        """Apply all commits in order, and return the files that remain."""
        found: dict[str, DataFile] = {}
        for commit in self._all():
            for path in commit.removed:
                del found[path]
            for file in commit.files:
                at = file.committed_ms or commit.committed_ms
                found[file.path] = msgspec.structs.replace(file, committed_ms=at)
        return list(found.values())

    def commit(self, commit: Commit, removed: Sequence[DataFile]) -> None:
        """Write the commit as one JSON file."""
        whole = msgspec.structs.replace(commit, removed=[file.path for file in removed])
        self._commits.write(commit.sequence, whole)

    def removed_since(self, time_ms: int) -> set[str]:
        """Collect the paths of removed files from the commits."""
        return {path for commit in self._all() if commit.committed_ms >= time_ms for path in commit.removed}

    def forget(self, time_ms: int) -> None:
        """Do nothing: a Parquet archive has no old versions to delete."""

    def _all(self) -> Iterator[Commit]:
        return map(self._commits.read, self._commits.numbers())
