"""Arbitrary delays: messages are delivered at their due time, even after years (``TimerMessageStore``).

Theory of operation. A message with any delay is parked in ``rmq_sys_wheel_timer``; its queue offset there identifies
it, as its *serial*. The states of a waiting message:

* stored: in the log, from serial ``_read`` on. It is read once, when the turn that stored it ends.
* unwritten: read, and not yet in the timer log. A worker thread copies it there within a second.
* written: in the file of its day in the timer log (:mod:`cometmq.store.timer.log`); it no longer needs the log.
* near: due before the *horizon*, so it is also in memory (``due``). It was put there when it arrived, or loaded later.
* in progress: due, and in a batch for its own topic that is not stored yet.
* delivered: stored in its own topic, with the serial + 1 as prepared transaction offset.

A recall is also such a message: once it is near, it removes the message with the same due time and key.

Invariants.

* Every written or unwritten message that is due before the horizon and not delivered is near or in progress. No message
  from the horizon on is due before ``_next_ms``.
* After a start, all messages that the topic has are read before any message is loaded. Otherwise a message could be
  delivered before its recall is read.
* A position is saved only after the log is on disk up to its ``log_offset``. It promises two things: messages with
  smaller serials are written, and messages due by its ``until_ms`` were delivered before ``log_offset``, except those
  that it lists. Retention keeps the log from ``log_offset`` on.

Fault model. A crash loses what is in memory. The next start reads the topic from the saved serial on, and finds the
later deliveries in the log from ``log_offset`` on: nothing is lost and nothing is delivered twice. A batch that the
store refuses, and a timer log that cannot be written or read, are retried; messages wait in the log. A damaged record
is read from the log if it is still there. When the clock moves backwards, the position records the deliveries up to the
later time, so that they are not repeated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.due import DueMessages, Waiting
from cometmq.broker.delay.parked_message import message_of
from cometmq.broker.delay.timer_counts import TimerCounts
from cometmq.broker.limits import (
    MAX_TIMER_LOADED,
    MAX_TIMER_UNWRITTEN_BYTES,
    STORED_AGAIN_BYTES,
    TIMER_AHEAD_MS,
    TIMER_BATCH_MESSAGES,
    TIMER_RETRY_SECONDS,
    TIMER_SAVE_LOG_BYTES,
    TIMER_SAVE_SECONDS,
    TIMER_SAVE_SHARE,
    TIMER_WINDOW_MS,
    TIMER_WRITE_BYTES,
)
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.store_turn import Late, WhenStored
from cometmq.broker.turn.targets import RefusedError
from cometmq.loop import in_rounds
from cometmq.message.names import TIMER_TOPIC
from cometmq.periodic import Alarm
from cometmq.store.errors import StoreClosedError, StoreError
from cometmq.store.failure_log import FailureLog
from cometmq.store.queue.consume_queue import UNIT, ConsumeQueue
from cometmq.store.retention import LogPin
from cometmq.store.timer.log import FOREVER_MS, TimerLog
from cometmq.store.timer.position import SetBack, TimerPosition
from cometmq.store.timer.recovery import open_timer_log
from cometmq.store.timer.unit import TimerEntry, entry_of

_log = logging.getLogger(__name__)
T = TypeVar("T")

_READ_UNITS: Final = 256
"""Maximum number of messages read after a turn; fewer if they are large."""
_LISTED_AT_ONCE: Final = 65_536
"""Number of late messages that are listed before other threads may run."""
_LONG_AGO_MS: Final = -(1 << 62)


class _Batch(NamedTuple):
    """Due messages that are being stored in their topics."""

    log_offset: int
    """The end of the log before the batch was stored."""
    waiting: list[Waiting]
    topics: list[str]


class _Moment(NamedTuple):
    """A position whose late messages have not been listed yet, since there may be a million."""

    position: TimerPosition
    late: npt.NDArray[np.int64]

    def complete(self) -> TimerPosition:
        """Return the position with its late messages (worker thread)."""
        late: list[int] = []
        for at in range(0, len(self.late), _LISTED_AT_ONCE):
            late += self.late[at : at + _LISTED_AT_ONCE].tolist()
            time.sleep(0)  # lets the event loop's thread run
        return msgspec.structs.replace(self.position, late=late)


class TimerMessageService:
    """Delivers delayed messages on a master.

    Call ``end_round`` at the end of every round of the loop, after the turn's commit.
    """

    def __init__(self, broker: BrokerContext) -> None:
        store, clock = broker.store, broker.clock
        self._store = store
        self._turn = broker.turn
        self._schedule = broker.schedule_round
        self.clock: Final = clock
        self._queue = store.queue(TIMER_TOPIC, 0)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-timer")
        self._stopped = False
        self.log: Final[TimerLog] = open_timer_log(store)
        self.due: Final = DueMessages()
        self._counts: Final = TimerCounts(broker)
        self._is_counted = not self.log.exists
        """True once the messages in the timer log have been counted after the start."""
        position = self.log.position
        self._read = max(self.log.read_from, self._queue.min_offset())
        """Serial number of the next message to read."""
        self._found_until: Final = self._queue.committed
        """Messages with a serial number below this one existed when the broker started."""
        self._unwritten: list[TimerEntry] = []
        self._unwritten_bytes = 0
        self.horizon_ms = _LONG_AGO_MS
        """The end of the current horizon, and the next due time after it."""
        self._next_ms = _LONG_AGO_MS if self.log.exists else FOREVER_MS
        self._loading = False
        self._load_alarm = Alarm(self._schedule_rounds, clock=clock)
        self._due_alarm = Alarm(self._deliver, clock=clock)
        self._due_alarm_ms = 0
        self._retry_alarm = Alarm(self._set_due_alarm, clock=clock)
        self._under_way: list[_Batch] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._until_ms = self.log.delivered.until_ms
        """Messages due by this time have been delivered, except those that are near or in progress."""
        self._failures = FailureLog(_log)
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._save_alarm = Alarm(self._schedule_rounds, clock=clock)
        self._save_at = store.max_physical_offset if self.log.exists else FOREVER_MS
        """Log size at which the position is saved, even if no message is waiting."""
        self._saved_at_s = clock.monotonic() - TIMER_SAVE_SECONDS
        self._pause_s = TIMER_SAVE_SECONDS
        """Minimum time in seconds between two saves, which grows if saving is slow."""
        self._log_pin = LogPin("delayed messages")
        if self.log.exists:
            self._log_pin.offset = position.log_offset
        store.hold_log(self._log_pin)

    def start(self) -> None:
        """Start delivering messages, on the running loop."""
        self._schedule()
        if self._store.batch.readable is not None:
            self._store.batch.on_arrival.append(self._confirmed)
        if self.log.exists:
            self._schedule_rounds()

    async def stop(self) -> None:
        """Stop delivering, wait until the current batches are stored, and save the position."""
        self._stopped = True
        for alarm in (self._due_alarm, self._retry_alarm, self._load_alarm, self._save_alarm):
            alarm.close()
        await self._idle.wait()
        if self._task is not None:
            await self._task
        try:
            position = await self._write()
            if position is not None:
                await self._save(position)
        except StoreClosedError as error:
            _log.info("the timer log is completed from the log: %s", error)
        except (OSError, StoreError) as error:
            _log.error("cannot complete the timer log; the commit log will be read again at the next start: %s", error)
        self._worker.shutdown()
        self.log.close()

    # --- queries --------------------------------------------------------------------------------
    def runtime_info(self) -> dict[str, str]:
        """Return the keys for delayed messages in RocketMQ 5's runtime information."""
        return {
            "timerReadBehind": str(self.behind_ms // 1000),
            "timerOffsetBehind": str(self.unread),
            **self._counts.runtime_info(),
        }

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run a function in the timer log's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    @property
    def behind_ms(self) -> int:
        """Return the number of milliseconds since the first undelivered message became due, or 0 if no message is
        due.
        """
        due_ms = self.due.next_due()
        return max(self.clock.now_ms() - due_ms, 0) if due_ms is not None else 0

    @property
    def overdue(self) -> int:
        """Return the number of due, undelivered messages."""
        return len(self.due.due_until(self.clock.now_ms())) if self.behind_ms else 0

    @property
    def unread(self) -> int:
        """Return the number of readable delayed messages in the log that have not been read yet."""
        return max(self._queue.readable - self._read, 0)

    @property
    def unread_ms(self) -> int:
        """Return the age of the first unread message in milliseconds, or 0 if all messages have been read."""
        stored_ms = self._store.store_time(TIMER_TOPIC, 0, self._read) if self.unread else -1
        return max(self.clock.now_ms() - stored_ms, 0) if stored_ms >= 0 else 0

    # --- recalls --------------------------------------------------------------------------------
    def recall(
        self, message: InnerMessage, due_ms: int, key: int, when_stored: WhenStored, late: Late | None = None
    ) -> None:
        """Store a recall, so that the recalled message is not delivered.

        ``late`` is as for :meth:`~cometmq.broker.turn.store_turn.StoreTurn.put_inner`.

        :raises RefusedError: the recall cannot be stored now.
        """

        def stored(outcome: Stored | RefusedError) -> None:
            if isinstance(outcome, RefusedError):
                self.due.undo_recall(due_ms, key)
            when_stored(outcome)

        self._turn.put_inner(message, stored, late=late)
        # Its message may already be near, and due before the recall is read.
        if due_ms < self.horizon_ms or self._loading or self._read < self._found_until:
            self.due.recall(due_ms, key)

    # --- reading the topic ----------------------------------------------------------------------
    def end_round(self) -> None:
        """Read the delayed messages that were stored in this turn (hot path if there are none)."""
        if self._queue.readable > self._read:
            self._read_new()
        elif self._store.max_physical_offset > self._save_at and not self._stopped:
            self._save_at = FOREVER_MS
            self._save_soon()

    def _confirmed(self, queues: Iterable[ConsumeQueue]) -> None:
        """Read messages that a failover set has confirmed, which may happen outside of a round."""
        if any(queue is self._queue for queue in queues):
            self._schedule()

    def _read_new(self) -> None:
        if self._unwritten_bytes > MAX_TIMER_UNWRITTEN_BYTES or self._stopped:
            return
        before, unwritten_bytes = self._read, self._unwritten_bytes
        self._move_horizon()
        for physical_offset, size, _ in UNIT.iter_unpack(self._queue.units(self._read, _READ_UNITS)):
            if physical_offset < self._log_pin.offset:
                self._log_pin.offset = physical_offset
            serial = self._read
            self._read += 1
            record = self._store.record_at(physical_offset, size)
            try:
                if record is None:
                    raise ValueError(f"the log has no timer record at offset {physical_offset}")
                entry = entry_of(record, serial, physical_offset)
            except ValueError as error:
                _log.error("skipped message %d of %s, which cannot be delivered: %s", serial, TIMER_TOPIC, error)
                continue
            if self.log.needs(serial, entry.due_ms):
                self._accept(entry)
                if self._unwritten_bytes > unwritten_bytes + TIMER_WRITE_BYTES:
                    break
        self._set_due_alarm()
        if self._unwritten_bytes > TIMER_WRITE_BYTES or before < self._found_until <= self._read:
            self._schedule_rounds()
        else:
            self._save_soon()
        if self.unread:
            self._schedule()

    def _accept(self, entry: TimerEntry) -> None:
        self._counts.arrived(entry)
        self._unwritten.append(entry)
        self._unwritten_bytes += len(entry.record)
        if entry.due_ms < self.horizon_ms:
            self.due.add(entry)
        elif entry.due_ms < self._next_ms:
            self._next_ms = entry.due_ms
            self._set_load_alarm()

    def _move_horizon(self) -> None:
        """Extend the horizon for arriving messages to the next message in the timer log."""
        if not self._loading and self._read >= self._found_until:
            self.horizon_ms = max(self.horizon_ms, min(self._next_ms, self.clock.now_ms() + TIMER_WINDOW_MS))

    # --- delivery -------------------------------------------------------------------------------
    def _set_due_alarm(self) -> None:
        due_ms = self.due.next_due()
        if due_ms is None or self._retry_alarm.is_set:
            return
        if not self._due_alarm.is_set or due_ms < self._due_alarm_ms:
            self._due_alarm_ms = due_ms
            self._due_alarm.at(due_ms)

    def _deliver(self) -> None:
        waiting = self.due.take_due(self.clock.now_ms(), TIMER_BATCH_MESSAGES)
        if waiting:
            self._counts.waiting -= len(waiting)
            self._store_batch(waiting)
        self._set_due_alarm()

    def _store_batch(self, waiting: list[Waiting]) -> None:
        messages: list[InnerMessage] = []
        size_bytes = 0
        for count, one in enumerate(waiting):
            if size_bytes + one.size > STORED_AGAIN_BYTES and count:
                self._put_back(waiting[count:])
                del waiting[count:]
                break
            size_bytes += one.size
            message = message_of(one, self.log, self._queue, self._store)
            if message is not None:
                messages.append(message)
        batch = _Batch(self._store.max_physical_offset, waiting, [message.topic for message in messages])
        self._under_way.append(batch)
        self._idle.clear()
        try:
            put = self._turn.put_due(messages, partial(self._stored, batch))
        except RefusedError as refused:
            self._stored(batch, refused)
        else:
            if not put:
                self._stored(batch, None)

    def _stored(self, batch: _Batch, result: Stored | RefusedError | None) -> None:
        self._under_way.remove(batch)
        if isinstance(result, RefusedError):
            self._put_back(batch.waiting)
            if not self._retry_alarm.is_set and not self._stopped:
                self._failures.failed("store messages that are due", result.remark)
                self._retry_alarm.after(TIMER_RETRY_SECONDS)
        else:
            self._counts.delivered(len(batch.waiting), batch.topics)
            self._failures.ended("store messages that are due")
            self._save_soon()
            if self._next_ms <= self.clock.now_ms() + TIMER_AHEAD_MS:  # more messages may be loaded now
                self._schedule_rounds()
        if not self._under_way:
            self._idle.set()

    def _put_back(self, waiting: list[Waiting]) -> None:
        self._counts.waiting += len(waiting)
        self.due.put_back(waiting)

    # --- rounds: write, load, save --------------------------------------------------------------
    def _save_soon(self) -> None:
        if not self._save_alarm.is_set:
            self._save_alarm.after(self._pause_s)

    def _set_load_alarm(self) -> None:
        if self._next_ms < FOREVER_MS:
            self._load_alarm.at(self._next_ms - TIMER_AHEAD_MS)
        else:
            self._load_alarm.cancel()

    def _schedule_rounds(self) -> None:
        if self._stopped:
            return
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._rounds(), name="timer log")

    async def _rounds(self) -> None:
        try:
            while self._again:
                self._again = False
                try:
                    await self._round()
                    self._failures.ended("write or read the timer log")
                except StoreClosedError:
                    self._again = False
                except Exception as error:
                    self._failures.failed("write or read the timer log", error)
                    self._again = False
                    self._save_alarm.after(TIMER_RETRY_SECONDS)
        finally:
            self._task = None

    async def _round(self) -> None:
        position = await self._write()
        await self._load()
        if not self._is_counted:  # after the messages that are due soon were loaded, and before the first save
            count = await self.in_thread(self.log.count_when_opened)  # messages are delivered in the meantime
            self._counts.waiting += count
            self._is_counted = True
        if position is not None and self.clock.monotonic() - self._saved_at_s >= self._pause_s:
            await self._save(position)
        else:
            self._save_soon()

    async def _write(self) -> _Moment | None:
        """Copy the unwritten messages to the timer log; return the position at which the copy began."""
        batch, size = self._unwritten, self._unwritten_bytes
        self._unwritten, self._unwritten_bytes = [], 0
        position = self._position()
        if batch:
            try:
                await self.in_thread(partial(self.log.append, batch))
            except BaseException:  # after any error, no saved position may count these messages as written
                self._unwritten = batch + self._unwritten
                self._unwritten_bytes += size
                raise
            if self.unread:  # memory had no room for more messages
                self._schedule()
        return position

    async def _load(self) -> None:
        """Load windows of messages until the next window is not near, or until enough messages are in memory."""
        if self._read < self._found_until:
            return
        while self._next_ms <= (now := self.clock.now_ms()) + TIMER_AHEAD_MS and not self._stopped:
            room = MAX_TIMER_LOADED - len(self.due)
            if room < MAX_TIMER_LOADED // 2:
                return
            low_ms = self.horizon_ms
            high_ms = max(low_ms, now + TIMER_WINDOW_MS, self._until_ms + 1)
            serial = self._unwritten[0].serial if self._unwritten else self._read
            self._loading = True
            try:
                loaded = await self.in_thread(partial(self.log.load, low_ms, high_ms, serial, room))
            finally:
                self._loading = False
            self.horizon_ms, self._next_ms = loaded.until_ms, loaded.next_ms
            # Those that are not in the timer log yet, which may have arrived in the meantime.
            later_ms = await in_rounds(self.due.add_between(self._unwritten, low_ms, self.horizon_ms))
            self._next_ms = min(self._next_ms, later_ms)
            self.due.add_window(loaded.units)
            self._set_due_alarm()
        self._set_load_alarm()

    def _position(self) -> _Moment | None:
        """Return the position to save, or ``None`` while some messages that were due are not in memory."""
        self._move_horizon()
        if self.horizon_ms <= self._until_ms:
            return None
        log_offset = self._under_way[0].log_offset if self._under_way else self._store.max_physical_offset
        now_ms = max(self.clock.now_ms(), self.due.taken_until_ms)  # the clock may have moved backwards
        self._until_ms = max(self._until_ms, min(now_ms, self.horizon_ms - 1))
        self._notice_clock_moved_back()
        return _Moment(TimerPosition(self._read, log_offset, self._until_ms), self._undelivered())

    def _undelivered(self) -> npt.NDArray[np.int64]:
        in_flight = [waiting.serial for batch in self._under_way for waiting in batch.waiting]
        return np.concatenate((self.due.due_until(self._until_ms), np.array(in_flight, np.int64)))

    def _notice_clock_moved_back(self) -> None:
        """If the clock has moved backwards, drop the messages in memory that are not near at the new time.

        Otherwise all messages due by the old time would remain in memory and in each saved position. The dropped
        messages are loaded again later.
        """
        now_ms = self.clock.now_ms()
        horizon_ms = now_ms + TIMER_WINDOW_MS
        late = any(waiting.due_ms >= horizon_ms for batch in self._under_way for waiting in batch.waiting)
        if self._until_ms <= horizon_ms or late:
            return
        self.log.set_back(SetBack(self._read, self._until_ms, self._undelivered().tolist()))
        self._until_ms, self.horizon_ms, self._next_ms = now_ms, horizon_ms, horizon_ms
        self.due.forget_from(horizon_ms)
        self._set_due_alarm()

    async def _save(self, moment: _Moment) -> None:
        position = moment.position
        self._save_alarm.cancel()
        if not self.log.exists:
            return
        began_s = self.clock.monotonic()
        await self._store.wait_kept(position.log_offset)
        await self.in_thread(lambda: self.log.save(moment.complete()))
        self._saved_at_s = self.clock.monotonic()
        self._pause_s = max(TIMER_SAVE_SECONDS, TIMER_SAVE_SHARE * (self._saved_at_s - began_s))
        self._log_pin.offset = position.log_offset
        self._save_at = position.log_offset + TIMER_SAVE_LOG_BYTES
        if not self.unread:
            in_flight = [waiting.due_ms for batch in self._under_way for waiting in batch.waiting]
            self.due.forget_recalls(min([position.until_ms, *in_flight]))
