"""Where the messages of a cluster are: what a failed expectation tells the person who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cometmq.broker.controller import Broker
from cometmq.message.message import MessageExt
from cometmq.message.names import dlq_topic, retry_topic

_SAMPLE: Final = 1000
"""Messages of a topic whose tags are counted."""
_BODY_BYTES: Final = 60
_LISTED: Final = 20
"""Messages, or topics, that are written out one by one."""


@dataclass(frozen=True)
class Stored:
    """The messages of one topic, over all brokers that run."""

    topic: str
    count: int
    """Messages in its queues."""
    committed: int
    """Of these, how many the group has reported as done."""
    tags: Counter[str | None]
    """Of the first :data:`_SAMPLE` messages."""

    @property
    def lag(self) -> int:
        """Messages that the group has not reported as done."""
        return self.count - self.committed


def stored(brokers: Iterable[Broker], group: str) -> dict[str, Stored]:
    """Every topic that holds messages on these brokers, by name."""
    found: dict[str, Stored] = {}
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
                before = found.get(topic, Stored(topic, 0, 0, Counter()))
                found[topic] = Stored(topic, before.count + count, before.committed + committed, before.tags + tags)
    return found


def _tags(broker: Broker, topic: str, queue_id: int, first: int, end: int) -> Iterator[str | None]:
    queue = broker.store.queue(topic, queue_id)
    for offset in range(first, end):
        unit = queue.unit(offset)
        record = None if unit is None else broker.store.record_at(unit[0], unit[1])
        if record is not None:
            yield MessageExt(record, 0).tags


def describe(message: MessageExt) -> str:
    """One message in one line."""
    parts = [f"{message.topic} {message.broker_name}/{message.queue_id} at {message.queue_offset}"]
    if message.keys:
        parts.append(f"keys {' '.join(message.keys)}")
    if message.tags is not None:
        parts.append(f"tags {message.tags}")
    if message.reconsume_times:
        parts.append(f"attempt {message.reconsume_times + 1}")
    body = message.body
    text = repr(body[:_BODY_BYTES]) + ("…" if len(body) > _BODY_BYTES else "")
    return f"{', '.join(parts)}: {text}"


def describe_all(messages: list[MessageExt]) -> Iterator[str]:
    """Each message in a line of its own, but no more than :data:`_LISTED` of them."""
    for number, message in enumerate(messages[:_LISTED], 1):
        yield f"  {number}. {describe(message)}"
    if len(messages) > _LISTED:
        yield f"  … and {len(messages) - _LISTED} more"


def describe_cluster(places: dict[str, Stored], topics: Iterable[str], group: str) -> Iterator[str]:
    """What the cluster holds, a topic a line: first those that are consumed, and what failed of them."""
    first = [*topics, retry_topic(group), dlq_topic(group)]
    for topic in first:
        place = places.get(topic)
        if place is not None:
            yield f"  {topic}: {place.count} stored, the group has {place.lag} to do"
        elif topic in topics:
            yield f"  {topic}: nothing stored"
    others = sorted(places.keys() - set(first))
    for topic in others[:_LISTED]:
        yield f"  {topic}: {places[topic].count} stored"
    if len(others) > _LISTED:
        yield f"  … and {len(others) - _LISTED} other topics"
