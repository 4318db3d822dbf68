"""The queues that a consumer is about to leave (part of ``RebalanceImpl``)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from cometmq.client.background import Spawn
from cometmq.remoting.bodies import MessageQueue


class LeavingQueues:
    """The task that hands each queue over to another member, kept until it has ended.

    :param spawn: runs background work until the consumer ends.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    def get(self, queue: MessageQueue) -> asyncio.Task[None] | None:
        """Return a queue's running handover, which must end before this member reads the queue again."""
        return self._tasks.get(queue)

    def start(self, queue: MessageQueue, hand_over: Coroutine[Any, Any, None]) -> None:
        """Start a queue's handover; it may wait for the previous one."""
        task = self._tasks[queue] = self._spawn(hand_over)
        task.add_done_callback(partial(self._discard, queue))

    async def wait(self) -> None:
        """Wait until all handovers have ended, ignoring their results."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _discard(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._tasks.get(queue) is task:
            del self._tasks[queue]
