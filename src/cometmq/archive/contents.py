"""The files and offsets of an archive after one of its commits."""

from __future__ import annotations

import msgspec

from cometmq.archive.commits import APPENDED, OPENED, Commit, QueueTotals, next_sequence
from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile
from cometmq.storage.interface import check_key


class Checkpoint(msgspec.Struct, frozen=True):
    """The contents after a commit, as they are stored, so that a reader need not read all commits before it."""

    last: Commit
    files: list[DataFile]
    batches: dict[str, int]
    epoch: int
    owner: str


class Contents:
    """An archive's files, totals and batches. :meth:`apply` adds the next commit."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        """Begin with the contents of a checkpoint, or of an archive without commits.

        :raises ArchiveError: the checkpoint has a file that no archive has.
        """
        for file in () if checkpoint is None else checkpoint.files:
            _check_file(file)
        self._last = None if checkpoint is None else checkpoint.last
        self._files = {} if checkpoint is None else {file.path: file for file in checkpoint.files}
        self._batches = {} if checkpoint is None else dict(checkpoint.batches)
        self.epoch = 0 if checkpoint is None else checkpoint.epoch
        self.owner = "" if checkpoint is None else checkpoint.owner
        """Id of the writer that opened the archive last; empty if an older version has appended since."""

    def last(self) -> Commit | None:
        """Return the last commit without its files, or None if there are no commits."""
        return self._last

    def batch_of(self, query_id: str) -> int | None:
        """Return the last batch that a query committed to this archive, or None if it committed no batch."""
        return self._batches.get(query_id)

    def files(self) -> list[DataFile]:
        """List the files that belong to the archive."""
        return list(self._files.values())

    def queues(self) -> list[QueueTotals]:
        """Return each queue's totals."""
        return [] if self._last is None else self._last.queues

    @property
    def next_sequence(self) -> int:
        """The number of the next commit."""
        return next_sequence(self._last)

    def apply(self, commit: Commit) -> None:
        """Add the next commit.

        :raises ArchiveError: the commit is not the next one, removes a file that the archive does not have, or adds a
            file that no archive has.
        """
        if commit.sequence != self.next_sequence:
            raise _damaged(f"commit {commit.sequence} stands in place of commit {self.next_sequence}")
        for path in commit.removed:
            if path not in self._files:
                raise _damaged(f"commit {commit.sequence} removes {path}, which no commit before it adds")
        for file in commit.files:
            _check_file(file)
        for path in commit.removed:
            del self._files[path]
        for file in commit.files:
            at = file.committed_ms or commit.committed_ms
            self._files[file.path] = msgspec.structs.replace(file, committed_ms=at)
        if commit.kind in (OPENED, APPENDED):
            self.owner = commit.writer
            self.epoch = max(self.epoch, commit.epoch)
        if commit.kind == APPENDED:
            self._batches[commit.query_id] = commit.batch_id
        self._last = msgspec.structs.replace(commit, files=[], removed=[], covered=[])

    def checkpoint(self) -> Checkpoint:
        """Return the contents in the form in which they are stored."""
        assert self._last is not None, "an archive without commits has no checkpoint"
        return Checkpoint(self._last, self.files(), dict(self._batches), self.epoch, self.owner)


def _check_file(file: DataFile) -> None:
    try:
        check_key(file.path)
    except ValueError as error:
        raise _damaged(f"a commit adds a file outside of it: {error}") from error
    if not 0 < file.rows <= file.end - file.first or not file.bytes:
        raise _damaged(
            f"a commit adds {file.path} with {file.rows} messages in {file.bytes} bytes for offsets {file.first} to "
            f"{file.end - 1}"
        )


def _damaged(reason: str) -> ArchiveError:
    return ArchiveError(f"the archive is damaged: {reason}", next_step="restore its commits from a backup")
