"""PopReviveService: makes popped messages visible again if they were not acknowledged in time (``PopReviveService``).

A copy with ``reconsumeTimes`` + 1 is stored in the retry topic for the group and topic, or in the dead-letter topic
once the group's ``retryMaxTimes`` is reached. If the topic's queues are levels of priority, the copy is stored in the
same queue of the retry topic, and thus keeps its level. The copy and the entry that ends the original are stored
together. The entry precedes the copy in the log and contains the copy's offset: if a write was torn between the two,
the next start finds the entry without the copy, and makes the message visible again. Thus a crash neither loses nor
duplicates a message.

Messages popped in order are not copied: they are handed out again when their invisible time has ended. The first of
them becomes a dead letter after its last attempt, so that it does not block the queue forever.

A message that only the archive has is loaded first: until then it is postponed by an entry that changes its due time
and keeps its pop time, so that its receipt handle stays valid.

A heap contains the time of the next check of each queue with popped messages, and one alarm is set for the earliest.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NamedTuple

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    POP_RETRY_SECONDS,
    POP_REVIVE_MESSAGES,
    POP_SCAN_MESSAGES_PER_MS,
    POP_SCAN_PAUSE_MS,
    STORED_AGAIN_BYTES,
)
from cometmq.broker.pop.entries import AnyEntry, Changed, Revived
from cometmq.broker.pop.invisible import NEVER
from cometmq.broker.pop.order import NO_FOLLOWER
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.queue_order import Place
from cometmq.broker.pop.reads import NotLoadedError, PopReads
from cometmq.broker.pop.state import NO_OFFSET, PopQueue
from cometmq.broker.tables.topic_attributes import PRIORITY, message_type_of
from cometmq.broker.turn.inner_message import InnerMessage, next_attempt
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
from cometmq.periodic import Alarm
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)


class _Ended(NamedTuple):
    """A message whose invisible time has ended."""

    offset: int
    pop_time: int
    is_dead: bool = False
    """True if it becomes a dead letter in any case."""
    follower: int = NO_FOLLOWER
    """The message behind it in its order."""


class PopReviveService:
    """Checks a queue when some of its messages are due to become visible again.

    :param wake: called with topic and group when an ordered queue is unlocked.
    """

    def __init__(self, broker: BrokerContext, log: PopLog, reads: PopReads, wake: Callable[[str, str], None]) -> None:
        self._live = broker.live
        self._failed = broker.failed
        self._topics = broker.topics
        self._offsets = broker.offsets
        self._store = broker.store
        self._turn = broker.turn
        self._clock = broker.clock
        self._stats = broker.stats
        self._log = log
        self._reads = reads
        self._wake = wake
        self._checks: list[tuple[int, int, PopQueue]] = []
        self._serials = count()
        self._alarm = Alarm(self._check_due, clock=broker.clock)
        self._alarm_ms = NEVER
        self._refused_until = 0
        self._waits_for_store = False
        log.state.on_due.append(self._schedule_check)

    def start(self) -> None:
        """Schedule the first check of each queue."""
        for queue in self._log.state:
            self._schedule_next_check(queue, self._clock.now_ms())

    def stop(self) -> None:
        """Stop checking."""
        self._alarm.close()

    # --- scheduling -------------------------------------------------------------------------------
    def _schedule_check(self, queue: PopQueue, when_ms: int) -> None:
        """Schedule a check of a queue, unless an earlier check is already scheduled."""
        if when_ms >= queue.look_from:
            return
        queue.look_from = when_ms
        heapq.heappush(self._checks, (when_ms, next(self._serials), queue))
        self._set_alarm()

    def _set_alarm(self) -> None:
        when_ms = self._checks[0][0] if self._checks else NEVER
        when_ms = max(when_ms, self._refused_until)
        if when_ms < self._alarm_ms or not self._alarm.is_set:
            self._alarm_ms = when_ms
            if when_ms < NEVER:
                self._alarm.at(when_ms)

    def _schedule_next_check(self, queue: PopQueue, now_ms: int) -> None:
        ordered = queue.ordered
        next_ms = min(queue.invisible.first_due, NEVER if ordered is None else ordered.next_due(now_ms))
        if next_ms > now_ms:
            pause_ms = min(POP_SCAN_PAUSE_MS, queue.invisible.count // POP_SCAN_MESSAGES_PER_MS)
            next_ms = max(next_ms, now_ms + pause_ms)
        if next_ms < NEVER:
            self._schedule_check(queue, next_ms)

    def _check_due(self) -> None:
        self._alarm_ms = NEVER
        began = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        room, room_bytes = POP_REVIVE_MESSAGES, STORED_AGAIN_BYTES
        while self._checks and self._checks[0][0] <= now_ms and room > 0 and room_bytes > 0:
            when_ms, _, queue = heapq.heappop(self._checks)
            if when_ms != queue.look_from or not self._log.state.has(queue):
                continue
            queue.look_from = NEVER
            ended = [_Ended(*message[:2]) for message in queue.invisible.due_messages(now_ms, room)]
            ended += self._find_dead_in_order(queue, now_ms)
            count = size = 0
            if ended:
                try:
                    count, size = self._revive(queue, ended[:room], room_bytes)
                except RefusedError as refused:
                    self._retry_later(refused)
                    self._schedule_check(queue, now_ms)
                    break
            room, room_bytes = room - max(count, 1), room_bytes - size
            ordered = queue.ordered
            if count < len(ended):
                self._schedule_check(queue, now_ms)
            elif ordered is not None and (ordered.messages or ended) and ordered.may_pop_more(now_ms):
                self._wake(queue.topic, queue.group)
            self._schedule_next_check(queue, now_ms)
        self._set_alarm()
        if self._stats.traffic is not None:
            self._stats.traffic.pops.scans.observe(round((self._clock.monotonic() - began) * 1000))

    def _retry_later(self, refused: RefusedError) -> None:
        """Schedule another check after a pause, because the store refused messages."""
        self._refused_until = self._clock.now_ms() + int(POP_RETRY_SECONDS * 1000)
        if not self._waits_for_store:
            self._waits_for_store = True
            _log.warning("cannot make popped messages visible again; will retry: %s", refused)

    # --- copies -----------------------------------------------------------------------------------
    def _find_dead_in_order(self, queue: PopQueue, now_ms: int) -> list[_Ended]:
        """Return the due messages of an ordered queue that have reached their maximum number of deliveries."""
        ordered = queue.ordered
        if ordered is None:
            return []
        stored = self._store.queue(queue.topic, queue.queue_id)
        group_of = partial(self._reads.message_group, stored, ordered.groups)
        try:
            dead = ordered.dead(now_ms, self._failed.max_retries(queue.group), group_of)
            followers = ordered.find_followers([offset for offset, _ in dead], group_of)
        except NotLoadedError as missing:
            self._reads.load(missing.place, queue.key, partial(self._schedule_check, queue, now_ms))
            return []
        return [_Ended(offset, handed.pop_time, True, followers[offset]) for offset, handed in dead]

    def _revive(self, queue: PopQueue, ended: list[_Ended], most_bytes: int) -> tuple[int, int]:
        """Store copies of messages, and mark the originals as ended; return the number of messages and the size of the
        copies.

        :param most_bytes: maximum size of the copies; the last one may be larger.
        :raises RefusedError: nothing can be stored now.
        """
        self._turn.take_back()
        self._log.check()
        entries: list[AnyEntry] = []
        copies: list[InnerMessage] = []
        ends: dict[Place, int] = {}
        died = size = 0
        before = None if queue.ordered is None else queue.ordered.committed
        for offset, pop_time, is_dead, follower in ended:
            if size >= most_bytes:
                break
            try:
                record = self._reads.record_at(queue.topic, queue.queue_id, offset)
            except NotLoadedError as missing:
                entries.append(self._postponed(queue, missing, offset, pop_time))
                continue
            if record is None:
                _log.error(
                    "popped message %d from %s queue %d is no longer in the log", offset, queue.topic, queue.queue_id
                )
                entries.append(Revived(*queue.key, pop_time, offset, "", 0, follower=follower))
                continue
            is_dead = is_dead or self._failed.is_dead(record.reconsume_times, queue.group)
            copy = self._dead_letter(queue, record) if is_dead else self._copy(queue, record, pop_time)
            place = copy.topic, copy.queue_id
            if place not in ends:
                ends[place] = self._store.queue(*place).next_offset
            entries.append(Revived(*queue.key, pop_time, offset, copy.topic, ends[place], copy.queue_id, follower))
            ends[place] += 1
            copies.append(copy)
            died += is_dead
            size += len(copy.body)
        self._log.put_with(entries, copies, partial(self._revived, queue, died))
        ordered = queue.ordered
        if (
            ordered is not None
            and ordered.committed != before
            and self._offsets.query(queue.group, queue.topic, queue.queue_id) == before
        ):
            self._offsets.set_offset(queue.group, queue.topic, queue.queue_id, ordered.committed)
        return len(entries), size

    def _postponed(self, queue: PopQueue, missing: NotLoadedError, offset: int, pop_time: int) -> Changed:
        """Let an archived message load, and return the entry with which it becomes due again when it is loaded."""
        self._reads.load(missing.place, queue.key, _do_nothing)
        due = self._clock.now_ms() + int(self._reads.pause_seconds * 1000)
        return Changed(*queue.key, pop_time, offset, pop_time, due - pop_time)

    def _revived(self, queue: PopQueue, died: int, refusal: RefusedError | None) -> None:
        if refusal is not None:
            if queue.ordered is not None:
                self._offsets.set_offset(queue.group, queue.topic, queue.queue_id, queue.ordered.committed)
            self._retry_later(refusal)
            return
        self._waits_for_store = False
        if self._stats.traffic is not None:
            for _ in range(died):
                self._stats.traffic.died(queue.topic, queue.group)

    def _copy(self, queue: PopQueue, record: StoredRecord, pop_time: int) -> InnerMessage:
        topic, queue_id, queues = queue.topic, queue.queue_id, queue.queue_id + 1
        if not topic.startswith(RETRY_PREFIX):
            levels = self._levels(queue)
            topic, queue_id, queues = pop_retry_topic(topic, queue.group), queue_id if levels else 0, levels or 1
        self._failed.pop_retry_topic(topic, queues)
        if self._offsets.query(queue.group, topic, queue_id) == NO_OFFSET:
            self._offsets.set_offset(queue.group, topic, queue_id, 0)
        return retry_copy(record, topic, queue.group, pop_time, queue_id=queue_id)

    def _levels(self, queue: PopQueue) -> int:
        """Return the number of levels of priority in a queue's topic; 0 if its queues are not levels."""
        topic = self._topics.get(queue.topic)
        if topic is None or topic.attributes is None or message_type_of(topic.attributes) != PRIORITY:
            return 0
        return max(topic.read_queue_nums, queue.queue_id + 1)

    def _dead_letter(self, queue: PopQueue, record: StoredRecord) -> InnerMessage:
        topic = self._failed.dead_letter_topic(queue.group).topic_name
        return dead_letter(record, topic, original_topic(record.topic, queue.group))


def _do_nothing() -> None:
    pass


def record_at(store: MessageStore, topic: str, queue_id: int, offset: int) -> StoredRecord | None:
    """Return the message at an offset in a queue, or ``None`` if it no longer exists."""
    unit = store.queue(topic, queue_id).unit(offset)
    data = None if unit is None else store.record_at(unit[0], unit[1])
    try:
        return None if data is None else decode_record(data)
    except RecordError:
        return None


def retry_copy(record: StoredRecord, topic: str, group: str, pop_time: int, *, queue_id: int) -> InnerMessage:
    """Return the retry copy of a message, including its group and the time of its first pop."""
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
    return next_attempt(record, topic, queue_id=queue_id, properties=text)


def dead_letter(record: StoredRecord, topic: str, original: str) -> InnerMessage:
    """Return the dead letter for a message, including its original topic and ID."""
    properties = dict(record.properties)
    properties.setdefault(RETRY_TOPIC, original)
    properties.setdefault(ORIGIN_MESSAGE_ID, record.msg_id)
    text = join_properties(properties)
    if len(text.encode()) > MAX_PROPERTIES_BYTES:
        text = record.properties_text
    return next_attempt(record, topic, queue_id=0, properties=text)
