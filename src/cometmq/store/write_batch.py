"""WriteBatch: records that are stored by one write and dispatched (``CommitLog.putMessage``, ``ReputMessageService``).

Theory of operation. A batch is any number of :meth:`WriteBatch.put` calls, followed by one :meth:`WriteBatch.commit`,
after which the next batch begins. ``put`` encodes a record into its final bytes and assigns its offsets; the record is
not readable yet. ``commit`` writes all bytes of the batch, with one write per log file, and publishes the records: the
ends of the queues move, and waiting pulls are woken. In a failover set, the records become readable later, by
``confirm`` (:mod:`cometmq.store.queue.readable`). The units and index entries derived from the records remain in
memory until they are written in blocks. A crash does not lose derived data: recovery reads the log again.

Invariants.

* ``log.position`` is the end of the last committed batch. Between batches the log ends there, and no queue has an
  assigned offset that is not committed.
* A batch is stored completely or not at all. A ``put`` that raises changes nothing. A ``commit`` that raises takes back
  all offsets, and the bytes of a half-finished write are zeroed before anything else is written.
* A full or failed disk is noticed when a batch starts or reaches the next file. Even then ``put`` succeeds, so that
  callers need no error handling, and ``commit`` raises.

A commit does not flush: see :mod:`cometmq.store.log.flush` for the group commit.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from cometmq.checksum import crc32
from cometmq.limits import INDEX_BLOCK_KEYS, MAX_PROPERTIES_BYTES
from cometmq.message.hosts import IPV4_HOST_BYTES
from cometmq.message.layout import HOSTS_V6, TOPIC_LENGTH_BYTES, host_flags
from cometmq.message.properties import PROPERTY_SEPARATOR
from cometmq.message.record import (
    CRC_MASK,
    END_FILE_MIN_BLANK_BYTES,
    HEAD_PACKERS,
    MESSAGE_MAGIC,
    RECORD_WITHOUT_HOSTS_BYTES,
)
from cometmq.store.errors import StoreError
from cometmq.store.index.index_service import FEW_KEYS, INDEX_BLOCK_MESSAGES
from cometmq.store.log.commit_log import filler
from cometmq.store.log.mapped_file import MappedFile
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET, ROLLBACK, LogRecord
from cometmq.store.maintenance import Maintenance
from cometmq.store.queue.consume_queue import UNIT, ConsumeQueue
from cometmq.store.queue.readable import ReadableEnd
from cometmq.store.recovery.opening import OpenedStore

_log = logging.getLogger(__name__)

_V4_BYTES: Final = 2 * IPV4_HOST_BYTES
_HEAD_V4: Final = HEAD_PACKERS[IPV4_HOST_BYTES, IPV4_HOST_BYTES]
_NO_HOSTS: Final = ~HOSTS_V6
_SHORT: Final = struct.Struct(">h").pack
_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()
_UNIT: Final = UNIT.pack
_UNIT_BLOCK_BYTES: Final = 4_000
"""Number of bytes of pending units at which they are written to the queue's file."""


class NewRecord(msgspec.Struct, gc=False):
    """A record to be stored. The queue determines its topic and queue id."""

    body: bytes
    """Stored body, which is compressed if ``sys_flag`` contains the compression flag."""
    properties: bytes
    flag: int
    sys_flag: int
    """System flag. The host type bits are set from the lengths of the hosts."""
    born_timestamp: int
    """Time when the message was created, on the producer's clock, in milliseconds since 1970."""
    born_host: bytes
    """The producer's address and port in 8 or 20 bytes."""
    store_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    """Tags code for the queue's unit. In the schedule topic, it is replaced with the due time."""
    keys: Sequence[str] = ()
    """Keys by which the index finds the record: UNIQ_KEY and each of KEYS."""


class EncodedRecords(NamedTuple):
    """Records that were encoded elsewhere, starting at the offset returned by :meth:`WriteBatch.next_place`."""

    records: bytes
    end: int
    """Log offset after the records."""
    last_size: int
    messages: int
    queues: Iterable[tuple[ConsumeQueue, int, bytes]]
    """Queues, with the number of their records and the records' units."""
    hashes: bytes
    """The index hashes of the records' keys, as native int32."""
    offsets: bytes
    """Log offset of each hash's record, as native int64."""


