"""Producer sequences, which make a producer's sends idempotent and fence its older runs.

``ProducerSequences`` is the table; it does no I/O. For each producer it contains the batch and epoch of the latest run,
and for each queue (a *lane*, ``topic/queueId``) the number of the next message. Messages that are still being stored
count for the order, but are not yet reported as stored. :mod:`~cometmq.broker.send.producer_sequence_log` persists the
table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.limits import (
    MAX_PRODUCER_LANES,
    MAX_PRODUCERS,
    PRODUCER_EXPIRY_SECONDS,
    PRODUCER_IDLE_LOOK_SECONDS,
    PRODUCER_MIN_IDLE_SECONDS,
)
from cometmq.broker.turn.inner_message import Stored
from cometmq.broker.turn.targets import RefusedError
from cometmq.clock import Clock
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.remoting.codes import ResponseCode

UNKNOWN_CRC: Final = -1
"""The CRC of a queue (lane) whose last request has not been stored completely."""


class Lane(msgspec.Struct, frozen=True):
    """A producer's messages in one queue."""

    next: int
    crc: int
    """CRC of the messages before number ``next``, or ``UNKNOWN_CRC``."""
    first: int
    """Number of the first message in the last stored request."""
    physical_offset: int
    """Log offset of the first message in the last stored request."""
    queue_offset: int
    """Queue offset of the first message in the last stored request."""
    note: str


class ProducerState(msgspec.Struct):
    """The state of a producer, as stored in ``comet/producers.json``."""

    batch: int
    epoch: int
    used_ms: int
    """Time of the producer's last request."""
    lanes: dict[str, Lane]
    """The stored messages of the producer, by queue."""


