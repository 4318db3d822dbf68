"""Reads queues from offsets that the caller chooses (``DefaultMQPullConsumer``)."""

from __future__ import annotations

from typing import Self

from cometmq.client.errors import ClientStateError
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.client.pulling import PULL_TIMEOUT_S, Puller, PullResult, RawPull, messages_of
from cometmq.client.subscription import ALL, TAG, subscription
from cometmq.message.names import check_group
from cometmq.remoting.bodies import MessageQueue, SubscriptionData
from cometmq.remoting.security import Security


class PullConsumer:
    """The bare tools of consumption: queues, offsets, pulls. Nothing runs in the background but routes.

    It is no member of its group: nobody rebalances because of it.

    :param group: the group whose offsets ``commit`` and ``committed`` mean.
    :param namesrv: ``host:port;host:port``; default ``$NAMESRV_ADDR``, else ``127.0.0.1:9876``.
    :param security: credentials and TLS of its own instance; default: what the environment says.
    :raises ValueError: the group's name is not allowed, or an address has no port.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        instance: ClientInstance | None = None,
        security: Security | None = None,
    ) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise ValueError(wrong)
        self.group = group
        self.instance = ClientInstance.given_or_new(instance, namesrv, security)
        self.offsets = Offsets(self.instance)
        self._puller = Puller(self.instance, group, stream=True)
        self._subscriptions: dict[tuple[str, str, str], SubscriptionData] = {}
        self._running = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Make ready; nothing is sent yet."""
        if self._running:
            raise ClientStateError("the consumer was started before")
        self._running = True
        self.instance.acquire()

    async def close(self) -> None:
        """Close the connections, unless they are shared."""
        if self._running:
            self._running = False
            await self.instance.release()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of ``topic`` that can be read, sorted.

        :raises RouteNotFoundError: nobody knows the topic.
        """
        return (await self.instance.routes.refresh(topic)).read_queues

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        *,
        expression: str = ALL,
        expression_type: str = TAG,
        wait_s: float = 0.0,
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> PullResult:
        """Pull up to ``max_messages`` of ``queue`` from ``offset`` on.

        Brokers give fewer than asked for by limits of their own (Apache: 32 messages or 256 KiB).

        :param wait_s: seconds that the broker may wait for a message when there is none.
        :raises BrokerError: the broker refused it.
        :raises RemotingError: no answer within ``timeout_s`` + ``wait_s`` seconds.
        """
        data = self._subscription(queue.topic, expression, expression_type)
        raw = await self._pull(queue, offset, max_messages, data, wait_s, timeout_s)
        messages = messages_of(raw, queue, data)
        return PullResult(raw.status, raw.next_offset, raw.min_offset, raw.max_offset, messages)

    async def pull_raw(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 1024,
        *,
        expression: str = ALL,
        expression_type: str = TAG,
        wait_s: float = 0.0,
        timeout_s: float = PULL_TIMEOUT_S,
    ) -> RawPull:
        """As :meth:`pull`, with the bytes of the stored records as the broker sent them.

        With a tag expression records whose tag has the same hash may be among them.
        """
        data = self._subscription(queue.topic, expression, expression_type)
        return await self._pull(queue, offset, max_messages, data, wait_s, timeout_s)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group goes on in ``queue``; ``None`` when the broker knows nothing of it."""
        return await self.offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on at ``offset``: the one after the last message that is done."""
        await self.offsets.commit(self.group, queue, offset)

    def _subscription(self, topic: str, expression: str, expression_type: str) -> SubscriptionData:
        key = (topic, expression, expression_type)
        data = self._subscriptions.get(key)
        if data is None:
            data = subscription(topic, expression, expression_type, self.instance.clock.now_ms())
            self._subscriptions[key] = data
        return data

    async def _pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int,
        data: SubscriptionData,
        wait_s: float,
        timeout_s: float,
    ) -> RawPull:
        if not self._running:
            raise ClientStateError("the consumer is not running", next_step="use it inside `async with`")
        return await self._puller.pull(queue, offset, max_messages, data, wait_s=wait_s, timeout_s=timeout_s)
