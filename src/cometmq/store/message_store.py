"""MessageStore: an open store on disk, and its operations (``DefaultMessageStore``).

Messages are stored in batches (:mod:`cometmq.store.write_batch`): any number of ``put`` calls, followed by one
``commit``.

All methods must be called in the event loop's thread. Before :meth:`MessageStore.start`, nothing runs in the
background, so tools can open, read and close a store without an event loop.

Fault model: a write can fail or be incomplete (full disk, I/O error). A flush can fail, and then no later flush is
trusted. The process can die between any two system calls. A power failure can lose or tear everything that was not
flushed. A message that was acknowledged after a flush survives all of these faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.loop import call_now, completed
from cometmq.message.names import check_topic
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreError
from cometmq.store.index.index_service import QueryKey, QueryResult
from cometmq.store.log.commit_log import store_error
from cometmq.store.log.flush import Flushed, FlushService
from cometmq.store.log.log_reader import NOTHING_KNOWN, LogReader
from cometmq.store.log.record_scan import LogRecord, first_record, prepared_offsets, read_log_record, walk
from cometmq.store.maintenance import Maintenance
from cometmq.store.queue.consume_queue import MAX_QUEUE_ID, ConsumeQueue
from cometmq.store.queue.consume_queue_table import WhenDurable
from cometmq.store.queue.get_message import (
    DEFAULT_MAX_BYTES,
    Chooser,
    GetMessageStatus,
    GetResult,
    Predicate,
    UnitRun,
    first_by_time,
    get_message,
    offset_by_time,
    store_time,
    unit_runs,
)
from cometmq.store.queue.readable import ReadableEnd
from cometmq.store.recovery.opening import OpenedStore, open_store
from cometmq.store.replicated_log import ReplicatedLog
from cometmq.store.retention import LogHolder
from cometmq.store.write_batch import WriteBatch

__all__ = ["ConsumeQueue", "GetMessageStatus", "GetResult", "MessageStore", "QueryResult"]


class MessageStore:
    """A store on disk, from :meth:`open` to :meth:`close`."""

    def __init__(self, opened: OpenedStore) -> None:
        self.config: StoreConfig = opened.config
        self.clock: Clock = opened.clock
        self.disk: Disk = opened.disk
        """The system calls that change the store's files."""
        self.findings: list[str] = opened.findings
        """Findings and repairs from the opening of the store, one line each."""
        self.lost_from = opened.lost_from
        """Log offset at which the log ended when it was opened, if its real end was lost; otherwise ``None``. Offsets
        after it in other files are no longer valid.
        """
        self.has_lost_end = opened.has_lost_end
        """True if the log has lost flushed bytes at its end, on a slave, too, whose master sends them again."""
        self.sync_flush: bool = opened.config.sync_flush
        self._log = opened.log
        self._index = opened.index
        self._queues = opened.queues
        self._flush = FlushService(opened.log, opened.clock)
        self._maintenance = Maintenance(opened, self._flush)
        self.batch: Final = WriteBatch(opened, self._maintenance)
        """Stores messages in batches."""
        self._replicated: ReplicatedLog | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
        is_slave: bool = False,
        begin_anew: bool = False,
        readable: int | None = None,
    ) -> MessageStore:
        """Lock the store, find its files, and make the log, queues and index consistent.

        :param is_slave: True for a slave, whose master sends a lost end of the log again, at the same offsets.
        :param begin_anew: open the store although its log is missing; the messages in the queues are lost.
        :param readable: in a failover set, the log offset up to which messages may be read until :meth:`confirm`; 0 if
            it is not known yet. ``None`` if all stored messages may be read.
        :raises StoreLockedError: another process has opened the store.
        :raises LostLogError: the log is missing, and ``begin_anew`` is false.
        :raises StoreError: the store cannot be opened.
        """
        store = cls(open_store(config, clock, disk or Disk(), is_slave=is_slave, begin_anew=begin_anew))
        if readable is not None:
            try:
                store._begin_set(readable)
            except BaseException:
                store.close_now()
                raise
        return store

    # --- starting and closing -----------------------------------------------------------------
    def start(self) -> None:
        """Start flushing, checkpoints and the deletion of old files on the running event loop."""
        self._maintenance.start()

    async def close(self) -> None:
        """Flush everything, record the clean stop, and close the files.

        In a failover set, a slow disk does not block the event loop: the member must go on renewing its lease.
        """
        if self.batch.readable is None:
            self.close_now()
        elif self._begin_close():
            await completed(self._maintenance.close_in_thread())

    def close_now(self) -> None:
        """Close the store like :meth:`close`, but blocking and without an event loop."""
        if self._begin_close():
            self._maintenance.close()

    def _begin_close(self) -> bool:
        """Accept nothing more; return False if the store was closed before."""
        was_closed, self._closed = self._closed, True
        if not was_closed:
            self.give_up()
            if self._replicated is not None:
                self._replicated.drop_tail()
            self.batch.rollback()
        return not was_closed

    # --- queues -------------------------------------------------------------------------------
    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue. It is created on disk when its first message is stored.

        :raises ValueError: the topic name or the queue id is not allowed in RocketMQ.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            wrong = check_topic(topic)
            if wrong is not None or not 0 <= queue_id <= MAX_QUEUE_ID:
                raise ValueError(wrong or f"a queue id must be a number from 0 to {MAX_QUEUE_ID}, not {queue_id}")
            queue = self._queues.make(topic, queue_id)
        return queue

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that has messages or is otherwise in use, or ``None``. No queue is created."""
        return self._queues.get(topic, queue_id)

    def extent(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return a queue's first offset and the offset after its last message, or zeros if the queue does not exist."""
        queue = self._queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset(), queue.max_offset())

    def stored_end(self, topic: str, queue_id: int) -> int:
        """Return the offset after a queue's last stored message, which may not be readable yet, or 0 if the queue does
        not exist.
        """
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.committed

    # --- a slave's ----------------------------------------------------------------------------
    @property
    def replicated(self) -> ReplicatedLog:
        """The end of a slave's log, to which the master's bytes are appended. No other messages may be stored."""
        if self._replicated is None:
            self._replicated = ReplicatedLog(self._log, self._queues, self._index, self.disk, self.batch.follow)
        return self._replicated

    # --- a failover set's ---------------------------------------------------------------------
    def _begin_set(self, readable: int) -> None:
        """Flush what an earlier process has left in the page cache, since ``flushed_position`` counts it, and hold back
        the messages that may not be read yet.
        """
        try:
            self._log.flush(self._log.min_offset, self._log.position)
            self._log.rest(self._log.position)
        except OSError as error:
            raise store_error(error, "the log") from error
        self.batch.readable = ReadableEnd(self._log, self._queues, readable)
        self.hold_log(self.batch.readable)

    @property
    def readable_end(self) -> int:
        """The log offset up to which messages may be read: the end of the log, unless the store was opened with
        ``readable``.
        """
        readable = self.batch.readable
        return self._log.position if readable is None else readable.offset

    def confirm(self, offset: int) -> None:
        """Make the messages up to a log offset readable, and call the functions in ``batch.on_arrival``.

        Only a store that was opened with ``readable`` holds messages back. An offset after the end of the log counts
        as the end, and one before the readable end changes nothing.
        """
        self.batch.confirm(offset)

    @property
    def kept_end(self) -> int:
        """The log offset up to which the log is flushed, and in a failover set also confirmed, so that it stays."""
        return min(self._flush.position, self.readable_end)

    async def wait_kept(self, position: int) -> None:
        """Wait until the log is flushed up to ``position``, and in a failover set also confirmed.

        A file that is not derived from the log may contain only what the log keeps.

        :raises StoreError: the log cannot be flushed, or is not confirmed before :meth:`give_up`.
        """
        await self.wait_flushed(position)
        if self.batch.readable is not None:
            await self.batch.readable.reached(position)

    def give_up(self) -> None:
        """Let :meth:`wait_kept` raise an error: a failover set confirms nothing more to this store."""
        if self.batch.readable is not None:
            self.batch.readable.give_up()

    # --- durability ---------------------------------------------------------------------------
    def when_flushed(self, position: int, callback: Flushed) -> None:
        """Call back with ``None`` once the log is flushed up to ``position``, or with the error that prevents it.

        One flush covers everything written before it began. Must be called on the running event loop.
        """
        self._flush.when_flushed(position, callback)

    def time_flushes(self, observe: Callable[[float], None]) -> None:
        """Call ``observe`` with each flush's duration in seconds, including the wait for the event loop."""
        self._flush.on_flush = observe

    async def wait_flushed(self, position: int) -> None:
        """Wait until the log is flushed up to ``position``.

        :raises StoreError: the log cannot be flushed.
        """
        flushed: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.when_flushed(position, lambda error: None if flushed.done() else flushed.set_result(error))
        error = await flushed
        if error is not None:
            raise error

    def writable(self) -> StoreError | None:
        """Return the reason why messages are currently refused (full disk, failed flush, shutdown), or ``None``."""
        return self._maintenance.refusal()

    # --- reading ------------------------------------------------------------------------------
    def get_message(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        *,
        tag_codes: frozenset[int] | None = None,
        predicate: Predicate | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        choose: Chooser | None = None,
    ) -> GetResult:
        """Read up to ``max_messages`` records and ``max_bytes`` bytes, but at least one record, starting at ``offset``.

        ``tag_codes`` selects messages whose unit has one of these codes, and ``predicate`` selects those whose record
        it accepts; ``choose`` replaces ``predicate`` if there are many units. A filtered read checks at least 800
        units, and the next read continues at ``next_begin_offset``. A read never continues beyond the end of a queue
        file. The slices remain valid even after their file is deleted.
        """
        return get_message(self._log, queue, offset, max_messages, tag_codes, predicate, max_bytes, choose)

    def unit_runs(self, queue: ConsumeQueue, offset: int, count: int) -> tuple[list[UnitRun], npt.NDArray[np.int64]]:
        """Return the records of many units (see :func:`~cometmq.store.queue.get_message.unit_runs`)."""
        return unit_runs(self._log, queue, offset, count)

    def scan(self, physical_offset: int) -> Iterator[LogRecord]:
        """Yield the records from a log offset to the end of the log. Newly damaged parts are skipped."""
        end = self._log.position
        reader = LogReader(self._log, physical_offset, NOTHING_KNOWN, check_crc=False, until=end)
        return (found for found in reader if isinstance(found, LogRecord))

    def record_at(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """Return the record at a log offset, or ``None`` if there is no record (of ``size`` bytes) there."""
        view = self._log.record(physical_offset) if physical_offset >= 0 else None
        if view is None or (size is not None and size != len(view)):
            return None
        record = read_log_record(view, 0, physical_offset, check_crc=False)
        return bytes(view) if record is not None and record.size == len(view) else None

    def readable_record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a log offset like :meth:`record_at`, but ``None`` if it may not be read yet."""
        record = self.record_at(physical_offset)
        is_readable = record is not None and physical_offset + len(record) <= self.readable_end
        return record if is_readable else None

    def bytes_at(self, physical_offset: int) -> bytes | None:
        """Return the unchecked bytes of the record at a log offset, with the length in its size field, or ``None``."""
        view = self._log.record(physical_offset) if physical_offset >= 0 else None
        return None if view is None else bytes(view)

    def decoded_at(self, physical_offset: int) -> StoredRecord | None:
        """Return the decoded record at a log offset, or ``None`` if it is missing or damaged."""
        view = self._log.record(physical_offset) if physical_offset >= 0 else None
        if view is None:
            return None
        try:
            record = decode_record(view)
        except RecordError:
            return None
        return record if record.physical_offset == physical_offset else None

    def records(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Yield the log offset and bytes of each record from ``start`` to ``end``. Any thread may call this."""
        return walk(self._log, start, end)

    def prepared_offsets(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield the log offsets of each committed message and of its half message, starting at ``start``."""
        return prepared_offsets(self._log, start)

    def view(self, physical_offset: int, size: int) -> memoryview | None:
        """Return the unchecked bytes of a record that this process stored, or ``None`` if retention has
        deleted them.
        """
        return self._log.view(physical_offset, size)

    def log_part(self, offset: int, most_bytes: int) -> memoryview | None:
        """Return up to ``most_bytes`` bytes of the log from ``offset`` on, but none after the end of the log file or of
        the log.

        Return ``None`` if these bytes are deleted or not written yet.
        """
        segment = self._log.segment_at(offset)
        if segment is None:
            return None
        return self._log.view(offset, min(most_bytes, segment.end - offset, self._log.position - offset))

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the message stored nearest to ``timestamp`` (ms), or 0 if the queue is unknown
        or empty.
        """
        queue = self._queues.get(topic, queue_id)
        return offset_by_time(self._log, queue, timestamp) if queue is not None else 0

    def first_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset of the first message stored at or after ``timestamp`` (ms), or the queue's end if there is
        none. If the queue is unknown or empty, return 0.
        """
        queue = self._queues.get(topic, queue_id)
        return first_by_time(self._log, queue, timestamp) if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp (ms) of the message at ``offset``, or -1 if there is none that may be read."""
        queue = self._queues.get(topic, queue_id)
        return store_time(self._log, queue, offset) if queue is not None and offset < queue.readable else -1

    def earliest_store_time(self) -> int:
        """Return the store timestamp (ms) of the first record in the log, or -1 for an empty log."""
        record = first_record(self._log, self._log.min_offset)
        return record.store_timestamp if record is not None else -1

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int, *, unique: bool = False) -> QueryResult:
        """Return the newest ``max_num`` records with a key that were stored between ``begin`` and ``end`` (ms), in log
        order.

        With ``unique``, the key is a unique key.

        While messages with thousands of keys are being indexed, the last messages are not found yet.
        """
        if self._index is None:
            return QueryResult(0, 0, [])
        if self._index.committed and not self._maintenance.index_is_behind:
            self._maintenance.write_index()
        wanted = QueryKey(topic, key, unique)
        return self._index.query(self._log, wanted, max_num, begin, end, readable_end=self.readable_end)

    def queues(self) -> Mapping[str, Mapping[int, ConsumeQueue]]:
        """Return all queues that ever had a message or were requested, by topic and id."""
        return self._queues.by_topic

    def delete_topic(self, topic: str, *, before: int | None = None, when_durable: WhenDurable = call_now) -> bool:
        """Delete the queues of a topic. Its records remain in the log until retention deletes them.

        :param before: delete only queues that have no message at or after this log offset.
        :param when_durable: receives the function that removes the files, and calls it when the deletion is on disk.
        """
        queues = self._queues.by_topic.get(topic, {})
        gone = {queue for queue in queues.values() if before is None or self._last_record(queue) < before}
        self.batch.forget(gone)
        self._queues.delete(topic, gone, when_durable)
        return bool(gone)

    @staticmethod
    def _last_record(queue: ConsumeQueue) -> int:
        unit = queue.unit(queue.committed - 1) if queue.committed else None
        return -1 if unit is None else unit[0]

    def delete_expired_files(self) -> int:
        """Delete the expired files immediately, whatever the hour. Return the number of deleted log files."""
        return self._maintenance.retention.delete_files()

    def hold_log(self, holder: LogHolder) -> None:
        """Keep all log files that ``holder`` needs, however old they are."""
        self._maintenance.retention.holders.append(holder)

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply the run-time keys of another configuration. All other keys keep their values."""
        self._maintenance.retention.config = config

    @property
    def min_physical_offset(self) -> int:
        """Log offset of the first byte that still exists."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """The end of the log, which is the log offset of the next record."""
        return self._log.position

    @property
    def flush_failure(self) -> StoreError | None:
        """The reason why the log could not be flushed, which is final until the store is opened again."""
        return self._flush.failure

    @property
    def flushed_position(self) -> int:
        """The log offset up to which the log is flushed to disk."""
        return self._flush.position

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes in the log that are not in a queue yet.

        It is always 0, since a commit adds a record to the log and to its queue.
        """
        return 0

    @property
    def clock_behind_ms(self) -> int:
        """Number of milliseconds by which the clock is behind the newest store timestamp, or 0 if it is not behind."""
        return self._maintenance.clock_check.behind_ms

    def missing_entries(self) -> int:
        """Return how many of the units read so far point to no record because the log does not have the message."""
        return sum(self.missing_entries_by_topic())

    def missing_entries_by_topic(self) -> Iterator[int]:
        """Yield the number of :meth:`missing_entries` of one topic at a time, for a check that takes several rounds of
        the event loop.
        """
        for queues in list(self._queues.by_topic.values()):
            yield sum(
                sum(offset >= queue.min_logical for offset in queue.missing)
                for queue in queues.values()
                if queue.missing
            )

    @property
    def last_record(self) -> tuple[int, int]:
        """Log offset and size of the last record, or ``(-1, 0)`` if the log is empty."""
        return self._log.last_record

    def disk_usage(self) -> float:
        """Return the used share of the log's file system, from 0 to 1."""
        return self.disk.used_ratio(self.config.commit_log)
