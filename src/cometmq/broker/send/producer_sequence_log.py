"""Persistence of producer sequences.

The log is authoritative: the first message of each sequenced request stores the sequence in a property, and each run
begins with a record that is in no queue (``run_record``). ``comet/producers.json`` only makes it unnecessary to read
the complete log: it covers everything below one log offset. For some producers it contains newer entries, since it is
encoded in slices between which the broker serves requests. Reading a sequence again changes nothing. The file is
written only after all messages in the table have been flushed, so it is never ahead of a log that lost its tail. After
a start, a thread reads the log starting at the file's log offset; until it has finished, sequenced requests get
SYSTEM_BUSY. A broker without the file reads the log only when the first producer with sequences connects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from cometmq.broker.limits import PRODUCER_SAVE_SLICE_BYTES
from cometmq.broker.send.producer_sequences import UNKNOWN_CRC, Lane, ProducerSequences, ProducerState, lane_name
from cometmq.broker.tables.table_file import set_aside
from cometmq.broker.turn.targets import RefusedError
from cometmq.durable import replace_file
from cometmq.message.layout import HOSTS_V6, RECORD, RECORDS
from cometmq.message.producer_sequence import ProducerSequence, SequenceError, parse_sequence
from cometmq.message.properties import PRODUCER_SEQUENCE, property_mark
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError
from cometmq.store.failure_log import FailureLog
from cometmq.store.message_store import MessageStore
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_MARK: Final = property_mark(PRODUCER_SEQUENCE).encode()
_VERSION: Final = 1
_SYS_FLAG: Final = RECORD.struct("sys_flag")
_QUEUE_OFFSET: Final = RECORD.struct("queue_offset")
_COMMON: Final = {
    bits: layout.struct("queue_id", "born_timestamp", "born_host", "store_timestamp")
    for bits, layout in RECORDS.items()
}


class _Snapshot(msgspec.Struct):
    """The contents of ``comet/producers.json``."""

    position: int
    """The table contains all messages below this log offset."""
    producers: dict[str, ProducerState]
    end: int = 0
    """The table contains no message at or above this log offset."""
    version: int = _VERSION


def snapshot_offsets(content: bytes) -> tuple[int, int]:
    """Return the log offsets between which the table in ``comet/producers.json`` is valid.

    :raises ValueError: the file has a different format or version.
    """
    snapshot = msgspec.json.decode(content, type=_Snapshot)
    if snapshot.version != _VERSION or not 0 <= snapshot.position <= snapshot.end:
        raise ValueError(
            f"unsupported version {snapshot.version} or invalid log offsets {snapshot.position} to {snapshot.end}"
        )
    return snapshot.position, snapshot.end


class ProducerSequenceLog:
    """A broker's table of producer sequences, with its file and the thread that reads newer sequences from the log."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._path = store.config.root / "comet" / "producers.json"
        self._clock = store.clock
        self._table = ProducerSequences(clock=store.clock)
        self._reading: asyncio.Task[None] | None = None
        self._is_read = False
        self._stopping = False
        self._saving = asyncio.Lock()
        self._saved_at = -1
        self._failures = FailureLog(_log)

    def start(self) -> None:
        """Start reading the log if the sequence file exists."""
        if self._path.exists():
            self._read()

    async def stop(self) -> None:
        """Stop the thread that reads the log."""
        self._stopping = True
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def table(self) -> ProducerSequences:
        """Return the sequence table once the log has been read.

        :raises RefusedError: the log is still being read.
        """
        if not self._is_read:
            self._read()
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY, "producer sequences are still being read from the log, try again"
            )
        return self._table

    async def save(self) -> None:
        """Remove idle producers from the table, and write the table once all its messages have been flushed."""
        if not self._is_read:
            return
        async with self._saving:
            self._table.expire()
            position = self._table.known_below(self._store.max_physical_offset)
            if position != self._saved_at:
                await self._save(position)

    async def _save(self, position: int) -> None:
        pieces: list[bytes] = []
        held = 0
        for piece in _encoded(position, self._table.producers):
            pieces.append(piece)
            held += len(piece)
            if held >= PRODUCER_SAVE_SLICE_BYTES:
                held = 0
                await asyncio.sleep(0)
        end = self._store.max_physical_offset
        pieces.append(b',"end":%d}' % end)
        try:
            await self._store.wait_kept(end)
            await in_thread(replace_file, self._path, pieces)
            self._saved_at = position
            self._failures.ended(f"write {self._path}")
        except StoreError:
            return
        except OSError as error:
            self._failures.failed(f"write {self._path}", error)

    # --- reading ------------------------------------------------------------------------------
    def _read(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_in_thread(), name="read producers")

    async def _read_in_thread(self) -> None:
        end = self._store.max_physical_offset
        try:
            await in_thread(self._read_to, end)
        except Exception:
            _log.exception("cannot read the producer sequences from the log; will retry at the next sequenced request")
            self._table = ProducerSequences(clock=self._clock)
        else:
            self._is_read = not self._stopping
            await self.save()
        self._reading = None

    def _read_to(self, end: int) -> None:
        snapshot = self._load()
        start = self._store.min_physical_offset
        known = end if self._store.lost_from is None else self._store.lost_from
        if snapshot is not None and start <= snapshot.position <= known and self._begins_record(snapshot.position, end):
            self._table.load(snapshot.producers)
            start = snapshot.position
        elif snapshot is not None:
            _log.warning("%s does not belong to this log; reading the whole log instead", self._path)
        follow = _SequenceReader(self._table)
        for _, view in self._store.records(start, end):
            if self._stopping:
                return
            follow.record(view)

    def _begins_record(self, position: int, end: int) -> bool:
        """Return whether a record begins at log offset ``position``."""
        return position == end or next(self._store.records(position, end), None) is not None

    def _load(self) -> _Snapshot | None:
        try:
            snapshot = msgspec.json.decode(self._path.read_bytes(), type=_Snapshot)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("%s", set_aside(self._path, f"cannot be used ({error}), reading the whole log instead"))
            return None
        return snapshot if snapshot.version == _VERSION else None


