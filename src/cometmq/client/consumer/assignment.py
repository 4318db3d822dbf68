"""A polling consumer's queue: the messages read ahead, and the position (``AssignedMessageQueue``)."""

from __future__ import annotations

import asyncio
from collections import deque

from cometmq.client.consumer.config import LitePullConfig
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import SubscriptionData


class Assignment:
    """The reading of a queue from one offset and with one subscription, from the pulls to the polls.

    A reading begins once and ends once. A new offset or subscription requires a new reading, so that nothing that the
    old reader still receives can reach a poll.
    """

    def __init__(
        self, config: LitePullConfig, budget: Budget, arrived: asyncio.Event, wanted: SubscriptionData
    ) -> None:
        self.wanted = wanted
        self.task: asyncio.Task[None] | None = None
        self.paused = False
        self.seeking = asyncio.Lock()
        """Lock that a seek holds until it has moved the position, so that the last of several seeks takes effect."""
        self.position: int | None = None
        """The offset at which the next poll starts."""
        self.processed: int | None = None
        """The position at the start of the last poll; all messages before it have been consumed."""
        self._config = config
        self._budget = budget
        self._arrived = arrived
        self.chunks: deque[Chunk] = deque()
        """The messages read ahead; an empty chunk only moves the position."""
        self._taken = 0
        self._has_given = False
        self._count = 0
        self._size = 0
        self._room = asyncio.Event()
        self._dropped = False
        budget.join(self._room)

    @property
    def is_read(self) -> bool:
        """Return whether the reader is running; a failed reader is replaced at the next rebalance."""
        return self.task is not None and not self.task.done()

    async def room(self) -> None:
        """Wait until there is room for another pull (flow control)."""
        config = self._config
        while self._count >= config.pull_threshold_for_queue or (
            self._size >= min(config.pull_threshold_bytes_for_queue, self._budget.share_bytes)
        ):
            self._room.clear()
            await self._room.wait()

    def take(self, chunk: Chunk) -> None:
        """Store the messages from a pull."""
        if self._dropped:
            return
        if not chunk.messages and self.chunks:
            self.chunks[-1].next_offset = chunk.next_offset
            return
        self.chunks.append(chunk)
        self._count += len(chunk.messages)
        self._size += chunk.size_bytes
        self._arrived.set()

    def hand_out(self, limit: int, into: list[MessageExt]) -> None:
        """Move up to ``limit`` messages to the result of a poll."""
        while self.chunks and limit > 0:
            chunk = self.chunks[0]
            messages = chunk.messages
            part = messages[self._taken : self._taken + limit] if self._taken or len(messages) > limit else messages
            into += part
            limit -= len(part)
            self._taken += len(part)
            self._has_given = True
            self._count -= len(part)
            if self._taken < len(messages):
                self.position = messages[self._taken].queue_offset
                return
            self.position = chunk.next_offset
            self.chunks.popleft()
            self._taken = 0
            self._size -= chunk.size_bytes
            self._room.set()

    def take_back(self, messages: list[MessageExt]) -> None:
        """Put messages that :meth:`hand_out` returned back before all others."""
        if not self._has_given or self.position is None:
            return
        if self._taken:
            self.chunks[0].messages = self.chunks[0].messages[self._taken :]
            self._taken = 0
        self.chunks.appendleft(Chunk(messages, self.position, 0))
        self._count += len(messages)
        self.position = messages[0].queue_offset
        if self.processed is not None:
            self.processed = min(self.processed, self.position)
        self._arrived.set()

    def drop(self) -> None:
        """End the reading and drop the messages read ahead."""
        self._dropped = True
        if self.task is not None:
            self.task.cancel()
        self.chunks.clear()
        self._budget.leave(self._room)
