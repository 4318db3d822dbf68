"""ReplicatedLog: a slave's log, which stores its master's bytes unchanged (``appendToCommitLog``).

The bytes may be split anywhere. They are written immediately, and complete records become readable with their units and
index entries. After a filler, the log continues in the next file. An incomplete record at the end, the *tail*, is not
readable. It is removed when the store stops, or by recovery after a crash, and is then requested from the master again.

Every record is checked: bytes that are not a record or have a wrong CRC are rejected, together with everything after
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.limits import MAX_LOST_UNITS
from cometmq.message.names import check_topic
from cometmq.message.record import (
    BLANK_MAGIC,
    END_FILE_MIN_BLANK_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
)
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.index.index_service import FEW_KEYS, IndexService
from cometmq.store.log.commit_log import CommitLog, store_error
from cometmq.store.log.record_scan import (
    MAX_QUEUE_OFFSET,
    NO_QUEUE_OFFSET,
    ROLLBACK,
    SIZE_MAGIC,
    LogRecord,
    read_log_record,
)
from cometmq.store.queue.consume_queue import BLANK_UNIT, MAX_QUEUE_ID, UNIT, ConsumeQueue, unit_before
from cometmq.store.queue.consume_queue_table import ConsumeQueueTable

_log = logging.getLogger(__name__)

Dispatched = Callable[[int, LogRecord | None, list[ConsumeQueue]], None]
"""Function that is called with the log's new end, the last new record, and the queues that have new units."""


class NotTheLogError(StoreError):
    """The received bytes do not continue this log, because they are not records or start at a different offset."""


