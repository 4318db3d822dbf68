"""One queue of a consumer that polls: its messages that are read ahead, and its position (``AssignedMessageQueue``)."""

from __future__ import annotations

import asyncio
from collections import deque

from cometmq.client.consumer.config import LitePullConfig
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.message.message import MessageExt


class Assignment:
    """The sink of the queue's reader, from which polls take."""

    def __init__(self, config: LitePullConfig, budget: Budget, arrived: asyncio.Event) -> None:
        self.task: asyncio.Task[None] | None = None
        self.paused = False
        self.position: int | None = None
        """The offset of the next poll."""
        self.processed: int | None = None
        """``position`` at the beginning of the last poll: messages before it are consumed."""
        self._config = config
        self._budget = budget
        self._arrived = arrived
        self.chunks: deque[Chunk] = deque()
        """The messages read ahead; a chunk without messages leads to a later position."""
        self._taken = 0
        self._count = 0
        self._size = 0
        self._room = asyncio.Event()

    async def room(self) -> None:
        """Wait until there is room for another pull (flow control)."""
        while self._count >= self._config.pull_threshold_for_queue or (
            self._size >= self._config.pull_threshold_bytes_for_queue
        ):
            self._room.clear()
            await self._room.wait()
        await self._budget.room()

    def take(self, chunk: Chunk) -> None:
        """Store the messages of a pull."""
        self.chunks.append(chunk)
        self._count += len(chunk.messages)
        self._size += chunk.size_bytes
        self._budget.take(chunk.size_bytes)
        self._arrived.set()

    def hand_out(self, limit: int, into: list[MessageExt]) -> None:
        """Move up to ``limit`` messages into the result of a poll."""
        while self.chunks and limit > 0:
            chunk = self.chunks[0]
            messages = chunk.messages
            part = messages[self._taken : self._taken + limit] if self._taken or len(messages) > limit else messages
            into += part
            limit -= len(part)
            self._taken += len(part)
            self._count -= len(part)
            if self._taken < len(messages):
                self.position = messages[self._taken].queue_offset
                return
            self.position = chunk.next_offset
            self._drop_first()

    def _drop_first(self) -> None:
        chunk = self.chunks.popleft()
        self._taken = 0
        self._size -= chunk.size_bytes
        self._budget.give_back(chunk.size_bytes)
        self._room.set()

    async def stop(self) -> None:
        """Stop reading, and drop the messages that were read ahead."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        self._count = 0
        while self.chunks:
            self._drop_first()
