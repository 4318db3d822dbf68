"""The last sequence of each producer that numbers its messages: its sends become idempotent, older runs are fenced.

``ProducerSequences`` is the table, without I/O. For each producer it has the batch and the epoch of the latest run,
and for each queue (a *lane*, ``topic/queueId``) the number of the next message. Messages that are put but not stored
yet count for the order, but are never reported as stored.

``ProducerSequenceLog`` keeps the table over restarts. The log is the truth: the first message of each sequenced
request has its sequence as a property, and each run that begins is a record that no queue knows
(``run_record``). ``comet/producers.json`` only saves reading the whole log: it has everything below one log
position, and of some producers more, since it is encoded in slices between which the broker serves. Reading a
sequence again changes nothing. The file is written when the disk has all that the table knows, so that it never
knows more than a log that lost its tail. After a start, the first sequenced request finds the log read from that
position on by a thread; until then such requests are answered SYSTEM_BUSY. A broker without the file reads the log
only when a producer with sequences comes.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from cometmq.broker.limits import (
    MAX_PRODUCER_LANES,
    MAX_PRODUCERS,
    PRODUCER_EXPIRY_SECONDS,
    PRODUCER_IDLE_LOOK_SECONDS,
    PRODUCER_MIN_IDLE_SECONDS,
    PRODUCER_SAVE_SLICE_BYTES,
)
from cometmq.broker.tables.table_file import set_aside
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.clock import Clock
from cometmq.durable import replace_file
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.producer_sequence import ProducerSequence, SequenceError, parse_sequence
from cometmq.message.properties import PRODUCER_SEQUENCE
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.message.sysflag import BORNHOST_V6
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

UNKNOWN_CRC: Final = -1
"""The CRC of a lane whose last request is not stored whole."""
_MARK: Final = f"{PRODUCER_SEQUENCE}\x01".encode()
_VERSION: Final = 1


class Lane(msgspec.Struct, frozen=True):
    """The messages of a producer in one queue."""

    next: int
    crc: int
    """CRC of the messages up to ``next``, or ``UNKNOWN_CRC``."""
    first: int
    """Number of the first message that the last request stored."""
    physical_offset: int
    """Log offset of that message."""
    queue_offset: int
    """Queue offset of that message."""
    note: str


class ProducerState(msgspec.Struct):
    """A producer, as ``comet/producers.json`` has it."""

    batch: int
    epoch: int
    used_ms: int
    """Time of its last request."""
    lanes: dict[str, Lane]
    """Its stored messages."""


class ProducerSequences:
    """The table of a broker."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.producers: dict[str, ProducerState] = {}
        self._ahead: dict[tuple[str, str], Lane] = {}
        self._put_at: set[int] = set()
        self._lanes = 0
        self._looked_s = -PRODUCER_IDLE_LOOK_SECONDS

    def load(self, producers: dict[str, ProducerState]) -> None:
        """Begin with the table before a restart."""
        self.producers = producers
        self._lanes = sum(len(producer.lanes) for producer in producers.values())

    def open(self, producer: str, batch: int) -> ProducerState:
        """A new run of a producer begins a batch, or goes on with one; all older runs are fenced from now on.

        :raises RefusedError: a later batch was begun already, or there are too many producers.
        """
        state = self.producers.get(producer)
        if state is None:
            self._make_room(producer)
        elif batch < state.batch:
            raise RefusedError(
                ResponseCode.PRODUCER_FENCED,
                f"producer {producer} has begun batch {state.batch}; batch {batch} is over",
            )
        state = self._state_of(producer, batch, 0)
        state.epoch += 1
        return state

    def stored_of(self, sequence: ProducerSequence, lane: str) -> int:
        """The number of these messages that are stored already, from the first on.

        :raises RefusedError: the producer is fenced, messages before these are missing, others are stored under
            their numbers, some of them are being stored right now, or there are too many producers or queues of them.
        """
        state = self.producers.get(sequence.producer)
        if state is None or sequence.batch > state.batch:
            known = None
        else:
            if (sequence.batch, sequence.epoch) < (state.batch, state.epoch):
                raise RefusedError(
                    ResponseCode.PRODUCER_FENCED,
                    f"producer {sequence.producer} runs again with batch {state.batch}, epoch {state.epoch}; "
                    f"batch {sequence.batch}, epoch {sequence.epoch} is over",
                )
            known = state.lanes.get(lane)
        ahead = self._ahead.get((sequence.producer, lane))
        reached = ahead or known
        end = 0 if reached is None else reached.next
        if sequence.first > end:
            raise RefusedError(
                ResponseCode.SEQUENCE_GAP,
                f"messages {end} to {sequence.first - 1} of producer {sequence.producer} are missing in {lane}",
            )
        if sequence.first == end:
            if reached is None:  # now: ``put`` may not refuse, its messages are in the store's buffer already
                self._make_room(sequence.producer)
            return 0
        if ahead is not None:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, "the same messages are being stored right now")
        assert known is not None
        if sequence.end == known.next and known.crc not in (sequence.crc, UNKNOWN_CRC):
            raise RefusedError(
                ResponseCode.SEQUENCE_MISMATCH,
                f"messages {sequence.first} to {sequence.end - 1} of producer {sequence.producer} in {lane} "
                "are stored with other contents",
            )
        return min(end - sequence.first, sequence.count)

    def lane(self, producer: str, lane: str) -> Lane:
        """The stored messages of a producer in a queue, after ``stored_of`` has found some."""
        return self.producers[producer].lanes[lane]

    def put(self, sequence: ProducerSequence, lane: str, stored: Stored) -> Callable[[Stored | RefusedError], None]:
        """Note messages that were put at ``stored``; the returned function must be called with the outcome."""
        self._state_of(sequence.producer, sequence.batch, sequence.epoch)
        reached = Lane(
            sequence.end, sequence.crc, sequence.first, stored.physical_offset, stored.queue_offset, sequence.note
        )
        key = (sequence.producer, lane)
        self._ahead[key] = reached
        self._put_at.add(stored.physical_offset)

        def when_stored(outcome: Stored | RefusedError) -> None:
            self._put_at.discard(stored.physical_offset)
            if self._ahead.get(key) is reached or isinstance(outcome, RefusedError):
                self._ahead.pop(key, None)
            if isinstance(outcome, Stored):
                self.advance(sequence, lane, reached)

        return when_stored

    def advance(self, sequence: ProducerSequence, lane: str, reached: Lane, stored_ms: int | None = None) -> None:
        """Note stored messages of a producer: stored now, or at ``stored_ms`` by the log after a restart.

        They count however many producers there are: the producer that was idle longest gives way.
        """
        state = self._known_or_new(sequence, stored_ms)
        if sequence.batch < state.batch:
            return
        before = state.lanes.get(lane)
        if before is None:
            if self._lanes >= MAX_PRODUCER_LANES:
                self._forget_some(sequence.producer)
            self._lanes += 1
        if before is None or before.next < reached.next:
            state.lanes[lane] = reached

    def opened(self, sequence: ProducerSequence, stored_ms: int) -> None:
        """Note a run that had begun, by the log after a restart."""
        self._known_or_new(sequence, stored_ms)

    def _known_or_new(self, sequence: ProducerSequence, stored_ms: int | None) -> ProducerState:
        if sequence.producer not in self.producers and len(self.producers) >= MAX_PRODUCERS:
            self._forget_some(sequence.producer)
        return self._state_of(sequence.producer, sequence.batch, sequence.epoch, stored_ms)

    def known_below(self, position: int) -> int:
        """The log offset below which all messages are in the table, at most ``position``."""
        return min(position, *self._put_at) if self._put_at else position

    def expire(self) -> None:
        """Forget producers that sent nothing for a long time."""
        oldest = self._clock.now_ms() - int(PRODUCER_EXPIRY_SECONDS * 1000)
        for producer in [name for name, state in self.producers.items() if state.used_ms < oldest]:
            self._forget(producer)

    def _state_of(self, producer: str, batch: int, epoch: int, stored_ms: int | None = None) -> ProducerState:
        """The state of a producer, made or moved on to a batch and an epoch; used now, or at ``stored_ms``."""
        used_ms = self._clock.now_ms() if stored_ms is None else stored_ms
        state = self.producers.get(producer)
        if state is None:
            state = self.producers[producer] = ProducerState(batch, 0, used_ms, {})
        elif batch > state.batch:
            self._lanes -= len(state.lanes)
            state.batch = batch
            state.lanes = {}
            for key in [key for key in self._ahead if key[0] == producer]:
                del self._ahead[key]
        if batch == state.batch:
            state.epoch = max(state.epoch, epoch)
        state.used_ms = used_ms if stored_ms is None else max(state.used_ms, used_ms)
        return state

    def _make_room(self, producer: str) -> None:
        """Make room for a new producer, or for another queue of a known one: idle producers give way."""
        if not self._is_full_for(producer):
            return
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= PRODUCER_IDLE_LOOK_SECONDS:
            self._looked_s = now_s
            self._forget_idle(producer)
        if self._is_full_for(producer):
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"this broker has {len(self.producers)} producers with sequences in {self._lanes} queues already; "
                f"those that send nothing for {PRODUCER_MIN_IDLE_SECONDS / 3600:g} h give way",
            )

    def _is_full_for(self, producer: str) -> bool:
        if self._lanes + len(self._ahead) >= MAX_PRODUCER_LANES:
            return True
        return len(self.producers) >= MAX_PRODUCERS and producer not in self.producers

    def _forget_idle(self, producer: str) -> None:
        """Forget other producers that were idle for long, a hundredth of all or as many as necessary."""
        latest = self._clock.now_ms() - PRODUCER_MIN_IDLE_SECONDS * 1000
        idle = [name for name, state in self.producers.items() if state.used_ms <= latest and name != producer]
        least = len(self.producers) // 100
        for count, name in enumerate(sorted(idle, key=self._used)):
            if count > least and not self._is_full_for(producer):
                break
            self._forget(name)

    def _forget_some(self, producer: str) -> None:
        """Forget a hundredth of the others at once: a log may have many times as many as are kept."""
        others = (name for name in self.producers if name != producer)
        for idle in heapq.nsmallest(len(self.producers) // 100 + 1, others, key=self._used):
            self._forget(idle)

    def _used(self, producer: str) -> int:
        return self.producers[producer].used_ms

    def _forget(self, producer: str) -> None:
        self._lanes -= len(self.producers.pop(producer).lanes)


class _Snapshot(msgspec.Struct):
    """The file, in the form that ``_encoded`` writes."""

    position: int
    """All messages below this log offset are in the table."""
    producers: dict[str, ProducerState]
    end: int = 0
    """The table has only messages before this log offset."""
    version: int = _VERSION


def snapshot_offsets(content: bytes) -> tuple[int, int]:
    """The log offsets between which the table of a file is true.

    :raises ValueError: it is no such file, or one of another version.
    """
    snapshot = msgspec.json.decode(content, type=_Snapshot)
    if snapshot.version != _VERSION or not 0 <= snapshot.position <= snapshot.end:
        raise ValueError(f"version {snapshot.version}, log offsets {snapshot.position} to {snapshot.end}")
    return snapshot.position, snapshot.end


def lane_name(topic: str, queue_id: int) -> str:
    """The name of a queue in the table."""
    return f"{topic}/{queue_id}"


def topic_of(lane: str) -> str:
    """The topic of a queue in the table."""
    return lane.rpartition("/")[0]


class ProducerSequenceLog:
    """The table of a broker, its file and the part of the log behind that."""

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

    def start(self) -> None:
        """Begin to read if there is a file, on the running loop."""
        if self._path.exists():
            self._read()

    async def stop(self) -> None:
        """End the reading thread."""
        self._stopping = True
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def table(self) -> ProducerSequences:
        """The table, once it is read.

        :raises RefusedError: the log is still being read.
        """
        if not self._is_read:
            self._read()
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY, "the sequences of producers are being read from the log, try again"
            )
        return self._table

    async def save(self) -> None:
        """Forget idle producers, and write the table once the disk has all its messages."""
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
            await self._store.wait_flushed(end)
            await asyncio.to_thread(replace_file, self._path, pieces)
            self._saved_at = position
        except StoreError:
            return
        except OSError as error:
            _log.error("cannot write %s: %s; it will be tried again", self._path, error)

    # --- reading ------------------------------------------------------------------------------
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
        known = end if self._store.lost_from is None else self._store.lost_from
        if snapshot is not None and start <= snapshot.position <= known and self._begins_record(snapshot.position, end):
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
        """True when the log can be read from ``position`` on."""
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
    """The file without its end, in small pieces; a producer's state is that of the moment of its first piece."""
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
    """Reads the log: the messages of a request are in sequence, the first one has the request's sequence.

    A crash can cut a request in two. The messages behind its part differ from it in what all messages of a request have
    in common: queue, producer's time and address, and the time of storing.
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
            return  # the mark is in a body, or another program wrote the property
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
