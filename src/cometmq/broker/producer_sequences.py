"""How far each producer with sequences has come: the table that makes its sends idempotent and fences zombies.

No I/O. For each producer the table has the batch and the epoch of its latest run, and for each queue (a *lane*,
``topic/queueId``) the number of the next message. What is put but not stored yet counts for the order of messages,
but nobody is told that it is stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.inner_message import Stored
from cometmq.broker.send_targets import SendRefusedError
from cometmq.clock import Clock
from cometmq.limits import (
    MAX_PRODUCER_LANES,
    MAX_PRODUCERS,
    PRODUCER_EXPIRY_SECONDS,
    PRODUCER_IDLE_LOOK_SECONDS,
    PRODUCER_MIN_IDLE_SECONDS,
)
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.remoting.codes import ResponseCode

UNKNOWN_CRC: Final = -1
"""The CRC of a lane whose last request is not stored whole."""


class Lane(msgspec.Struct, frozen=True):
    """The messages of a producer in one queue."""

    next: int
    crc: int
    """Up to ``next``; ``UNKNOWN_CRC`` where it cannot be told."""
    first: int
    """Number of the first message that was stored by the last request …"""
    physical_offset: int
    """… its log offset …"""
    queue_offset: int
    """… and its queue offset."""
    note: str


class ProducerState(msgspec.Struct):
    """One producer; as it is written into ``comet/producers.json`` and into no other place."""

    batch: int
    epoch: int
    used_ms: int
    """When it was last heard of."""
    lanes: dict[str, Lane]
    """What is stored."""


class ProducerSequences:
    """The table of one broker."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.producers: dict[str, ProducerState] = {}
        self._ahead: dict[tuple[str, str], Lane] = {}
        self._put_at: set[int] = set()
        self._lanes = 0
        self._looked_s = -PRODUCER_IDLE_LOOK_SECONDS

    def load(self, producers: dict[str, ProducerState]) -> None:
        """Begin with what was known before a restart."""
        self.producers = producers
        self._lanes = sum(len(producer.lanes) for producer in producers.values())

    def open(self, producer: str, batch: int) -> ProducerState:
        """A new run of a producer begins to send a batch, or goes on with one; all older runs are fenced from now on.

        :raises SendRefusedError: a later batch was begun already, or there are too many producers.
        """
        state = self.producers.get(producer)
        if state is None:
            self._make_room(producer)
            state = self._add(producer, batch, self._clock.now_ms())
        elif batch < state.batch:
            raise SendRefusedError(
                ResponseCode.PRODUCER_FENCED,
                f"producer {producer} has begun batch {state.batch}; batch {batch} is over",
            )
        elif batch > state.batch:
            self._begin(producer, state, batch)
        state.epoch += 1
        state.used_ms = self._clock.now_ms()
        return state

    def stored_of(self, sequence: ProducerSequence, lane: str) -> int:
        """How many of these messages are stored already, from the first on.

        :raises SendRefusedError: the producer is fenced, messages before these are missing, others are stored under
            their numbers, some of them are being stored right now, or there are too many producers or queues of them.
        """
        state = self.producers.get(sequence.producer)
        if state is None or sequence.batch > state.batch:
            known = None
        else:
            if (sequence.batch, sequence.epoch) < (state.batch, state.epoch):
                raise SendRefusedError(
                    ResponseCode.PRODUCER_FENCED,
                    f"producer {sequence.producer} runs anew with batch {state.batch}, epoch {state.epoch}; "
                    f"batch {sequence.batch}, epoch {sequence.epoch} is over",
                )
            known = state.lanes.get(lane)
        ahead = self._ahead.get((sequence.producer, lane))
        reached = ahead or known
        end = 0 if reached is None else reached.next
        if sequence.first > end:
            raise SendRefusedError(
                ResponseCode.SEQUENCE_GAP,
                f"messages {end} to {sequence.first - 1} of producer {sequence.producer} are missing in {lane}",
            )
        if sequence.first == end:
            if reached is None:  # now, since what ``put`` notes is in the store's buffer already
                self._make_room(sequence.producer)
            return 0
        if ahead is not None:
            raise SendRefusedError(ResponseCode.SYSTEM_BUSY, "the same messages are being stored right now")
        assert known is not None
        if sequence.end == known.next and known.crc not in (sequence.crc, UNKNOWN_CRC):
            raise SendRefusedError(
                ResponseCode.SEQUENCE_MISMATCH,
                f"messages {sequence.first} to {sequence.end - 1} of producer {sequence.producer} in {lane} "
                "are stored with other contents",
            )
        return min(end - sequence.first, sequence.count)

    def lane(self, producer: str, lane: str) -> Lane:
        """What is stored of a producer in a queue, of which ``stored_of`` said that something is."""
        return self.producers[producer].lanes[lane]

    def put(self, sequence: ProducerSequence, lane: str, stored: Stored) -> Callable[[Stored | SendRefusedError], None]:
        """Messages were put at ``stored``; the function returned must be told what became of them."""
        state = self.producers.get(sequence.producer)
        if state is None:
            state = self._add(sequence.producer, sequence.batch, self._clock.now_ms())
        elif sequence.batch > state.batch:
            self._begin(sequence.producer, state, sequence.batch)
        state.epoch = max(state.epoch, sequence.epoch)
        state.used_ms = self._clock.now_ms()
        reached = Lane(
            sequence.end, sequence.crc, sequence.first, stored.physical_offset, stored.queue_offset, sequence.note
        )
        key = (sequence.producer, lane)
        self._ahead[key] = reached
        self._put_at.add(stored.physical_offset)

        def when_stored(outcome: Stored | SendRefusedError) -> None:
            self._put_at.discard(stored.physical_offset)
            if self._ahead.get(key) is reached or isinstance(outcome, SendRefusedError):
                self._ahead.pop(key, None)
            if isinstance(outcome, Stored):
                self.advance(sequence, lane, reached)

        return when_stored

    def advance(self, sequence: ProducerSequence, lane: str, reached: Lane, stored_ms: int | None = None) -> None:
        """Messages of a producer are stored: now, or as the log tells after a restart, at ``stored_ms``.

        However many producers there are these count: who was idle longest gives way.
        """
        state = self._heard_of(sequence, stored_ms)
        if state is None:
            return
        before = state.lanes.get(lane)
        if before is None:
            if self._lanes >= MAX_PRODUCER_LANES:
                self._forget_some(sequence.producer)
            self._lanes += 1
        if before is None or before.next < reached.next:
            state.lanes[lane] = reached

    def opened(self, sequence: ProducerSequence, stored_ms: int) -> None:
        """A run had begun, as the log tells after a restart."""
        self._heard_of(sequence, stored_ms)

    def _heard_of(self, sequence: ProducerSequence, stored_ms: int | None) -> ProducerState | None:
        """The state of a producer, with its batch and epoch as far as these; ``None`` when they are over already."""
        used_ms = self._clock.now_ms() if stored_ms is None else stored_ms
        state = self.producers.get(sequence.producer)
        if state is None:
            if len(self.producers) >= MAX_PRODUCERS:
                self._forget_some(sequence.producer)
            state = self._add(sequence.producer, sequence.batch, used_ms)
        state.used_ms = max(state.used_ms, used_ms)
        if sequence.batch < state.batch:
            return None
        if sequence.batch > state.batch:
            self._begin(sequence.producer, state, sequence.batch)
        state.epoch = max(state.epoch, sequence.epoch)
        return state

    def known_below(self, position: int) -> int:
        """The log offset below which all messages count as stored here, at most ``position``."""
        return min(position, *self._put_at) if self._put_at else position

    def expire(self) -> None:
        """Forget producers that sent nothing for a long time."""
        oldest = self._clock.now_ms() - int(PRODUCER_EXPIRY_SECONDS * 1000)
        for producer in [name for name, state in self.producers.items() if state.used_ms < oldest]:
            self._forget(producer)

    def _begin(self, producer: str, state: ProducerState, batch: int) -> None:
        self._lanes -= len(state.lanes)
        state.batch = batch
        state.lanes = {}
        for key in [key for key in self._ahead if key[0] == producer]:
            del self._ahead[key]

    def _add(self, producer: str, batch: int, used_ms: int) -> ProducerState:
        state = self.producers[producer] = ProducerState(batch, 0, used_ms, {})
        return state

    def _make_room(self, producer: str) -> None:
        """For a new producer, or for another queue of a known one; who was idle for long gives way."""
        if not self._is_full_for(producer):
            return
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= PRODUCER_IDLE_LOOK_SECONDS:
            self._looked_s = now_s
            self._forget_idle(producer)
        if self._is_full_for(producer):
            raise SendRefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"this broker has {len(self.producers)} producers with sequences in {self._lanes} queues already; "
                f"those that send nothing for {PRODUCER_MIN_IDLE_SECONDS / 3600:g} h give way",
            )

    def _is_full_for(self, producer: str) -> bool:
        if self._lanes + len(self._ahead) >= MAX_PRODUCER_LANES:
            return True
        return len(self.producers) >= MAX_PRODUCERS and producer not in self.producers

    def _forget_idle(self, producer: str) -> None:
        """Let go of others that were idle for long, a hundredth of all or as many as it takes."""
        latest = self._clock.now_ms() - PRODUCER_MIN_IDLE_SECONDS * 1000
        idle = [name for name, state in self.producers.items() if state.used_ms <= latest and name != producer]
        least = len(self.producers) // 100
        for count, name in enumerate(sorted(idle, key=self._used)):
            if count > least and not self._is_full_for(producer):
                break
            self._forget(name)

    def _forget_some(self, producer: str) -> None:
        """Let go of a hundredth of the others at once: a log may tell of many times as many as are kept."""
        others = (name for name in self.producers if name != producer)
        for idle in heapq.nsmallest(len(self.producers) // 100 + 1, others, key=self._used):
            self._forget(idle)

    def _used(self, producer: str) -> int:
        return self.producers[producer].used_ms

    def _forget(self, producer: str) -> None:
        self._lanes -= len(self.producers.pop(producer).lanes)
