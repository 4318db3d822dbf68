"""Incoming and outgoing messages for metrics, counted once per topic and turn, and once per pull."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum
from itertools import islice
from typing import Final

from cometmq.broker.limits import MAX_CONSUMER_OFFSETS
from cometmq.broker.statistics.pop_counts import PopCounts
from cometmq.limits import METRIC_SAMPLES_PER_SLICE
from cometmq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from cometmq.metrics.family import Histogram, Steps

SIZE_BOUNDS: Final = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
"""Upper bounds of ``rocketmq_message_size`` in bytes."""
SMALL_BYTES: Final = SIZE_BOUNDS[0]

NORMAL: Final = "normal"
FIFO: Final = "fifo"
DELAY: Final = "delay"
TRANSACTION: Final = "transaction"
"""Message types in the metrics (``TopicMessageType.getMetricsValue``)."""
_TYPE_OF: Final[Mapping[str, str]] = {
    SCHEDULE_TOPIC: DELAY,
    TIMER_TOPIC: DELAY,
    TRANS_HALF_TOPIC: TRANSACTION,
    TRANS_OP_HALF_TOPIC: TRANSACTION,
}


class Event(Enum):
    """Events, other than incoming messages, that are counted by topic."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    TIMER_IN = "timer in"
    """A message with an arbitrary delay arrived."""
    TIMER_OUT = "timer out"
    """A message with an arbitrary delay was delivered."""


FINISH_BOUNDS_S: Final = (5, 60, 600, 3_600, 43_200, 86_400)
DELAY_BOUNDS_S: Final = (60, 600, 3_600, 43_200, 86_400, 259_200)


class MessagesIn:
    """Counts messages of one type in a topic."""

    __slots__ = ("bytes", "count", "large")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.large: Final = Histogram(SIZE_BOUNDS)
        """The sizes of messages larger than :data:`SMALL_BYTES`."""

    @property
    def sizes(self) -> Histogram:
        """Return the sizes of all messages."""
        found = Histogram(SIZE_BOUNDS)
        found.counts[:] = self.large.counts
        found.counts[0] = self.count - sum(self.large.counts)
        found.sum = self.bytes
        return found


