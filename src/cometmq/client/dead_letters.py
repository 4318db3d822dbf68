"""Dead letters: what groups failed on too often, listed and read from their ``%DLQ%`` topics.

Reading changes nothing: it has no group and commits no offset. Works against Apache RocketMQ too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.errors import RouteNotFoundError
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.pulling import PullStatus
from cometmq.message.message import MessageExt
from cometmq.message.names import DLQ_PREFIX, TOOLS_GROUP, dlq_topic
from cometmq.message.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC

_PULL: Final = 32


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """A consumer group that has dead letters."""

    group: str
    count: int
    oldest_ms: int
    """When the first one was stored, ms since 1970."""
    newest_ms: int


class Selection(msgspec.Struct, frozen=True):
    """Which dead letters are meant; what is not given does not matter."""

    key: str | None = None
    tag: str | None = None
    origin_topic: str | None = None
    """The topic that the message was sent to."""
    ids: frozenset[str] = frozenset()
    """Offset ids of dead letters, unique keys, or offset ids of the messages that failed; empty for all."""
    begin_ms: int = 0
    """Became a dead letter at this time or later …"""
    end_ms: int = END_OF_TIME_MS
    """… and not after this."""

    def takes(self, message: MessageExt) -> bool:
        """Whether a dead letter is meant."""
        return (
            self.begin_ms <= message.store_timestamp <= self.end_ms
            and (self.key is None or self.key in message.keys)
            and (self.tag is None or self.tag == message.tags)
            and (self.origin_topic is None or self.origin_topic == origin_topic(message))
            and (not self.ids or not self.ids.isdisjoint(ids_of(message)))
        )


def origin_topic(message: MessageExt) -> str | None:
    """The topic that a dead letter was sent to, ``None`` when it does not say."""
    return message.properties.get(RETRY_TOPIC)


def ids_of(message: MessageExt) -> set[str]:
    """Every id that a dead letter goes by."""
    return {message.offset_msg_id, message.msg_id, message.properties.get(ORIGIN_MESSAGE_ID, "")}


async def dead_letter_groups(admin: Admin) -> list[DeadLetterGroup]:
    """All groups with dead letters that are still stored, by name."""
    found = []
    for topic in sorted(name for name in await admin.topics() if name.startswith(DLQ_PREFIX)):
        described = await _describe(admin, topic)
        if described is not None:
            found.append(described)
    return found


async def _describe(admin: Admin, topic: str) -> DeadLetterGroup | None:
    count = 0
    times: list[int] = []
    async with PullConsumer(TOOLS_GROUP, instance=admin.instance) as consumer:
        for queue in await consumer.queues(topic):
            first, end = await consumer.offsets.min(queue), await consumer.offsets.max(queue)
            count += max(0, end - first)
            for offset in {first, end - 1} if end > first else ():
                result = await consumer.pull(queue, offset, 1)
                times += [message.store_timestamp for message in result.messages]
    if not times:
        return None
    return DeadLetterGroup(topic.removeprefix(DLQ_PREFIX), count, min(times), max(times))


async def read_dead_letters(
    admin: Admin, group: str, selection: Selection | None = None, limit: int | None = None
) -> AsyncIterator[MessageExt]:
    """Yield the dead letters of a group that are stored now, queue by queue, in their order.

    :param limit: at most so many; all by default.
    """
    wanted = selection or Selection()
    left = limit
    async with PullConsumer(TOOLS_GROUP, instance=admin.instance) as consumer:
        try:
            queues = await consumer.queues(dlq_topic(group))
        except RouteNotFoundError:
            return
        for queue in queues:
            at, end = await consumer.offsets.min(queue), await consumer.offsets.max(queue)
            while at < end:
                result = await consumer.pull(queue, at, _PULL)
                for message in result.messages:
                    if message.queue_offset < end and wanted.takes(message):
                        if left == 0:
                            return
                        yield message
                        left = None if left is None else left - 1
                if result.status is not PullStatus.FOUND and result.next_offset <= at:
                    break
                at = result.next_offset
