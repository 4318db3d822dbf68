"""The files of a broker's queues in an archive."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from cometmq.archive import Archive, ArchiveError, DataFile
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
        self._topics: dict[str, dict[int, QueueFiles]] = {}
        self._refreshed_s = float("-inf")
        """The time when the last successful refresh began."""
        self.version = 0
        """Number of refreshes that found new commits."""

    def refresh(self, *, unless_since: float = float("inf")) -> bool:
        """Read the new commits; return whether there were any.

        :param unless_since: do nothing if a refresh has begun at this time (monotonic seconds) or later.
        :raises ArchiveError: there is no archive, or it is damaged. The next refresh reads it from its beginning, since
            it may have been replaced.
        :raises StorageError: the storage does not answer.
        """
        with self._lock:
            if self._refreshed_s >= unless_since:
                return False
            now = SYSTEM_CLOCK.monotonic()
            archive = self._archive
            try:
                if archive is None:
                    archive = Archive(self.storage)
                elif not archive.refresh():
                    self._refreshed_s = now
                    return False
            except ArchiveError:
                self._archive = None
                raise
            topics: dict[str, dict[int, QueueFiles]] = {}
            for queue, totals in archive.queues().items():
                if queue.broker == self._broker and (files := archive.files(queue)):
                    topics.setdefault(queue.topic, {})[queue.queue_id] = QueueFiles(files, totals.next)
            self._archive, self._topics, self._refreshed_s = archive, topics, now
            self.version += 1
            return True

    def extents(self) -> dict[tuple[str, int], Extent]:
        """Return the archived part of each queue."""
        return {
            (topic, queue_id): Extent(topic, queue_id, files.files[0].first, files.end, files.files[0].min_store_ms)
            for topic, queues in self._topics.items()
            for queue_id, files in queues.items()
        }

    def queue(self, topic: str, queue_id: int) -> QueueFiles | None:
        """Return the files of a queue, or None if it is not archived."""
        return self._topics.get(topic, {}).get(queue_id)

    def queues_of(self, topic: str) -> dict[int, QueueFiles]:
        """Return the files of a topic's queues, by queue id."""
        return self._topics.get(topic, {})

    def all_files(self) -> Iterator[DataFile]:
        """Yield the files of all queues."""
        for queues in self._topics.values():
            for files in queues.values():
                yield from files.files
