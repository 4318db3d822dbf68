"""One delay level: waits until its first message is due, delivers what is (``DeliverDelayedMessageTimerTask``).

The messages of a level all wait equally long, so they fall due in the order of their queue. An alarm is set
for the first one; nothing is polled. What falls due together is delivered in batches, one a turn of the loop,
so that other requests are answered in between.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Mapping
from functools import partial
from typing import Final

from cometmq.broker.delay_hold import moved
from cometmq.broker.delayed_record import NotDeliverableError, delivered
from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import StoreTurn
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import DELAY_BATCH_BYTES, DELAY_BATCH_MESSAGES, DELAY_RECHECK_SECONDS, DELAY_RETRY_SECONDS
from cometmq.message.record import RecordError, decode_record
from cometmq.store.message_store import MessageStore, TopicQueue
from cometmq.store.topic_queue import UNIT

_log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")
_NOTHING: Final[Mapping[int, int]] = {}


class DelayLevel:
    """The queue of one level and how far it is delivered.

    :param level: its number, from 1 on.
    :param delay_ms: how long its messages wait; ``None`` for a level that is not in the table any more,
        whose messages are delivered at the time that was set when they came.
    :param offset: the queue offset of the first message that is not delivered yet.
    """

    def __init__(
        self,
        level: int,
        delay_ms: int | None,
        offset: int,
        queue: TopicQueue,
        store: MessageStore,
        turn: StoreTurn,
        clock: Clock,
    ) -> None:
        self.level = level
        self.offset = offset
        self.queue: Final = queue
        self._delay_ms = delay_ms
        self._store = store
        self._turn = turn
        self._clock = clock
        self._alarm: TimerHandle | None = None
        self._recheck: TimerHandle | None = None
        self._under_way = False
        """A batch is put and not stored yet, or the next one is about to be put."""
        self._put: tuple[int, int] | None = None
        """Of that batch: the end of the log before it, and the queue's offset behind it."""
        self._waits_for_store = False
        """The last batch was refused, which is logged once."""
        self._move_below = 0
        """What waits below this log offset moves into the timer: its log file should go."""
        self._stopped = False
        self._idle: asyncio.Future[None] | None = None

    def parked(self) -> None:
        """A message is about to be stored in the queue."""
        if self._recheck is None and not self._under_way and not self._stopped:
            self._wait_until(self._clock.now_ms() + (self._delay_ms or 0))

    def look(self) -> None:
        """Deliver what is due, or set the alarm for when something will be."""
        self._stop_waiting()
        self._under_way = False
        if self._stopped:
            self._end()
            return
        due, first_ms = self._due()
        if due:
            self._deliver(due)
        elif first_ms is not None:
            held = self._to_move()
            if held:
                self._deliver(len(held), held)
            else:
                self._wait_until(first_ms)

    def move_below(self, end: int) -> None:
        """Move what waits below a log offset into the timer, unless it becomes due before that is done."""
        self._move_below = max(self._move_below, end)
        if not self._under_way and not self._stopped:
            self.look()

    def halt(self) -> None:
        """Deliver no more."""
        self._stopped = True
        self._stop_waiting()

    @property
    def delivered_offset(self) -> int:
        """The next offset by what the log has: a batch counts that is in it and waits for the disk or a slave."""
        if self._put is not None and self._store.max_physical_offset > self._put[0]:
            return self._put[1]
        return self.offset

    async def stop(self) -> None:
        """Deliver no more; returns when what was put is stored."""
        self.halt()
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _end(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # --- due ----------------------------------------------------------------------------------
    def _due(self) -> tuple[int, int | None]:
        """How many messages are due now, a batch at most; if none, when the first is (ms since 1970)."""
        queue = self.queue
        self.offset = min(max(self.offset, queue.min_offset()), queue.max_offset())
        raw = queue.units(self.offset, DELAY_BATCH_MESSAGES)
        if not raw:
            return (DELAY_BATCH_MESSAGES, None) if self.offset < queue.max_offset() else (0, None)
        now = self._clock.now_ms()
        latest = now + self._delay_ms if self._delay_ms is not None else 1 << 63
        count = 0
        for _, _, due in UNIT.iter_unpack(raw):
            # Later than any message that comes now: the clock was moved back, or the level's delay was longer.
            if now < due <= latest:
                return count, due
            count += 1
        return count, None

    def _to_move(self) -> dict[int, int]:
        """The due times of the first messages that must move, a batch at most, by their places in the log."""
        held: dict[int, int] = {}
        raw = self.queue.units(self.offset, DELAY_BATCH_MESSAGES) if self._move_below else b""
        for place, _, due in UNIT.iter_unpack(raw):
            if place >= self._move_below:
                break
            held[place] = due
        return held

    # --- waiting ------------------------------------------------------------------------------
    def _wait_until(self, when_ms: int) -> None:
        """Look again at a date, and now and then before: it may be set back."""
        self._alarm = self._clock.call_at(when_ms, self.look)
        self._recheck = self._clock.call_later(DELAY_RECHECK_SECONDS, self.look)

    def _stop_waiting(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None

    # --- delivery -----------------------------------------------------------------------------
    def _deliver(self, count: int, move: Mapping[int, int] = _NOTHING) -> None:
        """Store the next messages where they belong; those in ``move`` in the timer, with their due times."""
        found = self._store.get_message(self.queue, self.offset, count, max_bytes=DELAY_BATCH_BYTES)
        messages: list[InnerMessage] = []
        for chunk in found.chunks:
            self._read(chunk, messages, move)
        self._under_way = True
        self._put = self._store.max_physical_offset, found.next_begin_offset
        try:
            put = self._turn.put_all(messages, partial(self._stored, found.next_begin_offset))
        except SendRefusedError as refused:
            self._refused(refused)
        else:
            if not put:
                self._delivered(found.next_begin_offset)

    def _read(self, chunk: memoryview, messages: list[InnerMessage], move: Mapping[int, int]) -> None:
        at = 0
        while at < len(chunk):
            try:
                record = decode_record(chunk, at)
                message = delivered(record)
            except (RecordError, NotDeliverableError) as error:
                _log.error("a delayed message of level %d cannot be delivered and is lost: %s", self.level, error)
            else:
                if message is not None:
                    due = move.get(record.physical_offset)
                    messages.append(message if due is None else moved(message, due))
            at += _SIZE.unpack_from(chunk, at)[0]

    def _stored(self, next_offset: int, result: Stored | SendRefusedError) -> None:
        if isinstance(result, SendRefusedError):
            self._refused(result)
        else:
            self._delivered(next_offset)

    def _delivered(self, next_offset: int) -> None:
        self.offset = next_offset
        self._put = None
        self._waits_for_store = False
        asyncio.get_running_loop().call_soon(self.look)

    def _refused(self, refused: SendRefusedError) -> None:
        self._under_way = False
        self._put = None
        if self._stopped:
            self._end()
        else:
            if not self._waits_for_store:
                self._waits_for_store = True
                _log.warning("delayed messages of level %d wait for the store: %s", self.level, refused.remark)
            self._recheck = self._clock.call_later(DELAY_RETRY_SECONDS, self.look)
