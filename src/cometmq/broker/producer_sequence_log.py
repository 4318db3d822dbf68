"""The table of producers' sequences over restarts: read from ``comet/producers.json`` and from the log behind it.

The log is the truth: the first message of each sequenced request has its sequence as a property, and so has a record
that no queue knows for each run that began (:func:`run_record`). The file only saves
reading the whole log: it knows everything below one position of it, and of some producers more, since it is encoded in
slices between which the broker serves. What the log tells again from that position on changes nothing that is known.
The file is written when all that it knows is on the disk, so that it never knows more than a log that lost its tail.
Before the first sequenced request after a start the log from there on is read, in a thread; until that is done such
requests are answered SYSTEM_BUSY. A broker that never had one reads nothing: without the file, only a producer that
comes makes it read the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.inner_message import InnerMessage
from cometmq.broker.producer_sequences import UNKNOWN_CRC, Lane, ProducerSequences, ProducerState
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.table_file import set_aside
from cometmq.clock import Clock
from cometmq.durable import replace_file
from cometmq.limits import PRODUCER_SAVE_SLICE_BYTES
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.names import PRODUCER_RUNS_TOPIC
from cometmq.message.producer_sequence import ProducerSequence, SequenceError, parse_sequence
from cometmq.message.properties import PRODUCER_SEQUENCE
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.message.sysflag import BORNHOST_V6, TRANSACTION_PREPARED
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_MARK: Final = f"{PRODUCER_SEQUENCE}\x01".encode()
_VERSION: Final = 1


class _Snapshot(msgspec.Struct):
    """The file, as ``_encoded`` writes it."""

    position: int
    """All messages below this log offset are in the table."""
    producers: dict[str, ProducerState]
    end: int = 0
    """No message from this log offset on is."""
    version: int = _VERSION


def reach_of(content: bytes) -> tuple[int, int]:
    """The log offsets between which a file's table is true.

    :raises ValueError: it is no such file, or one of another version.
    """
    snapshot = msgspec.json.decode(content, type=_Snapshot)
    if snapshot.version != _VERSION or not 0 <= snapshot.position <= snapshot.end:
        raise ValueError(f"version {snapshot.version}, log offsets {snapshot.position} to {snapshot.end}")
    return snapshot.position, snapshot.end


def lane_name(topic: str, queue_id: int) -> str:
    """How a queue is called in the table."""
    return f"{topic}/{queue_id}"


def run_record(producer: str, state: ProducerState, store_host: bytes, now_ms: int) -> InnerMessage:
    """What the log keeps of a run that begins, so that all runs before it stay fenced whatever becomes of the file."""
    sequence = ProducerSequence(producer, state.batch, state.epoch, 0, 0, 0)
    return InnerMessage(
        PRODUCER_RUNS_TOPIC,
        0,
        b"",
        f"{PRODUCER_SEQUENCE}\x01{sequence.text()}",
        0,
        TRANSACTION_PREPARED,  # such records are in no queue, here and at Apache's brokers
        now_ms,
        store_host,
    )


class ProducerSequenceLog:
    """Keeps the table of one broker."""

    def __init__(self, store: MessageStore, path: Path, *, clock: Clock) -> None:
        self._store = store
        self._path = path
        self._clock = clock
        self._table = ProducerSequences(clock=clock)
        self._reading: asyncio.Task[None] | None = None
        self._is_read = False
        self._stopping = False
        self._saving = asyncio.Lock()
        self._saved_at = -1

    def start(self) -> None:
        """Begin to read where producers with sequences are known, on the running loop."""
        if self._path.exists():
            self._read()

    async def stop(self) -> None:
        """End a thread that reads."""
        self._stopping = True
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def table(self) -> ProducerSequences:
        """The table, once it is read.

        :raises SendRefusedError: the log is still being read.
        """
        if not self._is_read:
            self._read()
            raise SendRefusedError(
                ResponseCode.SYSTEM_BUSY, "the sequences of producers are being read from the log, try again"
            )
        return self._table

    async def save(self) -> None:
        """Forget idle producers, and write the table once the disk has all that it knows."""
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
        flushed: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._store.when_flushed(end, flushed.set_result)
        if await flushed is not None:
            return
        try:
            await asyncio.to_thread(replace_file, self._path, pieces)
            self._saved_at = position
        except OSError as error:
            _log.error("cannot write %s: %s; it will be tried again", self._path, error)

    # Reading ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_in_thread(), name="read producers")

    async def _read_in_thread(self) -> None:
        end = self._store.max_physical_offset
        try:
            await asyncio.to_thread(self._read_to, end)
        except Exception:
            _log.exception("the sequences of producers cannot be read; it is tried again when one comes")
            self._table = ProducerSequences(clock=self._clock)
        else:
            self._is_read = not self._stopping
            await self.save()
        self._reading = None

    def _read_to(self, end: int) -> None:
        snapshot = self._load()
        start = self._store.min_physical_offset
        if snapshot is not None and start <= snapshot.position <= end and self._begins_record(snapshot.position, end):
            self._table.load(snapshot.producers)
            start = snapshot.position
        elif snapshot is not None:
            _log.warning("%s does not belong to this log: the whole log is read instead", self._path)
        follow = _Following(self._table)
        for _, view in self._store.records(start, end):
            if self._stopping:
                return
            follow.record(view)

    def _begins_record(self, position: int, end: int) -> bool:
        """Whether the log can be read from ``position`` on."""
        return position == end or next(self._store.records(position, end), None) is not None

    def _load(self) -> _Snapshot | None:
        try:
            snapshot = msgspec.json.decode(self._path.read_bytes(), type=_Snapshot)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("%s", set_aside(self._path, f"cannot be used, the whole log is read instead: {error}"))
            return None
        return snapshot if snapshot.version == _VERSION else None


def _encoded(position: int, producers: Mapping[str, ProducerState]) -> Iterator[bytes]:
    """The file but for its end, in small pieces; each producer is as it is when its first piece is asked for."""
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


class _Following:
    """Follows the log: the messages of one request stand one behind the other, its sequence with the first.

    A crash can cut a request in two. What then stands behind its part is told from it by what all messages of one
    request have in common: queue, producer's time and address, and the time of storing.
    """

    def __init__(self, table: ProducerSequences) -> None:
        self._table = table
        self._sequence: ProducerSequence | None = None
        self._head: StoredRecord | None = None
        self._common = b""
        self._seen = 0

    def record(self, view: memoryview) -> None:
        """Take in the next record."""
        sequence, head = self._sequence, self._head
        if sequence is not None and head is not None:
            if _common(view) == self._common and _queue_offset(view) == head.queue_offset + self._seen:
                self._saw_one_more(sequence, head)
                return
            self._sequence = None
        data = bytes(view)
        if _MARK not in data:
            return
        try:
            head = decode_record(data)
            sequence = parse_sequence(head.properties[PRODUCER_SEQUENCE])
        except (RecordError, SequenceError, KeyError):
            return  # the words stand in a body, or somebody else wrote the property
        if not sequence.count:
            self._table.opened(sequence, head.store_timestamp)
            return
        self._sequence, self._head, self._common, self._seen = sequence, head, _common(view), 0
        self._saw_one_more(sequence, head)

    def _saw_one_more(self, sequence: ProducerSequence, head: StoredRecord) -> None:
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


def _common(view: memoryview) -> bytes:
    """Queue number, producer's time and address, and store time of a record."""
    host = IPV6_HOST_BYTES if view[39] & BORNHOST_V6 else IPV4_HOST_BYTES
    return bytes(view[12:16]) + bytes(view[40 : 56 + host])


def _queue_offset(view: memoryview) -> int:
    return int.from_bytes(view[20:28], "big")
