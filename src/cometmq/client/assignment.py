"""One queue of a lite-pull consumer (``AssignedMessageQueue``)."""

from __future__ import annotations

import asyncio
from collections import deque

from cometmq.client.consumer_config import LitePullConfig
from cometmq.client.reader import Budget, Chunk
from cometmq.message.message import MessageExt


class Assignment:
    """One queue that is read: what has been read ahead, and how far it was handed out."""

    def __init__(self, config: LitePullConfig, budget: Budget, arrived: asyncio.Event) -> None:
        self.task: asyncio.Task[None] | None = None
        self.paused = False
        self.position: int | None = None
        """The offset that the next poll goes on at."""
        self.processed: int | None = None
        """``position`` as it was when the last poll began: what came before is done."""
        self._config = config
        self._budget = budget
        self._arrived = arrived
        self._chunks: deque[Chunk] = deque()
        self._taken = 0
        self._count = 0
        self._size = 0
        self._room = asyncio.Event()

    async def room(self) -> None:
        """Wait until another pull is worth while (flow control)."""
        while self._count >= self._config.pull_threshold_for_queue or (
            self._size >= self._config.pull_threshold_bytes_for_queue
        ):
            self._room.clear()
            await self._room.wait()
        await self._budget.room()

    def take(self, chunk: Chunk) -> None:
        """Keep what a pull brought."""
        self._chunks.append(chunk)
        self._count += len(chunk.messages)
        self._size += chunk.size_bytes
        self._budget.take(chunk.size_bytes)
        self._arrived.set()

    def hand_out(self, limit: int, into: list[MessageExt]) -> None:
        """Move up to ``limit`` messages into a poll."""
        while self._chunks and limit > 0:
            chunk = self._chunks[0]
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
        chunk = self._chunks.popleft()
        self._taken = 0
        self._size -= chunk.size_bytes
        self._budget.give_back(chunk.size_bytes)
        self._room.set()

    async def stop(self) -> None:
        """Read no more, and forget what was read ahead."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None
        self._count = 0
        while self._chunks:
            self._drop_first()