class Traffic:
    """Counters that RocketMQ 5 has in addition to those in :class:`~cometmq.broker.statistics.stats.BrokerStats`."""

    def __init__(self) -> None:
        self._in: dict[tuple[str, str], MessagesIn] = {}
        self._plain: dict[str, MessagesIn] = {}
        """Counters for messages of the usual type, by topic, which speed up :meth:`stored`."""
        self._dead: dict[tuple[str, str], int] = {}
        self._expired: dict[tuple[str, str], int] = {}
        self._events: dict[tuple[Event, str], int] = {}
        self.finishes: Final[dict[str, Histogram]] = {}
        """Time in seconds from a half message to its commit, by topic."""
        self.delays: Final[dict[str, Histogram]] = {}
        """Delay in seconds of messages with arbitrary delays, by topic."""
        self.pulled: Final[dict[tuple[str, str], dict[int, int]]] = {}
        """For each topic and group, the offset after the last message sent to the group, by queue ID."""
        self._pulled_queues = 0
        self.pops: Final = PopCounts()

    def stored(self, topic: str, kind: str, messages: int, size_bytes: int, large: Sequence[int]) -> None:
        """Count the messages of one topic and type in a turn.

        :param large: sizes of the messages larger than :data:`SMALL_BYTES`.
        """
        if kind is not NORMAL:
            found = self._messages_of(topic, kind)
        elif (known := self._plain.get(topic)) is not None:
            found = known
        else:
            found = self._plain[topic] = self._messages_of(topic, _TYPE_OF.get(topic, NORMAL))
        found.count += messages
        found.bytes += size_bytes
        if large:
            found.large.observe_all(large)

    def count(self, event: Event, topic: str) -> None:
        """Count an event for a topic."""
        self._events[event, topic] = self._events.get((event, topic), 0) + 1

    def committed(self, topic: str, after_ms: int) -> None:
        """Count a commit ``after_ms`` milliseconds after its half message."""
        self.count(Event.COMMIT, topic)
        self.finishes.setdefault(topic, Histogram(FINISH_BOUNDS_S)).observe(after_ms // 1000)

    def delayed(self, topic: str, delay_ms: int) -> None:
        """Count a message with an arbitrary delay."""
        self.count(Event.TIMER_IN, topic)
        self.delays.setdefault(topic, Histogram(DELAY_BOUNDS_S)).observe(delay_ms // 1000)

    def died(self, topic: str, group: str) -> None:
        """Count a dead letter for a group.

        :param topic: the topic from which the group failed to consume the message.
        """
        self._dead[topic, group] = self._dead.get((topic, group), 0) + 1

    def expired(self, topic: str, group: str, messages: int) -> None:
        """Count messages that a group did not receive because their lives had ended.

        :param topic: the topic to which the messages were sent.
        """
        self._expired[topic, group] = self._expired.get((topic, group), 0) + messages

    def sent_to(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Record the offset up to which a queue's messages have been sent to a group."""
        queues = self.pulled.get((topic, group))
        if queues is None:
            if self._pulled_queues >= MAX_CONSUMER_OFFSETS:
                return
            queues = self.pulled[topic, group] = {}
        if queue_id not in queues:
            if self._pulled_queues >= MAX_CONSUMER_OFFSETS:
                return
            self._pulled_queues += 1
        queues[queue_id] = next_offset

    def messages_in(self) -> list[tuple[tuple[str, str], MessagesIn]]:
        """Return the number of incoming messages by topic and type."""
        return list(self._in.items())

    def waiting(self) -> dict[str, int]:
        """Return the number of delayed messages that arrived since the start, minus those delivered, by topic."""
        found: dict[str, int] = {}
        for event, sign in ((Event.TIMER_IN, 1), (Event.TIMER_OUT, -1)):
            for (counted, topic), count in self._events.items():
                if counted is event:
                    found[topic] = found.get(topic, 0) + sign * count
        return found

    def ended_transactions(self) -> set[str]:
        """Return the topics of committed or rolled-back transactions."""
        return {topic for event, topic in self._events if event in (Event.COMMIT, Event.ROLLBACK)}

    def events(self) -> list[tuple[tuple[Event, str], int]]:
        """Return the number of events by topic."""
        return list(self._events.items())

    def dead_letters(self) -> list[tuple[tuple[str, str], int]]:
        """Return the number of dead letters by topic and group."""
        return list(self._dead.items())

    def expired_messages(self) -> list[tuple[tuple[str, str], int]]:
        """Return the number of expired messages by topic and group."""
        return list(self._expired.items())

    def keep(self, topics: Set[str], groups: Set[str]) -> Steps:
        """Remove topics and groups that no longer exist."""
        counted = iter(list(self._in))
        while some := list(islice(counted, METRIC_SAMPLES_PER_SLICE)):
            for topic, kind in some:
                if topic not in topics:
                    self._in.pop((topic, kind), None)
                    self._plain.pop(topic, None)
            yield []
        for event in [event for event in self._events if event[1] not in topics]:
            del self._events[event]
        for by_topic in (self.finishes, self.delays):
            for topic in by_topic.keys() - topics:
                del by_topic[topic]
        yield []
        for counts in (self._dead, self._expired):
            for key in [key for key in counts if key[1] not in groups]:
                del counts[key]
        pulled = iter(list(self.pulled))
        while pairs := list(islice(pulled, METRIC_SAMPLES_PER_SLICE)):
            for topic, group in pairs:
                if topic not in topics or group not in groups:
                    self._pulled_queues -= len(self.pulled.pop((topic, group), ()))
            yield []
        self.pops.keep(topics, groups)

    def _messages_of(self, topic: str, kind: str) -> MessagesIn:
        found = self._in.get((topic, kind))
        if found is None:
            found = self._in[topic, kind] = MessagesIn()
        return found
