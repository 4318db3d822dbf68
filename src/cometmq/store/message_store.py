"""MessageStore: one store on disk, opened; what producers, consumers and tools ask of it.

The hot path is a turn: any number of :meth:`MessageStore.put`, then one :meth:`MessageStore.commit`.
Putting encodes the record into its final bytes and hands out its offsets; committing writes all bytes
with one ``pwrite`` and makes them visible. What is derived from the log (units of queues, entries of
the index) waits in memory and is written in blocks; a crash loses none of it, because recovery reads
the log from the last :class:`~cometmq.store.position.Position` on.

All methods belong to the event loop's thread. Before :meth:`MessageStore.start` nothing runs in the
background, so that tools can open, read and close a store without a loop.

Fault model: a write can fail or come back short (full disk, I/O error); a flush can fail, and is then
believed never again; the process can die between any two system calls; a power cut can lose or tear
everything that was not flushed. What was acknowledged after a flush survives all of it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.checksum import crc32
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import INDEX_BLOCK_KEYS, MAX_PROPERTIES_BYTES
from cometmq.message.names import check_topic
from cometmq.message.record import CRC_MASK, MESSAGE_MAGIC, RecordError, StoredRecord, decode_record
from cometmq.store.commit_log import CommitLog, filler
from cometmq.store.committed_scan import prepared_offsets
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.errors import StoreClosedError, StoreError
from cometmq.store.flush import Flushed, FlushService
from cometmq.store.get_message import (
    DEFAULT_MAX_BYTES,
    Chooser,
    GetMessageStatus,
    GetResult,
    Predicate,
    get_message,
    offset_by_time,
    store_time,
)
from cometmq.store.index_service import FEW_KEYS, INDEX_BLOCK_MESSAGES, IndexService
from cometmq.store.load import MAX_QUEUE_ID
from cometmq.store.log_reader import NOTHING_KNOWN, LogReader
from cometmq.store.maintenance import Maintenance
from cometmq.store.mapped_file import MappedFile
from cometmq.store.opening import OpenedStore, open_store
from cometmq.store.query import QueryResult, query
from cometmq.store.record_scan import NO_QUEUE_OFFSET, ROLLBACK, LogRecord
from cometmq.store.record_walk import walk
from cometmq.store.replicated_log import ReplicatedLog
from cometmq.store.retention import LogHolder
from cometmq.store.topic_queue import UNIT, TopicQueue
from cometmq.store.topic_queues import TopicQueues
from cometmq.store.unit_runs import UnitRun, unit_runs

_log = logging.getLogger(__name__)

__all__ = ["GetMessageStatus", "GetResult", "MessageStore", "QueryResult", "TopicQueue"]

_HEAD_V4: Final = struct.Struct(">iiiiiqqiq8sq8siqi").pack
"""A record up to its body when both hosts are IPv4."""
_HEAD: Final = struct.Struct(">iiiiiqqiq").pack
_MIDDLE: Final = struct.Struct(">q").pack
_BODY_HEAD: Final = struct.Struct(">iqi").pack
_SHORT: Final = struct.Struct(">h").pack
_UNIT: Final = UNIT.pack
_FIXED_BYTES: Final = 75
"""A record without hosts, body, topic and properties."""
_UNIT_BLOCK_BYTES: Final = 4_000
"""Units of a queue are written to its file once so many bytes of them wait."""


class TurnMark(NamedTuple):
    """A place in the turn that is being put together."""

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


Arrival = Callable[[Iterable[TopicQueue]], None]


def _nobody(_queues: Iterable[TopicQueue]) -> None:
    """Nobody waits for arrivals."""


class MessageStore:
    """An open store. Made by :meth:`open`; ended by :meth:`close`."""

    def __init__(self, opened: OpenedStore) -> None:
        self.config: StoreConfig = opened.config
        self.clock: Clock = opened.clock
        self.findings: list[str] = opened.findings
        """What opening found and did, one line each."""
        self.on_arrival: Arrival = _nobody
        """Called by each commit, once, with the queues that got messages."""
        self.sync_flush: bool = opened.config.sync_flush
        self.turn_timestamp = opened.last_timestamp
        """Store timestamp (ms) of the running turn, or of the last one; never goes back."""
        self._log: CommitLog = opened.log
        self._index: IndexService | None = opened.index
        self.disk: Disk = opened.disk
        """How files of the store are changed."""
        self._queues: TopicQueues = opened.queues
        self._opened = opened
        self._flush = FlushService(opened.log)
        self._closed = False
        # The turn that is being put together.
        self._turn_now = self.turn_timestamp  # not held back like the store timestamp, so that delays stay as long
        self._turn_open = False
        self._turn_error: StoreError | None = None
        self._chunks: list[bytes] = []
        self._parts: list[tuple[MappedFile, int, bytes]] = []
        self._part_start = opened.log.position
        self._next = opened.log.position
        self._limit = opened.log.segments[-1].end - 8 if opened.log.segments else 0
        self._segment: MappedFile | None = opened.log.segments[-1] if opened.log.segments else None
        self._touched: list[TopicQueue] = []
        self._last_offset, self._last_size = opened.last_record
        self._turn_size = 0
        self._ahead_at = self._ahead_point()
        self._replicated: ReplicatedLog | None = None
        self._maintenance = Maintenance(self, opened, self._flush)

    @classmethod
    def open(cls, config: StoreConfig, *, clock: Clock = SYSTEM_CLOCK, disk: Disk | None = None) -> MessageStore:
        """Lock the store, find its files, and bring log, queues and index into agreement.

        :raises StoreLockedError: another process has it open.
        :raises StoreError: it cannot be opened at all.
        """
        return cls(open_store(config, clock, disk or Disk()))

    # --- life ---------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to flush, to save checkpoints and to delete old files (on the running loop)."""
        self._maintenance.start()

    async def close(self) -> None:
        """Flush everything, note that the stop was clean, and give the files back."""
        self.close_now()

    def close_now(self) -> None:
        """As :meth:`close`, without a loop; blocks while the disk works."""
        if not self._closed:
            self._closed = True
            if self._replicated is not None:
                self._replicated.drop_tail()
            self._drop_turn()
            self._maintenance.close()

    # --- the hot path -------------------------------------------------------------------------
    def queue(self, topic: str, queue_id: int) -> TopicQueue:
        """One queue; it comes to be on disk with its first message.

        :raises ValueError: a name that RocketMQ does not allow.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            wrong = check_topic(topic)
            if wrong is not None or not 0 <= queue_id <= MAX_QUEUE_ID:
                raise ValueError(wrong or f"a queue id is a number from 0 to {MAX_QUEUE_ID}, not {queue_id}")
            queue = self._queues.make(topic, queue_id)
        return queue

    def put(
        self,
        queue: TopicQueue,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        tags_code: int,
        keys: Sequence[str],
    ) -> int:
        """Encode one record into the running turn; return its log offset.

        Its queue offset is ``queue.next_offset - 1`` afterwards, or 0 for a PREPARED or ROLLBACK
        record, which has no place in a queue. ``keys`` are what the index finds it by: UNIQ_KEY and
        each of KEYS. In the schedule topic the unit's tags code is the due time, whatever is given.
        A turn for which there is no room fails as a whole in :meth:`commit`.

        :raises ValueError: properties over 32,767 bytes, a record larger than a log file, a topic that no record
            has room for, or a number larger than its field. Whatever is raised, the turn is as it was before.
        """
        body_length = len(body)
        properties_length = len(properties)
        at = self._next
        if properties_length and not properties[-1]:
            properties += b"\x02"  # a separator that parsers pass over: recovery takes zeros at the end for torn
            properties_length += 1
        if properties_length > MAX_PROPERTIES_BYTES:
            raise ValueError(f"properties of {properties_length} bytes; {MAX_PROPERTIES_BYTES} is the most")
        middle = queue.record_middle
        if not middle:
            raise ValueError(f"topic {queue.topic} is too long for a record of RocketMQ 4")
        hosts = len(born_host) + len(store_host)
        size = _FIXED_BYTES + hosts + body_length + len(queue.topic_bytes) + properties_length
        if not self._turn_open:
            self._begin_turn()
        in_queue = not sys_flag & NO_QUEUE_OFFSET
        queue_offset = queue.next_offset if in_queue else 0
        before = None
        # All that can fail comes first: what is refused leaves no trace in the queue, the turn and the index.
        try:
            if at + size > self._limit:
                before = self.mark()
                at = self._roll(size)
            unit = _UNIT(at, size, self._turn_now + queue.delay_ms if queue.delay_ms else tags_code)
            tail = _SHORT(properties_length)
            if hosts == 16:
                head = _HEAD_V4(
                    size,
                    MESSAGE_MAGIC,
                    crc32(body) & CRC_MASK,
                    queue.queue_id,
                    flag,
                    queue_offset,
                    at,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    self.turn_timestamp,
                    store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body_length,
                )
            else:
                head = b"".join(
                    (
                        _HEAD(
                            size,
                            MESSAGE_MAGIC,
                            crc32(body) & CRC_MASK,
                            queue.queue_id,
                            flag,
                            queue_offset,
                            at,
                            sys_flag,
                            born_timestamp,
                        ),
                        born_host,
                        _MIDDLE(self.turn_timestamp),
                        store_host,
                        _BODY_HEAD(reconsume_times, prepared_transaction_offset, body_length),
                    )
                )
        except BaseException as error:
            if not self._chunks and not self._parts:
                self._drop_turn()
            elif before is not None:
                self.undo_to(before)
            if isinstance(error, struct.error):
                raise ValueError(f"a number of the message is larger than its field: {error}") from error
            raise
        if in_queue:
            queue.next_offset = queue_offset + 1
            if queue_offset == queue.committed:
                self._touched.append(queue)
            queue.pending += unit
        self._chunks += (head, body, middle, tail, properties)
        self._next = at + size
        self._turn_size = size
        if keys and self._index is not None and sys_flag & ROLLBACK != ROLLBACK:
            self._index.pending.append((queue.index_prefix, at, self.turn_timestamp, keys))
            if len(keys) > FEW_KEYS:
                self._index.many_keys += len(keys)
        return at

    def commit(self) -> int:
        """Write everything put since the last commit and make it readable; return the log's end.

        :raises StoreError: nothing of the turn was stored; all its offsets are taken back.
        """
        if not self._turn_open:
            return self._log.position
        log = self._log
        try:
            if self._turn_error is not None:
                raise self._turn_error
            self._write_turn()
        except BaseException:
            self._drop_turn()
            raise
        position = self._next
        log.position = position
        self._part_start = position
        self._chunks.clear()
        self._last_size = self._turn_size
        self._last_offset = position - self._last_size
        if self._parts:
            self._parts.clear()
        self._turn_open = False
        touched = self._touched
        if touched:
            self._touched = []
        try:
            self._publish(position, touched)
        except Exception:  # the messages are stored, and their requests are answered so
            _log.exception("what follows from stored messages was not done whole")
        return position

    def _write_turn(self) -> None:
        """Write all bytes of the turn; when that fails, none of it is a record."""
        log = self._log
        try:
            for segment, at, data in self._parts:
                log.write(segment, at, data)
            if self._chunks:
                assert self._segment is not None
                log.write(self._segment, self._part_start, b"".join(self._chunks))
        except BaseException:
            log.erase(log.position, self._next)
            raise

    def _publish(self, position: int, touched: list[TopicQueue]) -> None:
        """Make what was put up to ``position`` readable, and write what is derived from it in blocks."""
        dirty = self._queues.dirty
        for queue in touched:
            queue.committed = queue.next_offset
            if not queue.dirty:
                queue.dirty = True
                dirty.append(queue)
        index = self._index
        if index is not None:
            index.committed = len(index.pending)
        for queue in touched:
            if len(queue.pending) >= _UNIT_BLOCK_BYTES:
                self._maintenance.write_units(queue)
        if index is not None and (index.committed >= INDEX_BLOCK_MESSAGES or index.many_keys > INDEX_BLOCK_KEYS):
            self._maintenance.write_index_in_turns()
        if position > self._ahead_at:
            self._log.allocate_ahead()
            self._ahead_at = 1 << 62
        if touched:
            self.on_arrival(touched)

    def rollback(self) -> None:
        """Take back everything put since the last commit, with all its offsets."""
        self._drop_turn()

    def mark(self) -> TurnMark:
        """The turn as it is now, for :meth:`undo_to`."""
        index = self._index
        return TurnMark(
            self._turn_open,
            self._turn_error,
            self._next,
            self._segment,
            self._part_start,
            self._turn_size,
            len(self._parts),
            len(self._chunks),
            len(index.pending) if index is not None else 0,
        )

    def undo_to(self, mark: TurnMark) -> None:
        """Take back what was put since ``mark`` was made in this turn, with its offsets; what came before stays."""
        if not mark.is_open:
            self._drop_turn()
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
        self._next, self._part_start, self._turn_size = mark.end, mark.part_start, mark.last_size
        self._turn_error = mark.error

    def _begin_turn(self) -> None:
        self._turn_open = True
        self._turn_error = self.writable()
        now = self._turn_now = self.clock.now_ms()
        if now > self.turn_timestamp:
            self.turn_timestamp = now

    def _roll(self, size: int) -> int:
        """End the log file with a filler and go on in the next one; return the record's offset there."""
        log = self._log
        if size > log.max_record_bytes:
            raise ValueError(f"a record of {size} bytes does not fit into a log file of {log.segment_size}")
        if self._turn_error is not None:
            self._next += size
            return self._next - size
        old = self._segment
        try:
            new = log.next_segment()
        except StoreError as error:
            self._turn_error = error
            return self._next
        if old is not None and self._next < old.end:
            self._chunks.append(filler(old.end - self._next))
            self._parts.append((old, self._part_start, b"".join(self._chunks)))
            self._chunks.clear()
        self._segment = new
        self._limit = new.end - 8
        self._next = self._part_start = new.start
        self._ahead_at = self._ahead_point()
        return new.start

    def _ahead_point(self) -> int:
        """The position from which on the next segment should be made: half a file ahead."""
        return self._segment.start + self._log.segment_size // 2 if self._segment is not None else -1

    def _drop_turn(self) -> None:
        """Take back everything that was put and not committed."""
        log = self._log
        for queue in self._touched:
            queue.undo_turn()
        self._touched = []
        if self._index is not None:
            self._index.undo_turn()
        self._chunks.clear()
        self._parts.clear()
        while log.segments and log.segments[-1].start >= log.position and len(log.segments) > 1:
            log.undo_segment(log.segments[-1])
        self._use_last_segment()
        self._next = self._part_start = log.position
        self._turn_open = False
        self._turn_error = None

    def _use_last_segment(self) -> None:
        segments = self._log.segments
        self._segment = segments[-1] if segments else None
        self._limit = self._segment.end - 8 if self._segment is not None else 0

    # --- a slave's ----------------------------------------------------------------------------
    @property
    def replicated(self) -> ReplicatedLog:
        """The end of the log, for who appends a master's bytes to it; nothing may be put into such a store."""
        if self._replicated is None:
            self._replicated = ReplicatedLog(self._log, self._queues, self._opened.index, self.disk, self._dispatched)
        return self._replicated

    def _dispatched(self, position: int, last: LogRecord | None, touched: list[TopicQueue]) -> None:
        log = self._log
        segment = log.segments[-1] if log.segments else None
        if segment is not self._segment:
            self._segment = segment
            self._ahead_at = self._ahead_point()
        log.position = self._next = self._part_start = position
        if last is not None:
            self._last_offset, self._last_size = last.offset, last.size
            self.turn_timestamp = max(self.turn_timestamp, last.store_timestamp)
        self._publish(position, touched)

    # --- durability ---------------------------------------------------------------------------
    def when_flushed(self, position: int, callback: Flushed) -> None:
        """Call back once the disk has the log up to ``position``: with ``None``, or with why it never will.

        One flush covers everything written before it began. On the running loop.
        """
        self._flush.when_flushed(position, callback)

    def writable(self) -> StoreError | None:
        """Why messages must be refused now: disk full, a flush that failed, shutdown; ``None`` when not."""
        if self._closed:
            return StoreClosedError("the store is shut")
        return self._flush.failure or self._maintenance.refusal()

    # --- reading ------------------------------------------------------------------------------
    def get_message(
        self,
        queue: TopicQueue,
        offset: int,
        max_messages: int,
        *,
        tag_codes: frozenset[int] | None = None,
        predicate: Predicate | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        choose: Chooser | None = None,
    ) -> GetResult:
        """Read up to ``max_messages`` records from ``offset`` on, at least one, else up to ``max_bytes``.

        ``tag_codes`` keeps messages whose unit has one of these codes, ``predicate`` those whose record
        it accepts; where many units wait to be looked at, ``choose`` stands for it. A filtered read looks at
        800 units or more and says in ``next_begin_offset`` how far it came. One read ends with the queue
        file at the latest. The slices stay valid, also after their file was deleted.
        """
        return get_message(self._log, queue, offset, max_messages, tag_codes, predicate, max_bytes, choose)

    def unit_runs(self, queue: TopicQueue, offset: int, count: int) -> tuple[list[UnitRun], npt.NDArray[np.int64]]:
        """The records of many units; see :func:`~cometmq.store.unit_runs.unit_runs`."""
        return unit_runs(self._log, queue, offset, count)

    def scan(self, physical_offset: int) -> Iterator[LogRecord]:
        """The records from a log offset on, to the end of the log; damage that no start has read is passed over."""
        end = self._log.position
        reader = LogReader(self._log, physical_offset, NOTHING_KNOWN, check_crc=False, until=end)
        return (found for found in reader if isinstance(found, LogRecord))

    def record_at(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The record that begins at a log offset; ``None`` when none does (or not one of ``size`` bytes)."""
        view = self._log.record(physical_offset) if physical_offset >= 0 else None
        if view is None or (size is not None and size != len(view)):
            return None
        return self._opened.sound_record(view, physical_offset)

    def decoded_at(self, physical_offset: int) -> StoredRecord | None:
        """The record that begins at a log offset, decoded; ``None`` when none does, or a damaged one."""
        view = self._log.record(physical_offset) if physical_offset >= 0 else None
        if view is None:
            return None
        try:
            record = decode_record(view)
        except RecordError:
            return None
        return record if record.physical_offset == physical_offset else None

    def records(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Log offset and bytes of each record from ``start``, where one begins, to ``end``; from any thread."""
        return walk(self._log, start, end)

    def prepared_offsets(self, start: int) -> Iterator[tuple[int, int]]:
        """Log offsets of all committed messages from the record at ``start`` on, each with that of its half message."""
        return prepared_offsets(self._log, start)

    def view(self, physical_offset: int, size: int) -> memoryview | None:
        """The bytes of a record that this process has put, unchecked; ``None`` once retention took them."""
        return self._log.view(physical_offset, size)

    def log_part(self, offset: int, most_bytes: int) -> memoryview | None:
        """The bytes of the log from ``offset`` on, to the end of their file and of the log, ``most_bytes`` at most.

        ``None`` when they are not kept any more, or there are none yet.
        """
        segment = self._log.segment_at(offset)
        if segment is None:
            return None
        return self._log.view(offset, min(most_bytes, segment.end - offset, self._log.position - offset))

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The offset whose message was stored nearest to ``timestamp`` (ms); 0 for an unknown or empty queue."""
        queue = self._queues.get(topic, queue_id)
        return offset_by_time(self._log, queue, timestamp) if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at ``offset`` was stored (ms); -1 when there is none."""
        queue = self._queues.get(topic, queue_id)
        return store_time(self._log, queue, offset) if queue is not None else -1

    def earliest_store_time(self) -> int:
        """When the first record kept was stored (ms); -1 for an empty log."""
        return self._opened.earliest_store_time()

    def query(self, topic: str, key: str, max_num: int, begin: int, end: int) -> QueryResult:
        """The newest ``max_num`` records of a key stored between ``begin`` and ``end`` (ms), in log order.

        The last messages are not found yet while the index is behind with some that have thousands of keys.
        """
        if self._index is not None and self._index.committed and not self._maintenance.index_is_behind:
            self._maintenance.write_index()
        return query(self._log, self._index, topic, key, max_num, begin, end)

    def queues(self) -> Mapping[str, Mapping[int, TopicQueue]]:
        """All queues that have ever had a message or been asked for, by topic and id."""
        return self._queues.by_topic

    def delete_topic(self, topic: str) -> bool:
        """Delete the queues of a topic; its records stay in the log until retention takes them."""
        self._touched = [queue for queue in self._touched if queue.topic != topic]
        return self._maintenance.delete_topic(topic)

    def delete_expired_files(self) -> int:
        """Delete the files whose time is over now, whatever the hour; returns the number of log files."""
        return self._maintenance.delete_expired_files()

    def pin_log(self, name: str, offset: int) -> None:
        """Delete no log file with bytes from ``offset`` on, however old, until ``name`` pins another offset."""
        self._maintenance.pin_log(name, offset)

    def hold_log(self, holder: LogHolder) -> None:
        """Delete no log file that ``holder`` needs, however old."""
        self._maintenance.hold_log(holder)

    def reconfigure(self, config: StoreConfig) -> None:
        """Go by the run-time keys of another configuration; all others keep their values."""
        self._maintenance.reconfigure(config)

    @property
    def min_physical_offset(self) -> int:
        """Offset of the first byte of the log that is kept."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """The end of the log."""
        return self._log.position

    @property
    def flushed_position(self) -> int:
        """Up to where the disk has the log."""
        return self._flush.position

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that are in no queue yet: none, since a commit does both."""
        return 0

    @property
    def last_record(self) -> tuple[int, int]:
        """Log offset and size of the last record; ``(-1, 0)`` for an empty log."""
        return self._last_offset, self._last_size

    def disk_usage(self) -> float:
        """How full the file system of the log is, from 0 to 1."""
        return self.disk.used_ratio(self.config.commit_log)
