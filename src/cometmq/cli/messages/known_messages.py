"""Detects topics that are deleted and recreated while they are being read, so that their offsets restart at 0.

No two messages on a broker have the same offset in its log and the same store time. If a queue contains a different
message at the offset that was read last, it is a new queue, and none of its messages has been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.pulling import PullResult
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue


class _Identity(NamedTuple):
    offset: int
    log_offset: int
    stored_ms: int

    @classmethod
    def of(cls, message: MessageExt) -> _Identity:
        return cls(message.queue_offset, message.commit_log_offset, message.store_timestamp)


class KnownMessages:
    """Remembers the last message that was read from each queue."""

    def __init__(self, puller: PullConsumer) -> None:
        self._puller = puller
        self._known: dict[MessageQueue, _Identity] = {}
        self._went_back: dict[MessageQueue, int] = {}
        """For each queue in which a smaller offset followed a larger one: the smaller offset."""

    async def begin(self, ends: Mapping[MessageQueue, int]) -> None:
        """Remember the last message in each queue before reading begins."""
        looks = await asyncio.gather(*(self._pull(queue, end - 1) for queue, end in ends.items() if end > 0))
        self.read(message for look in looks if look is not None for message in look.messages)

    def read(self, messages: Iterable[MessageExt]) -> None:
        """Remember messages that were read. Each queue's messages must be passed in order."""
        for message in messages:
            queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
            before, now = self._known.get(queue), _Identity.of(message)
            if before is not None and now.offset <= before.offset and now.log_offset > before.log_offset:
                self._went_back.setdefault(queue, now.offset)
            self._known[queue] = now

    async def recreated_queues(self) -> list[MessageQueue]:
        """Return the recreated queues that are not being read from their beginning, and forget their messages."""
        queues = list(self._known)
        changed = await asyncio.gather(*map(self._is_recreated, queues))
        found = [queue for queue, is_other in zip(queues, changed, strict=True) if is_other]
        for queue in found:
            del self._known[queue]
        return found

    async def _is_recreated(self, queue: MessageQueue) -> bool:
        known = self._known[queue]
        look = await self._pull(queue, known.offset)
        if look is None:
            return False
        went_back = self._went_back.pop(queue, None)
        if went_back is not None:
            return look.min_offset < went_back
        if known in map(_Identity.of, look.messages) or look.min_offset > known.offset:
            return False
        first = await self._pull(queue, look.min_offset)
        return first is not None and any(
            message.store_timestamp > known.stored_ms or message.commit_log_offset > known.log_offset
            for message in first.messages
        )

    async def _pull(self, queue: MessageQueue, offset: int) -> PullResult | None:
        """Pull one message. Return None if the broker refuses, which does not prove that the message is lost."""
        try:
            return await self._puller.pull(queue, offset, 1)
        except CometMQError:
            return None
