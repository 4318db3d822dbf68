"""Taskiq's broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from cometmq.client import ClientStateError, Message, PoppedMessage, Producer, Security, SimpleConsumer
from cometmq.client.simple.config import MAX_MESSAGES
from cometmq.integrations.queues import QueueOptions, ensure_topic, log_lost
from cometmq.message.compression import DecompressionError
from cometmq.threads import in_thread
from cometmq.visible import visible

log = logging.getLogger(__name__)

_DELAY: Final = "delay"
_PRIORITY: Final = "priority"
_QUEUE: Final = "queue_name"
_MAX_NUMBER: Final = 2**31 - 1
_TASK: Final = "TASK"
"""The property with the name of a message's task."""


class CometMQBroker(AsyncBroker):
    """A broker for Taskiq's tasks: ``broker = CometMQBroker("localhost:9876")``.

    Labels of a task: ``delay`` (seconds that the task waits in the broker), ``priority`` (a whole number; a larger one
    is more urgent) and ``queue_name`` (a queue other than the broker's).

    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param queue_name: the queue of tasks without the label, and the queue that workers read.
    :param further_queues: other queues that workers read as well, all in turn.
    :raises QueueNameError: the name of a queue is too long.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        queue_name: str = "default",
        further_queues: tuple[str, ...] = (),
        options: QueueOptions | None = None,
        security: Security | None = None,
    ) -> None:
        super().__init__()
        self.options = options or QueueOptions(prefix="taskiq")
        self._namesrv = namesrv
        self._queue = queue_name
        self._topics = [self.options.topic(name) for name in dict.fromkeys([queue_name, *further_queues])]
        self._security = security
        self._producer: Producer | None = None
        self._consumer: SimpleConsumer | None = None
        self._known: set[str] = set()
        """Topics that exist."""

    async def startup(self) -> None:
        """Connect, and create the topics that do not exist.

        :raises CometMQError: no server answers, or a permission is missing.
        """
        for topic in self._topics if self.is_worker_process else self._topics[:1]:
            await self._ensure(topic)
        producer = Producer(self.options.prefix, self._namesrv, security=self._security)
        await producer.start()
        self._producer = producer
        await super().startup()

    async def shutdown(self) -> None:
        """Close the connections; tasks that were received but not begun are given back."""
        try:
            await super().shutdown()
        finally:
            consumer, self._consumer = self._consumer, None
            producer, self._producer = self._producer, None
            if consumer is not None:
                await consumer.close()
            if producer is not None:
                await producer.close()

    async def _ensure(self, topic: str) -> None:
        if topic not in self._known:
            await in_thread(ensure_topic, self._namesrv, self._security, topic, self.options.priority_levels)
            self._known.add(topic)

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task.

        :raises ClientStateError: the broker was not started.
        :raises ValueError: a label has no allowed value.
        :raises SendFailedError: the brokers do not accept the task.
        """
        if self._producer is None:
            raise ClientStateError("the Taskiq broker is not started", next_step="await broker.startup() first")
        labels = message.labels
        topic = self.options.topic(str(labels.get(_QUEUE) or self._queue))
        await self._ensure(topic)
        seconds = _number(labels, _DELAY)
        await self._producer.send(
            Message(
                topic,
                message.message,
                keys=[message.task_id],
                properties={_TASK: message.task_name},
                delay=timedelta(seconds=seconds) if seconds > 0 else None,
                priority=max(int(_number(labels, _PRIORITY)), 0),
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks; each is acknowledged when Taskiq says so.

        :raises BrokerError: a broker refuses, for example because a permission is missing.
        """
        consumer = self._consumer = await self._consuming()
        found: list[PoppedMessage] = []
        try:
            while True:
                found = await consumer.receive(min(self.options.prefetch, MAX_MESSAGES))
                while found:
                    message = found.pop(0)
                    try:
                        body = message.body
                    except DecompressionError as error:
                        log.error("message %s becomes a dead letter: %s", visible(message.msg_id), error)
                        await consumer.reject(message)
                    else:
                        yield AckableMessage(data=body, ack=partial(consumer.ack, message))
        finally:
            consumer.give_back(found)

    async def _consuming(self) -> SimpleConsumer:
        if self._consumer is not None:
            return self._consumer
        consumer = SimpleConsumer(
            self.options.prefix,
            dict.fromkeys(self._topics, "*"),
            config=self.options.consumer(),
            on_lost=log_lost,
            namesrv=self._namesrv,
            security=self._security,
        )
        await consumer.start()
        return consumer


def _number(labels: Mapping[str, Any], name: str) -> float:
    """Return a label as a number; 0 if there is none.

    :raises ValueError: the label is not a number, or is too large.
    """
    value = labels.get(name) or 0
    with suppress(TypeError, ValueError, OverflowError):
        if abs(number := float(value)) <= _MAX_NUMBER:
            return number
    raise ValueError(f"the label {name} must be a number up to {_MAX_NUMBER:,}, not {value!r:.100}")
