"""The clients of a Dramatiq broker, which each process opens when it needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dramatiq.errors import ConnectionClosed

from cometmq.client import Security
from cometmq.client.sync import SyncProducer, SyncSimpleConsumer
from cometmq.integrations.queues import AWAY, QueueOptions, ensure_topic, log_lost
from cometmq.threads import call_in_forked_children


@contextmanager
def as_dramatiq() -> Iterator[None]:
    """Raise errors of connections as Dramatiq's, so that it repeats what has failed.

    :raises ConnectionClosed: a server does not answer, or cannot be found.
    """
    try:
        yield
    except AWAY as error:
        raise ConnectionClosed(str(error)) from error  # type: ignore[no-untyped-call]


class Connection:
    """One producer and one consumer, which all threads share."""

    def __init__(self, namesrv: str | None, options: QueueOptions, security: Security | None) -> None:
        self._namesrv = namesrv
        self._options = options
        self._security = security
        self._forget()
        call_in_forked_children(self._forget)

    def _forget(self) -> None:
        """Begin anew in a forked child, which has none of these connections."""
        self._lock = threading.Lock()
        self._producer: SyncProducer | None = None
        self._consumer: SyncSimpleConsumer | None = None
        self._topics: set[str] = set()

    def producer(self, topic: str) -> SyncProducer:
        """Return the producer; the topic is created if it does not exist.

        :raises CometMQError: no server answers, or a permission is missing.
        """
        with self._lock:
            self._ensure(topic)
            if self._producer is None:
                producer = SyncProducer(self._options.prefix, self._namesrv, security=self._security)
                producer.start()
                self._producer = producer
            return self._producer

    def consumer(self, topic: str) -> SyncSimpleConsumer:
        """Return the consumer, which subscribes to the topic; the topic is created if it does not exist.

        :raises CometMQError: no server answers, or a permission is missing.
        """
        with self._lock:
            self._ensure(topic)
            if self._consumer is None:
                consumer = SyncSimpleConsumer(
                    *(self._options.prefix, {topic: "*"}, self._namesrv),
                    config=self._options.consumer(),
                    on_lost=log_lost,
                    security=self._security,
                )
                consumer.start()
                self._consumer = consumer
            elif topic not in self._consumer.topics:
                self._consumer.subscribe(topic)
            return self._consumer

    def _ensure(self, topic: str) -> None:
        if topic not in self._topics:
            ensure_topic(self._namesrv, self._security, topic, self._options.priority_levels)
            self._topics.add(topic)

    def close(self) -> None:
        """Close the clients; the next use opens new ones."""
        with self._lock:
            producer, self._producer = self._producer, None
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
        if producer is not None:
            producer.close()
