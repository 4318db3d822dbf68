"""The synchronous simple consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cometmq.client.simple.config import SimpleConsumerConfig
from cometmq.client.simple.consumer import SimpleConsumer
from cometmq.client.simple.message import PoppedMessage
from cometmq.client.sync.base import Answer, SyncClient, SyncSteps, blocking, taking
from cometmq.remoting.security import Security


class SyncSimpleConsumer(SyncClient[SimpleConsumer]):
    """A synchronous :class:`~cometmq.client.SimpleConsumer`; many threads may use one."""

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, str] | None = None,
        namesrv: str | None = None,
        *,
        config: SimpleConsumerConfig | None = None,
        on_lost: Callable[[PoppedMessage], object] | None = None,
        security: Security | None = None,
        deserializer: Any = None,
    ) -> None:
        self._bind(
            SimpleConsumer,
            group,
            subscriptions,
            namesrv,
            config=config,
            on_lost=on_lost,
            security=security,
            deserializer=deserializer,
        )

    start = blocking(SimpleConsumer.start)
    close = blocking(SimpleConsumer.close)
    subscribe = blocking(SimpleConsumer.subscribe)
    unsubscribe = blocking(SimpleConsumer.unsubscribe)
    receive = taking(SimpleConsumer.receive)
    change_invisible = blocking(SimpleConsumer.change_invisible)
    reject = blocking(SimpleConsumer.reject)

    def ack(self, messages: PoppedMessage | Sequence[PoppedMessage]) -> None:
        """Acknowledge a message, or several; see :meth:`SimpleConsumer.ack <cometmq.client.SimpleConsumer.ack>`.

        Acknowledgements of several threads at the same moment are sent together. This needs neither a task nor a
        future: the loop's thread releases a lock on the answer.
        """
        self._check_other_thread()
        if self._is_exiting:
            self._run(self._inner.ack(messages))
            return
        answer: Answer[None] = Answer()

        def begin() -> None:
            try:
                self._inner.ack_then(messages, lambda error, _: answer.put(error))
            except Exception as error:
                answer.put(error)

        self._loop.call_soon_threadsafe(begin)
        answer.wait()

    def stop(self) -> None:
        """Make waiting and later calls of :meth:`receive` return an empty list; any thread may call it."""
        self._loop.call_soon_threadsafe(self._inner.stop)

    @property
    def topics(self) -> frozenset[str]:
        """The topics to which the consumer subscribes."""
        return self._call(lambda: self._inner.topics)

    def __iter__(self) -> Iterator[PoppedMessage]:
        """Iterate over messages until the consumer is stopped or closed."""
        return SyncSteps(self._next)

    def _next(self) -> PoppedMessage:
        while self._call(lambda: self._inner.is_receiving):
            if messages := self.receive(1):
                return messages[0]
        raise StopIteration
