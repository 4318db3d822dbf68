"""An archive's table as Parquet files alone: the commits lie beside them as JSON, ``_commits/<sequence>.json``.

A file belongs to the archive exactly if a commit names it and no later one removes it. A commit is written aside,
synced and renamed, so it appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cometmq.durable import replace_file
from cometmq.spark.archive_commit import Commit, DataFile
from cometmq.spark.archive_table import COMMITS, PARQUET
from cometmq.spark.errors import ArchiveError

_DIGITS: Final = 20


class ParquetArchive:
    """The commits in a directory."""

    format = PARQUET

    def __init__(self, root: Path) -> None:
        self._root = root

    def last(self) -> Commit | None:
        """Read the last commit.

        :raises ArchiveError: it is damaged.
        """
        sequences = self._sequences()
        return self._read(sequences[-1]) if sequences else None

    def batch_of(self, query_id: str) -> int | None:
        """Look for the query from the last commit back."""
        for sequence in reversed(self._sequences()):
            commit = self._read(sequence)
            if commit.query_id == query_id:
                return commit.batch_id
        return None

    def files(self) -> list[DataFile]:
        """Add up all commits."""
        found: dict[str, DataFile] = {}
        for commit in self._commits():
            for path in commit.removed:
                del found[path]
            for file in commit.files:
                at = file.committed_ms or commit.committed_ms
                found[file.path] = msgspec.structs.replace(file, committed_ms=at)
        return list(found.values())

    def commit(self, commit: Commit, removed: Sequence[DataFile]) -> None:
        """Write the commit."""
        whole = msgspec.structs.replace(commit, removed=[file.path for file in removed])
        replace_file(self._path(commit.sequence), msgspec.json.format(msgspec.json.encode(whole), indent=1))

    def removed_since(self, time_ms: int) -> set[str]:
        """Look at all commits."""
        return {path for commit in self._commits() if commit.committed_ms >= time_ms for path in commit.removed}

    def forget(self, time_ms: int) -> None:
        """Nothing to do: older versions are only commits."""

    def _sequences(self) -> list[int]:
        directory = self._root / COMMITS
        if not directory.is_dir():
            return []
        return sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))

    def _commits(self) -> Iterator[Commit]:
        return map(self._read, self._sequences())

    def _read(self, sequence: int) -> Commit:
        path = self._path(sequence)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Commit)
        except msgspec.MsgspecError as error:
            raise ArchiveError(
                f"the commit {path} is damaged: {error}", next_step="restore it from a backup"
            ) from error

    def _path(self, sequence: int) -> Path:
        return self._root / COMMITS / f"{sequence:0{_DIGITS}d}.json"
