"""ConsumeQueueTable: all queues of a store by topic and id (the ``consumeQueueTable`` of RocketMQ)."""

from __future__ import annotations

import shutil
from collections.abc import Set
from pathlib import Path
from typing import Final

from cometmq import descriptors
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.store.queue.consume_queue import ConsumeQueue, MappedFiles

_UNKNOWN_LEVEL_DELAY_MS: Final = 1_000
"""The delay of a queue whose level is not in the table, as in Apache (``computeDeliverTimestamp``)."""
_SHARE_OF_DESCRIPTORS: Final = 16
"""At most a sixteenth of all descriptors is for mappings of queue files: half of those that connections leave free."""


class ConsumeQueueTable:
    """Makes queues, finds them, and knows which have units that only memory holds."""

    def __init__(self, root: Path, file_size: int, delays_ms: tuple[int, ...]) -> None:
        self.root = root
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.dirty: list[ConsumeQueue] = []
        """Queues that got units since their files were last written."""
        self._file_size = file_size
        self._mapped = MappedFiles(descriptors.limit() // _SHARE_OF_DESCRIPTORS)
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
            directory = self.root / topic / str(queue_id)
            queue = queues[queue_id] = ConsumeQueue(topic, queue_id, directory, self._file_size, self._mapped, delay_ms)
        return queue

    def mark_dirty(self) -> None:
        """Find the queues whose units wait in memory, after recovery."""
        for queues in self.by_topic.values():
            for queue in queues.values():
                if queue.pending:
                    queue.dirty = True
                    self.dirty.append(queue)

    def extents(self) -> dict[str, dict[int, tuple[int, int]]]:
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
            self.dirty.remove(queue)
        shutil.rmtree(queue.directory, ignore_errors=True)
        queue.forget()
        queue.open_at([], offset)

    def delete(self, topic: str, queues: Set[ConsumeQueue]) -> None:
        """Delete queues of a topic from disk, or all; their objects begin again at offset 0."""
        self.dirty = [queue for queue in self.dirty if queue not in queues]
        for queue in queues:
            queue.forget()
        if len(queues) == len(self.by_topic.get(topic, ())):
            shutil.rmtree(self.root / topic, ignore_errors=True)
            return
        for queue in queues:
            shutil.rmtree(queue.directory, ignore_errors=True)
