"""ApachePops: makes messages visible again that were popped from Apache's RocketMQ 5 broker before CometMQ opened the
store.

Theory of operation. Apache's broker stores each pop as a record with the tag ``ck``, and each acknowledgement as one
with the tag ``ack`` or ``bAck``, as delayed messages of the topic ``rmq_sys_REVIVE_LOG_CLUSTER``: they wait in
``rmq_sys_wheel_timer``, and are delivered to that topic when the invisible time of the pop has ended
(``PopReviveService``). CometMQ's timer delivers them like all other messages. So each delivered ``ck`` is a pop whose
time has ended; its acknowledgements are delivered a second later. The pop's messages are added to the POP log as popped
for a few more seconds. The acknowledgements remove the acknowledged messages, and the remaining ones are handed out
again like any other popped message.

Apache's broker saves its read position late. A message whose retry copy is already stored is not handed out twice: the
copy is among the last messages in the retry topic.

The read position in the topic is stored in the POP log as well, in the same record as the entries that come from it. So
a crash neither loses nor repeats anything. The position is also committed as the offset of Apache's own group, for a
store that returns to Apache.

Fault model: a damaged or invalid record is skipped. Offsets that the group has not reached yet are ignored: it receives
these messages anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import POP_RETRY_SECONDS, POP_REVIVE_MESSAGES
from cometmq.broker.pop.entries import Acked, AnyEntry, OffsetSet, popped
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.revive import record_at
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX
from cometmq.message.pop_info import is_retry_of, pop_retry_topic
from cometmq.message.properties import TAGS, UNIQ_KEY
from cometmq.message.record import StoredRecord
from cometmq.periodic import Alarm
from cometmq.store.message_store import ConsumeQueue

_log = logging.getLogger(__name__)

GRACE_MS: Final = 5_000
"""Extra wait in milliseconds for acknowledgements, which may be delivered up to two seconds after their pop."""
COPIES: Final = 1_000
"""Number of the last messages in a retry topic among which an existing retry copy is searched for."""
MAX_POPPED: Final = 32
"""Maximum number of messages in one pop by Apache's broker, which records acknowledgements as the bits of a number."""

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""An offset, or a time in milliseconds since 1970."""


class CheckPoint(msgspec.Struct, frozen=True):
    """A pop by Apache's broker (``PopCheckPoint``)."""

    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    queue_id: Number = msgspec.field(name="q")
    start: Number = msgspec.field(name="so")
    pop_time: Number = msgspec.field(name="pt")
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_POPPED)] = msgspec.field(name="n", default=0)
    acked_bits: int = msgspec.field(name="bm", default=0)
    distances: list[int] | None = msgspec.field(name="d", default=None)
    """Distance of each message's offset from the first offset; empty if the offsets are consecutive."""

    def offsets(self) -> list[int]:
        """Return the offsets that had not been acknowledged when the record was written, ascending."""
        distances = range(self.count) if self.distances is None else self.distances
        return sorted(self.start + far for at, far in enumerate(distances) if not self.acked_bits >> at & 1)


class Ack(msgspec.Struct, frozen=True):
    """One acknowledgement (``AckMsg``), or several for one pop (``BatchAckMsg``)."""

    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="c")
    queue_id: Number = msgspec.field(name="q")
    pop_time: Number = msgspec.field(name="pt")
    offset: Number | None = msgspec.field(name="ao", default=None)
    offsets: list[Number] = msgspec.field(name="aos", default_factory=list)


_CHECK_POINT: Final = msgspec.json.Decoder(CheckPoint)
_ACK: Final = msgspec.json.Decoder(Ack)


