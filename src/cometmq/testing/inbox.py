"""A consumer that collects messages, so that a test can check which messages arrive, and when."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cometmq.broker.controller import Broker
from cometmq.client.consumer.config import ConsumeFromWhere, PushConfig
from cometmq.client.consumer.listener import Verdict
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.consumer.subscription import ALL, TAG
from cometmq.client.instance import ClientInstance
from cometmq.clock import Clock
from cometmq.message.message import MessageExt
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, dlq_topic, retry_topic
from cometmq.testing.clock import VirtualClock
from cometmq.testing.collection import LISTED, Collection

_numbers = itertools.count(1)

_SAMPLE: Final = 1000
"""Maximum number of messages per topic that are searched for tags."""


class Servers(Protocol):
    """The members of :class:`~cometmq.testing.cluster.Cluster` that an inbox uses."""

    clock: Clock

    @property
    def namesrv_address(self) -> str:
        """``host:port`` for clients."""

    @property
    def brokers(self) -> Sequence[Broker]:
        """The running brokers."""

    @property
    def running(self) -> Set[int]:
        """The indexes of the running brokers."""

    @property
    def size(self) -> int:
        """The number of brokers, including stopped ones."""

    def client_instance(self) -> ClientInstance:
        """Return a new instance for a client."""

    def has_topic(self, topic: str) -> bool:
        """Return whether the nameserver knows the topic."""

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic on every broker."""


class Inbox(Collection[MessageExt]):
    """A consumer that collects the messages of its group; see :meth:`cometmq.testing.Cluster.inbox`.

    ``async with cluster.inbox("orders") as inbox:`` reads ``orders`` from its first message. Each message is
    returned once, in the order of arrival.

    :param topics: at least one topic; missing topics are created with four queues.
    :param expression: the subscription expression for all topics, of type ``expression_type``: tags or SQL92.
    :param group: the consumer group; by default a new group.
    :param answer: the listener's result for every message: success or ``Retry()``.
    """

    def __init__(
        self,
        cluster: Servers,
        topics: Sequence[str],
        *,
        expression: str = ALL,
        expression_type: str = TAG,
        group: str | None = None,
        answer: Verdict = None,
    ) -> None:
        if not topics:
            raise ValueError("an inbox needs at least one topic")
        super().__init__(cluster.clock)
        self.topics: Final = tuple(topics)
        self.group: Final = group or f"inbox-{os.getpid()}-{next(_numbers)}"
        self._expression = expression
        self._expression_type = expression_type
        self._answer = answer
        self._cluster = cluster
        self._consumer = PushConsumer(
            self.group,
            self._collect,
            config=PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
            instance=cluster.client_instance(),
        )

    async def __aenter__(self) -> Self:
        for topic in self.topics:
            if not self._cluster.has_topic(topic):
                await self._cluster.create_topic(topic)
            await self._consumer.subscribe(topic, self._expression, expression_type=self._expression_type)
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()

    async def _collect(self, messages: Sequence[MessageExt]) -> Verdict:
        self.messages.extend(messages)
        return self._answer

    # --- the text of a failed expectation ---
    def _sources_text(self) -> str:
        topics = " and ".join(self.topics)
        return topics if self._expression == ALL else f"{topics} ({self._expression})"

    def _places(self) -> Iterator[str]:
        yield f"Messages on the running brokers for group {self.group}:"
        places = _stored(self._cluster.brokers, self.group)
        yield from _describe_cluster(places, self.topics, self.group)
        yield from (f"→ {step}" for step in self._next_steps(places))

    def _next_steps(self, places: dict[str, _Stored]) -> Iterable[str]:
        cluster = self._cluster
        stopped = [index for index in range(cluster.size) if index not in cluster.running]
        if stopped:
            yield f"broker {', '.join(map(str, stopped))} is not running: see start_broker"
        own = [places[topic] for topic in self.topics if topic in places]
        if any(place.lag for place in own):
            yield "the group has not received everything: check whether a broker is paused or its link is cut"
        left_out = sum(place.count for place in own) - len({message.offset_msg_id for message in self.messages})
        if self._expression != ALL and left_out > 0:
            tags = sorted({str(tag) for place in own for tag in place.tags})
            yield f"the subscription {self._expression!r} filters out messages; the stored tags are {', '.join(tags)}"
        if dlq_topic(self.group) in places:
            yield f"messages that failed too often are in {dlq_topic(self.group)}"
        if SCHEDULE_TOPIC in places:
            yield f"messages are delayed in {SCHEDULE_TOPIC}: wait longer with within=…{self._next_alarm()}"
        if TRANS_HALF_TOPIC in places:
            yield f"half messages in {TRANS_HALF_TOPIC} are waiting for a commit, a rollback or a check"
        others = [topic for topic in places if topic not in self.topics and topic[0] != "%" and topic != SCHEDULE_TOPIC]
        if not own:
            if others:
                only_to = ", ".join(sorted(others))
                yield f"nothing was sent to {self._sources_text()}, only to {only_to}: check the topic"
            else:
                yield f"nothing was sent to this cluster; its nameserver is {cluster.namesrv_address}"

    def _next_alarm(self) -> str:
        clock = self._cluster.clock
        if not isinstance(clock, VirtualClock) or math.isinf(clock.next_alarm_in()):
            return ""
        return f" (the next is due in {clock.next_alarm_in():.0f} s)"


