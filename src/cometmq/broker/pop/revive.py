"""PopReviveService: messages that were not acknowledged in their time become visible again (``PopReviveService``).

A copy with ``reconsumeTimes`` + 1 is stored in the retry topic of the group and the topic, or with the dead letters
once the group's ``retryMaxTimes`` is reached. The entry that ends the original and the copy are put together. The entry
stands before the copy in the log and says where the copy will be: a start that finds the entry without the copy, after
a torn write, lets the message become visible again. So a crash neither loses a message nor doubles it.

Messages popped in order are not copied: they are handed out again when their time is over. Those that were handed out
for the last time become dead letters then, so that they do not hold up others for ever.

Each queue with popped messages has a next look in a heap, and one alarm rings for the first of them. A look goes
through the due times of the queue's messages as an array.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import POP_RETRY_SECONDS, POP_REVIVE_MESSAGES, POP_SCAN_MESSAGES_PER_MS, POP_SCAN_PAUSE_MS
from cometmq.broker.periodic import Alarm
from cometmq.broker.pop.entries import AnyEntry, Revived
from cometmq.broker.pop.invisible import NEVER
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.state import NO_OFFSET, PopQueue
from cometmq.broker.turn.inner_message import InnerMessage, inner_message
from cometmq.broker.turn.targets import RefusedError
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.names import RETRY_PREFIX
from cometmq.message.pop_info import original_topic, pop_retry_topic
from cometmq.message.properties import (
    FIRST_POP_TIME,
    ORIGIN_GROUP,
    ORIGIN_MESSAGE_ID,
    PROPERTY_SEPARATOR,
    RETRY_TOPIC,
    PropertiesText,
    join_properties,
)
from cometmq.message.record import RecordError, StoredRecord, decode_record
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

Due = list[tuple[int, int, int]]
"""Offset, pop time and due time of messages."""


class PopReviveService:
    """Looks at queues when messages of them become visible again.

    :param wake: called with topic and group when a queue is open again that is consumed in order.
    """

    def __init__(self, broker: BrokerContext, log: PopLog, wake: Callable[[str, str], None]) -> None:
        self._live = broker.live
        self._failed = broker.failed
        self._offsets = broker.offsets
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._stats = broker.stats
        self._log = log
        self._wake = wake
        self._looks: list[tuple[int, int, PopQueue]] = []
        self._serials = count()
        self._alarm = Alarm(self._ring, clock=broker.clock)
        self._alarm_ms = NEVER
        self._refused_until = 0
        self._waits_for_store = False
        log.state.on_due.append(self._look_at)

    def start(self) -> None:
        """Begin to look."""
        for queue in self._log.state:
            self._look_again(queue, self._clock.now_ms())

    def stop(self) -> None:
        """Look no more."""
        self._alarm.close()

    # --- when -----------------------------------------------------------------------------------
    def _look_at(self, queue: PopQueue, when_ms: int) -> None:
        """Look at a queue at a time, unless it is looked at before."""
        if when_ms >= queue.look_from:
            return
        queue.look_from = when_ms
        heapq.heappush(self._looks, (when_ms, next(self._serials), queue))
        self._set_alarm()

    def _set_alarm(self) -> None:
        when_ms = self._looks[0][0] if self._looks else NEVER
        when_ms = max(when_ms, self._refused_until)
        if when_ms < self._alarm_ms or not self._alarm.is_set:
            self._alarm_ms = when_ms
            if when_ms < NEVER:
                self._alarm.at(when_ms)

    def _look_again(self, queue: PopQueue, now_ms: int) -> None:
        ordered = queue.ordered
        next_ms = min(queue.invisible.first_due, NEVER if ordered is None else ordered.next_due(now_ms))
        if next_ms > now_ms:
            pause_ms = min(POP_SCAN_PAUSE_MS, queue.invisible.count // POP_SCAN_MESSAGES_PER_MS)
            next_ms = max(next_ms, now_ms + pause_ms)
        if next_ms < NEVER:
            self._look_at(queue, next_ms)

    def _ring(self) -> None:
        self._alarm_ms = NEVER
        began = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        room = POP_REVIVE_MESSAGES
        while self._looks and self._looks[0][0] <= now_ms and room > 0:
            when_ms, _, queue = heapq.heappop(self._looks)
            if when_ms != queue.look_from or not self._log.state.has(queue):
                continue
            queue.look_from = NEVER
            due = queue.invisible.due(now_ms, room)
            dead = self._dead_in_order(queue, now_ms)
            room -= max(len(due) + len(dead), 1)
            if due or dead:
                try:
                    self._revive(queue, due, dead)
                except RefusedError as refused:
                    self._refused(refused)
                    self._look_at(queue, now_ms)
                    break
            ordered = queue.ordered
            if ordered is not None and (ordered.messages or dead) and ordered.may_give(now_ms):
                self._wake(queue.topic, queue.group)
            self._look_again(queue, now_ms)
        self._set_alarm()
        if self._stats.traffic is not None:
            self._stats.traffic.pops.scans.observe(round((self._clock.monotonic() - began) * 1000))

    def _refused(self, refused: RefusedError) -> None:
        """Go on after a pause."""
        self._refused_until = self._clock.now_ms() + int(POP_RETRY_SECONDS * 1000)
        if not self._waits_for_store:
            self._waits_for_store = True
            _log.warning("popped messages cannot be made visible again now; this is tried on: %s", refused)

    # --- what -----------------------------------------------------------------------------------
    def _dead_in_order(self, queue: PopQueue, now_ms: int) -> list[tuple[int, int, int]]:
        """The messages that were handed out in order for the last time, and whose time is over."""
        if queue.ordered is None:
            return []
        dead = queue.ordered.dead(now_ms, self._failed.max_retries(queue.group))
        return [(offset, handed.pop_time, handed.due) for offset, handed in dead]

    def _revive(self, queue: PopQueue, due: Due, dead: Due) -> None:
        """Store the copies of messages whose time is over, and end the originals.

        :param dead: those that are dead letters, however often they were stored.
        :raises RefusedError: nothing can be stored now.
        """
        self._turn.take_back()
        self._log.check()
        entries: list[AnyEntry] = []
        copies: list[InnerMessage] = []
        ends: dict[str, int] = {}
        died = 0
        before = None if queue.ordered is None else queue.ordered.committed
        for at, (offset, pop_time, _) in enumerate((*due, *dead)):
            record = record_at(self._store, queue.topic, queue.queue_id, offset)
            if record is None:
                _log.error("popped message %d of %s queue %d is gone from the log", offset, queue.topic, queue.queue_id)
                entries.append(Revived(*queue.key, pop_time, offset, "", 0))
                continue
            is_dead = at >= len(due) or record.reconsume_times >= self._failed.max_retries(queue.group)
            topic, copy = self._dead(queue, record) if is_dead else self._copy(queue, record, pop_time)
            if topic not in ends:
                ends[topic] = self._store.queue(topic, 0).next_offset
            entries.append(Revived(*queue.key, pop_time, offset, topic, ends[topic]))
            ends[topic] += 1
            copies.append(copy)
            died += is_dead
        self._log.put_with(entries, copies, partial(self._revived, queue, died))
        ordered = queue.ordered
        if dead and ordered is not None and self._offsets.query(queue.group, queue.topic, queue.queue_id) == before:
            self._offsets.note(queue.group, queue.topic, queue.queue_id, ordered.committed)

    def _revived(self, queue: PopQueue, died: int, refusal: RefusedError | None) -> None:
        if refusal is not None:
            if queue.ordered is not None:
                self._offsets.note(queue.group, queue.topic, queue.queue_id, queue.ordered.committed)
            self._refused(refusal)
            return
        self._waits_for_store = False
        if self._stats.traffic is not None:
            for _ in range(died):
                self._stats.traffic.died(queue.topic, queue.group)

    def _copy(self, queue: PopQueue, record: StoredRecord, pop_time: int) -> tuple[str, InnerMessage]:
        topic = queue.topic
        if not topic.startswith(RETRY_PREFIX):
            topic = pop_retry_topic(topic, queue.group)
        self._failed.topic(topic, 1)
        if self._offsets.query(queue.group, topic, 0) == NO_OFFSET:
            self._offsets.note(queue.group, topic, 0, 0)
        return topic, retry_copy(record, topic, queue.group, pop_time)

    def _dead(self, queue: PopQueue, record: StoredRecord) -> tuple[str, InnerMessage]:
        topic = self._failed.dead_letter_topic(queue.group).topic_name
        return topic, dead_letter(record, topic, original_topic(record.topic, queue.group))


def record_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> StoredRecord | None:
    """The message at an offset of a queue; ``None`` when it is gone."""
    unit = store.queue(topic, queue_id).unit(offset)
    data = None if unit is None else store.record_at(unit[0], unit[1])
    try:
        return None if data is None else decode_record(data)
    except RecordError:
        return None


def retry_copy(record: StoredRecord, topic: str, group: str, pop_time: int) -> InnerMessage:
    """A message as it is handed out again: once more reconsumed, with its group and the time of its first pop."""
    properties, text = record.properties, record.properties_text
    if properties.get(ORIGIN_GROUP, group) != group:
        properties = {name: value for name, value in properties.items() if name != ORIGIN_GROUP}
        text = join_properties(properties)
    for name, value in ((ORIGIN_GROUP, group), (FIRST_POP_TIME, str(pop_time))):
        if name in properties:
            continue
        longer = PropertiesText(text).plus({name: value}).text + PROPERTY_SEPARATOR
        if len(longer.encode()) <= MAX_PROPERTIES_BYTES:
            text = longer
    return msgspec.structs.replace(
        inner_message(record),
        topic=topic,
        queue_id=0,
        properties=text,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )


def dead_letter(record: StoredRecord, topic: str, original: str) -> InnerMessage:
    """A message among the dead letters, with the topic that it was sent to and its id."""
    properties = dict(record.properties)
    properties.setdefault(RETRY_TOPIC, original)
    properties.setdefault(ORIGIN_MESSAGE_ID, record.msg_id)
    text = join_properties(properties)
    if len(text.encode()) > MAX_PROPERTIES_BYTES:
        text = record.properties_text
    return msgspec.structs.replace(
        inner_message(record),
        topic=topic,
        queue_id=0,
        properties=text,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )
