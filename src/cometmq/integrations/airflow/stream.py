"""The stream of messages that several triggers share (Airflow 3.3 and newer)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from cometmq.client import PoppedMessage, SimpleConsumer
from cometmq.client.simple.config import MAX_MESSAGES
from cometmq.integrations.airflow.trigger import payload_or_reject

_MOST_OPEN: Final = 256
"""Maximum number of messages whose events are not stored yet; a trigger fails at 1,024 by default."""
_AGAIN_S: Final = 10.0
"""Seconds after which a message is received again whose events were not stored."""


class MessageStream(SharedStreamProducer):
    """Receives messages, and ends each as its triggers did.

    :param new_consumer: returns the consumer, on the event loop of the triggerer.
    """

    def __init__(self, new_consumer: Callable[[], Awaitable[SimpleConsumer]]) -> None:
        self._new_consumer = new_consumer
        self._consumer: SimpleConsumer | None = None
        self._open: dict[PoppedMessage, None] = {}
        """The messages whose events are not stored yet."""
        self._has_room = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], PoppedMessage]]:
        """Yield messages for ever."""
        consumer = self._consumer = await self._new_consumer()
        await consumer.start()
        while True:
            self._has_room.clear()
            while len(self._open) >= _MOST_OPEN:
                await self._has_room.wait()
                self._has_room.clear()
            for message in await consumer.receive(min(MAX_MESSAGES, _MOST_OPEN - len(self._open))):
                payload = await payload_or_reject(consumer, message)
                if payload is not None:
                    self._open[message] = None
                    yield payload, message

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge messages whose events are stored; reject those that a trigger rejects; repeat the others."""
        assert self._consumer is not None, "messages were received"
        for item in batch:
            self._open.pop(item.broker_payload, None)
        self._has_room.set()
        await self._consumer.ack([item.broker_payload for item in batch if item.outcome.is_clean])
        for item in batch:
            if item.outcome.rejected:
                await self._consumer.reject(item.broker_payload)
            elif not item.outcome.is_clean:
                await self._consumer.change_invisible(item.broker_payload, _AGAIN_S)

    async def aclose(self) -> None:
        """Leave the group; messages whose events were not stored are received again at once."""
        if self._consumer is not None:
            try:
                await asyncio.gather(*(self._consumer.change_invisible(message, 0) for message in self._open))
            finally:
                await self._consumer.close()