class ApachePops:
    """Adds pops by Apache's broker to the POP log."""

    def __init__(self, broker: BrokerContext, log: PopLog) -> None:
        self._topic = REVIVE_TOPIC_PREFIX + broker.config.broker_cluster_name
        self._topics = broker.topics
        self._offsets = broker.offsets
        self._store = broker.store
        self._clock = broker.clock
        self._log = log
        self._alarm = Alarm(self._read, clock=broker.clock)
        self._written_there: dict[int, int] = {}
        """The end offset of each queue when this broker started. Apache's broker may already have handled earlier
        records.
        """
        self._copies: dict[str, set[_Mark]] = {}
        """The last messages in each retry topic when the broker started."""

    def start(self) -> None:
        """Start reading the available records."""
        config = self._topics.get(self._topic)
        if config is not None:
            queues = range(config.read_queue_nums)
            self._written_there = {number: self._store.stored_end(self._topic, number) for number in queues}
            self._alarm.after(0)

    def stop(self) -> None:
        """Stop reading records."""
        self._alarm.close()

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Read the records that became visible in these queues."""
        if not self._alarm.is_set and any(queue.topic == self._topic for queue in queues):
            self._alarm.after(0)

    def _read(self) -> None:
        config = self._topics.get(self._topic)
        if config is None:
            return
        try:
            for queue_id in range(config.read_queue_nums):
                if self._read_queue(self._store.queue(self._topic, queue_id)):
                    self._alarm.after(0)
        except RefusedError as refused:
            _log.warning("cannot store messages popped by Apache's broker yet, will retry: %s", refused)
            self._alarm.after(POP_RETRY_SECONDS)

    def _read_queue(self, queue: ConsumeQueue) -> bool:
        """Read some records; return whether there are more.

        :raises RefusedError: nothing can be stored now.
        """
        place = self._log.state.find(self._topic, REVIVE_GROUP, queue.queue_id)
        known = self._offsets.query(REVIVE_GROUP, self._topic, queue.queue_id)
        offset = max(known if place is None else place.next_offset, queue.min_offset())
        end = min(queue.max_offset(), offset + POP_REVIVE_MESSAGES)
        if offset >= end:
            return False
        self._log.check()
        for at in range(offset, end):
            entry = self._to_entry(queue.queue_id, at)
            if entry is not None:
                self._log.add(entry)
        self._log.add(OffsetSet(self._topic, REVIVE_GROUP, queue.queue_id, end))
        self._log.when_stored(_ignore_outcome)
        self._offsets.set_offset(REVIVE_GROUP, self._topic, queue.queue_id, end)
        return end < queue.max_offset()

    def _to_entry(self, queue_id: int, offset: int) -> AnyEntry | None:
        record = record_at(self._store, self._topic, queue_id, offset)
        if record is None:
            return None
        try:
            if record.properties.get(TAGS) == "ck":
                is_known_there = offset < self._written_there.get(queue_id, 0)
                return self._to_popped(_CHECK_POINT.decode(record.body), is_known_there=is_known_there)
            ack = _ACK.decode(record.body)
        except msgspec.MsgspecError as error:
            _log.warning("skipped record %d of %s queue %d: %s", offset, self._topic, queue_id, error)
            return None
        if self._log.state.find(ack.topic, ack.group, ack.queue_id) is None:
            return None
        acked = ack.offsets[:MAX_POPPED] if ack.offset is None else [ack.offset]
        return Acked(ack.topic, ack.group, ack.queue_id, ack.pop_time, acked)

    def _to_popped(self, point: CheckPoint, *, is_known_there: bool) -> AnyEntry | None:
        config = self._topics.get(point.topic)
        if config is None or not 0 <= point.queue_id < config.read_queue_nums:
            return None
        following = self._offsets.query(point.group, point.topic, point.queue_id)
        first = self._store.queue(point.topic, point.queue_id).min_offset()
        offsets = [found for found in point.offsets()[:MAX_POPPED] if first <= found < following]
        if is_known_there:
            offsets = [found for found in offsets if not self._has_copy(point, found)]
        if not offsets:
            return None
        invisible_ms = self._clock.now_ms() + GRACE_MS - point.pop_time
        return popped(
            point.topic, point.group, point.queue_id, offsets, following, point.pop_time, max(invisible_ms, GRACE_MS)
        )

    def _has_copy(self, point: CheckPoint, offset: int) -> bool:
        """Return whether Apache's broker has already stored a retry copy of a message."""
        record = record_at(self._store, point.topic, point.queue_id, offset)
        if record is None:
            return False
        topic = point.topic if is_retry_of(point.topic, point.group) else pop_retry_topic(point.topic, point.group)
        copies = self._copies.get(topic)
        if copies is None:
            queue = self._store.queue(topic, 0)
            last = range(max(queue.committed - COPIES, queue.min_offset()), queue.committed)
            records = (record_at(self._store, topic, 0, number) for number in last)
            copies = self._copies[topic] = {_mark(found, found.reconsume_times) for found in records if found}
        return _mark(record, record.reconsume_times + 1) in copies


_Mark = tuple[str, int, int, int]


def _mark(record: StoredRecord, reconsume_times: int) -> _Mark:
    """Return the values that a message and its retry copy have in common."""
    return record.properties.get(UNIQ_KEY, ""), record.born_timestamp, record.body_crc, reconsume_times


def _ignore_outcome(_refusal: RefusedError | None) -> None:
    pass
