"""The synchronous consumer of lite topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cometmq.client.consumer.listener import Listener
from cometmq.client.lite.config import LiteTopicConfig
from cometmq.client.lite.consumer import LiteTopicConsumer
from cometmq.client.lite.requests import LiteMessage
from cometmq.client.stop_signals import STOP_SIGNALS
from cometmq.client.sync.base import SyncClient, SyncSteps, blocking
from cometmq.remoting.security import Security


class SyncLiteTopicConsumer(SyncClient[LiteTopicConsumer]):
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
    receive = blocking(LiteTopicConsumer.receive)
    ack = blocking(LiteTopicConsumer.ack)
    retry = blocking(LiteTopicConsumer.retry)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics to which the consumer subscribes."""
        return self._call(lambda: self._inner.lite_topics)

    def run(self) -> None:
        """Run the consumer until it is closed; see :meth:`LiteTopicConsumer.run
        <cometmq.client.LiteTopicConsumer.run>`.

        SIGINT and SIGTERM end it in the main thread only.
        """
        with STOP_SIGNALS.calling(partial(self._loop.call_soon_threadsafe, self._inner.stop)):
            self._run(self._inner.run())

    def stop(self) -> None:
        """Make :meth:`run` close the consumer and return."""
        self._loop.call_soon_threadsafe(self._inner.stop)

    def __iter__(self) -> Iterator[LiteMessage]:
        """Iterate over messages until the consumer is closed."""
        return SyncSteps(self._next)

    def _next(self) -> LiteMessage:
        if messages := self.receive(1):
            return messages[0]
        raise StopIteration
