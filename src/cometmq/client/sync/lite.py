"""The synchronous consumer of lite topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cometmq.client.consumer.listener import Listener
from cometmq.client.lite.config import LiteTopicConfig
from cometmq.client.lite.consumer import LiteTopicConsumer
from cometmq.client.lite.requests import LiteMessage
from cometmq.client.sync.base import SyncSteps, blocking, taking
from cometmq.client.sync.running import SyncRunning
from cometmq.remoting.security import Security


class SyncLiteTopicConsumer(SyncRunning[LiteTopicConsumer]):
    """A synchronous :class:`~cometmq.client.LiteTopicConsumer`.

    The listener is a plain function that runs in threads of the consumer. If there is no listener, iterate, or call
    ``receive``, and acknowledge each message with ``ack``.
    """

    def __init__(
        self,
        group: str,
        topic: str,
        listener: Listener | None = None,
        namesrv: str | None = None,
        *,
        config: LiteTopicConfig | None = None,
        on_lost: Callable[[str], object] | None = None,
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        self._bind(
            LiteTopicConsumer,
            group,
            topic,
            listener,
            namesrv,
            config=config,
            on_lost=on_lost,
            security=security,
            deserializer=deserializer,
        )

    start = blocking(LiteTopicConsumer.start)
    close = blocking(LiteTopicConsumer.close)
    subscribe = blocking(LiteTopicConsumer.subscribe)
    unsubscribe = blocking(LiteTopicConsumer.unsubscribe)
    receive = taking(LiteTopicConsumer.receive)
    ack = blocking(LiteTopicConsumer.ack)
    retry = blocking(LiteTopicConsumer.retry)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics to which the consumer subscribes."""
        return self._call(lambda: self._inner.lite_topics)

    def __iter__(self) -> Iterator[LiteMessage]:
        """Iterate over messages until the consumer is closed."""
        return SyncSteps(self._next)

    def _next(self) -> LiteMessage:
        if messages := self.receive(1):
            return messages[0]
        raise StopIteration
