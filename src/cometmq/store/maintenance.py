"""Maintenance: the background work of a running store (``FlushConsumeQueueService``, scheduled tasks).

It writes derived blocks, flushes, saves checkpoints and makes room.

Everything it writes here can be derived from the log again. When the disk has no room for it, messages
are refused until it has, so that the memory for waiting data stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cometmq.checksum import crc32
from cometmq.clock import TimerHandle
from cometmq.limits import INDEX_BLOCK_KEYS, MAX_INDEX_WAITING_KEYS
from cometmq.store.clock_check import ClockCheck
from cometmq.store.errors import StoreClosedError, StoreError, StoreFailedError
from cometmq.store.index.index_file import IndexFile
from cometmq.store.log.checkpoint import Checkpoint, save_checkpoint
from cometmq.store.log.commit_log import store_error
from cometmq.store.log.flush import FlushService
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.recovery.opening import OpenedStore
from cometmq.store.recovery.position import Position, marks_of, save_position
from cometmq.store.retention import Retention

_log = logging.getLogger(__name__)


class _Snapshot(NamedTuple):
    """One moment of a store, to be made durable by a thread."""

    position: Position
    timestamp: int
    queues: list[tuple[ConsumeQueue, list[int]]]
    index_files: list[IndexFile]


class Maintenance:
    """The background work of one store."""

    def __init__(self, opened: OpenedStore, flush: FlushService) -> None:
        self._opened = opened
        self._flush = flush
        self._config = opened.config
        self._clock = opened.clock
        self._disk = opened.disk
        self._timers: dict[str, TimerHandle] = {}
        self._index_turn: asyncio.Handle | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-checkpoint")
        self._saving = False
        self._closing = False
        self._saved_position = -1
        self._marks = opened.marks
        self._derived_error: StoreError | None = None
        self._flush_failed = False
        """A queue or index file was not flushed: a later flush proves nothing, so no newer position is saved."""
        self.retention = Retention(opened, flush)
        self.clock_check = ClockCheck(opened.log, opened.clock)

    # --- derived blocks -----------------------------------------------------------------------
    def write_units(self, queue: ConsumeQueue) -> None:
        """Write the units of one queue that wait."""
        try:
            queue.write_pending(self._disk)
        except OSError as error:
            self._derived_failed(error, f"the queue files of {queue.topic}")

    def write_index(self) -> None:
        """Write the index entries that wait."""
        index = self._opened.index
        if index is None:
            return
        try:
            index.write_pending()
        except OSError as error:
            self._derived_failed(error, "the index")

    def write_index_in_turns(self) -> None:
        """Write a block of the waiting index entries; the rest follows in the next turns of the loop."""
        index = self._opened.index
        if index is None or self.index_is_behind:
            return
        try:
            index.write_block()
            while index.committed and index.many_keys > MAX_INDEX_WAITING_KEYS:
                index.write_block()
        except OSError as error:
            self._derived_failed(error, "the index")
            return
        if index.committed and index.many_keys > INDEX_BLOCK_KEYS and self._timers:
            self._index_turn = asyncio.get_running_loop().call_soon(self._next_index_turn)

    @property
    def index_is_behind(self) -> bool:
        """True while more entries wait than one turn of the loop writes."""
        return self._index_turn is not None

    def _next_index_turn(self) -> None:
        self._index_turn = None
        self.write_index_in_turns()

    def write_derived(self) -> bool:
        """Write all that waits; return whether it worked."""
        self._derived_error = None
        queues = self._opened.queues
        waiting, queues.dirty = queues.dirty, []
        for queue in waiting:
            self.write_units(queue)
            queue.dirty = self._derived_error is not None
            if queue.dirty:
                queues.dirty.append(queue)
        self.write_index()
        return self._derived_error is None

    def _derived_failed(self, error: OSError, what: str) -> None:
        if self._derived_error is None:
            _log.error("%s cannot be written, messages are refused until they can: %s", what, error)
        self._derived_error = store_error(error, what)

    def refusal(self) -> StoreError | None:
        """The reason to refuse messages: shutdown, a failed flush, derived files that fail, or a full disk."""
        if self._closing:
            return StoreClosedError("the store is shut")
        if self._flush.failure is not None:
            return self._flush.failure
        if self._derived_error is not None and not self.write_derived():
            return self._derived_error
        return self.retention.refusal

    # --- timers -------------------------------------------------------------------------------
    def start(self) -> None:
        """Set the timers, on the running loop."""
        if not self._opened.log.segments:  # the first message waits for no file
            self._opened.log.allocate_ahead()
        self.retention.check_disk()
        self.clock_check.run()
        self._every("clock", self._config.clean_resource_interval / 1000, self.clock_check.run)
        self._every("flush", self._config.flush_interval_commit_log / 1000, self._flush.begin)
        self._every("checkpoint", self._config.flush_interval_consume_queue / 1000, self.begin_checkpoint)
        self._every("retention", self._config.clean_resource_interval / 1000, self.retention.run)

    def _every(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        def run() -> None:
            self._timers[name] = self._clock.call_later(seconds, run)
            work()

        self._timers[name] = self._clock.call_later(seconds, run)

    # --- checkpoint ---------------------------------------------------------------------------
    def begin_checkpoint(self) -> None:
        """Write the waiting data; once the log is flushed that far, make it durable and record that on disk."""
        if self._saving or self._flush_failed or self._opened.log.position == self._saved_position:
            return
        if self.index_is_behind or not self.write_derived():
            return
        snapshot = self._snapshot()
        self._saving = True
        loop = asyncio.get_running_loop()

        def flushed(error: StoreError | None) -> None:
            if error is not None or self._closing:
                self._give_back(snapshot)
            else:
                self._worker.submit(save)

        def save() -> None:
            try:
                self._save(snapshot)
            except OSError as error:
                loop.call_soon_threadsafe(self._saved, snapshot, error)
            else:
                loop.call_soon_threadsafe(self._saved, snapshot, None)

        self._flush.when_flushed(snapshot.position.offset, flushed)

    def _snapshot(self) -> _Snapshot:
        opened = self._opened
        log, index = opened.log, opened.index
        last_offset, last_size = log.last_record
        view = log.view(last_offset, last_size) if last_offset >= 0 else None
        queues: list[tuple[ConsumeQueue, list[int]]] = []
        for topic in opened.queues.by_topic.values():
            for queue in topic.values():
                if queue.unsynced:
                    queues.append((queue, list(queue.unsynced)))
                    queue.unsynced.clear()
        self._marks = marks_of(log, self._marks)
        position = Position(
            offset=log.position,
            last_offset=last_offset,
            last_size=last_size,
            last_crc=crc32(view) if view is not None else 0,
            queues=opened.queues.extents(),
            index_files=[
                (file.path.name, file.count, file.end_offset, file.end_timestamp)
                for file in (index.files if index is not None else ())
            ],
            marks=self._marks,
        )
        return _Snapshot(position, log.last_timestamp, queues, index.dirty_files() if index is not None else [])

    def _save(self, snapshot: _Snapshot) -> None:
        """Flush queues and index, then say so (in a thread, or at close)."""
        try:
            for queue, starts in snapshot.queues:
                queue.sync(self._disk, starts)
            for file in snapshot.index_files:
                file.flush()
        except OSError:
            self._flush_failed = True
            raise
        root = self._config.root
        index_timestamp = snapshot.position.index_files[-1][3] if snapshot.position.index_files else 0
        save_checkpoint(
            root / "checkpoint", Checkpoint(snapshot.timestamp, snapshot.timestamp, index_timestamp), self._disk
        )
        save_position(root / "comet" / "position.json", snapshot.position, self._disk)

    def _saved(self, snapshot: _Snapshot, error: OSError | None) -> None:
        self._saving = False
        if error is None:
            self._saved_position = snapshot.position.offset
            return
        _log.error("the checkpoint was not saved, recovery would begin at an older one: %s", error)
        self._give_back(snapshot)

    def _give_back(self, snapshot: _Snapshot) -> None:
        """Let the next checkpoint flush the files that this one did not."""
        self._saving = False
        for queue, starts in snapshot.queues:
            queue.unsynced.update(starts)
        for file in snapshot.index_files:
            file.dirty = True

    # --- other work ---------------------------------------------------------------------------
    def delete_queues(self, topic: str, queues: Set[ConsumeQueue]) -> None:
        """Delete queues of a topic and let the next checkpoint say so."""
        self._saved_position = -1
        self._opened.queues.delete(topic, queues)

    def close(self) -> None:
        """Stop the timers, flush, note a clean stop when everything is on the disk, close the files."""
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        if self._index_turn is not None:
            self._index_turn.cancel()
        self._worker.shutdown()
        opened = self._opened
        try:
            clean = self.write_derived() and not self._flush_failed
            self._flush.flush_now()
            if clean:
                self._save(self._snapshot())
                (self._config.root / "abort").unlink(missing_ok=True)
        except (StoreFailedError, OSError) as error:
            _log.error("the store was not stopped cleanly; the next start recovers it: %s", error)
        finally:
            if opened.index is not None:
                opened.index.close()
            opened.log.close()
            opened.lock.release()
