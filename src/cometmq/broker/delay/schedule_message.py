"""Delay levels: messages are parked in SCHEDULE_TOPIC_XXXX, which has one queue per level (``ScheduleMessageService``).

A parked message has its own topic and queue in REAL_TOPIC and REAL_QID, and is stored there when it is due. All
messages of a level have the same delay, so they become due in the order of their queue. Each level sets an alarm for
its first message. Due messages are delivered in batches, one per round of the loop, so that other requests are answered
in between.

Messages with a delay level are stored only in the commit log. Apache's broker deletes a log file when it has expired or
when the disk is full, and the messages that wait in it are lost. CometMQ's retention first asks whether messages still
wait in the file (``DelayHold``). A master then moves the waiting messages in the file into the timer, with the same due
time (:mod:`cometmq.broker.delay.timer_message`). The level continues after these messages, and the next run of
retention may delete the file. A slave cannot store anything, so it keeps the file until its master has delivered or
moved the messages. Only durable progress counts, since a power cut could undo the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from cometmq import fastjson
from cometmq.broker.config import BrokerConfig
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.delay_offsets import DelayOffsets, DelayProgress, delivered_since, not_due
from cometmq.broker.delay.parked_message import NotDeliverableError, delay_level, delivered, to_timer_message
from cometmq.broker.limits import DELAY_BATCH_MESSAGES, DELAY_RECHECK_SECONDS, DELAY_RETRY_SECONDS, STORED_AGAIN_BYTES
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.store_turn import StoreTurn
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.layout import RECORD
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.properties import DELAY, REAL_QID, REAL_TOPIC, WAIT, decode_properties, join_properties
from cometmq.message.record import RecordError, decode_record
from cometmq.periodic import Alarm
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.message_store import ConsumeQueue, MessageStore
from cometmq.store.queue.consume_queue import UNIT
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_SIZE: Final = RECORD.struct("size")
_NOTHING: Final[Mapping[int, int]] = {}
_HOUR_MS: Final = 3_600_000


class DelayLevel:
    """The queue of a delay level, and the progress of its delivery (``DeliverDelayedMessageTimerTask``).

    :param level: the level's number, starting at 1.
    :param delay_ms: the delay of its messages; ``None`` for a level that was removed from ``messageDelayLevel``, whose
    messages keep the due time from their arrival.
    :param offset: the queue offset of the first undelivered message.
    """

    def __init__(self, level: int, delay_ms: int | None, offset: int, store: MessageStore, turn: StoreTurn) -> None:
        self.level = level
        self.offset = offset
        self.queue: Final = store.queue(SCHEDULE_TOPIC, level - 1)
        self._delay_ms = delay_ms
        self._store = store
        self._turn = turn
        self._clock = store.clock
        self._alarm = Alarm(self.deliver_or_wait, clock=store.clock)
        self._recheck = Alarm(self.deliver_or_wait, clock=store.clock)
        """Timer for retrying a refused batch, and for checking the clock, which may move backwards."""
        self._expected_ms: int | None = None
        """Due time of a parked message that may not be in the queue yet, because its turn has not ended."""
        self._under_way = False
        """True while a batch is being stored or is about to be stored."""
        self._put: tuple[int, int] | None = None
        """The log offset before the batch, and the queue offset after it."""
        self._waits_for_store = False
        """True if the last batch was refused. The refusal is logged only once."""
        self._move_below = 0
        """Messages below this log offset are moved into the timer, before retention deletes their log file."""
        self._stopped = False
        self._idle: asyncio.Future[None] | None = None

    def set_alarm(self) -> None:
        """Set the alarm, because a message is about to be stored in the queue."""
        expected_ms = self._expected_ms = self._clock.now_ms() + (self._delay_ms or 0)
        if not self._recheck.is_set and not self._under_way:
            self._wait_until(expected_ms)

    def deliver_or_wait(self) -> None:
        """Deliver the due messages, or set the alarm for the first message."""
        self._alarm.cancel()
        self._recheck.cancel()
        self._under_way = False
        expected_ms, self._expected_ms = self._expected_ms, None
        if self._stopped:
            self._stop_if_idle()
            return
        due, first_ms = self._count_due()
        if due:
            self._deliver(due)
        elif first_ms is not None:
            held = self._find_to_move()
            if held:
                self._deliver(len(held), held)
            else:
                self._wait_until(first_ms)
        elif expected_ms is not None:
            self._wait_until(expected_ms)

    def readable(self) -> None:
        """Continue, since a failover set has confirmed parked messages; they may be due already."""
        if not self._recheck.is_set and not self._under_way:
            self.deliver_or_wait()

    def move_below(self, end: int) -> None:
        """Move the messages below a log offset into the timer, except messages that become due first."""
        self._move_below = max(self._move_below, end)
        if not self._under_way and not self._stopped:
            self.deliver_or_wait()

    def halt(self) -> None:
        """Stop delivering."""
        self._stopped = True
        self._alarm.close()
        self._recheck.close()

    @property
    def delivered_offset(self) -> int:
        """Return the next offset according to the log, including a batch that is not durable or replicated yet."""
        if self._put is not None and self._store.max_physical_offset > self._put[0]:
            return self._put[1]
        return self.offset

    async def stop(self) -> None:
        """Stop delivering, and wait until the current batch is stored."""
        self.halt()
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _stop_if_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _wait_until(self, when_ms: int) -> None:
        self._alarm.at(when_ms)
        self._recheck.after(DELAY_RECHECK_SECONDS)

    # --- due ----------------------------------------------------------------------------------
    def _count_due(self) -> tuple[int, int | None]:
        """Return the number of due messages, up to one batch, or the due time of the first message."""
        queue = self.queue
        self.offset = min(max(self.offset, queue.min_offset()), queue.committed)
        raw = queue.units(self.offset, DELAY_BATCH_MESSAGES)
        if not raw:
            return (DELAY_BATCH_MESSAGES, None) if self.offset < queue.max_offset() else (0, None)
        now = self._clock.now_ms()
        latest = now + self._delay_ms if self._delay_ms is not None else 1 << 63
        count = 0
        for _, _, due in UNIT.iter_unpack(raw):
            # This message is due later than any new one: the clock moved backwards, or the delay was longer; deliver
            # it.
            if now < due <= latest:
                return count, due
            count += 1
        return count, None

    def _find_to_move(self) -> dict[int, int]:
        """Return the due times of the first messages to move, by log offset, up to one batch."""
        held: dict[int, int] = {}
        raw = self.queue.units(self.offset, DELAY_BATCH_MESSAGES) if self._move_below else b""
        for place, _, due in UNIT.iter_unpack(raw):
            if place >= self._move_below:
                break
            held[place] = due
        return held

    # --- delivery -----------------------------------------------------------------------------
    def _deliver(self, count: int, move: Mapping[int, int] = _NOTHING) -> None:
        """Store the next messages in their topics, or in the timer if they are in ``move``."""
        found = self._store.get_message(self.queue, self.offset, count, max_bytes=STORED_AGAIN_BYTES)
        messages: list[InnerMessage] = []
        for chunk in found.chunks:
            self._read(memoryview(chunk), messages, move)
        self._under_way = True
        self._put = self._store.max_physical_offset, found.next_begin_offset
        try:
            put = self._turn.put_due(messages, partial(self._stored, found.next_begin_offset))
        except RefusedError as refused:
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
                    messages.append(message if due is None else to_timer_message(message, due))
            at += _SIZE.unpack_from(chunk, at)[0]

    def _stored(self, next_offset: int, result: Stored | RefusedError) -> None:
        if isinstance(result, RefusedError):
            self._refused(result)
        else:
            self._delivered(next_offset)

    def _delivered(self, next_offset: int) -> None:
        self.offset = next_offset
        self._put = None
        self._waits_for_store = False
        asyncio.get_running_loop().call_soon(self.deliver_or_wait)

    def _refused(self, refused: RefusedError) -> None:
        self._under_way = False
        self._put = None
        if self._stopped:
            self._stop_if_idle()
        else:
            if not self._waits_for_store:
                self._waits_for_store = True
                _log.warning("cannot store delayed messages of level %d yet: %s", self.level, refused.remark)
            self._recheck.after(DELAY_RETRY_SECONDS)


class DelayHold:
    """Prevents retention from deleting waiting messages (:class:`cometmq.store.retention.LogHolder`).

    :param move: starts moving the waiting messages below a log offset.
    """

    name = "messages of delay levels"

    def __init__(self, store: MessageStore, files: DelayOffsets, move: Callable[[int], None]) -> None:
        self._store = store
        self._files = files
        self.let_go = move

    def needed_from(self) -> int:
        """Return the log offset of the first message whose delivery is not durable, or the end of the log."""
        progress, _ = self._files.load()
        needed = self._store.max_physical_offset
        for queue_id, queue in self._store.queues().get(SCHEDULE_TOPIC, {}).items():
            unit = queue.unit(max(progress.offsets.get(queue_id + 1, 0), queue.min_offset()))
            if unit is not None:
                needed = min(needed, unit[0])
        return needed


class ScheduleMessageService:
    """Parks messages that have a delay level, and delivers them when they are due.

    ``delays_ms`` are the delays of ``messageDelayLevel``; level 1 comes first.
    """

    def __init__(self, broker: BrokerContext) -> None:
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._files = DelayOffsets(broker.store.config.root)
        self._running: dict[int, DelayLevel] = {}
        self.delays_ms: Final = broker.store.config.delays_ms
        broker.store.hold_log(DelayHold(broker.store, self._files, self._move_below))
        self._kept_hours = broker.config.file_reserved_time
        broker.live.on_change.append(self._config_changed)

    # --- parking ------------------------------------------------------------------------------
    def detour(self, message: InnerMessage, wanted: Mapping[str, str]) -> InnerMessage | None:
        """Park a message that has a delay level; see :data:`~cometmq.broker.turn.inner_message.Detour`."""
        text = wanted.get(DELAY)
        level = 0 if text is None else delay_level(text)
        return self.park(message, level, wait=wanted.get(WAIT)) if level > 0 else None

    def park(self, message: InnerMessage, level: int, *, wait: str | None = None) -> InnerMessage:
        """Return a copy of the message for the schedule topic's queue of ``level``.

        A level above the highest one is treated as the highest.

        :param wait: the producer's WAIT property, which is kept only while a message is parked.
        """
        level = min(level, len(self.delays_ms))
        properties = decode_properties(message.properties)
        if wait is not None:
            properties[WAIT] = wait
        properties[DELAY] = str(level)
        properties[REAL_TOPIC] = message.topic
        properties[REAL_QID] = str(message.queue_id)
        running = self._running.get(level)
        if running is not None:
            running.set_alarm()
        return msgspec.structs.replace(
            message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=join_properties(properties)
        )

    # --- delivery -----------------------------------------------------------------------------
    def start(self) -> None:
        """Read the progress of delivery, and continue from there.

        Messages of a level that was removed from ``messageDelayLevel`` are also delivered when they are due.
        """
        progress, findings = self._files.load()
        for finding in findings:
            _log.warning("%s", finding)
        offsets = delivered_since(progress, self._store)
        delays = self.delays_ms
        numbers = {*range(1, len(delays) + 1), *(number + 1 for number in self._store.queues().get(SCHEDULE_TOPIC, {}))}
        for number in sorted(numbers):
            delay_ms = delays[number - 1] if number <= len(delays) else None
            offset = offsets.get(number, 0)
            level = self._running[number] = DelayLevel(number, delay_ms, offset, self._store, self._turn)
            level.deliver_or_wait()
        progress = self._progress()
        if self._store.readable_end >= progress.position:
            self._files.save(progress)
        if self._store.batch.readable is not None:
            self._store.batch.on_arrival.append(self._confirmed)
        self._warn_of_long_levels()

    def _confirmed(self, queues: Iterable[ConsumeQueue]) -> None:
        """Continue with the levels whose messages a failover set has confirmed."""
        for queue in queues:
            level = self._running.get(queue.queue_id + 1) if queue.topic == SCHEDULE_TOPIC else None
            if level is not None:
                level.readable()

    def _warn_of_long_levels(self) -> None:
        """Warn about levels whose delay is longer than the retention time of log files."""
        kept_ms = self._kept_hours * _HOUR_MS
        numbers = [number for number, delay_ms in enumerate(self.delays_ms, 1) if delay_ms > kept_ms]
        if numbers:
            _log.warning(
                "delay levels %s of messageDelayLevel exceed the retention time of log files (fileReservedTime=%d "
                "hours): their messages are copied to the timer before their log file is deleted",
                ", ".join(map(str, numbers)),
                self._kept_hours,
            )

    def _config_changed(self, config: BrokerConfig) -> None:
        """Warn again if the retention time of log files has changed."""
        if config.file_reserved_time != self._kept_hours:
            self._kept_hours = config.file_reserved_time
            if self._running:
                self._warn_of_long_levels()

    def _move_below(self, end: int) -> None:
        """Move waiting messages below a log offset into the timer; a slave does nothing."""
        for level in self._running.values():
            level.move_below(end)

    def halt(self) -> None:
        """Stop delivering."""
        for level in self._running.values():
            level.halt()

    async def stop(self) -> None:
        """Stop delivering, and wait until all batches are stored and the files are written."""
        if self._running:
            await asyncio.gather(*(level.stop() for level in self._running.values()))
            await self.save()

    async def save(self) -> None:
        """Write the progress of delivery once all deliveries are durable."""
        progress = self._progress()
        with contextlib.suppress(StoreError):
            await self._store.wait_kept(progress.position)
            await in_thread(self._files.save, progress)

    def _progress(self) -> DelayProgress:
        offsets = {number: level.delivered_offset for number, level in self._running.items() if level.delivered_offset}
        now_ms = self._clock.now_ms()
        moved = {
            number: offset for number, offset in offsets.items() if not_due(self._running[number].queue, offset, now_ms)
        }
        return DelayProgress(offsets, self._store.max_physical_offset, moved)

    # --- queries ------------------------------------------------------------------------------
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """Return the next offset and the end of the queue for each level that has ever been used."""
        return {
            number: (level.offset, level.queue.max_offset())
            for number, level in self._running.items()
            if level.queue.max_offset()
        }

    @answers(RequestCode.GET_ALL_DELAY_OFFSET, permission=needs_cluster(Action.GET))
    def all_offsets(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """Return the offset up to which each delay level has been delivered."""
        return Response(body=fastjson.dumps({"offsetTable": self._progress().offsets}))
