"""The chain of an archive's commits: exactly-once without locks, on any storage.

Commits are the objects ``_commits/<20 digits>.json``. A writer creates the object with the next number, and only one
writer can create a number (:meth:`cometmq.storage.Storage.create`). It has read all commits before that number, so a
commit is always computed from the archive as it is. Numbers are never used again, and commits never deleted.

* A job that archives begins with an ``open`` commit. It has the next epoch and makes the job the archive's owner. An
  ``append`` of an earlier owner, which was paused or cut off, fails from then on: the number that it would create is
  taken, and it finds the ``open`` commit under it.
* Compaction and expiry do not make a job the owner. When their number is taken, they compute their commit again from
  the new contents.
* If the answer to a create is lost, the writer reads the object and finds its own content, which has a random token. If
  the writer gives up, its commit exists or not; the next job sees which after its ``open``, because the number before
  it can no longer be taken. Nobody deletes a file while a commit that names it may still appear.
* ``_checkpoints/<20 digits>.json.gz`` holds the contents after a commit, about every 100 commits, so that readers need
  not read all. They are written plainly: all writers would write the same.

Commits of format 1, by versions that renamed files into place, are part of the same chain.
"""

from __future__ import annotations

import gzip
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import msgspec

from cometmq.archive.changes import next_commit
from cometmq.archive.commits import APPENDED, OPENED, Commit
from cometmq.archive.contents import Checkpoint, Contents
from cometmq.archive.errors import ArchiveError, taken_over
from cometmq.archive.limits import CHECKPOINT_BYTES_MAX, COMMIT_BYTES_MAX
from cometmq.storage import ObjectExistsError, ObjectNotFoundError, Storage

T = TypeVar("T")

COMMITS: Final = "_commits"
"""Directory of the commits."""
CHECKPOINTS: Final = "_checkpoints"
FORMAT: Final = 2
CHECKPOINT_EVERY: Final = 100
"""Number of commits from one checkpoint to the next."""
_CHECKPOINTS_KEPT: Final = 2
_ATTEMPTS: Final = 20
"""Maximum number of times that a commit is computed, since other jobs may create its number first."""
REQUESTS_AT_ONCE: Final = 16
_GZIP: Final = zlib.MAX_WBITS + 16
"""The format of the compressed data for zlib."""
_NAME: Final = re.compile(r"[^/]+/(\d{20})\.json(?:\.gz)?")


class Writer(NamedTuple):
    """A job that has opened an archive. It is passed to the tasks and to other processes of the job."""

    epoch: int
    id: str


