"""Any delay: messages wait for their due time, to the millisecond, for years (``TimerMessageStore``).

A message whose properties ask for it is parked in ``rmq_sys_wheel_timer`` (:mod:`cometmq.broker.timer_detour`),
kept in the timer log (:mod:`cometmq.store.timer_log`), and stored in its own topic when it is due. The
delivered record names the waiting one in its prepared transaction offset, so that a crash repeats nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from cometmq.broker.delayed_record import NotDeliverableError, delivered
from cometmq.broker.due import IN_LOG, Waiting
from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.send_targets import SendRefusedError
from cometmq.broker.store_turn import Late, StoreTurn, WhenStored
from cometmq.broker.timer_counts import TimerCounts
from cometmq.broker.timer_intake import TimerIntake
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import TIMER_BATCH_BYTES, TIMER_BATCH_MESSAGES, TIMER_RETRY_SECONDS
from cometmq.message.record import RecordError, decode_record
from cometmq.message.sysflag import TRANSACTION_ROLLBACK
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)


class TimerMessageService:
    """Delivers waiting messages when they are due.

    ``end_turn`` belongs to the end of every turn of the loop, after the turn's commit.
    """

    def __init__(
        self,
        store: MessageStore,
        turn: StoreTurn,
        schedule: Callable[[], None],
        counts: TimerCounts,
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._counts = counts
        self._turn = turn
        self._clock = clock
        self._alarm: TimerHandle | None = None
        self._alarm_ms = 0
        self._retry: TimerHandle | None = None
        self._under_way: list[_Batch] = []
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.intake: Final = TimerIntake(store, schedule, self._in_flight, counts, clock=clock)
        self.intake.on_change = self._set_alarm
        self.end_turn: Final = self.intake.end_turn

    def start(self) -> None:
        """Begin, on the running loop."""
        self.intake.start()

    async def stop(self) -> None:
        """Deliver no more, wait until what is under way is stored, save."""
        self._stopped = True
        for timer in (self._alarm, self._retry):
            if timer is not None:
                timer.cancel()
        await self._idle.wait()
        await self.intake.stop()

    def runtime_info(self) -> dict[str, str]:
        """What the runtime information (28) tells of waiting messages, as Apache means it.

        By how many seconds the delivery is behind, how many messages were not looked at yet, how many wait, and
        how many come and are delivered a second.
        """
        now_ms = self._clock.now_ms()
        due_ms = self.intake.due.next_due()
        behind_ms = max(now_ms - due_ms, 0) if due_ms is not None else 0
        return {"timerReadBehind": str(behind_ms // 1000), "timerOffsetBehind": str(self.intake.unread)} | (
            self._counts.runtime_info()
        )

    # --- recalls --------------------------------------------------------------------------------
    def recall(
        self, message: InnerMessage, due_ms: int, key: int, when_stored: WhenStored, late: Late | None = None
    ) -> None:
        """Put a recall; from now on its message is not delivered, unless the recall cannot be stored.

        ``late`` is as for :meth:`StoreTurn.put_inner`.

        :raises SendRefusedError: it cannot be stored now.
        """

        def told(outcome: Stored | SendRefusedError) -> None:
            if isinstance(outcome, SendRefusedError):
                self.intake.undo_recall(due_ms, key)
            when_stored(outcome)

        self._turn.put_inner(message, told, late=late)
        self.intake.recall(due_ms, key)

    # --- delivery -------------------------------------------------------------------------------
    def _set_alarm(self) -> None:
        due_ms = self.intake.due.next_due()
        if due_ms is None or self._stopped or self._retry is not None:
            return
        if self._alarm is not None:
            if self._alarm_ms <= due_ms:
                return
            self._alarm.cancel()
        self._alarm_ms = due_ms
        self._alarm = self._clock.call_at(due_ms, self._deliver)

    def _deliver(self) -> None:
        self._alarm = None
        if self._stopped:
            return
        waiting = self.intake.due.take(self._clock.now_ms(), TIMER_BATCH_MESSAGES)
        if waiting:
            self._counts.taken(len(waiting))
            self._put(waiting)
        self._set_alarm()

    def _put(self, waiting: list[Waiting]) -> None:
        messages: list[InnerMessage] = []
        size_bytes = 0
        for count, one in enumerate(waiting):
            if size_bytes + one.size > TIMER_BATCH_BYTES and count:
                self._put_back(waiting[count:])
                del waiting[count:]
                break
            size_bytes += one.size
            message = self._message(one)
            if message is not None:
                messages.append(message)
        batch = _Batch(self._store.max_physical_offset, waiting)
        self._under_way.append(batch)
        self._idle.clear()
        try:
            put = self._turn.put_all(messages, partial(self._stored, batch))
        except SendRefusedError as refused:
            self._stored(batch, refused)
        else:
            if not put:
                self._stored(batch, None)

    def _message(self, waiting: Waiting) -> InnerMessage | None:
        """The message as it is stored in its topic; ``None`` (and an error in the log) when it cannot be."""
        try:
            message = delivered(decode_record(self._record(waiting), check_crc=False))
        except (RecordError, NotDeliverableError) as error:
            _log.error("waiting message %d cannot be delivered and is lost: %s", waiting.serial, error)
            return None
        if message is None:
            return None
        return msgspec.structs.replace(
            message,
            sys_flag=message.sys_flag & ~TRANSACTION_ROLLBACK,
            prepared_transaction_offset=waiting.serial + 1,
        )

    def _record(self, waiting: Waiting) -> bytes | memoryview:
        record: bytes | memoryview | None
        if waiting.crc == IN_LOG:
            record = self._store.view(waiting.place, waiting.size)
        else:
            record = self.intake.log.record(waiting.due_ms, waiting.place, waiting.size, waiting.crc)
            if record is None:
                _log.error("waiting message %d is damaged in the timer log; looking into the log", waiting.serial)
                record = self.intake.logged(waiting)
        if record is None:
            raise RecordError("its record is damaged or gone, and the log has it no more")
        return record

    def _stored(self, batch: _Batch, result: Stored | SendRefusedError | None) -> None:
        self._under_way.remove(batch)
        if isinstance(result, SendRefusedError):
            self._put_back(batch.waiting)
            if self._retry is None and not self._stopped:
                _log.warning("%d messages that are due wait for the store: %s", len(batch.waiting), result.remark)
                self._retry = self._clock.call_later(TIMER_RETRY_SECONDS, self._try_again)
        else:
            self._counts.delivered(len(batch.waiting))
            self.intake.changed()
            self.intake.look()
        if not self._under_way:
            self._idle.set()

    def _put_back(self, waiting: list[Waiting]) -> None:
        self._counts.taken(-len(waiting))
        self.intake.due.put_back(waiting)

    def _try_again(self) -> None:
        self._retry = None
        self._set_alarm()

    def _in_flight(self) -> tuple[int, list[Waiting]]:
        if not self._under_way:
            return self._store.max_physical_offset, []
        return self._under_way[0].log_offset, [waiting for batch in self._under_way for waiting in batch.waiting]


class _Batch:
    """Messages on their way into their topics."""

    __slots__ = ("log_offset", "waiting")

    def __init__(self, log_offset: int, waiting: list[Waiting]) -> None:
        self.log_offset = log_offset
        self.waiting = waiting
