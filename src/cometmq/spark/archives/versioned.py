"""Tables of formats that have transactions of their own: one writer, and no commit that is lost or made twice.

A commit is computed from one version of the table and becomes the version after it; of two commits that are computed
from the same version, the table's format or its catalog refuses the second one. Every commit contains the epoch and the
id of the job that has opened the table last, so an ``append`` of an earlier job is refused.

A commit whose request has no answer exists or not. Each commit has a random token: the writer loads the table again and
looks for it. It deletes no file before it knows.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from cometmq.archive.chain import FORMAT, Writer
from cometmq.archive.changes import Snapshot, next_commit
from cometmq.archive.commits import APPENDED, OPENED, Commit
from cometmq.archive.errors import taken_over
from cometmq.archive.files import DataFile
from cometmq.spark.archives.table import ArchiveTable, Decide
from cometmq.spark.errors import ArchiveError

ATTEMPTS: Final = 20
"""Maximum number of times that a commit is computed."""
PATIENCE_S: float = 180
"""Time after which a commit is not sent again if none of its requests had an answer."""
_PAUSE_S: Final = 0.5
"""Pause after the first commit without an answer. Each further pause is twice as long, up to half a minute."""


class Version(Snapshot, Protocol):
    """One version of a table."""

    def has(self, commit: Commit) -> bool:
        """Return True if this version or an earlier one was made by the commit, which its token identifies."""


V = TypeVar("V", bound=Version)


class CommitConflictError(Exception):
    """Another commit became the version after the one that a commit was computed from."""


class CommitUnknownError(Exception):
    """A commit exists or not: its request has no answer."""


class VersionedTable(ArchiveTable, Generic[V]):
    """A table that is changed by :meth:`commit`."""

    @abstractmethod
    def load(self) -> V:
        """Load the current version."""

    @abstractmethod
    def commit(self, before: V, commit: Commit) -> None:
        """Add ``commit.files``, remove ``commit.removed`` and store the totals, in one transaction.

        :param before: the version that the commit was computed from.
        :raises CommitConflictError: the table has another version by now; nothing was committed.
        :raises CommitUnknownError: the request has no answer.
        """

    def last(self) -> Commit | None:
        """Read the last commit."""
        return self.load().last()

    def batch_of(self, query_id: str) -> int | None:
        """Look up the query's last batch."""
        return self.load().batch_of(query_id)

    def files(self) -> list[DataFile]:
        """List the files of the current version."""
        return self.load().files()

    def epoch(self) -> int:
        """Return the epoch of the last writer."""
        return _epoch(self.last())

    def open_writer(self, now_ms: int) -> Writer:
        """Commit the next epoch, without files. No earlier writer can append from then on."""
        identity = uuid.uuid4().hex

        def decide(before: Snapshot) -> Commit:
            last = before.last()
            return msgspec.structs.replace(next_commit(last, OPENED, now_ms), epoch=_epoch(last) + 1, writer=identity)

        commit = self._transact(decide)
        assert commit is not None
        return Writer(commit.epoch, identity)

    def append(self, writer: Writer, decide: Decide) -> Commit | None:
        """Commit messages of the job that has opened the table.

        :raises ArchiveError: another job has opened the table since; nothing was committed.
        """

        def decide_as_owner(before: Snapshot) -> Commit | None:
            last = before.last()
            if last is None or last.writer != writer.id:
                raise taken_over(self, owner="another job" if last is None else last.writer)
            commit = decide(before)
            return commit and msgspec.structs.replace(commit, kind=APPENDED, epoch=writer.epoch, writer=writer.id)

        return self._transact(decide_as_owner)

    def change(self, decide: Decide) -> Commit | None:
        """Replace or remove files; the owner remains the same."""

        def decide_beside_owner(before: Snapshot) -> Commit | None:
            last, commit = before.last(), decide(before)
            if commit is None or last is None:
                return commit
            return msgspec.structs.replace(commit, epoch=last.epoch, writer=last.writer)

        return self._transact(decide_beside_owner)

    def _transact(self, decide: Decide) -> Commit | None:
        token = uuid.uuid4().hex
        tried: Commit | None = None
        unknown: CommitUnknownError | None = None
        began = time.monotonic()
        for attempt in range(ATTEMPTS):
            before = self.load()
            if tried is not None and before.has(tried):
                return tried
            if unknown is not None and time.monotonic() - began > PATIENCE_S:
                break
            decided = decide(before)
            if decided is None:
                return None
            tried = msgspec.structs.replace(decided, format=FORMAT, token=token)
            try:
                self.commit(before, tried)
            except CommitConflictError:
                unknown = None
            except CommitUnknownError as error:
                unknown = error
                time.sleep(min(_PAUSE_S * 2**attempt, 30))
            else:
                return tried
        if unknown is None:
            raise ArchiveError(
                f"other programs changed {self} during each of {ATTEMPTS} attempts to commit",
                next_step="stop the other programs that change it, then run this command again",
            )
        raise ArchiveError(
            f"{self} did not confirm a commit: {unknown}",
            next_step="run the same command again: it finds out whether the commit exists, and goes on",
        )


def _epoch(last: Commit | None) -> int:
    return 0 if last is None else last.epoch
