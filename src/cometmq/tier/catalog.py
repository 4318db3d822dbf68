"""The files of a broker's queues in an archive."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from cometmq.archive import Archive, DataFile
from cometmq.clock import SYSTEM_CLOCK
from cometmq.storage import Storage
from cometmq.tier.frames import Extent


class QueueFiles:
    """The files of one queue.

    :param files: the files, by their first offsets.
    :param end: the offset after the archived ones, which may be behind the last message.
    """

    def __init__(self, files: Sequence[DataFile], end: int) -> None:
        self.files: Final = files
        self.end: Final = end
        self._firsts = [file.first for file in self.files]
        self._ends = list(accumulate((file.end for file in self.files), max))
        """The largest end up to each file: hours may interleave if a clock was moved back."""

    def covering(self, offset: int) -> list[DataFile]:
        """Return the files whose range contains an offset; usually one."""
        at = bisect_right(self._firsts, offset)
        found = []
        while at and self._ends[at - 1] > offset:
            at -= 1
            if self.files[at].end > offset:
                found.append(self.files[at])
        return found

    def next_first(self, offset: int) -> int | None:
        """Return the first offset of the next file that begins after ``offset``."""
        at = bisect_right(self._firsts, offset)
        return self._firsts[at] if at < len(self._firsts) else None


class Catalog:
    """The archived queues of one broker, as of the last refresh. Threads may share a catalog."""

    def __init__(self, storage: Storage, broker: str) -> None:
        self.storage: Final = storage
        self._broker = broker
        self._lock = threading.Lock()
        self._archive: Archive | None = None
        self._queues: dict[tuple[str, int], QueueFiles] = {}
        self._refreshed_s = float("-inf")
        self.version = 0
        """Number of refreshes that found new commits."""

    def refresh(self, *, at_most_seconds: float = 0.0) -> bool:
        """Read the new commits; return whether there were any.

        :param at_most_seconds: do nothing if the last refresh is not older than this.
        :raises ArchiveError: there is no archive, or it is damaged.
        :raises StorageError: the storage does not answer.
        """
        with self._lock:
            now = SYSTEM_CLOCK.monotonic()
            if now - self._refreshed_s < at_most_seconds:
                return False
            if self._archive is None:
                self._archive = Archive(self.storage)
            elif not self._archive.refresh():
                self._refreshed_s = now
                return False
            self._refreshed_s = now
            self._queues = {
                (queue.topic, queue.queue_id): QueueFiles(files, totals.next)
                for queue, totals in self._archive.queues().items()
                if queue.broker == self._broker and (files := self._archive.files(queue))
            }
            self.version += 1
            return True

    def extents(self) -> list[Extent]:
        """Return the archived part of each queue."""
        return [
            Extent(topic, queue_id, files.files[0].first, files.end, files.files[0].min_store_ms)
            for (topic, queue_id), files in self._queues.items()
        ]

    def queue(self, topic: str, queue_id: int) -> QueueFiles | None:
        """Return the files of a queue, or None if it is not archived."""
        return self._queues.get((topic, queue_id))

    def queues_of(self, topic: str) -> dict[int, QueueFiles]:
        """Return the files of a topic's queues, by queue id."""
        return {queue_id: files for (name, queue_id), files in self._queues.items() if name == topic}

    def all_files(self) -> list[DataFile]:
        """Return the files of all queues."""
        return [file for files in self._queues.values() for file in files.files]
