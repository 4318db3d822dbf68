"""Lite topics in tests: one parent topic with a group that is bound to it, and inboxes of its lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Self

from cometmq.broker.lite.index import numbers_of
from cometmq.client.admin import Admin
from cometmq.client.lite.consumer import LiteTopicConsumer
from cometmq.client.lite.requests import LiteMessage
from cometmq.client.send_result import SendResult
from cometmq.message.message import Message
from cometmq.testing.clock import VirtualClock
from cometmq.testing.cluster import Cluster
from cometmq.testing.collection import LISTED, Collection

_AN_HOUR: Final = timedelta(hours=1)


class LiteTopics:
    """A parent topic of a cluster, its lite topics, and a consumer group that reads them.

    ``sessions = await LiteTopics.create(cluster, "sessions")`` creates the topic and the group.
    """

    def __init__(self, cluster: Cluster, topic: str, group: str, expiration: timedelta) -> None:
        self.topic: Final = topic
        self.group: Final = group
        """The group that is bound to the parent topic."""
        self._cluster = cluster
        self._expiration = expiration

    @classmethod
    async def create(
        cls,
        cluster: Cluster,
        topic: str,
        *,
        group: str | None = None,
        queues: int = 1,
        expiration: timedelta = _AN_HOUR,
        exclusive: bool = False,
    ) -> Self:
        """Create a topic of the type LITE on every broker, and a group that is bound to it.

        :param group: the name of the group; by default ``readers-of-`` and the topic.
        :param expiration: time without messages after which a lite topic is removed, in whole minutes.
        :param exclusive: each lite topic has one member of the group: the last one that subscribed to it.
        :raises ValueError: a name is not allowed, or the expiration is less than a minute.
        """
        minutes = expiration // timedelta(minutes=1)
        if minutes < 1:
            raise ValueError(f"the expiration must be a minute or more, not {expiration}")
        name = group or f"readers-of-{topic}"
        async with Admin(instance=cluster.client_instance()) as admin:
            await admin.create_lite_topic(topic, queues=queues, expiration_minutes=minutes)
            await admin.create_lite_group(name, topic, exclusive=exclusive)
        return cls(cluster, topic, name, timedelta(minutes=minutes))

    async def send(self, lite_topic: str, *bodies: bytes) -> list[SendResult]:
        """Send messages to a lite topic, as another application would. The first one makes the lite topic."""
        return [await self._cluster.send(Message(self.topic, body, lite_topic=lite_topic)) for body in bodies]

    def inbox(self, *lite_topics: str, group: str | None = None, acknowledge: bool = True) -> LiteInbox:
        """Return a consumer that collects messages: ``async with sessions.inbox("session-1") as inbox:``.

        The parameters are those of :class:`LiteInbox`.
        """
        return LiteInbox(self._cluster, self.topic, lite_topics, group=group or self.group, acknowledge=acknowledge)

    @property
    def names(self) -> list[str]:
        """The sorted names of the lite topics on the running brokers."""
        return sorted(places_of(self._cluster, self.topic, self.group))

    async def expire(self) -> list[str]:
        """Move the clock until idle lite topics are removed; return the names of those that are.

        Brokers keep lite topics to which a client subscribes, and those with messages that a group has not read.

        :raises TypeError: the cluster uses the real clock.
        """
        clock = self._cluster.clock
        if not isinstance(clock, VirtualClock):
            raise TypeError("the real clock cannot be moved: give the cluster a VirtualClock (marker: real_time=False)")
        configs = [broker.config for broker in self._cluster.brokers]
        before = set(self.names)
        await clock.skip(max(self._expiration.total_seconds(), *(one.min_lite_ttl / 1_000 for one in configs)) + 1)
        await clock.run_for(max(one.lite_ttl_check_interval / 1_000 for one in configs) + 1)
        return sorted(before.difference(self.names))


class LiteInbox(Collection[LiteMessage]):
    """A consumer that collects the messages of lite topics; see :meth:`LiteTopics.inbox`.

    Each lite topic is read from its first message, or from where the group was. Each message is returned once, in the
    order of arrival.

    :param lite_topics: the lite topics to read; :meth:`subscribe` adds more.
    :param acknowledge: False to acknowledge no message, so that each one arrives again when its time is over.
    """

    def __init__(
        self, cluster: Cluster, topic: str, lite_topics: Sequence[str], *, group: str, acknowledge: bool = True
    ) -> None:
        super().__init__(cluster.clock)
        self.topic: Final = topic
        self.group: Final = group
        self.lost: Final[list[str]] = []
        """The lite topics that another member of an exclusive group has taken."""
        self._cluster = cluster
        self._names = tuple(lite_topics)
        self._acknowledges = acknowledge
        self._consumer = LiteTopicConsumer(group, topic, on_lost=self.lost.append, instance=cluster.client_instance())

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        for name in self._names:
            await self._consumer.subscribe(name)
        self._collecting = asyncio.get_running_loop().create_task(self._collect())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._collecting.cancel()
        with suppress(asyncio.CancelledError):
            await self._collecting
        await self._consumer.close()

    async def _collect(self) -> None:
        async for message in self._consumer:
            self.messages.append(message)
            if self._acknowledges:
                await self._consumer.ack(message)

    async def subscribe(self, *lite_topics: str) -> None:
        """Read further lite topics; they need not exist yet."""
        for name in lite_topics:
            await self._consumer.subscribe(name)

    async def unsubscribe(self, *lite_topics: str) -> None:
        """Stop reading lite topics."""
        for name in lite_topics:
            await self._consumer.unsubscribe(name)

    def _sources_text(self) -> str:
        names = sorted(self._consumer.lite_topics)
        return f"{' and '.join(names) or 'no lite topic'} of {self.topic}"

    def _places(self) -> Iterator[str]:
        places = places_of(self._cluster, self.topic, self.group)
        yield f"Lite topics on the running brokers for {self.group}:"
        for name in sorted(places)[:LISTED]:
            stored, lag = places[name]
            yield f"  {name}: {stored} stored, {lag} not consumed by the group"
        if len(places) > LISTED:
            yield f"  … and {len(places) - LISTED} other lite topics"
        missed = sorted(name for name, (_, lag) in places.items() if lag and name not in self._consumer.lite_topics)
        if missed:
            yield f"→ the inbox does not subscribe to {', '.join(missed[:LISTED])}, which have messages"
        if self.lost:
            yield f"→ another member of the group took {', '.join(self.lost[:LISTED])}"
        if not any(stored for stored, _ in places.values()):
            yield f"→ nothing was sent to a lite topic of {self.topic}"


def places_of(cluster: Cluster, topic: str, group: str) -> dict[str, tuple[int, int]]:
    """Return for each lite topic on the running brokers the number of its messages, and of those that a group has not
    consumed.
    """
    found: dict[str, tuple[int, int]] = {}
    for broker in cluster.brokers:
        index = broker.lite.indexes.by_parent.get(topic)
        if index is None:
            continue
        progress = broker.lite.progress.find(topic, group)
        for number in numbers_of(index):
            begin, end = index.extent(number)
            stored, lag = found.get(index.name(number), (0, 0))
            unread = end - (begin if progress is None else progress.offset(number))
            found[index.name(number)] = (stored + end - begin, lag + unread)
    return found
