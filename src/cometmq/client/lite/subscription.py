"""The lite topics of one member of a group, which it repeats to the brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cometmq.client.errors import ClientError, RemotingError
from cometmq.client.lite.config import StartAt
from cometmq.client.lite.requests import LiteRequests
from cometmq.message.lite_names import check_lite_topic
from cometmq.remoting.lite.bodies import LiteSubscriptionAction

log = logging.getLogger(__name__)


class LiteSubscription:
    """The lite topics that a member reads.

    :param on_lost: called with each lite topic that another member of an exclusive group takes.
    """

    def __init__(self, requests: LiteRequests, on_lost: Callable[[str], object] | None) -> None:
        self._requests = requests
        self._on_lost = on_lost
        self._changing = asyncio.Lock()
        self.names: dict[str, None] = {}
        """The lite topics in the order of their subscriptions."""
        self.is_running = False

    async def add(self, name: str, start: StartAt | None) -> None:
        """Subscribe to a lite topic; before the consumer starts, only record it.

        :raises ValueError: the name is not allowed.
        :raises BrokerError: a broker refuses.
        """
        wrong = check_lite_topic(name)
        if wrong is not None:
            raise ValueError(wrong)
        async with self._changing:
            if self.is_running and (name not in self.names or start is not None):
                await self._requests.subscribe(LiteSubscriptionAction.PARTIAL_ADD, [name], start=start)
            self.names[name] = None

    async def remove(self, name: str) -> None:
        """End the subscription to a lite topic."""
        async with self._changing:
            if name in self.names and self.is_running:
                await self._requests.subscribe(LiteSubscriptionAction.PARTIAL_REMOVE, [name])
            self.names.pop(name, None)

    async def begin(self) -> None:
        """Tell the brokers the lite topics that were recorded.

        :raises BrokerError: a broker refuses.
        """
        async with self._changing:
            if self.names:
                await self._requests.subscribe(LiteSubscriptionAction.PARTIAL_ADD, self.names)
            await self._repeat()
            self.is_running = True

    async def sync(self) -> None:
        """Repeat all lite topics, so that brokers that were restarted or are new know them."""
        async with self._changing:
            try:
                await self._repeat()
            except (ClientError, RemotingError) as error:
                log.warning("cannot repeat the subscriptions to lite topics of %s: %s", self._requests.topic, error)

    async def _repeat(self) -> None:
        version = self._requests.instance.clock.now_ms()
        await self._requests.subscribe(LiteSubscriptionAction.COMPLETE_ADD, self.names, version=version)

    async def end(self) -> None:
        """End all subscriptions; brokers that do not answer forget them after some minutes."""
        self.is_running = False
        try:
            await self._requests.subscribe(LiteSubscriptionAction.COMPLETE_REMOVE, ())
        except (ClientError, RemotingError) as error:
            log.info("cannot end the subscriptions to lite topics of %s: %s", self._requests.topic, error)

    def lost(self, name: str) -> None:
        """Forget a lite topic that another member has taken."""
        if name in self.names:
            del self.names[name]
            if self._on_lost is not None:
                self._on_lost(name)
