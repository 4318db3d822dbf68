"""ConsumeQueueTable: all queues of a store by topic and id (the ``consumeQueueTable`` of RocketMQ)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Set
from pathlib import Path
from typing import Final

from cometmq import descriptors
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.store.queue.consume_queue import ConsumeQueue, QueueFiles

_UNKNOWN_LEVEL_DELAY_MS: Final = 1_000
"""The delay of a queue whose level is not in the table, as in Apache (``computeDeliverTimestamp``)."""
_SHARE_OF_DESCRIPTORS: Final = 16
"""At most a sixteenth of all descriptors is for mappings of queue files: half of those that connections leave free."""


Extents = dict[str, dict[int, tuple[int, int]]]
"""The first offset in the files and maxOffset of queues, by topic and id."""


class ConsumeQueueTable:
    """Makes queues, finds them, and knows which have units that only memory holds."""

    def __init__(self, root: Path, file_size: int, delays_ms: tuple[int, ...]) -> None:
        self.root = root
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.dirty: list[ConsumeQueue] = []
        """Queues that got units since their files were last written."""
        self.file_size = file_size
        self.changed: dict[ConsumeQueue, None] = {}
        """Queues with another beginning or end than the last checkpoint has noted, beside those that are dirty."""
        self.lock = threading.Lock()
        """Held while a thread writes the files of a queue, or files are deleted."""
        self.gone: set[ConsumeQueue] = set()
        """Queues whose files were deleted since a thread was asked to write some."""
        self.files = QueueFiles(str(root), descriptors.limit() // _SHARE_OF_DESCRIPTORS)
        self._delays_ms = delays_ms

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it is known."""
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made when it is not known; the caller has checked the name."""
        queues = self.by_topic.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            delay_ms = 0
            if topic == SCHEDULE_TOPIC:
                delay_ms = self._delays_ms[queue_id] if queue_id < len(self._delays_ms) else _UNKNOWN_LEVEL_DELAY_MS
            queue = queues[queue_id] = ConsumeQueue(topic, queue_id, self.file_size, self.files, delay_ms)
        return queue

    def mark_dirty(self) -> None:
        """Find the queues whose units wait in memory, after recovery."""
        for queues in self.by_topic.values():
            for queue in queues.values():
                if queue.pending:
                    queue.dirty = True
                    self.dirty.append(queue)

    def extents(self) -> Extents:
        """The first offset in the files and maxOffset of every queue that has had messages."""
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
        """Forget what a queue had, on disk too; its next message gets ``offset``."""
        if queue.dirty:
            self.dirty = [other for other in self.dirty if other is not queue]
        with self.lock:
            self.gone.add(queue)
            shutil.rmtree(queue.directory, ignore_errors=True)
        queue.forget()
        queue.open_at([], offset)
        self.changed[queue] = None

    def remove_files_below(self, queue: ConsumeQueue, log_min: int) -> None:
        """Delete the files of a queue whose messages are all older than ``log_min``, but not the last."""
        if len(queue.files) > 1:
            with self.lock:
                if queue.remove_files_below(log_min):
                    self.changed[queue] = None

    def delete(self, topic: str, queues: Set[ConsumeQueue]) -> None:
        """Delete queues of a topic from disk, or all; their objects begin again at offset 0."""
        if any(queue.dirty for queue in queues):
            self.dirty = [queue for queue in self.dirty if queue not in queues]
        self.changed.update(dict.fromkeys(queues))
        for queue in queues:
            queue.forget()
        is_all = len(queues) == len(self.by_topic.get(topic, ()))
        with self.lock:
            self.gone |= queues
            for directory in [self.root / topic] if is_all else [queue.directory for queue in queues]:
                shutil.rmtree(directory, ignore_errors=True)