class ReplicatedLog:
    """The end of a store's log on a slave, to which the master's bytes are appended.

    ``end`` is the log offset of the next byte, after the tail.
    """

    def __init__(
        self, log: CommitLog, queues: ConsumeQueueTable, index: IndexService | None, disk: Disk, dispatched: Dispatched
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._disk = disk
        self._dispatched = dispatched
        self.end = log.position

    @property
    def is_empty(self) -> bool:
        """True if the log is still empty, so that it may start with any file of the master's log."""
        return self.end == self._log.min_offset

    def begin_at(self, offset: int) -> None:
        """Start an empty log at ``offset``, which is the start of a file in the master's log.

        :raises NotTheLogError: ``offset`` is not a multiple of this store's log file size.
        """
        assert self.is_empty
        size = self._log.segment_size
        if offset < 0 or offset % size:
            raise NotTheLogError(
                f"the master's log begins at {offset}, which is not a multiple of this store's log file size {size}",
                next_step="set mappedFileSizeCommitLog to the master's value and start with an empty store",
            )
        if offset != self.end:
            self._log.begin_at(offset)
            self.end = offset
            self._dispatched(offset, None, [])

    def append(self, offset: int, data: bytes) -> None:
        """Write ``data`` at log offset ``offset``, and dispatch all complete records.

        :raises NotTheLogError: the log does not end at ``offset``, or bytes are not a record; valid records before them
            are stored.
        :raises StoreError: the data cannot be written; the log's end is unchanged.
        """
        if offset != self.end:
            if not self.is_empty:
                raise NotTheLogError(
                    f"the master sent its log from offset {offset}, but this log ends at {self.end}",
                    next_step="the slave requests the log again; if this persists, the logs differ: start with an "
                    "empty store",
                )
            self.begin_at(offset)
        try:
            self._write(data)
            self._dispatch()
        except StoreError:
            self.drop_tail()
            raise

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """Start an empty queue at ``offset``, since its earlier messages are older than the log.

        :raises StoreError: the queue file cannot be written.
        """
        if check_topic(topic) is not None or not 0 <= queue_id <= MAX_QUEUE_ID or not 0 < offset < MAX_QUEUE_OFFSET:
            return
        queue = self._queues.make(topic, queue_id)
        if queue.next_offset or queue.files:
            return
        try:
            queue.begin_behind(self._disk, offset, unit_before(self._log.min_offset))
        except OSError as error:
            raise store_error(error, f"the queue files of {topic}") from error

    def drop_tail(self) -> None:
        """Remove the tail, an incomplete record. If this fails, recovery removes it at the next start."""
        log = self._log
        position = log.position
        try:
            for segment in log.segments:
                start, end = max(position, segment.start), min(self.end, segment.end)
                if start < end:
                    self._disk.write(segment.fd, bytes(end - start), start - segment.start)
        except OSError as error:
            _log.warning("%d bytes after the log's end could not be cleared: %s", self.end - position, error)
        while len(log.segments) > 1 and log.segments[-1].start >= position:
            log.undo_segment(log.segments[-1])
        self.end = position

    # --- writing ------------------------------------------------------------------------------
    def _write(self, data: bytes) -> None:
        log = self._log
        view = memoryview(data)
        while view:
            segment = log.segment_at(self.end) or log.next_segment()
            part = view[: segment.end - self.end]
            log.write(segment, self.end, part)
            self.end += len(part)
            view = view[len(part) :]

    # --- dispatching --------------------------------------------------------------------------
    def _dispatch(self) -> None:
        """Add units and index entries for every complete record, and move the end of the log after the last one."""
        at = self._log.position
        touched: list[ConsumeQueue] = []
        last: LogRecord | None = None
        try:
            while (found := self._next(at)) is not None:
                end, record = found
                if record is not None:
                    self._enter(record, touched)
                    last = record
                at = end
        finally:
            if at != self._log.position:
                self._dispatched(at, last, touched)

    def _next(self, at: int) -> tuple[int, LogRecord | None] | None:
        """Return the end of the record or filler at ``at``, and the record if it is one. Return ``None`` if it is
        incomplete.

        :raises NotTheLogError: the bytes are neither a record nor a filler, or the record is damaged.
        """
        segment = self._log.segment_at(at)
        if segment is None or self.end - at < SIZE_MAGIC.size:
            return None
        room = segment.end - at
        size, magic = SIZE_MAGIC.unpack_from(segment.view, at - segment.start)
        if magic == BLANK_MAGIC and size == room:
            return (segment.end, None) if self.end >= segment.end else None
        is_record = magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
        if not is_record or not MIN_RECORD_BYTES <= size <= room - END_FILE_MIN_BLANK_BYTES:
            raise _damaged(at)
        if at + size > self.end:
            return None
        record = read_log_record(segment.view, at - segment.start, at, check_crc=True, may_be_torn=False)
        if record is None:
            raise _damaged(at)
        return at + size, record

    def _enter(self, record: LogRecord, touched: list[ConsumeQueue]) -> None:
        index = self._index
        if not record.sys_flag & NO_QUEUE_OFFSET:
            queue = self._queues.make(record.topic, record.queue_id)
            if 0 < queue.next_offset < record.queue_offset <= queue.next_offset + MAX_LOST_UNITS:
                # The master has lost the messages in between, and other records have replaced them.
                missing = record.queue_offset - queue.next_offset
                if queue.next_offset == queue.committed:
                    touched.append(queue)
                queue.pending += BLANK_UNIT * missing
                queue.next_offset += missing
            elif queue.next_offset != record.queue_offset:
                # The topic was deleted and created again on the master, or the log here starts later than the master's.
                self._queues.begin_anew(queue, record.queue_offset)
            if queue.next_offset == queue.committed:
                touched.append(queue)
            queue.pending += UNIT.pack(record.offset, record.size, queue.tags_code_of(record))
            queue.next_offset += 1
        if record.keys and index is not None and record.sys_flag & ROLLBACK != ROLLBACK:
            index.pending.append((record.topic + "#", record.offset, record.store_timestamp, record.keys))
            if len(record.keys) > FEW_KEYS:
                index.many_keys += len(record.keys)


def _damaged(at: int) -> NotTheLogError:
    return NotTheLogError(
        f"the master sent an invalid or damaged record at log offset {at}",
        next_step="the slave requests the log again; if this persists, the master's log is damaged there, its files "
        "have a "
        "different mappedFileSizeCommitLog, or the logs differ: see 'When a slave stops following' in "
        "docs/replication.md",
    )