# --- the messages of a cluster, for the text of a failed expectation ------------------
@dataclass(frozen=True)
class _Stored:
    """The messages of one topic on all running brokers."""

    topic: str
    count: int
    """Number of messages in the topic's queues."""
    committed: int
    """Number of messages that the group has consumed."""
    tags: Counter[str | None]
    """Tags of the topic's first :data:`_SAMPLE` messages."""

    @property
    def lag(self) -> int:
        return self.count - self.committed


def _stored(brokers: Iterable[Broker], group: str) -> dict[str, _Stored]:
    """Return all topics that have messages on these brokers, by name."""
    found: dict[str, _Stored] = {}
    for broker in brokers:
        for topic, queues in broker.store.queues().items():
            count = committed = 0
            tags: Counter[str | None] = Counter()
            for queue in queues.values():
                first, end = queue.min_offset(), queue.max_offset()
                count += end - first
                committed += max(0, min(end, broker.offsets.query(group, topic, queue.queue_id)) - first)
                tags.update(_tags(broker, topic, queue.queue_id, first, min(end, first + _SAMPLE)))
            if count:
                before = found.get(topic, _Stored(topic, 0, 0, Counter()))
                found[topic] = _Stored(topic, before.count + count, before.committed + committed, before.tags + tags)
    return found


def _tags(broker: Broker, topic: str, queue_id: int, first: int, end: int) -> Iterator[str | None]:
    queue = broker.store.queue(topic, queue_id)
    for offset in range(first, end):
        unit = queue.unit(offset)
        record = None if unit is None else broker.store.record_at(unit[0], unit[1])
        if record is not None:
            yield MessageExt(record, 0).tags


def _describe_cluster(places: dict[str, _Stored], topics: Iterable[str], group: str) -> Iterator[str]:
    """Yield a line for each topic, starting with the consumed topics and their retry and dead-letter topics."""
    first = [*topics, retry_topic(group), dlq_topic(group)]
    for topic in first:
        place = places.get(topic)
        if place is not None:
            yield f"  {topic}: {place.count} stored, {place.lag} not consumed by the group"
        elif topic in topics:
            yield f"  {topic}: nothing stored"
    others = sorted(places.keys() - set(first))
    for topic in others[:LISTED]:
        yield f"  {topic}: {places[topic].count} stored"
    if len(others) > LISTED:
        yield f"  … and {len(others) - LISTED} other topics"