class ProducerSequences:
    """A broker's table of producer sequences."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.producers: dict[str, ProducerState] = {}
        self._ahead: dict[tuple[str, str], Lane] = {}
        self._put_at: set[int] = set()
        self._lanes = 0
        self._looked_s = -PRODUCER_IDLE_LOOK_SECONDS

    def load(self, producers: dict[str, ProducerState]) -> None:
        """Replace the table after a restart."""
        self.producers = producers
        self._lanes = sum(len(producer.lanes) for producer in producers.values())

    def open(self, producer: str, batch: int) -> ProducerState:
        """Start a new run of a producer, which begins or continues a batch; this fences all older runs.

        :raises RefusedError: a later batch has already begun, or there are too many producers.
        """
        state = self.producers.get(producer)
        if state is None:
            self._make_room(producer)
        elif batch < state.batch:
            raise RefusedError(
                ResponseCode.PRODUCER_FENCED,
                f"producer {producer} has begun batch {state.batch}; batch {batch} has ended",
            )
        state = self._state_of(producer, batch, 0)
        state.epoch += 1
        return state

    def stored_of(self, sequence: ProducerSequence, lane: str) -> int:
        """Return how many of the sequence's messages, starting with the first, have already been stored.

        :raises RefusedError: the producer is fenced, earlier messages are missing, other messages are stored under the
        same numbers, some of the messages are currently being stored, or there are too many producers or queues.
        """
        state = self.producers.get(sequence.producer)
        if state is None or sequence.batch > state.batch:
            known = None
        else:
            if (sequence.batch, sequence.epoch) < (state.batch, state.epoch):
                raise RefusedError(
                    ResponseCode.PRODUCER_FENCED,
                    f"producer {sequence.producer} has started again with batch {state.batch}, epoch {state.epoch}; "
                    f"batch {sequence.batch}, epoch {sequence.epoch} has ended",
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
            if reached is None:  # refuse now: ``put`` may not, since its messages are already in the store's buffer
                self._make_room(sequence.producer)
            return 0
        if ahead is not None:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, "the same messages are being stored right now, try again")
        assert known is not None
        if sequence.end == known.next and known.crc not in (sequence.crc, UNKNOWN_CRC):
            raise RefusedError(
                ResponseCode.SEQUENCE_MISMATCH,
                f"messages {sequence.first} to {sequence.end - 1} of producer {sequence.producer} in {lane} "
                "are stored with different contents",
            )
        return min(end - sequence.first, sequence.count)

    def lane(self, producer: str, lane: str) -> Lane:
        """Return the stored messages of a producer in a queue."""
        return self.producers[producer].lanes[lane]

    def put(self, sequence: ProducerSequence, lane: str, stored: Stored) -> Callable[[Stored | RefusedError], None]:
        """Record messages that are being stored at ``stored``; the caller must call the returned function with the
        outcome.
        """
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
        """Record stored messages of a producer; after a restart, ``stored_ms`` is their store time from the log.

        If the table is full, the producer that has been idle longest is removed.
        """
        state = self._known_or_new(sequence, stored_ms)
        if sequence.batch < state.batch:
            return
        before = state.lanes.get(lane)
        if before is None:
            if self._lanes >= MAX_PRODUCER_LANES:
                self._forget_some(sequence.producer)
            self._lanes += 1
        if before is None or (before.physical_offset, before.next) < (reached.physical_offset, reached.next):
            state.lanes[lane] = reached

    def forget_lane(self, producer: str, lane: str) -> None:
        """Remove a producer's queue from the table after the queue was deleted."""
        if self.producers[producer].lanes.pop(lane, None) is not None:
            self._lanes -= 1

    def opened(self, sequence: ProducerSequence, stored_ms: int) -> None:
        """Record a run that was found in the log after a restart."""
        self._known_or_new(sequence, stored_ms)

    def _known_or_new(self, sequence: ProducerSequence, stored_ms: int | None) -> ProducerState:
        if sequence.producer not in self.producers and len(self.producers) >= MAX_PRODUCERS:
            self._forget_some(sequence.producer)
        return self._state_of(sequence.producer, sequence.batch, sequence.epoch, stored_ms)

    def known_below(self, position: int) -> int:
        """Return a log offset, at most ``position``, below which all messages are in the table."""
        return min(position, *self._put_at) if self._put_at else position

    def expire(self) -> None:
        """Remove producers that have sent nothing for a long time."""
        oldest = self._clock.now_ms() - int(PRODUCER_EXPIRY_SECONDS * 1000)
        for producer in [name for name, state in self.producers.items() if state.used_ms < oldest]:
            self._forget(producer)

    def _state_of(self, producer: str, batch: int, epoch: int, stored_ms: int | None = None) -> ProducerState:
        """Return a producer's state for a batch and an epoch; create it if necessary, and update its last-use time."""
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
        """Remove idle producers to make room for a new producer, or for another queue of a known one."""
        if not self._is_full_for(producer):
            return
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= PRODUCER_IDLE_LOOK_SECONDS:
            self._looked_s = now_s
            self._forget_idle(producer)
        if self._is_full_for(producer):
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"this broker already has {len(self.producers)} producers with sequences in {self._lanes} queues; "
                f"those that are idle for {PRODUCER_MIN_IDLE_SECONDS / 3600:g} h can be replaced",
            )

    def _is_full_for(self, producer: str) -> bool:
        if self._lanes + len(self._ahead) >= MAX_PRODUCER_LANES:
            return True
        return len(self.producers) >= MAX_PRODUCERS and producer not in self.producers

    def _forget_idle(self, producer: str) -> None:
        """Remove producers that have been idle for a long time: a hundredth of them, or as many as necessary."""
        latest = self._clock.now_ms() - PRODUCER_MIN_IDLE_SECONDS * 1000
        idle = [name for name, state in self.producers.items() if state.used_ms <= latest and name != producer]
        least = len(self.producers) // 100
        for count, name in enumerate(sorted(idle, key=self._mark_used)):
            if count > least and not self._is_full_for(producer):
                break
            self._forget(name)

    def _forget_some(self, producer: str) -> None:
        """Remove a hundredth of the producers, because a log may contain many more than the table can hold."""
        others = (name for name in self.producers if name != producer)
        for idle in heapq.nsmallest(len(self.producers) // 100 + 1, others, key=self._mark_used):
            self._forget(idle)

    def _mark_used(self, producer: str) -> int:
        return self.producers[producer].used_ms

    def _forget(self, producer: str) -> None:
        self._lanes -= len(self.producers.pop(producer).lanes)


def lane_name(topic: str, queue_id: int) -> str:
    """Return the key of a queue in the sequence table."""
    return f"{topic}/{queue_id}"


def queue_of(lane: str) -> tuple[str, int]:
    """Return the topic and queue number from a key of the sequence table."""
    topic, _, queue_id = lane.rpartition("/")
    return topic, int(queue_id)
