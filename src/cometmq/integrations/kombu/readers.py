"""Queues that exist only as long as a process: those of remote control, events, broadcasts and replies.

They have no topic of their own, and no group. Their process reads the topic of the exchange from the end at which it
was when the queue was bound, with its own position, and commits nothing. So every process gets every message of a
fanout exchange, a process that is gone leaves nothing behind, and a message for many queues is stored once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.errors import RouteNotFoundError
from cometmq.errors import CometMQError
from cometmq.integrations.kombu.envelope import Payload, StrangerError, from_message
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue

log = logging.getLogger(__name__)

PULL_WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.5
_BATCH: Final = 32
_LOOK_S: Final = 30.0

Deliver = Callable[[Payload], object]


@dataclass(eq=False)
class Source:
    """A topic that a queue reads, and how far."""

    topic: str
    tag: str | None = None
    matches: Callable[[str], bool] | None = None
    """Returns whether the queue is bound with a pattern for a routing key; ``None`` takes every message."""
    offsets: dict[MessageQueue, int] = field(default_factory=dict)

    def payload(self, message: MessageExt) -> Payload | None:
        """Return the Kombu message in a message, or ``None`` if it is not for the queue."""
        try:
            found = from_message(message)
        except StrangerError as error:
            log.warning("message %s in topic %s is ignored: %s", message.msg_id, self.topic, error)
            return None
        key = found["properties"]["delivery_info"].get("routing_key") or ""
        return None if self.matches is not None and not self.matches(key) else found


class PrivateQueue:
    """A queue that only this process reads."""

    def __init__(self, puller: PullConsumer, *, sure: bool) -> None:
        self._puller = puller
        self.sure = sure
        """False if the queue gets a topic when it is bound to an exchange that is no fanout exchange."""
        self.sources: dict[tuple[str, str], Source] = {}
        """The topics that the queue reads, with their routing keys."""
        self.returned: deque[Payload] = deque()
        """Messages that were read, but that no consumer got; the next one gets them."""
        self._tasks: list[asyncio.Task[None]] = []

    async def bind(self, key: str, source: Source) -> None:
        """Read a topic too, from its end on.

        :raises CometMQError: the end of the topic cannot be found.
        """
        if (source.topic, key) not in self.sources:
            for queue in await self._puller.queues(source.topic):
                source.offsets[queue] = await self._puller.offsets.max(queue)
            self.sources[source.topic, key] = source

    def unbind(self, topic: str, key: str) -> None:
        """Read a topic no more."""
        self.sources.pop((topic, key), None)

    async def get(self) -> Payload | None:
        """Return the next message, or ``None`` if there is none now.

        :raises CometMQError: the broker refuses, or does not answer.
        """
        if self.returned:
            return self.returned.popleft()
        for source in list(self.sources.values()):
            for queue in list(source.offsets):
                while True:
                    before = source.offsets[queue]
                    found = await self._pull(source, queue, 1, 0.0)
                    if found or source.offsets[queue] <= before:
                        break
                if found:
                    return found[0]
        return None

    def start(self, deliver: Deliver) -> None:
        """Read in the background until :meth:`stop`."""
        self.stop()
        while self.returned:
            deliver(self.returned.popleft())
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read(source, deliver)) for source in list(self.sources.values())]

    def stop(self) -> None:
        """Stop reading; a later start continues at the same place."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def _read(self, source: Source, deliver: Deliver) -> None:
        """Follow the queues of a topic, and look for new ones from time to time."""
        following: dict[MessageQueue, asyncio.Task[None]] = {}
        try:
            while True:
                for queue in source.offsets:
                    if queue not in following:
                        following[queue] = asyncio.create_task(self._follow(source, queue, deliver))
                await asyncio.sleep(_LOOK_S)
                route = self._puller.instance.routes.known(source.topic)
                for queue in route.read_queues if route is not None else ():
                    source.offsets.setdefault(queue, 0)
        finally:
            for task in following.values():
                task.cancel()

    async def _follow(self, source: Source, queue: MessageQueue, deliver: Deliver) -> None:
        failed = False
        while True:
            try:
                for payload in await self._pull(source, queue, _BATCH, PULL_WAIT_S):
                    deliver(payload)
                failed = False
            except (CometMQError, RouteNotFoundError) as error:
                log.log(logging.DEBUG if failed else logging.WARNING, "cannot read %s, trying again: %s", queue, error)
                failed = True
                await asyncio.sleep(_PAUSE_S)

    async def _pull(self, source: Source, queue: MessageQueue, most: int, wait_s: float) -> list[Payload]:
        expression = source.tag or "*"
        offset = source.offsets[queue]
        result = await self._puller.pull(queue, offset, most, expression=expression, wait_s=wait_s)
        source.offsets[queue] = result.next_offset
        return [payload for message in result.messages if (payload := source.payload(message)) is not None]
