"""Checkpoints: write and flush derived data, and record it as durable (``FlushConsumeQueueService``).

The cost of a checkpoint is proportional to the changes since the last one. A thread writes and flushes the changed
queues and then the position file; the event loop passes it a few queues at a time. After a long checkpoint, the next
one is delayed, so that checkpoints use at most a twentieth of the time. Recovery after a crash then reads more of the
log, at about a gigabyte per second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from cometmq.checksum import crc32
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.errors import StoreError
from cometmq.store.failure_log import FailureLog
from cometmq.store.index.index_file import IndexFile
from cometmq.store.log.checkpoint import Checkpoint, save_checkpoint
from cometmq.store.log.flush import FlushService
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.recovery.opening import OpenedStore
from cometmq.store.recovery.position import Extent, ExtentRows, Position, PositionFile, checksums_of_files

_log = logging.getLogger(__name__)

_QUEUES_AT_ONCE: Final = 512
"""Maximum number of queues passed to the thread in one round of the event loop, which takes about a millisecond."""
_FLUSHED_AT_ONCE: Final = 32
_FLUSHERS: Final = 8
"""Maximum number of threads that flush queue files, so that the file system can combine their flushes."""
_FLUSH_ALL_FROM: Final = 1_000
"""Number of queue files from which the file system is flushed first. Each flush of a new file may wait for a commit of
the file system; then they share one.
"""
_PAUSE: Final = 20
"""The ratio of the pause after a checkpoint to the checkpoint's duration."""
_MAX_PAUSE_SECONDS: Final = 60.0
"""Maximum pause after a checkpoint, as in Apache (``flushConsumeQueueThoroughInterval``)."""
_MAX_BYTES_BETWEEN: Final = 1 << 30
"""Number of bytes of new log data that end the pause early, since recovery after a crash would have to read them."""


class Moment(NamedTuple):
    """A snapshot of a store, which a thread writes to disk."""

    position: Position
    """The position file's content, except the extents of the queues."""
    timestamp: int
    ends: dict[ConsumeQueue, int]
    """The maxOffset of each queue whose extent has changed."""


class UnitsToWrite(NamedTuple):
    """Units of a queue that the thread writes, starting at an offset."""

    queue: ConsumeQueue
    offset: int
    units: bytes
    starts: list[int]
    """Start offsets of the files that the thread has written."""


class Snapshot(NamedTuple):
    """A snapshot whose queues and index entries have been written."""

    moment: Moment
    changed: list[Extent]
    files: dict[ConsumeQueue, set[int]]
    index_files: list[IndexFile]


