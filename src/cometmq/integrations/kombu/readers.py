"""Queues that exist only as long as a process: those of remote control, events, broadcasts and replies.

They have no topic of their own, and no group. Their process reads the topic of the exchange from the end at which it
was when the queue was bound, with its own position, and commits nothing. So every process gets every message of a
fanout exchange, a process that is gone leaves nothing behind, and a message for many queues is stored once.

Several channels of the process may consume from one queue, and each may end without a word: Celery's ``rpc://`` backend
of a thread that has ended is collected at some time, and the next thread can have the same queue. So messages wait in
the queue, and a channel only hears that there is one. The latest channel gets them, also those of which an earlier one
has heard but which it has not taken.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.errors import MasterNotFoundError, RemotingError
from cometmq.errors import CometMQError
from cometmq.integrations.kombu.envelope import Payload, StrangerError, from_message
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue

log = logging.getLogger(__name__)

MOST_WAITING: Final = 1_000
"""Number of messages of a queue that wait for its consumer at most; further ones stay with the broker."""
PULL_WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.5
_FULL_S: Final = 0.05
"""Time in seconds after which a reader looks again whether its consumer can take more."""
_BATCH: Final = 32
_LOOK_S: Final = 30.0


class Consumer(Protocol):
    """A channel that consumes from queues of this process."""

    def private_arrived(self, queue: str, count: int) -> None:
        """Hear on the event loop that messages wait in a queue."""


@dataclass(eq=False)
class Source:
    """A topic that a queue reads, and how far."""

    topic: str
    tag: str | None = None
    matches: Callable[[str], bool] | None = None
    """Returns whether the queue is bound with a pattern for a routing key; ``None`` takes every message."""
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    since_ms: int = 0
    """The time at which the queue was bound, in milliseconds since 1970."""

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
    """A queue that only this process reads; its methods are for the event loop, except :meth:`take`."""

    def __init__(self, name: str, puller: PullConsumer, *, sure: bool) -> None:
        self.name = name
        self._puller = puller
        self.sure = sure
        """False if the queue gets a topic when it is bound to an exchange that is no fanout exchange."""
        self.sources: dict[tuple[str, str], Source] = {}
        """The topics that the queue reads, with their routing keys."""
        self._waiting: deque[Payload] = deque()
        self._consumers: weakref.WeakKeyDictionary[Consumer, None] = weakref.WeakKeyDictionary()
        """The consumers, the latest of which is the last."""
        self._tasks: dict[Source, asyncio.Task[None]] = {}

    async def bind(self, key: str, source: Source) -> None:
        """Read a topic too, from its end on.

        :raises CometMQError: the end of the topic cannot be found.
        """
        if (source.topic, key) not in self.sources:
            source.since_ms = self._puller.instance.clock.now_ms()
            failure: CometMQError | None = None
            for queue in await self._puller.queues(source.topic):
                try:
                    source.offsets[queue] = await self._puller.offsets.max(queue)
                except (RemotingError, MasterNotFoundError) as error:  # the queue is looked for again
                    failure = error
            if failure is not None and not source.offsets:
                raise failure
            self.sources[source.topic, key] = source
            if self._consumers:
                self._begin(source)

    def unbind(self, topic: str, key: str) -> None:
        """Read a topic no more."""
        source = self.sources.pop((topic, key), None)
        if source is not None and source in self._tasks:
            self._tasks.pop(source).cancel()

    async def get(self) -> Payload | None:
        """Return the next message, or ``None`` if there is none now.

        :raises CometMQError: the broker refuses, or does not answer.
        """
        if (waiting := self.take()) is not None:
            return waiting
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

    def take(self) -> Payload | None:
        """Return the next message that waits, or ``None`` if there is none; any thread may call this."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def put_back(self, payload: Payload | None) -> None:
        """Let a message be the next one that is taken; ``None`` is no message."""
        if payload is not None:
            self._waiting.appendleft(payload)
            self._tell(1)

    def start(self, consumer: Consumer) -> None:
        """Read in the background, until no consumer is left, and tell this one of messages until its :meth:`stop`."""
        self._consumers.pop(consumer, None)
        self._consumers[consumer] = None
        self._tell(len(self._waiting))
        for source in self.sources.values():
            if source not in self._tasks:
                self._begin(source)

    def stop(self, consumer: Consumer) -> None:
        """Tell a consumer of no more messages; the one before it gets those that wait."""
        self._consumers.pop(consumer, None)
        self._tell(len(self._waiting))
        if not self._consumers:
            self.end()

    def end(self) -> None:
        """Stop reading; a later start continues at the same place."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _tell(self, count: int) -> None:
        """Tell the latest consumer of messages."""
        consumers = list(self._consumers)
        if consumers and count:
            consumers[-1].private_arrived(self.name, count)

    def _begin(self, source: Source) -> None:
        self._tasks[source] = asyncio.get_running_loop().create_task(self._read(source))

    async def _read(self, source: Source) -> None:
        """Follow the queues of a topic, and look for new ones from time to time.

        A new queue may belong to a broker that was away when the queue was bound: its older messages are not for it.
        """
        following: dict[MessageQueue, asyncio.Task[None]] = {}
        try:
            while True:
                for queue in source.offsets:
                    if queue not in following:
                        following[queue] = asyncio.create_task(self._follow(source, queue))
                await asyncio.sleep(_LOOK_S)
                route = self._puller.instance.routes.known(source.topic)
                for queue in route.read_queues if route is not None else ():
                    if queue not in source.offsets:
                        with suppress(CometMQError):  # it is looked for again
                            source.offsets[queue] = await self._puller.offsets.at_time(queue, source.since_ms)
        finally:
            for task in following.values():
                task.cancel()

    async def _follow(self, source: Source, queue: MessageQueue) -> None:
        failed = False
        while self._consumers:
            if len(self._waiting) >= MOST_WAITING:
                await asyncio.sleep(_FULL_S)
                continue
            try:
                found = await self._pull(source, queue, _BATCH, PULL_WAIT_S)
                self._waiting.extend(found)
                self._tell(len(found))
                failed = False
            except CometMQError as error:
                log.log(logging.DEBUG if failed else logging.WARNING, "cannot read %s, trying again: %s", queue, error)
                failed = True
                await asyncio.sleep(_PAUSE_S)
        self.end()  # its consumers were collected

    async def _pull(self, source: Source, queue: MessageQueue, most: int, wait_s: float) -> list[Payload]:
        expression = source.tag or "*"
        offset = source.offsets[queue]
        result = await self._puller.pull(queue, offset, most, expression=expression, wait_s=wait_s)
        source.offsets[queue] = result.next_offset
        return [payload for message in result.messages if (payload := source.payload(message)) is not None]


def matcher(kind: Any, pattern: str) -> Callable[[str], bool] | None:
    """Return a function that says whether a routing key matches the pattern of a topic exchange."""
    if kind.type != "topic":
        return None
    compiled = kind.key_to_pattern(pattern)
    return lambda key: bool(kind._match(compiled, key))
