"""Archives, opened for reading."""

from __future__ import annotations

import os
from typing import Final

from cometmq.archive.chain import COMMITS, CommitChain
from cometmq.archive.commits import QueueTotals
from cometmq.archive.contents import Contents
from cometmq.archive.errors import ArchiveError
from cometmq.archive.files import DataFile
from cometmq.message.queues import Queue
from cometmq.storage import Storage, StorageOptions, open_storage

_OTHER_FORMATS: Final = {"_delta_log": "a Delta table", "metadata": "an Iceberg table"}


class Archive:
    """A Parquet archive's files and offsets, as of the last :meth:`refresh`."""

    def __init__(self, storage: Storage) -> None:
        """Open the archive in a storage, and read its commits.

        :raises ArchiveError: there is no Parquet archive.
        :raises StorageError: the storage cannot be read.
        """
        self.storage: Final = storage
        """Storage in which :attr:`DataFile.path` is a key."""
        self._chain = CommitChain(storage)
        self._contents = Contents()
        self._files: dict[Queue, list[DataFile]] = {}
        self.refresh()
        if self._contents.last() is None:
            there = storage.list_directories()
            other = next((kind for name, kind in _OTHER_FORMATS.items() if name in there), None)
            raise ArchiveError(
                f"{storage.url} contains {other or 'no archive'}",
                next_step=f"only Parquet archives ({COMMITS}/) are supported here"
                if other
                else "create one: cometmq pipeline archive",
            )

    def refresh(self) -> bool:
        """Read the commits that were added since the last call; return True if there were any.

        Files that a compaction or expiry removed are still there for a week by default.

        :raises ArchiveError: a commit is missing or damaged.
        """
        known = self._contents.next_sequence
        self._contents = self._chain.refresh()
        if self._contents.next_sequence == known:
            return False
        found: dict[Queue, list[DataFile]] = {}
        for file in sorted(self._contents.files(), key=lambda file: file.first):
            found.setdefault(file.queue, []).append(file)
        self._files = found
        return True

    def files(self, queue: Queue) -> list[DataFile]:
        """Return a queue's files in the order of their offsets."""
        return self._files.get(queue, [])

    def queues(self) -> dict[Queue, QueueTotals]:
        """Return each queue's first offset, the offset after its last message, and the number of its messages."""
        return {totals.queue: totals for totals in self._contents.queues()}


def open_archive(url: str | os.PathLike[str], options: StorageOptions | None = None) -> Archive:
    """Open the Parquet archive that a path or URL names.

    :raises PathError: the URL has an unknown scheme.
    :raises ArchiveError: there is no Parquet archive.
    """
    return Archive(open_storage(url, options))