class BatchMark(NamedTuple):
    """A point in the current batch to which the batch can be rolled back."""

    is_open: bool
    error: StoreError | None
    end: int
    """The log offset of the next record."""
    segment: MappedFile | None
    part_start: int
    last_size: int
    parts: int
    chunks: int
    index_entries: int


Arrival = Callable[[Sequence[ConsumeQueue]], None]


class WriteBatch:
    """The current batch, which will be stored at the end of the log."""

    def __init__(self, opened: OpenedStore, maintenance: Maintenance) -> None:
        log = opened.log
        self.on_arrival: Final[list[Arrival]] = []
        """Functions that are called with the queues that have more readable messages, once per commit or confirm."""
        self.on_stored: Final[list[Arrival]] = []
        """Functions that are called once per commit with the queues that have more stored messages, which may not be
        readable yet.
        """
        self.readable: ReadableEnd | None = None
        """The readable end of the log in a failover set; ``None`` if all stored messages are readable."""
        self.timestamp = log.last_timestamp
        """Store timestamp (ms) of the current batch, or of the last batch if none is open. It never decreases."""
        self._log = log
        self._queues = opened.queues
        self._index = opened.index
        self._clock = opened.clock
        self._maintenance = maintenance
        # unlike the store timestamp, this time may decrease, so that delays keep their length
        self._now = self.timestamp
        self._open = False
        self._error: StoreError | None = None
        self._chunks: list[bytes] = []
        self._parts: list[tuple[MappedFile, int, bytes]] = []
        self.end = log.position
        """The log offset of the next record."""
        self._part_start = log.position
        self._segment: MappedFile | None = None
        self._limit = 0
        self._touched: list[ConsumeQueue] = []
        self._last_size = 0
        self._use_last_segment()
        self._ahead_at = self._ahead_point()

    def begin(self) -> StoreError | None:
        """Start a batch, as the first ``put`` does. Return the error that its commit will raise, if any."""
        self._open = True
        self._error = self._maintenance.refusal()
        now = self._now = self._clock.now_ms()
        if now > self.timestamp:
            self.timestamp = now
        return self._error

    def put(self, queue: ConsumeQueue, record: NewRecord) -> int:
        """Encode a record into the batch, and return its log offset.

        Afterwards the record's queue offset is ``queue.next_offset - 1``, or 0 for a PREPARED or ROLLBACK record, which
        is in no queue. If the disk has no space, the entire batch fails in :meth:`commit`.

        :raises ValueError: properties over 32,767 bytes, a record larger than a log file, a topic too long for a
            record, or a number larger than its field. After any exception the batch is unchanged.
        """
        body, properties, sys_flag = record.body, record.properties, record.sys_flag
        body_length = len(body)
        properties_length = len(properties)
        at = self.end
        if properties_length and not properties[-1]:
            properties += _SEPARATOR  # recovery would treat a record that ends in zeros as torn
            properties_length += 1
        if properties_length > MAX_PROPERTIES_BYTES:
            raise ValueError(f"properties of {properties_length} bytes; the maximum is {MAX_PROPERTIES_BYTES}")
        middle = queue.record_middle
        if not middle:
            raise ValueError(f"topic {queue.topic} is too long for a record of RocketMQ 4")
        born_host, store_host = record.born_host, record.store_host
        hosts = len(born_host) + len(store_host)
        size = RECORD_WITHOUT_HOSTS_BYTES + hosts + body_length + len(middle) - TOPIC_LENGTH_BYTES + properties_length
        if not self._open:
            self.begin()
        in_queue = not sys_flag & NO_QUEUE_OFFSET
        queue_offset = queue.next_offset if in_queue else 0
        before = None
        # Everything that can fail comes first: a refused record changes neither queue nor batch nor index.
        try:
            if at + size > self._limit:
                before = self.mark()
                at = self._roll(size)
            unit = _UNIT(at, size, self._now + queue.delay_ms if queue.delay_ms else record.tags_code)
            tail = _SHORT(properties_length)
            pack_head, flags = _HEAD_V4, sys_flag & _NO_HOSTS
            if hosts != _V4_BYTES:
                pack_head = HEAD_PACKERS[len(born_host), len(store_host)]
                flags |= host_flags(born_host, store_host)
            head = pack_head(
                size,
                MESSAGE_MAGIC,
                crc32(body) & CRC_MASK,
                queue.queue_id,
                record.flag,
                queue_offset,
                at,
                flags,
                record.born_timestamp,
                born_host,
                self.timestamp,
                store_host,
                record.reconsume_times,
                record.prepared_transaction_offset,
                body_length,
            )
        except BaseException as error:
            self._drop_refused(before)
            if isinstance(error, struct.error):
                raise ValueError(f"a number in the message is too large for its field: {error}") from error
            raise
        if in_queue:
            queue.next_offset = queue_offset + 1
            if queue_offset == queue.committed:
                self._touched.append(queue)
            queue.pending += unit
        self._chunks += (head, body, middle, tail, properties)
        self.end = at + size
        self._last_size = size
        keys = record.keys
        if keys and self._index is not None and sys_flag & ROLLBACK != ROLLBACK:
            self._index.pending.append((queue.index_prefix, at, self.timestamp, keys))
            if len(keys) > FEW_KEYS:
                self._index.many_keys += len(keys)
        return at

    def _drop_refused(self, before: BatchMark | None) -> None:
        """Undo the changes for a refused record: the start of the batch, or a log file that was added after the
        mark.
        """
        if not self._chunks and not self._parts:
            self.rollback()
        elif before is not None:
            self.undo_to(before)

    def next_place(self) -> tuple[int, int, int] | None:
        """Prepare for records that are encoded elsewhere and added with :meth:`put_encoded`.

        Return the next log offset, the offset beyond which no record may extend, and the store timestamp. Return
        ``None`` if records must be put one by one.
        """
        if not self._open:
            self.begin()
        if self._error is not None or self._segment is None:
            return None
        return self.end, self._limit, self.timestamp

    def put_encoded(self, encoded: EncodedRecords) -> None:
        """Add records that were encoded after the last :meth:`next_place` call. No other record may have been put since
        then.
        """
        for queue, count, units in encoded.queues:
            if queue.next_offset == queue.committed:
                self._touched.append(queue)
            queue.next_offset += count
            queue.pending += units
        self._chunks.append(encoded.records)
        self.end = encoded.end
        self._last_size = encoded.last_size
        if encoded.hashes and self._index is not None:
            self._index.add_hashed(encoded.hashes, encoded.offsets, self.timestamp, encoded.messages)

    def commit(self) -> int:
        """Write all records put since the last commit, make them readable, and return the log's end.

        :raises StoreError: no record of the batch was stored; all its offsets are taken back.
        """
        if not self._open:
            return self._log.position
        log = self._log
        try:
            if self._error is not None:
                raise self._error
            self._write()
        except BaseException:
            self.rollback()
            raise
        position = self.end
        log.position = position
        self._part_start = position
        self._chunks.clear()
        log.last_record = (position - self._last_size, self._last_size)
        log.last_timestamp = self.timestamp
        if self._parts:
            self._parts.clear()
        self._open = False
        touched = self._touched
        if touched:
            self._touched = []
        try:
            self._publish(position, touched)
        except Exception:  # the messages are stored, and their requests must get this answer
            _log.exception("tasks that follow the storing of messages were not completed")
        return position

    def _write(self) -> None:
        """Write all bytes of the batch. If this fails, none of them count as a record."""
        log = self._log
        try:
            for segment, at, data in self._parts:
                log.write(segment, at, data)
            if self._chunks:
                assert self._segment is not None
                log.write(self._segment, self._part_start, b"".join(self._chunks))
        except BaseException:
            log.erase(log.position, self.end)
            raise

    def _publish(self, position: int, touched: list[ConsumeQueue]) -> None:
        """Make the records below ``position`` readable, and write derived data in blocks."""
        queues = self._queues
        is_block = False
        readable = self.readable
        for queue in touched:
            end = queue.committed = queue.next_offset
            if readable is None:
                queue.readable = end
            if not queue.dirty:
                queues.add_dirty(queue)
            if len(queue.pending) >= _UNIT_BLOCK_BYTES:
                is_block = True
        index = self._index
        if index is not None:
            committed = index.committed = len(index.pending)
        if is_block:
            for queue in touched:
                if len(queue.pending) >= _UNIT_BLOCK_BYTES:
                    self._maintenance.write_units(queue)
        if index is not None and (
            committed + index.hashed_messages >= INDEX_BLOCK_MESSAGES or index.many_keys > INDEX_BLOCK_KEYS
        ):
            self._maintenance.write_index_in_blocks()
        if position > self._ahead_at:
            self._log.start_next_segment()
            self._ahead_at = 1 << 62
        if readable is not None:
            readable.stored(position, touched)
        if touched:
            for arrived in self.on_stored:
                arrived(touched)
            if readable is None:
                for arrived in self.on_arrival:
                    arrived(touched)

    def confirm(self, offset: int) -> None:
        """Make the records below a log offset readable, and call the functions in ``on_arrival``."""
        assert self.readable is not None
        moved = self.readable.confirm(offset)
        if moved:
            for arrived in self.on_arrival:
                arrived(moved)

    def follow(self, position: int, last: LogRecord | None, touched: list[ConsumeQueue]) -> None:
        """Publish the records that a :class:`~cometmq.store.replicated_log.ReplicatedLog` has written up to
        ``position``.

        :param last: the last of these records.
        """
        log = self._log
        segment = log.segments[-1] if log.segments else None
        if segment is not self._segment:
            self._segment = segment
            self._ahead_at = self._ahead_point()
        log.position = self.end = self._part_start = position
        if last is not None:
            log.last_record = (last.offset, last.size)
            self.timestamp = log.last_timestamp = max(self.timestamp, last.store_timestamp)
        self._publish(position, touched)

    def forget(self, queues: Set[ConsumeQueue]) -> None:
        """Remove queues that are being deleted from the batch."""
        self._touched = [queue for queue in self._touched if queue not in queues]

    def mark(self) -> BatchMark:
        """Return the current point in the batch, for :meth:`undo_to`."""
        index = self._index
        return BatchMark(
            self._open,
            self._error,
            self.end,
            self._segment,
            self._part_start,
            self._last_size,
            len(self._parts),
            len(self._chunks),
            len(index.pending) if index is not None else 0,
        )

    def undo_to(self, mark: BatchMark) -> None:
        """Remove the records put since ``mark`` was taken in this batch, and take back their offsets. Earlier records
        remain.
        """
        if not mark.is_open:
            self.rollback()
            return
        log = self._log
        for queue in self._touched:
            queue.undo_from(mark.end)
        self._touched = [queue for queue in self._touched if queue.next_offset > queue.committed]
        if self._index is not None:
            self._index.undo_to(mark.index_entries)
        if len(self._parts) > mark.parts:
            _, _, data = self._parts[mark.parts]
            self._chunks = [data[: mark.end - mark.part_start]]
            del self._parts[mark.parts :]
        else:
            del self._chunks[mark.chunks :]
        while log.segments and log.segments[-1] is not mark.segment and len(log.segments) > 1:
            log.undo_segment(log.segments[-1])
        self._use_last_segment()
        self.end, self._part_start, self._last_size = mark.end, mark.part_start, mark.last_size
        self._error = mark.error

    def _roll(self, size: int) -> int:
        """End the log file with a filler and continue in the next file. Return the record's offset there."""
        log = self._log
        if size > log.max_record_bytes:
            raise ValueError(f"a record of {size} bytes does not fit into a log file of {log.segment_size}")
        if self._error is not None:
            self.end += size
            return self.end - size
        old = self._segment
        try:
            new = log.next_segment()
        except StoreError as error:
            self._error = error
            return self.end
        if old is not None and self.end < old.end:
            self._chunks.append(filler(old.end - self.end))
            self._parts.append((old, self._part_start, b"".join(self._chunks)))
            self._chunks.clear()
        self._segment = new
        self._limit = new.end - END_FILE_MIN_BLANK_BYTES
        self.end = self._part_start = new.start
        self._ahead_at = self._ahead_point()
        return new.start

    def _ahead_point(self) -> int:
        """Return the log position at which the next segment should be created: the middle of the current file."""
        return self._segment.start + self._log.segment_size // 2 if self._segment is not None else -1

    def rollback(self) -> None:
        """Remove all records put since the last commit, and take back their offsets."""
        log = self._log
        for queue in self._touched:
            queue.undo_batch()
        self._touched = []
        if self._index is not None:
            self._index.undo_batch()
        self._chunks.clear()
        self._parts.clear()
        while log.segments and log.segments[-1].start >= log.position and len(log.segments) > 1:
            log.undo_segment(log.segments[-1])
        self._use_last_segment()
        self.end = self._part_start = log.position
        self._open = False
        self._error = None

    def _use_last_segment(self) -> None:
        segments = self._log.segments
        self._segment = segments[-1] if segments else None
        self._limit = self._segment.end - END_FILE_MIN_BLANK_BYTES if self._segment is not None else 0