class Checkpoints:
    """Makes the checkpoints of one store."""

    def __init__(
        self,
        opened: OpenedStore,
        flush: FlushService,
        write_index: Callable[[], bool],
        failed: Callable[[OSError, str], None],
    ) -> None:
        """Set up the checkpoints of a store.

        :param write_index: writes pending index entries; returns False if some remain.
        :param failed: called with the error and the name of the data that could not be written.
        """
        self._opened = opened
        self._flush = flush
        self._write_index = write_index
        self._failed = failed
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-checkpoint")
        self._file = PositionFile(opened.config.root / "comet" / "position.json", opened.disk, opened.queues.extents())
        self._marks = opened.marks
        self._saving = False
        self._closing = False
        self._failures = FailureLog(_log)
        self._moment: Moment | None = None
        """The snapshot of the current checkpoint while queues are written."""
        self._waiting: list[ConsumeQueue] = []
        """The dirty queues that the current checkpoint still has to write."""
        self._written: list[ConsumeQueue] = []
        """The queues that the thread is currently writing."""
        self._unsaved: Snapshot | None = None
        """The snapshot of the current checkpoint after its queues are written and before it is saved."""
        self._began = 0.0
        self._not_before = 0.0
        self.saved_position = -1
        """The end of the log at the last checkpoint, or -1 before the first one."""
        self.failed = False
        """True after a failed flush. No newer position is saved then, because a later successful flush would prove
        nothing.
        """

    def begin(self) -> None:
        """Begin a checkpoint.

        Write the pending data; once the log is flushed up to the same position, flush the data and record that
        position.
        """
        log, queues = self._opened.log, self._opened.queues
        if self._saving or self.failed or (log.position == self.saved_position and not queues.changed):
            return
        now = self._opened.clock.monotonic()
        if now < self._not_before and log.position - self.saved_position < _MAX_BYTES_BETWEEN:
            return
        if not self._write_index():
            return
        self._began = now
        self._saving = True
        self._waiting, queues.dirty = queues.dirty, []
        self._moment = self._take_moment()
        self._write_some(asyncio.get_running_loop())

    def _take_moment(self) -> Moment:
        """Return a snapshot of the store between two batches."""
        opened = self._opened
        log, index, queues = opened.log, opened.index, opened.queues
        last_offset, last_size = log.last_record
        view = log.view(last_offset, last_size) if last_offset >= 0 else None
        self._marks = checksums_of_files(log, self._marks)
        position = Position(
            offset=log.position,
            last_offset=last_offset,
            last_size=last_size,
            last_crc=crc32(view) if view is not None else 0,
            queues={},
            index_files=[
                (file.path.name, file.count, file.end_offset, file.end_timestamp)
                for file in (index.files if index is not None else ())
            ],
            marks=self._marks,
        )
        changed = queues.changed | dict.fromkeys(self._waiting)
        queues.changed.clear()
        return Moment(position, log.last_timestamp, {queue: queue.committed for queue in changed})

    def _write_some(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass some queues to the thread. If all queues are written, save the snapshot instead."""
        queues, waiting, moment = self._opened.queues, self._waiting, self._moment
        assert moment is not None
        queues.gone.clear()
        if not waiting:
            self._moment = None
            self._save_soon(self._snapshot(moment), loop)
            return
        self._written = waiting[-_QUEUES_AT_ONCE:]
        del waiting[-_QUEUES_AT_ONCE:]
        parts = [UnitsToWrite(queue, *queue.unwritten(), []) for queue in self._written]

        def write() -> None:
            error = self._write_files(parts)
            loop.call_soon_threadsafe(self._wrote, parts, error, loop)

        self._worker.submit(write).add_done_callback(_tell)

    def _write_files(self, parts: list[UnitsToWrite]) -> tuple[OSError, str] | None:
        """Write the units of some queues (in the thread). If a write fails, return the error and the topic."""
        queues, disk = self._opened.queues, self._opened.disk
        for queue, offset, units, starts in parts:
            with queues.lock:
                if queue in queues.gone:
                    continue
                deleted = max(0, queue.first_stored - offset)  # deleted with their file by retention
                try:
                    queue.write_files(disk, offset + deleted, units[deleted * CQ_UNIT_BYTES :], starts)
                except OSError as error:
                    return error, queue.topic
        return None

    def _wrote(
        self, parts: list[UnitsToWrite], failed: tuple[OSError, str] | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        if self._closing:
            return
        if failed is not None:
            error, topic = failed
            self._give_up()
            self._failed(error, f"the queue files of {topic}")
            return
        queues, moment = self._opened.queues, self._moment
        assert moment is not None
        self._written = []
        for queue, offset, units, starts in parts:
            if queue in queues.gone:
                continue
            queue.wrote(offset, len(units) // CQ_UNIT_BYTES, starts)
            queue.dirty = queue.has_unwritten
            if queue.dirty:
                queues.dirty.append(queue)
            elif queue.committed != moment.ends[queue]:  # the event loop has written later units in the meantime
                queues.changed[queue] = None
        self._write_some(loop)

    def _give_up(self) -> None:
        """Mark the queues that this checkpoint did not write, so that the next checkpoint writes them."""
        queues = self._opened.queues
        queues.dirty += [queue for queue in (*self._waiting, *self._written) if queue not in queues.gone]
        self._waiting, self._written = [], []
        if self._moment is not None:
            queues.changed.update(dict.fromkeys(self._moment.ends))
            self._moment = None
        self._saving = False

    def _snapshot(self, moment: Moment) -> Snapshot:
        files = self._opened.queues.files
        changed = [Extent(queue.topic, queue.queue_id, queue.first_stored, end) for queue, end in moment.ends.items()]
        unsynced, files.unsynced = files.unsynced, {}
        index = self._opened.index
        return Snapshot(moment, changed, unsynced, index.dirty_files() if index is not None else [])

    def _save_soon(self, snapshot: Snapshot, loop: asyncio.AbstractEventLoop) -> None:
        self._unsaved = snapshot

        def flushed(error: StoreError | None) -> None:
            if error is not None:
                self._give_back()
            else:  # a crash undoes the other deletions: their queues are not in the snapshot, or not completely written
                self._opened.queues.when_deletions_are_durable(begin_save)

        def begin_save() -> None:
            if not self._closing:
                self._worker.submit(save).add_done_callback(_tell)

        def save() -> None:
            try:
                self._save(snapshot)
            except OSError as error:
                loop.call_soon_threadsafe(self._saved, error)
            else:
                loop.call_soon_threadsafe(self._saved, None)

        self._flush.when_flushed(snapshot.moment.position.offset, flushed)

    def _save(self, snapshot: Snapshot) -> None:
        """Flush the queues and the index, and then record the position (in a thread, or on close)."""
        disk, moment = self._opened.disk, snapshot.moment
        try:
            self._flush_queues(list(snapshot.files.items()))
            for file in snapshot.index_files:
                file.flush()
        except OSError:
            self.failed = True
            raise
        index_files = moment.position.index_files
        times = Checkpoint(moment.timestamp, moment.timestamp, index_files[-1][3] if index_files else 0)
        save_checkpoint(self._opened.config.root / "checkpoint", times, disk)
        self._file.save(moment.position, snapshot.changed)
        self._opened.known_files.check_flushed({extent.topic for extent in snapshot.changed}, self.extents)

    def _flush_queues(self, files: list[tuple[ConsumeQueue, set[int]]]) -> None:
        def flush(some: list[tuple[ConsumeQueue, set[int]]]) -> None:
            for queue, starts in some:
                queue.sync(self._opened.disk, starts)

        if len(files) <= _FLUSHED_AT_ONCE:
            flush(files)
            return
        if len(files) >= _FLUSH_ALL_FROM:
            self._opened.disk.flush_all(self._opened.config.root)
        parts = [files[at : at + _FLUSHED_AT_ONCE] for at in range(0, len(files), _FLUSHED_AT_ONCE)]
        with ThreadPoolExecutor(_FLUSHERS, thread_name_prefix="cometmq-store-flush-queues") as flushers:
            for _ in flushers.map(flush, parts):
                pass

    def _saved(self, error: OSError | None) -> None:
        if self._unsaved is None:
            return  # stop() has already given it back
        now = self._opened.clock.monotonic()
        self._not_before = now + min(_PAUSE * (now - self._began), _MAX_PAUSE_SECONDS)
        if error is None:
            self._saving = False
            self.saved_position = self._unsaved.moment.position.offset
            self._unsaved = None
            self._failures.ended("save a checkpoint")
            return
        self._failures.failed("save a checkpoint", error)
        self._give_back()

    def _give_back(self) -> None:
        """Mark the files that this checkpoint may not have flushed, so that the next checkpoint flushes them."""
        snapshot, self._unsaved = self._unsaved, None
        if snapshot is None:
            return
        self._saving = False
        queues = self._opened.queues
        for queue, starts in snapshot.files.items():
            for start in starts:
                queues.files.written(queue, start)
        queues.changed.update(dict.fromkeys(snapshot.moment.ends))
        for file in snapshot.index_files:
            file.dirty = True

    @property
    def extents(self) -> ExtentRows:
        """Return the extents of all queues in the format of the position file."""
        return self._file.extents

    @property
    def held(self) -> list[ConsumeQueue]:
        """Return the queues whose units the current checkpoint still has to write."""
        return [*self._waiting, *self._written]

    def stop(self) -> None:
        """Start no further checkpoints; :meth:`end_thread` and :meth:`end` must follow."""
        self._closing = True

    def end_thread(self) -> None:
        """Wait for the thread to finish, blocking and perhaps in another thread."""
        self._worker.shutdown()

    def end(self) -> None:
        """Give back what the last checkpoint has not saved."""
        if self._moment is not None:
            self._give_up()
        self._give_back()

    def save_now(self) -> None:
        """Record that all data is on disk. The caller must have written the data and flushed the log.

        :raises OSError: the file cannot be written.
        """
        self._save(self._snapshot(self._take_moment()))


def _tell(done: Future[None]) -> None:
    """Log an unexpected error of a checkpoint. No more checkpoints are made, so the next start has to read more log."""
    error = done.exception()
    if error is not None:
        _log.error("a checkpoint failed unexpectedly; checkpoints stop until the broker is restarted", exc_info=error)
