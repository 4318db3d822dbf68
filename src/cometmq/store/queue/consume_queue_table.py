"""ConsumeQueueTable: the queues of a store by topic and id (RocketMQ's ``consumeQueueTable``)."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Callable, Set
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from cometmq import descriptors
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.store.queue.consume_queue import ConsumeQueue, QueueFiles
from cometmq.store.queue.directory_remover import REMOVED, DirectoryRemover

_UNKNOWN_LEVEL_DELAY_MS: Final = 1_000
"""Delay for a queue whose level is not in the table, as in Apache's broker (``computeDeliverTimestamp``)."""
_SHARE_OF_DESCRIPTORS: Final = 16
"""The process's descriptors, divided by this value, are for queue files: half of those that connections leave free."""


WhenDurable = Callable[[Callable[[], None]], None]
"""Function that takes a function and calls it once a deletion is on disk, in the order of the deletions."""

Extents = dict[str, dict[int, tuple[int, int]]]
"""First offset in the files and maxOffset of each queue, by topic and id."""


class ConsumeQueueTable:
    """Creates and finds queues, and keeps track of those with units that are only in memory."""

    def __init__(self, root: Path, file_size: int, delays_ms: tuple[int, ...]) -> None:
        self.root = root
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._deleted: WeakValueDictionary[tuple[str, int], ConsumeQueue] = WeakValueDictionary()
        """Deleted queues that are still in use. If such a queue is created again, it must be the same object."""
        self.dirty: list[ConsumeQueue] = []
        """Queues that have received units since their files were last written."""
        self.file_size = file_size
        self.changed: dict[ConsumeQueue, None] = {}
        """Queues, besides the dirty ones, whose first or last offset has changed since the last checkpoint."""
        self.lock = threading.Lock()
        """Held while a thread writes a queue's files, and while files are deleted."""
        self.gone: set[ConsumeQueue] = set()
        """Queues whose files were deleted after a thread was asked to write queue files."""
        self.remover: Final = DirectoryRemover(root.parent / "comet" / REMOVED)
        self._doomed: dict[str, list[Path]] = {}
        """Directories of deleted topics. They remain until the deletion is on disk or the topic is created again."""
        self._deletions = 0
        """Number of deletions so far."""
        self._durable_deletions = 0
        """Number of deletions that are on disk. A crash would undo later deletions."""
        self._until_durable: deque[tuple[int, Callable[[], None]]] = deque()
        """Functions to call, each with the number of deletions that must be on disk before the call."""
        self.files = QueueFiles(str(root), descriptors.limit() // _SHARE_OF_DESCRIPTORS)
        self._delays_ms = delays_ms

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or ``None`` if it is unknown."""
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, and create it if it is unknown. The caller must have checked the name."""
        queues = self.by_topic.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None and topic in self._doomed:
            self._remove_directories(topic)
        if queue is None and self._deletions and (queue := self._deleted.pop((topic, queue_id), None)) is not None:
            queues[queue_id] = queue
        if queue is None:
            delay_ms = 0
            if topic == SCHEDULE_TOPIC:
                delay_ms = self._delays_ms[queue_id] if queue_id < len(self._delays_ms) else _UNKNOWN_LEVEL_DELAY_MS
            queue = queues[queue_id] = ConsumeQueue(topic, queue_id, self.file_size, self.files, delay_ms)
        return queue

    def add_dirty(self, queue: ConsumeQueue) -> None:
        """Note that a queue has units that are only in memory. A deleted queue is known again from then on."""
        queue.dirty = True
        self.dirty.append(queue)
        if self._deletions:
            self.make(queue.topic, queue.queue_id)

    def mark_dirty(self) -> None:
        """Find the queues with units that are only in memory after recovery."""
        for queues in self.by_topic.values():
            for queue in queues.values():
                if queue.pending:
                    self.add_dirty(queue)

    def extents(self) -> Extents:
        """Return the first offset in the files and the maxOffset of every queue that has had messages."""
        return {
            topic: extents
            for topic, queues in self.by_topic.items()
            if (
                extents := {
                    queue_id: (queue.first_stored, queue.committed)
                    for queue_id, queue in queues.items()
                    if queue.committed
                }
            )
        }

    def begin_anew(self, queue: ConsumeQueue, offset: int) -> None:
        """Discard a queue's content in memory and on disk. Its next message gets ``offset``."""
        if queue.dirty:
            self.dirty = [other for other in self.dirty if other is not queue]
        with self.lock:
            self.gone.add(queue)
            shutil.rmtree(queue.directory, ignore_errors=True)
        queue.forget()
        queue.open_at([], offset)
        self.changed[queue] = None

    def remove_files_below(self, queue: ConsumeQueue, log_min: int) -> None:
        """Delete those of a queue's files whose messages are all older than ``log_min``, but never the last file."""
        if len(queue.files) > 1:
            with self.lock:
                if queue.remove_files_below(log_min):
                    self.changed[queue] = None

    def delete(self, topic: str, queues: Set[ConsumeQueue], when_durable: WhenDurable) -> None:
        """Delete some or all queues of a topic. Queue objects that are still in use restart at offset 0.

        :param when_durable: receives the function that removes the files, and calls it when the deletion is on disk.
        """
        if any(queue.dirty for queue in queues):
            self.dirty = [queue for queue in self.dirty if queue not in queues]
        self.changed.update(dict.fromkeys(queues))
        known = self.by_topic.get(topic, {})
        is_all = len(queues) == len(known)
        for queue in queues:
            queue.forget()
            self._deleted[topic, queue.queue_id] = known.pop(queue.queue_id)
        if not known:
            self.by_topic.pop(topic, None)
        with self.lock:
            self.gone |= queues
        directories = [self.root / topic] if is_all else [queue.directory for queue in queues]
        doomed = self._doomed[topic] = [*self._doomed.get(topic, ()), *directories]
        self._deletions += 1

        def is_durable() -> None:
            self._durable_deletions += 1
            if self._doomed.get(topic) is doomed:
                self._remove_directories(topic)
            while self._until_durable and self._until_durable[0][0] <= self._durable_deletions:
                self._until_durable.popleft()[1]()

        when_durable(is_durable)

    @property
    def has_pending_deletions(self) -> bool:
        """Return whether there are deletions that are not on disk yet, so that a crash would undo them."""
        return self._durable_deletions < self._deletions

    def when_deletions_are_durable(self, work: Callable[[], None]) -> None:
        """Call a function once all deletions up to now are on disk."""
        if self.has_pending_deletions:
            self._until_durable.append((self._deletions, work))
        else:
            work()

    def _remove_directories(self, topic: str) -> None:
        with self.lock:
            for directory in self._doomed.pop(topic):
                self.remover.remove(directory)