class CommitChain:
    """The commits of one archive. It remembers the contents, and each refresh reads only new commits."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._contents = Contents()
        self._checkpointed = -1
        """Number of the commit with the newest known checkpoint."""

    def refresh(self) -> Contents:
        """Read the commits that were added since the last call, and return the archive's contents.

        :raises ArchiveError: a commit is missing or damaged.
        """
        if self._contents.last() is None and (checkpoint := self._newest_checkpoint()) is not None:
            self._contents = Contents(checkpoint)
            self._checkpointed = checkpoint.last.sequence
        last = self._contents.last()
        begin = 0 if last is None else last.sequence
        numbers = self._numbers(COMMITS, begin)
        for expected, number in enumerate(numbers, begin):
            if number != expected:
                raise self._missing(expected)
        if last is not None:
            if not numbers:  # the end of the chain was lost, or the archive was replaced
                raise self._missing(begin)
            numbers = numbers[1:]
        for commit in self._read(numbers):
            self._contents.apply(commit)
        return self._contents

    def open_writer(self, now_ms: int) -> Writer:
        """Take the archive over: append an ``open`` commit, after which no earlier writer can append.

        :param now_ms: the time in ms since 1970.
        """
        identity = uuid.uuid4().hex
        commit = self._create(
            lambda contents: msgspec.structs.replace(
                next_commit(contents.last(), OPENED, now_ms), epoch=contents.epoch + 1, writer=identity
            )
        )
        assert commit is not None
        return Writer(commit.epoch, identity)

    def append(self, writer: Writer, decide: Callable[[Contents], Commit | None]) -> Commit | None:
        """Append a commit of messages.

        :param decide: function that computes the commit from the archive's contents, or returns None if there is
            nothing to commit. It is called again if another job has committed meanwhile.
        :raises ArchiveError: another job has opened the archive since; nothing was committed.
        """

        def decide_as_owner(contents: Contents) -> Commit | None:
            self._demand_owner(contents, writer)
            commit = decide(contents)
            return commit and msgspec.structs.replace(commit, kind=APPENDED, epoch=writer.epoch, writer=writer.id)

        return self._create(decide_as_owner)

    def change(self, decide: Callable[[Contents], Commit | None]) -> Commit | None:
        """Append a commit that replaces or removes files. Any process may do so beside a writer.

        :param decide: function that computes the commit, as in :meth:`append`.
        """
        return self._create(decide)

    def newest_first(self) -> Iterator[Commit]:
        """Read all commits, the newest first."""
        end = self.refresh().next_sequence
        for upper in range(end, 0, -REQUESTS_AT_ONCE):
            yield from self._read(range(upper - 1, max(upper - REQUESTS_AT_ONCE, 0) - 1, -1))

    def _create(self, decide: Callable[[Contents], Commit | None]) -> Commit | None:
        for _ in range(_ATTEMPTS):
            contents = self.refresh()
            decided = decide(contents)
            if decided is None:
                return None
            commit = msgspec.structs.replace(
                decided, sequence=contents.next_sequence, format=FORMAT, token=uuid.uuid4().hex
            )
            try:
                self._storage.create(_key(commit.sequence), msgspec.json.format(msgspec.json.encode(commit), indent=1))
            except ObjectExistsError:
                continue
            contents.apply(commit)
            self._write_checkpoint()
            return commit
        raise ArchiveError(
            f"the commit to the archive {self._storage.url} failed {_ATTEMPTS} times because other jobs committed "
            "first",
            next_step="run this job again when the other jobs are done",
        )

    def _demand_owner(self, contents: Contents, writer: Writer) -> None:
        if contents.owner != writer.id:
            raise taken_over(f"the archive {self._storage.url}", owner=contents.owner)

    def _numbers(self, directory: str, begin: int) -> list[int]:
        """List the numbers of the objects in a directory, from ``begin`` on.

        :raises ArchiveError: an object is larger than any that is written.
        """
        after = _key(begin - 1, directory) if begin > 0 else ""
        found = []
        for item in self._storage.list_objects(directory, after=after):
            match = _NAME.fullmatch(item.key)
            if match is None or int(match[1]) < begin:
                continue
            if item.size > COMMIT_BYTES_MAX:
                raise self._damaged(item.key, f"it has {item.size} bytes, and at most {COMMIT_BYTES_MAX} are read")
            found.append(int(match[1]))
        return sorted(found)

    def _read(self, numbers: Iterable[int]) -> Iterator[Commit]:
        wanted = list(numbers)
        if len(wanted) < 2:
            yield from map(self._read_one, wanted)
            return
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            yield from threads.map(self._read_one, wanted)

    def _read_one(self, number: int) -> Commit:
        key = _key(number)
        try:
            return self._decoded(key, self._storage.read(key), Commit)
        except ObjectNotFoundError as error:
            raise self._missing(number) from error

    def _decoded(self, key: str, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._damaged(key, str(error)) from error

    def _damaged(self, key: str, reason: str) -> ArchiveError:
        is_checkpoint = key.startswith(CHECKPOINTS)
        return ArchiveError(
            f"{self._storage.describe(key)} is damaged: {reason}",
            next_step="delete it: the commits have everything that it contains"
            if is_checkpoint
            else "restore it from a backup",
        )

    def _missing(self, number: int) -> ArchiveError:
        return ArchiveError(
            f"{self._storage.describe(_key(number))} is missing", next_step="restore it from a backup of the archive"
        )

    # Checkpoints ----------------------------------------------------------------------------------

    def _newest_checkpoint(self) -> Checkpoint | None:
        while numbers := self._numbers(CHECKPOINTS, 0):
            key = _checkpoint_key(numbers[-1])
            try:
                compressed = self._storage.read(key)
            except ObjectNotFoundError:  # a newer one has replaced it since the list
                continue
            checkpoint = self._decoded(key, self._decompressed(key, compressed), Checkpoint)
            if checkpoint.last.sequence != numbers[-1]:
                raise self._damaged(key, f"it is the checkpoint of commit {checkpoint.last.sequence}")
            return checkpoint
        return None

    def _decompressed(self, key: str, compressed: bytes) -> bytes:
        decompression = zlib.decompressobj(_GZIP)
        try:
            content = decompression.decompress(compressed, CHECKPOINT_BYTES_MAX)
        except zlib.error as error:
            raise self._damaged(key, str(error)) from error
        if not decompression.eof:
            is_long = len(content) == CHECKPOINT_BYTES_MAX
            raise self._damaged(
                key, f"it has more than {CHECKPOINT_BYTES_MAX} bytes" if is_long else "its end is missing"
            )
        return content

    def _write_checkpoint(self) -> None:
        """Write a checkpoint when it is due, and delete those that are no longer needed."""
        sequence = self._contents.next_sequence - 1
        if sequence - self._checkpointed < CHECKPOINT_EVERY:
            return
        content = msgspec.json.encode(self._contents.checkpoint())
        self._storage.put(_checkpoint_key(sequence), gzip.compress(content, mtime=0))
        self._checkpointed = sequence
        old = self._numbers(CHECKPOINTS, 0)[:-_CHECKPOINTS_KEPT]
        self._storage.delete(map(_checkpoint_key, old))


def _key(number: int, directory: str = COMMITS) -> str:
    return f"{directory}/{number:020d}.json"


def _checkpoint_key(number: int) -> str:
    return f"{_key(number, CHECKPOINTS)}.gz"
