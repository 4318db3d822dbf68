"""From the log into the timer log, and from there into memory when the time is near (``TimerMessageStore``).

Each message of ``rmq_sys_wheel_timer`` is read once, at the end of the turn that stored it. One due
before the *horizon* goes to :class:`~cometmq.broker.due.DueMessages` at once; every one is copied into
the timer log within a second. All that the timer log has from before the horizon is in memory too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from cometmq.broker.due import DueMessages, Waiting
from cometmq.broker.timer_counts import TimerCounts
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import (
    MAX_TIMER_LOADED,
    MAX_TIMER_UNWRITTEN_BYTES,
    TIMER_AHEAD_MS,
    TIMER_RETRY_SECONDS,
    TIMER_SAVE_LOG_BYTES,
    TIMER_SAVE_SECONDS,
    TIMER_SAVE_SHARE,
    TIMER_WINDOW_MS,
    TIMER_WRITE_BYTES,
)
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.timer_count import WaitingOfTopic
from cometmq.store.timer_list import Listed, Place, Wanted, list_waiting
from cometmq.store.timer_log import FOREVER_MS, TimerLog
from cometmq.store.timer_position import SetBack, TimerPosition
from cometmq.store.timer_recovery import open_timer_log
from cometmq.store.timer_unit import RECALL, TimerEntry, Units, entry_of, text_hash
from cometmq.store.topic_queue import UNIT

_log = logging.getLogger(__name__)
T = TypeVar("T")

_READ_UNITS: Final = 256
"""Messages read in one turn, fewer if they are large; the rest waits for the next."""
_LONG_AGO_MS: Final = -(1 << 62)

InFlight = Callable[[], tuple[int, list[Waiting]]]
"""The log offset before which all deliveries are stored, and the messages of those that are not."""


class TimerIntake:
    """Everything about waiting messages but their delivery.

    ``on_change`` is called when something may be due earlier than before; ``schedule`` sees to it that
    ``end_turn`` is called soon.
    """

    def __init__(
        self,
        store: MessageStore,
        schedule: Callable[[], None],
        in_flight: InFlight,
        counts: TimerCounts,
        *,
        clock: Clock,
    ) -> None:
        self.due: Final = DueMessages()
        self.on_change: Callable[[], None] = lambda: None
        self._store = store
        self._schedule = schedule
        self._in_flight = in_flight
        self._counts = counts
        self._clock = clock
        self._queue = store.queue(TIMER_TOPIC, 0)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-timer")
        self.log: Final[TimerLog] = open_timer_log(store)
        position = self.log.position
        self._read = max(position.serial, self._queue.min_offset())
        """The serial of the message that is read next."""
        self._found_until: Final = self._queue.max_offset()
        """Below this serial messages were here at the start: all are read before any comes near, since a recall
        may stand far behind a message that was due meanwhile."""
        self._until_ms = self.log.delivered.until_ms
        self._horizon_ms = _LONG_AGO_MS
        self._next_ms = _LONG_AGO_MS if self.log.exists else FOREVER_MS
        """Nothing in the timer log from the horizon on is due before this."""
        self._unwritten: list[TimerEntry] = []
        self._unwritten_bytes = 0
        self._save_at = store.max_physical_offset if self.log.exists else FOREVER_MS
        self._loading = False
        self._counted = not self.log.exists
        """Whether those are counted that were in the timer log at the start."""
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._load_alarm: TimerHandle | None = None
        self._save_timer: TimerHandle | None = None
        self._saved_at_s = clock.monotonic() - TIMER_SAVE_SECONDS
        self._pause_s = TIMER_SAVE_SECONDS
        """From one save to the next; longer where the disk is slow and the days are many."""
        self._stopped = False
        self._pinned = False
        if self.log.exists:
            self._pin(position.log_offset)

    # --- in -------------------------------------------------------------------------------------
    def end_turn(self) -> None:
        """Read what the turn stored (hot path when nothing did)."""
        if self._queue.committed > self._read:
            self._take_in()
        elif self._store.max_physical_offset > self._save_at and not self._stopped:
            self._save_at = FOREVER_MS
            self.changed()

    def _take_in(self) -> None:
        if self._unwritten_bytes > MAX_TIMER_UNWRITTEN_BYTES or self._stopped:
            return
        before, unwritten = self._read, self._unwritten_bytes
        self._move_horizon()
        for physical_offset, size, _ in UNIT.iter_unpack(self._queue.units(self._read, _READ_UNITS)):
            if not self._pinned:
                self._pin(physical_offset)
            serial = self._read
            self._read += 1
            record = self._store.record_at(physical_offset, size)
            try:
                if record is None:
                    raise ValueError(f"the log has no such record at {physical_offset}")
                entry = entry_of(record, serial, physical_offset)
            except ValueError as error:
                _log.error("message %d of %s cannot be delivered and is passed over: %s", serial, TIMER_TOPIC, error)
                continue
            if not self.log.delivered.has(serial, entry.due_ms):
                self._entered(entry)
                if self._unwritten_bytes > unwritten + TIMER_WRITE_BYTES:
                    break
        self.on_change()
        if self._unwritten_bytes > TIMER_WRITE_BYTES or before < self._found_until <= self._read:
            self._work()
        else:
            self.changed()
        if self._queue.committed > self._read:
            self._schedule()

    def _entered(self, entry: TimerEntry) -> None:
        self._counts.came(entry)
        self._unwritten.append(entry)
        self._unwritten_bytes += len(entry.record)
        if entry.due_ms < self._horizon_ms:
            self._into_memory(entry)
        elif entry.due_ms < self._next_ms:
            self._next_ms = entry.due_ms
            self._set_load_alarm()

    def _into_memory(self, entry: TimerEntry) -> None:
        if entry.kind == RECALL:
            self.due.recall(entry.due_ms, entry.key)
        else:
            self.due.add(entry)

    def _move_horizon(self) -> None:
        """As far as the timer log has nothing, what comes may go to memory at once."""
        if not self._loading and self._read >= self._found_until:
            self._horizon_ms = max(self._horizon_ms, min(self._next_ms, self._clock.now_ms() + TIMER_WINDOW_MS))

    def recall(self, due_ms: int, key: int) -> None:
        """A recall is about to be stored: its message may be in memory already, and due before that is told."""
        if due_ms < self._horizon_ms or self._loading or self._read < self._found_until:
            self.due.recall(due_ms, key)

    def undo_recall(self, due_ms: int, key: int) -> None:
        """The recall was not stored."""
        self.due.undo_recall(due_ms, key)

    def logged(self, waiting: Waiting) -> bytes | None:
        """The record of a waiting message, as long as the log has it."""
        unit = self._queue.unit(waiting.serial)
        return self._store.record_at(unit[0], unit[1]) if unit is not None else None

    @property
    def unread(self) -> int:
        """How many messages of the topic are not read yet."""
        return self._queue.committed - self._read

    async def count_waiting(self) -> dict[str, WaitingOfTopic]:
        """How many messages wait, by topic: those in the timer log, where every message is within a second or so.

        :raises OSError: the timer log cannot be read.
        """
        near = self.due.due_until(FOREVER_MS)
        counting = partial(self.log.count, self._horizon_ms, near, self._clock.now_ms())
        return await self._in_thread(counting)

    async def list_waiting(self, wanted: Wanted, topic: str | None) -> tuple[list[Listed], Place | None]:
        """The first waiting messages that are wanted, and where to go on; see :meth:`count_waiting`.

        :param topic: only those that will stand in this topic.
        :raises OSError: the timer log cannot be read.
        """
        horizon_ms, near = self._horizon_ms, np.array(self.due.due_until(wanted.end_ms), np.int64)
        of_topic = text_hash(topic) if topic is not None else None

        def chosen(units: Units) -> npt.NDArray[np.bool_]:
            found: npt.NDArray[np.bool_] = (units["due"] >= horizon_ms) | np.isin(units["serial"], near)
            return found if of_topic is None else found & (units["topic"] == of_topic)

        return await self._in_thread(partial(list_waiting, self.log, wanted, chosen))

    # --- copying, loading, saving ---------------------------------------------------------------
    def start(self) -> None:
        """Begin to read, load and save, on the running loop."""
        self._schedule()
        if self.log.exists:
            self._work()

    def changed(self) -> None:
        """Something came or was delivered: save within a second."""
        if self._save_timer is None and not self._stopped:
            self._save_timer = self._clock.call_later(self._pause_s, self._tick)

    def look(self) -> None:
        """Messages were delivered: there may be room to load more."""
        if self._next_ms <= self._clock.now_ms() + TIMER_AHEAD_MS:
            self._work()

    def _set_load_alarm(self) -> None:
        if self._load_alarm is not None:
            self._load_alarm.cancel()
            self._load_alarm = None
        if self._next_ms < FOREVER_MS and not self._stopped:
            self._load_alarm = self._clock.call_at(self._next_ms - TIMER_AHEAD_MS, self._near)

    def _tick(self) -> None:
        self._save_timer = None
        self._work()

    def _near(self) -> None:
        self._load_alarm = None
        self._work()

    def _work(self) -> None:
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
                except (OSError, StoreError) as error:
                    _log.error("the timer log cannot be written or read now, it is tried again: %s", error)
                    self._retry()
                except Exception:
                    _log.exception("the timer log failed, it is tried again")
                    self._retry()
        finally:
            self._task = None

    def _retry(self) -> None:
        self._again = False
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._save_timer = None if self._stopped else self._clock.call_later(TIMER_RETRY_SECONDS, self._tick)

    async def _round(self) -> None:
        if not self._counted:
            self._counts.waited_before(await self._in_thread(self.log.count_at_start))
            self._counted = True
        position = await self._write()
        await self._load()
        if position is None:
            self.changed()
        elif self._clock.monotonic() - self._saved_at_s >= self._pause_s:
            await self._save(position)
        elif not self._stopped:
            self.changed()

    async def _write(self) -> TimerPosition | None:
        """Copy what was read into the timer log; returns the moment at which that was all, see ``_position``."""
        batch, size = self._unwritten, self._unwritten_bytes
        self._unwritten, self._unwritten_bytes = [], 0
        position = self._position()
        if batch:
            try:
                await self._in_thread(partial(self.log.append, batch))
            except BaseException:  # whatever it is: no position may say that these are in the timer log
                self._unwritten = batch + self._unwritten
                self._unwritten_bytes += size
                raise
            if self._queue.committed > self._read:  # there was no room for more
                self._schedule()
        return position

    async def _load(self) -> None:
        """Load windows until the next is not near, or memory has enough."""
        if self._read < self._found_until:
            return
        while self._next_ms <= (now := self._clock.now_ms()) + TIMER_AHEAD_MS and not self._stopped:
            room = MAX_TIMER_LOADED - len(self.due)
            if room < MAX_TIMER_LOADED // 2:
                return
            low_ms = self._horizon_ms
            high_ms = max(low_ms, now + TIMER_WINDOW_MS, self._until_ms + 1)
            serial = self._unwritten[0].serial if self._unwritten else self._read
            self._loading = True
            try:
                loaded = await self._in_thread(partial(self.log.load, low_ms, high_ms, serial, room))
            finally:
                self._loading = False
            self._horizon_ms, self._next_ms = loaded.until_ms, loaded.next_ms
            for entry in self._unwritten:  # is not in the timer log yet; it may have come meanwhile
                if low_ms <= entry.due_ms < self._horizon_ms:
                    self._into_memory(entry)
                elif entry.due_ms >= self._horizon_ms:
                    self._next_ms = min(self._next_ms, entry.due_ms)
            self.due.add_window(loaded.units)
            self.on_change()
        self._set_load_alarm()

    def _position(self) -> TimerPosition | None:
        """What may be saved now; ``None`` before everything due until the last delivery is in memory."""
        self._move_horizon()
        if self._horizon_ms <= self._until_ms:
            return None
        log_offset, in_flight = self._in_flight()
        now_ms = max(self._clock.now_ms(), self.due.taken_until_ms)  # the date may have been set back since
        self._until_ms = max(self._until_ms, min(now_ms, self._horizon_ms - 1))
        self._notice_set_back(in_flight)
        return TimerPosition(self._read, log_offset, self._until_ms, self._undelivered(in_flight))

    def _undelivered(self, in_flight: list[Waiting]) -> list[int]:
        return self.due.due_until(self._until_ms) + [waiting.serial for waiting in in_flight]

    def _notice_set_back(self, in_flight: list[Waiting]) -> None:
        """When the date was set back: only what is near by the new date stays in memory, and what comes is loaded.

        Without that all that is due until the old date would be kept there, and in each position that is saved.
        """
        now_ms = self._clock.now_ms()
        horizon_ms = now_ms + TIMER_WINDOW_MS
        if self._until_ms <= horizon_ms or any(waiting.due_ms >= horizon_ms for waiting in in_flight):
            return
        self.log.set_back(SetBack(self._read, self._until_ms, self._undelivered(in_flight)))
        self._until_ms, self._horizon_ms, self._next_ms = now_ms, horizon_ms, horizon_ms
        self.due.forget_from(horizon_ms)
        self.on_change()

    async def _save(self, position: TimerPosition) -> None:
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        if not self.log.exists:
            return
        began_s = self._clock.monotonic()
        await self._flushed(position.log_offset)
        await self._in_thread(partial(self.log.save, position))
        self._saved_at_s = self._clock.monotonic()
        self._pause_s = max(TIMER_SAVE_SECONDS, TIMER_SAVE_SHARE * (self._saved_at_s - began_s))
        self._pin(position.log_offset)
        self._save_at = position.log_offset + TIMER_SAVE_LOG_BYTES
        if not self.unread:
            _, in_flight = self._in_flight()
            self.due.forget_recalls(min([position.until_ms, *(waiting.due_ms for waiting in in_flight)]))

    def _pin(self, log_offset: int) -> None:
        self._pinned = True
        self._store.pin_log("timer", log_offset)

    async def _flushed(self, log_offset: int) -> None:
        told = asyncio.get_running_loop().create_future()

        def tell(error: StoreError | None) -> None:
            if told.done():
                return
            if error is None:
                told.set_result(None)
            else:
                told.set_exception(error)

        self._store.when_flushed(log_offset, tell)
        await told

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def stop(self) -> None:
        """Copy and save what was read; what comes later is read at the next start."""
        self._stopped = True
        for timer in (self._load_alarm, self._save_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            await self._task
        try:
            position = await self._write()
            if position is not None:
                await self._save(position)
        except (OSError, StoreError) as error:
            _log.error("the timer log is not up to date; the next start reads the log again: %s", error)
        self._worker.shutdown()
        self.log.close()