def _encoded(position: int, producers: Mapping[str, ProducerState]) -> Iterator[bytes]:
    """Yield the text of the sequence file in small pieces, all but its end."""
    json = msgspec.json.Encoder().encode
    yield b'{"version":%d,"position":%d,"producers":{' % (_VERSION, position)
    next_producer = b""
    for name, state in list(producers.items()):
        lanes = list(state.lanes.items())
        head = next_producer, json(name), state.batch, state.epoch, state.used_ms
        yield b'%b%b:{"batch":%d,"epoch":%d,"used_ms":%d,"lanes":{' % head
        next_lane = b""
        for queue, lane in lanes:
            yield next_lane + json(queue) + b":" + json(lane)
            next_lane = b","
        yield b"}}"
        next_producer = b","
    yield b"}"


class _SequenceReader:
    """Reads producer sequences from the log, in which a request's messages are consecutive and the first one has the
    sequence.

    A crash can cut off the end of a request. The next messages in the log then differ in a value that all messages of
    one request share: queue, born time, producer address or store time.
    """

    def __init__(self, table: ProducerSequences) -> None:
        self._table = table
        self._sequence: ProducerSequence | None = None
        self._head: StoredRecord | None = None
        self._shared_values: tuple[Any, ...] = ()
        self._seen = 0

    def record(self, view: memoryview) -> None:
        """Process the next log record."""
        sequence, head = self._sequence, self._head
        if sequence is not None and head is not None:
            if (
                _shared_values(view) == self._shared_values
                and _QUEUE_OFFSET.unpack_from(view)[0] == head.queue_offset + self._seen
            ):
                self._add_message(sequence, head)
                return
            self._sequence = None
        data = bytes(view)
        if _MARK not in data:
            return
        try:
            head = decode_record(data)
            sequence = parse_sequence(head.properties[PRODUCER_SEQUENCE])
        except (RecordError, SequenceError, KeyError):
            return  # the property's name is only in the body, or another program wrote the property
        if not sequence.count:
            self._table.opened(sequence, head.store_timestamp)
            return
        self._sequence, self._head, self._shared_values, self._seen = sequence, head, _shared_values(view), 0
        self._add_message(sequence, head)

    def _add_message(self, sequence: ProducerSequence, head: StoredRecord) -> None:
        self._seen += 1
        whole = self._seen == sequence.count
        reached = Lane(
            sequence.first + self._seen,
            sequence.crc if whole else UNKNOWN_CRC,
            sequence.first,
            head.physical_offset,
            head.queue_offset,
            sequence.note,
        )
        self._table.advance(sequence, lane_name(head.topic, head.queue_id), reached, head.store_timestamp)
        if whole:
            self._sequence = None


def _shared_values(view: memoryview) -> tuple[Any, ...]:
    """Return a record's queue number, born time, producer address and store time."""
    return _COMMON[_SYS_FLAG.unpack_from(view)[0] & HOSTS_V6].unpack_from(view)
