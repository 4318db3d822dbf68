"""Waits for messages of all brokers at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from cometmq.client.errors import ClientError, RemotingError
from cometmq.client.lite.config import MAX_MESSAGES
from cometmq.client.lite.requests import LiteMessage, LiteRequests
from cometmq.client.popping.first_waits import FirstWaits

log = logging.getLogger(__name__)


class LitePolls:
    """One waiting request for each broker, and the messages that have arrived but were not taken."""

    def __init__(self, requests: LiteRequests) -> None:
        self._requests = requests
        self._polls: dict[str, asyncio.Task[list[LiteMessage]]] = {}
        self._waits: FirstWaits[str] = FirstWaits()
        self._closed = asyncio.Event()
        self.ready: deque[LiteMessage] = deque()
        """Messages that were not taken yet."""

    async def take(self, max_messages: int) -> list[LiteMessage]:
        """Wait for messages; return an empty list once the polls are closed.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        while not self.ready and not self._closed.is_set():
            await self._wait(max_messages)
        return [self.ready.popleft() for _ in range(min(max_messages, len(self.ready)))]

    async def _wait(self, max_messages: int) -> None:
        for broker in await self._requests.brokers():
            if broker not in self._polls:
                work = self._poll(broker, min(max_messages, MAX_MESSAGES))
                self._polls[broker] = asyncio.get_running_loop().create_task(work)
        closed = asyncio.get_running_loop().create_task(self._closed.wait())
        try:
            await asyncio.wait({closed, *self._polls.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        self._collect()

    def _collect(self) -> None:
        for broker, poll in list(self._polls.items()):
            if poll.done():
                del self._polls[broker]
                if not poll.cancelled():
                    self.ready.extend(poll.result())

    async def _poll(self, broker: str, max_messages: int) -> list[LiteMessage]:
        longest_ms = round(self._requests.config.poll_s * 1000)
        try:
            found = await self._requests.pop(broker, max_messages, self._waits.limit_ms(broker, longest_ms))
        except (ClientError, RemotingError) as error:
            log.warning("cannot request messages of lite topics of %s: %s", self._requests.topic, error)
            await self._requests.instance.clock.sleep(self._requests.config.error_delay_s)
            return []
        if found:
            self._waits.found(broker)
        else:
            self._waits.ended(broker)
        return found

    async def close(self) -> list[LiteMessage]:
        """End the waiting requests; return the messages that were not taken."""
        self._closed.set()
        polls = list(self._polls.values())
        for poll in polls:
            poll.cancel()
        if polls:
            await asyncio.wait(polls)
        self._collect()
        untaken = list(self.ready)
        self.ready.clear()
        return untaken
