"""Dramatiq's broker and its consumers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from dramatiq import Message as Task
from dramatiq import Middleware
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout

from cometmq.client import BrokerError, Message, PoppedMessage, Security
from cometmq.client.simple.config import MAX_MESSAGES
from cometmq.client.sync import SyncAdmin, SyncSimpleConsumer
from cometmq.integrations.dramatiq.connection import Connection, as_dramatiq
from cometmq.integrations.queues import QueueOptions
from cometmq.message.compression import DecompressionError
from cometmq.message.pop_info import pop_retry_topic
from cometmq.remoting.codes import ResponseCode

_PRIORITY: Final = "broker_priority"
_ACTOR: Final = "ACTOR"
"""The property with the name of a message's actor."""
UNSENT_S: Final = 30.0
"""Seconds after which a message is delivered again if its repetition could not be sent."""
_LOOK_S: Final = 0.1
"""Seconds between two looks at a queue that is joined."""
_LATE_S: Final = 1.5
"""Seconds by which a broker may deliver a delayed message late; Apache's brokers are exact to a second."""


class CometMQBroker(Broker):
    """A broker for Dramatiq: ``dramatiq.set_broker(CometMQBroker("localhost:9876"))``.

    An actor or a message may have the option ``broker_priority``, a whole number; a larger one is more urgent.

    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param middleware: Dramatiq's middleware; by default the usual one.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        middleware: list[Middleware] | None = None,
        options: QueueOptions | None = None,
        security: Security | None = None,
    ) -> None:
        super().__init__(middleware=middleware)
        self.actor_options.add(_PRIORITY)
        self.options = options or QueueOptions(prefix="dramatiq")
        self._namesrv = namesrv
        self._security = security
        self._connection = Connection(namesrv, self.options, security)
        self._due: dict[str, float] = {}
        """For each topic, the monotonic time at which the last message is due that this process has delayed."""

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; its topic is created when it is first used.

        :raises QueueNameError: the name is too long.
        """
        if queue_name not in self.queues:
            self.options.topic(queue_name)
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Task[Any], *, delay: int | None = None) -> Task[Any]:
        """Send a message.

        :param delay: milliseconds that the message waits in the broker.
        :raises ConnectionClosed: no broker accepts the message.
        """
        self.declare_queue(message.queue_name)
        topic = self.options.topic(message.queue_name)
        self.emit_before("enqueue", message, delay)
        try:
            self._send(topic, message, delay)
        except Exception:
            repeated: object = message  # by the middleware Retries, which passes the message of the consumer
            if isinstance(repeated, _TaskProxy):
                repeated.is_unsent = True
            raise
        if delay:
            self._due[topic] = max(self._due.get(topic, 0.0), time.monotonic() + delay / 1000)
        self.emit_after("enqueue", message, delay)
        return message

    def _send(self, topic: str, message: Task[Any], delay: int | None) -> None:
        with as_dramatiq():
            self._connection.producer(topic).send(
                Message(
                    topic,
                    message.encode(),
                    keys=[message.message_id],
                    properties={_ACTOR: message.actor_name},
                    delay=timedelta(milliseconds=delay) if delay else None,
                    priority=self._priority(message),
                )
            )

    def _priority(self, message: Task[Any]) -> int:
        actor = self.actors.get(message.actor_name)
        own = message.options.get(_PRIORITY)
        return max(int((actor.options.get(_PRIORITY) if own is None and actor is not None else own) or 0), 0)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """Return an iterator over a queue's messages.

        :param prefetch: maximum number of messages that are neither acknowledged nor rejected.
        :param timeout: milliseconds to wait for a message.
        :raises ConnectionClosed: no server answers.
        """
        self.declare_queue(queue_name)
        topic = self.options.topic(queue_name)
        with as_dramatiq():
            return _QueueConsumer(self._connection.consumer(topic), queue_name, topic, prefetch, timeout / 1000)

    # --- tests and upkeep ---

    def flush(self, queue_name: str) -> None:
        """Drop a queue's messages, except those that are delayed or that a worker has.

        :raises ConnectionClosed: no server answers.
        """
        topic = self.options.topic(queue_name)
        with as_dramatiq():
            consumer = self._connection.consumer(topic)
            while found := consumer.receive(MAX_MESSAGES, wait_s=0, topic=topic):
                consumer.ack(found)

    def flush_all(self) -> None:
        """Drop the messages of all declared queues; see :meth:`flush`."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are processed, also those that are delayed.

        :param timeout: milliseconds to wait; by default, there is no limit.
        :raises QueueJoinTimeout: the time is over.
        :raises ConnectionClosed: no server answers.
        """
        topic = self.options.topic(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        idle = 0
        with as_dramatiq(), SyncAdmin(self._namesrv, security=self._security) as admin:
            self._connection.consumer(topic)  # the group's progress is known only of topics that exist
            while idle < 2:
                idle = 0 if self._is_busy(admin, topic) else idle + 1
                if deadline is not None and time.monotonic() >= deadline:
                    raise QueueJoinTimeout(queue_name)  # type: ignore[no-untyped-call]
                time.sleep(_LOOK_S)

    def _is_busy(self, admin: SyncAdmin, topic: str) -> bool:
        """Return whether messages of a topic wait, are delayed, or are being processed."""
        if time.monotonic() < self._due.get(topic, 0.0) + _LATE_S:
            return True  # a broker counts a delayed message only after a while
        topics = (topic, pop_retry_topic(topic, self.options.prefix))
        for address in admin.masters().values():
            try:
                waiting = admin.waiting(address).get(topic)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
            else:
                if waiting is not None and waiting.count:
                    return True
        queues = {(row.queue.topic, row.queue): row for row in admin.consume_progress(self.options.prefix).queues}
        read = [row for (name, _), row in queues.items() if name in topics]
        known = {row.queue for row in read}
        stored = admin.topic_stats(topic).offset_table
        return any(row.lag or row.in_flight for row in read) or any(
            offset.max_offset > offset.min_offset for queue, offset in stored.items() if queue not in known
        )


class _TaskProxy(MessageProxy):
    """A message that a worker has, and the popped message that contains it."""

    def __init__(self, message: Task[Any], popped: PoppedMessage) -> None:
        super().__init__(message)
        self.popped = popped
        self.is_unsent = False
        """True if the message has failed, and its repetition could not be sent; Dramatiq acknowledges it even so."""


class _QueueConsumer(Consumer):
    """Consumes one queue, and has at most ``prefetch`` messages at a time; worker threads end messages."""

    def __init__(self, consumer: SyncSimpleConsumer, queue_name: str, topic: str, prefetch: int, wait_s: float) -> None:
        self._consumer = consumer
        self._queue_name = queue_name
        self._topic = topic
        self._prefetch = max(prefetch, 1)
        self._wait_s = wait_s
        self._buffer: deque[PoppedMessage] = deque()
        self._room = threading.Condition()
        self._held: set[PoppedMessage] = set()
        """The messages that were received and have not ended."""

    def __next__(self) -> MessageProxy | None:
        """Return the next message, or ``None`` if there is none in time.

        :raises ConnectionClosed: no server answers.
        :raises ClientStateError: the broker is closed.
        """
        if not self._buffer:
            self._receive()
        while self._buffer:
            popped = self._buffer.popleft()
            task = _task_in(popped)
            if task is not None and task.queue_name == self._queue_name:
                return _TaskProxy(task, popped)
            self._end(popped, self._consumer.reject)
        return None

    def _receive(self) -> None:
        with self._room:
            if not self._room.wait_for(lambda: len(self._held) < self._prefetch, self._wait_s):
                return
            free = min(self._prefetch - len(self._held), MAX_MESSAGES)
        with as_dramatiq():
            found = self._consumer.receive(free, wait_s=self._wait_s, topic=self._topic)
        with self._room:
            self._held.update(found)
        self._buffer.extend(found)

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge a message, or have it delivered again if its repetition could not be sent.

        :raises ConnectionClosed: the broker does not answer.
        """
        assert isinstance(message, _TaskProxy)
        if message.is_unsent:
            self._give_back(message.popped, UNSENT_S)
        else:
            self._end(message.popped, self._consumer.ack)

    def nack(self, message: MessageProxy) -> None:
        """Make a message a dead letter.

        :raises ConnectionClosed: the broker does not answer.
        """
        self._end(_popped(message), self._consumer.reject)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back, so that other workers receive them at once.

        :raises ConnectionClosed: the broker does not answer.
        """
        for message in messages:
            self._give_back(_popped(message))

    def _give_back(self, popped: PoppedMessage, seconds: float = 0.0) -> None:
        self._end(popped, lambda message: self._consumer.change_invisible(message, seconds))

    def _end(self, popped: PoppedMessage, work: Callable[[PoppedMessage], object]) -> None:
        """End a message; Dramatiq repeats this only after ``ConnectionClosed``."""
        try:
            with as_dramatiq():
                work(popped)
        except ConnectionClosed:
            raise
        except Exception:
            self._release(popped)
            raise
        self._release(popped)

    def _release(self, popped: PoppedMessage) -> None:
        with self._room:
            self._held.discard(popped)
            self._room.notify()

    def close(self) -> None:
        """Give back the messages that were received but not returned."""
        while self._buffer:
            self._give_back(self._buffer.popleft())


def _task_in(popped: PoppedMessage) -> Task[Any] | None:
    """Return the task in a message, or ``None`` if it is none that Dramatiq's threads survive."""
    try:
        task = Task.decode(popped.body)
    except (DecodeError, DecompressionError):
        return None
    return task if isinstance(task.actor_name, str) and isinstance(task.options, dict) else None


def _popped(message: MessageProxy) -> PoppedMessage:
    assert isinstance(message, _TaskProxy)
    return message.popped
