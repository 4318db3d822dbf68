"""A consumer that reads queues from offsets chosen by the caller (``DefaultMQPullConsumer``)."""

from __future__ import annotations

from cometmq.client.consumer.pulling import PULL_TIMEOUT_S, Puller, PullResult, RawPull, messages_of
from cometmq.client.consumer.subscription import ALL, TAG, subscription
from cometmq.client.errors import ClientStateError
from cometmq.client.group_client import GroupClient
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.remoting.bodies import MessageQueue, SubscriptionData
from cometmq.remoting.security import Security


class PullConsumer(GroupClient):
    """Pulls messages from queues and manages offsets. Only routes are refreshed in the background.

    It is not a member of its group, so it causes no rebalance.

    :param group: the group for ``commit`` and ``committed``.
    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
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
        super().__init__(group, namesrv, instance, security)
        self.offsets = Offsets(self.instance, group=group)
        self._puller = Puller(self.instance, group, stream=True)
        self._subscriptions: dict[tuple[str, str, str], SubscriptionData] = {}
        self._running = False

    async def start(self) -> None:
        """Prepare for pulls; no request is sent yet."""
        if self._running or self._ending is not None:
            raise ClientStateError("the consumer was already started", next_step="create a new consumer")
        self._running = True
        self._use.begin()

    async def close(self) -> None:
        """Close the connections unless they are shared."""
        if self._running or self._ending is not None:
            self._running = False
            await self._end_once(self._use.end)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of ``topic``, sorted.

        :raises RouteNotFoundError: no nameserver knows the topic.
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
        """Pull up to ``max_messages`` messages from ``queue``, starting at ``offset``.

        Brokers may return fewer because of their own limits (Apache: 32 messages or 256 KiB).

        :param wait_s: seconds that the broker waits for a message if the queue has none.
        :raises BrokerError: the broker refused the pull.
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
        """Pull like :meth:`pull`, but return the stored records as bytes, exactly as the broker sent them.

        With a tag expression, the bytes can include records whose tag differs but has the same hash.
        """
        data = self._subscription(queue.topic, expression, expression_type)
        return await self._pull(queue, offset, max_messages, data, wait_s, timeout_s)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or ``None`` if there is none."""
        return await self.offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset``, the offset after the last consumed message."""
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
            raise ClientStateError("the consumer is not running", next_step="use the consumer inside `async with`")
        return await self._puller.pull(queue, offset, max_messages, data, wait_s=wait_s, timeout_s=timeout_s)
