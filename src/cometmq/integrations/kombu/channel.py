"""Kombu's channel on RocketMQ."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqp.exceptions import RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from cometmq.errors import CometMQError
from cometmq.integrations.kombu.envelope import Payload, StrangerError, from_message, is_due
from cometmq.integrations.kombu.errors import CONNECTION_ERRORS, RefusedError, raise_for_readers
from cometmq.integrations.kombu.mailbox import Waiting
from cometmq.integrations.kombu.names import tag_of, topic_of_exchange, topic_of_queue
from cometmq.integrations.kombu.readers import Source, matcher
from cometmq.integrations.kombu.receiver import Receiver
from cometmq.integrations.kombu.revoked import revoked_by, store_revoked
from cometmq.integrations.kombu.use import QoS, weakly

if TYPE_CHECKING:
    from cometmq.client.simple.message import PoppedMessage
    from cometmq.integrations.kombu.session import Session
    from cometmq.integrations.kombu.sessions import SyncSession

log = logging.getLogger(__name__)
R = TypeVar("R")

UNLIMITED: Final = 1_000
"""Number of messages that wait for a channel at most if it has no prefetch limit."""
FAULTY: Final = (RecursionError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors of a consumer that a task's headers or arguments cause."""
_PIDBOX: Final = ".pidbox"

Held = tuple[str, Any, "Receiver | None"]
"""A queue, a message of it that is neither acknowledged nor rejected, and what received it."""


class Channel(virtual.Channel):
    """A channel; its consumers share a prefetch limit."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    body_encoding = None
    from_transport_options = ("deadletter_queue",)
    connection: Any

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._receivers: dict[bool, Receiver] = {}
        self._queues: dict[str, str] = {}
        """The consumed queues, by topic."""
        self._pid = os.getpid()
        self._held: dict[Any, Held] = {}
        self._callbacks: dict[str, dict[str, Callable[[Payload], object]]] = {}
        """The callbacks of each queue's consumers, by their tags; the latest consumer gets the messages."""
        self._unacknowledged: set[str] = set()
        """The queues whose consumers acknowledge nothing."""
        self._last_tag = 0
        self._waiting = Waiting()
        """The messages of receivers in the mailbox."""

    # --- the session ---

    @property
    def session(self) -> Session:
        """The session of this process."""
        return self._sync.inner

    @property
    def _sync(self) -> SyncSession:
        if self.connection is None:
            raise RecoverableConnectionError("the channel is closed")
        return self.connection.session  # type: ignore[no-any-return]

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._sync.run(work)

    def _member(self, *, getting: bool = False) -> Receiver:
        """Return the receiver for consumers, or the one for single messages."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._held.clear()
            self._receivers = {}
        found = self._receivers.get(getting)
        if found is None:
            found = self._sync.call(
                Receiver, self._sync.settings, weakly(self._credit), weakly(self._enough), weakly(self._popped)
            )
            self.connection.use.receivers.add(found)
            self._run(found.open())
            self._receivers[getting] = found
        return found

    # --- queues and exchanges ---

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **kwargs: Any) -> Any:
        """Return the arguments of a queue with their names in RabbitMQ."""
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> queue_declare_ok_t:
        """Create a queue, or with ``passive`` count its messages."""
        queue = queue or f"amq.gen-{uuid()}"
        session = self.session
        if passive:
            if not self._has_queue(queue):
                raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404")
            return queue_declare_ok_t(queue, self._size(queue), 0)
        if exclusive or auto_delete:
            self._run(session.declare_private(queue, sure=exclusive or "x-expires" in (arguments or {})))
        else:
            self._new_queue(queue)
        return queue_declare_ok_t(queue, 0, 0)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Bind a queue to an exchange, for all processes unless the queue belongs to this process."""
        exchange, routing_key, session = exchange or "amq.direct", routing_key or "", self.session
        kind, topic = self.typeof(exchange), topic_of_exchange(self._prefix, exchange)
        private = session.private.get(queue)
        if private is not None and (private.sure or kind.type == "fanout"):
            source = Source(topic, tag_of(routing_key) if kind.type == "direct" else None, matcher(kind, routing_key))
            self._run(session.bind_private(queue, routing_key, source))
            return
        if private is not None:
            self._run(session.forget(queue))
        self._new_queue(queue)
        if exchange not in self.state.exchanges:
            self.exchange_declare(exchange)
        super().queue_bind(queue, exchange, routing_key, arguments)
        if not (kind.type == "direct" and queue == exchange == routing_key):
            self._run(session.bindings.add(topic, queue, routing_key))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Do nothing, because ``queue_bind`` has done it."""

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Remove a binding, for all processes unless the queue belongs to this process."""
        session, topic = self.session, topic_of_exchange(self._prefix, exchange or "amq.direct")
        private = session.private.get(queue)
        if private is not None:
            self._sync.call(private.unbind, topic, routing_key or "")
            return
        super().queue_unbind(queue, exchange or "amq.direct", routing_key, arguments, **kwargs)
        self._run(session.bindings.remove(topic, queue, routing_key or ""))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Delete a queue with its messages and bindings."""
        session = self.session
        if queue in session.private:
            self._run(session.forget(queue))
        elif not (if_empty and self._size(queue)):
            for exchange in list(self.state.exchanges):
                self._run(session.bindings.remove(topic_of_exchange(self._prefix, exchange), queue))
                table = self.state.exchanges[exchange]["table"]
                table[:] = [meta for meta in table if meta[2] != queue]
            self.state.queue_bindings_delete(queue)
            self._run(session.delete(queue))

    def exchange_delete(self, exchange: str, if_unused: bool = False, **_: Any) -> None:
        """Delete an exchange and its bindings; its queues remain."""
        session, topic = self.session, topic_of_exchange(self._prefix, exchange)
        for queue, key in self._run(session.bindings.of(topic)):
            self._run(session.bindings.remove(topic, queue, key))
        self.state.exchanges.pop(exchange, None)

    def get_table(self, exchange: str) -> list[Any]:
        """Return the bindings of an exchange in all processes."""
        kind = self.typeof(exchange)
        found = list(self.state.exchanges.get(exchange, {}).get("table", ()))
        for queue, key in self._run(self.session.bindings.of(topic_of_exchange(self._prefix, exchange))):
            meta = kind.prepare_bind(queue, exchange, key, None)
            if meta not in found:
                found.append(meta)
        return found

    @property
    def _prefix(self) -> str:
        return self._sync.settings.topic_prefix

    def _new_queue(self, queue: str, **_: Any) -> str:
        """Return the topic of a queue, after creating it if it does not exist."""
        return self.session.known_topic(queue) or self._run(self.session.ensure_queue(queue))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self._run(self.session.has_queue(queue))

    def _size(self, queue: str) -> int:
        return 0 if queue in self.session.private else self._run(self.session.size(queue))

    def _purge(self, queue: str) -> int:
        return 0 if queue in self.session.private else self._run(self.session.purge(queue))

    # --- publishing ---

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Store a message in each queue that is bound with its routing key."""
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        kind = self.typeof(exchange).type
        if exchange.endswith(_PIDBOX):
            self._recall_revoked(message)
        try:
            is_read = self._run(self.session.publish(exchange, routing_key or "", message, always=kind == "fanout"))
        except CONNECTION_ERRORS as error:
            raise_for_readers(error, message)
        queues = set(self._lookup(exchange, routing_key or ""))
        if kind == "direct" and routing_key == exchange and self._run(self.session.has_topic_of(exchange)):
            queues.add(exchange)
        for queue in queues:
            self._put(queue, message)
        if kind == "direct" and not queues and not is_read and not exchange.endswith(_PIDBOX):
            log.warning("a message is not stored, because no queue is bound to %s with %r", exchange, routing_key)

    def _put(self, queue: str, message: Payload, **_: Any) -> None:
        self._sync.put(queue, message)

    def _recall_revoked(self, message: Payload) -> None:
        """Recall the tasks that a remote control command revokes for all workers."""
        if (ids := revoked_by(message)) and (recalled := self._run(self.session.recall(ids))):
            log.info("recalled tasks: %s", ", ".join(recalled))
            store_revoked(self, self._sync.settings, recalled)

    # --- consuming ---

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Pass the messages of a queue to a callback."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._callbacks.setdefault(queue, {})[consumer_tag] = self.connection._callbacks[queue]
        (self._unacknowledged.add if no_ack else self._unacknowledged.discard)(queue)
        try:
            private = self.session.private.get(queue)
            if private is not None:
                self._sync.call(private.start, self)
            else:
                topic = self._new_queue(queue)
                self._queues[topic] = queue
                self._sync.soon(self._member().start, topic)
            if not kwargs.get("nowait") and False in self._receivers and self._pid == os.getpid():
                self._run(self._receivers[False].started())  # Kombu waits for the last of several queues
        except BaseException:
            super().basic_cancel(consumer_tag)
            self._callbacks[queue].pop(consumer_tag)
            raise

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop passing the messages of a queue to a callback."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        self._callbacks.get(queue or "", {}).pop(consumer_tag, None)
        if queue is None or queue in self._active_queues or self.connection is None or self._pid != os.getpid():
            return
        private = self.session.private.get(queue)
        if private is not None:
            self._sync.call(private.stop, self)
        elif False in self._receivers:
            topic = topic_of_queue(self._prefix, queue)
            self._queues.pop(topic, None)
            self._run(self._receivers[False].stop(topic))
        waiting = [held for held in self.connection.mailbox.remove(self, queue) if held[2] is not None]
        self._waiting.taken += len(waiting)
        self._give_back(*waiting)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Change the prefetch limit."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._look_again()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> virtual.Message | None:
        """Return the next message of a queue, or ``None`` if there is none now."""
        private = self.session.private.get(queue)
        while True:
            item: Any = None
            member = None
            if private is not None:
                item = self._sync.run(private.get(), private.put_back)
            elif self._has_queue(queue):
                member = self._member(getting=True)
                item = self._sync.run(member.get(topic_of_queue(self._prefix, queue)), member.put_back)
            if item is None:
                return None
            payload = self._accept((queue, item, member), no_ack=no_ack)
            if payload is not None:
                message = self.Message(payload, channel=self)
                if not no_ack:
                    self.qos.append(message, message.delivery_tag)
                return message

    def _credit(self) -> int:
        """Return how many more messages the channel may hold; the receiver calls it in its own thread."""
        waiting = self._waiting.number
        limit = self.qos.prefetch_count
        return limit - len(self._held) - waiting if limit else UNLIMITED - waiting

    def _enough(self) -> int:
        return self.qos.prefetch_count // 2 or 1

    def _look_again(self) -> None:
        """Let the receiver look at the credit again."""
        if False in self._receivers and self._pid == os.getpid():
            self._sync.soon(self._receivers[False].poke)

    def _popped(self, member: Receiver, messages: Sequence[PoppedMessage]) -> None:
        arrived: list[Held] = []
        for message in messages:
            queue = self._queues.get(message.subscribed_topic)
            if queue is None:  # its consumer was cancelled
                self._sync.start(member.give_back(message))
            else:
                arrived.append((queue, message, member))
        self._put_arrived(*arrived)

    def _put_arrived(self, *arrived: Held) -> None:
        if arrived and (connection := self.connection) is not None:
            self._waiting.arrived += len(arrived)
            connection.mailbox.put(*[(self, held) for held in arrived])

    def private_arrived(self, queue: str, count: int) -> None:
        """Put a place into the mailbox for each message that waits in a queue of this process."""
        if (connection := self.connection) is not None:
            connection.mailbox.put(*[(self, (queue, None, None))] * count)

    def dispatch(self, held: Held) -> bool:
        """Pass a message to the consumer of its queue, in the thread of the connection.

        A message of a queue of this process is taken now; return false if another channel has already done so.
        """
        queue, item, member = held
        no_ack = queue in self._unacknowledged
        callbacks = self._callbacks.get(queue)
        callback = callbacks[next(reversed(callbacks))] if callbacks else None
        try:
            if member is None:
                private = self.session.private.get(queue) if callback is not None else None
                item = private.take() if private is not None else None
                if item is None:
                    return False
                held = queue, item, None
            payload = None if callback is None else self._accept(held, no_ack=no_ack)
        except BaseException:  # a signal handler has raised, and the message comes again
            for tag in [tag for tag, kept in list(self._held.items()) if kept is held]:
                self._held.pop(tag, None)
            self._waiting.taken += member is not None
            if item is not None:
                self._give_back((queue, item, member))
            raise
        self._waiting.taken += member is not None
        if callback is None:
            self._give_back(held)
            return True
        if payload is None or no_ack:
            self._look_again()
        if payload is not None:
            try:
                callback(payload)
            except FAULTY as error:
                self._end_faulty(payload, error)
                raise
        return True

    def _end_faulty(self, payload: Payload, error: Exception) -> None:
        """Make a task that ends its worker a dead letter, before it ends others; Celery does not catch all errors."""
        held = self._held.get(payload["properties"]["delivery_tag"])
        if held is None or held[2] is None or "task" not in payload["headers"]:
            return
        self.qos.ack(payload["properties"]["delivery_tag"])
        del self._held[payload["properties"]["delivery_tag"]]
        self._run(held[2].reject(held[1], f"its consumer failed: {error!r:.200}"))

    def _accept(self, held: Held, *, no_ack: bool) -> Payload | None:
        """Return a message that can be delivered, or ``None`` after it became a dead letter."""
        _, item, member = held
        again, reason = False, ""
        if member is None:
            payload: Payload = dict(item, properties=dict(item["properties"]))
        else:
            attempt, most = item.delivery_attempt, int(self._sync.settings.max_deliveries)
            again = attempt > 1
            reason = f"it was delivered {most} times" if attempt > most else ""
            try:
                payload = from_message(item)
            except StrangerError as error:
                reason = str(error)
            if reason:
                self._sync.start(member.reject(item, reason))
                return None
            if is_due(payload, item):  # Celery's timer would begin only ten such tasks a second while it is idle
                payload["headers"]["eta"] = None
        tag = self._next_delivery_tag()
        info = payload["properties"].get("delivery_info") or {}
        payload["properties"].update(delivery_tag=tag, delivery_info={**info, "redelivered": again})
        if not no_ack:
            self._held[tag] = held
        elif member is not None:
            member.ack_soon(item)
        return payload

    def _next_delivery_tag(self) -> int:
        self._last_tag += 1
        return self._last_tag

    # --- the ends of messages ---

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Acknowledge a message, or with ``multiple`` also all earlier ones."""
        tags = [delivery_tag]
        if multiple and delivery_tag in self._held:
            tags = list(self._held)[: list(self._held).index(delivery_tag) + 1]
        for tag in tags:
            self.qos.ack(tag)
            held = self._held.pop(tag, None)
            member = None if held is None else held[2]
            if held is not None and member is not None:
                member.ack_soon(held[1])
            if member is not self._receivers.get(False):
                self._look_again()

    def basic_reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Deliver a message again at once, or make it a dead letter."""
        self.qos.ack(delivery_tag)
        held = self._held.pop(delivery_tag, None)
        if held is None:
            return
        queue, item, member = held
        if requeue:
            self._give_back(held)
        elif member is not None:
            self._sync.start(member.reject(item, "its consumer rejected it"))
        else:
            log.error("a message of queue %s is rejected; queues of one process have no dead letters", queue)
        if member is not self._receivers.get(False):
            self._look_again()

    def basic_recover(self, requeue: bool = False) -> None:
        """Deliver all messages that are neither acknowledged nor rejected again."""
        held, self._held = self._held, {}
        for tag in held:
            self.qos.ack(tag)
        self._give_back(*held.values())

    def _give_back(self, *messages: Held) -> None:
        """Deliver messages again at once; they share the time that a broker has to answer."""
        if self.connection is None:
            return
        changes = [member.give_back(item) for _, item, member in messages if member is not None]
        for queue, item, member in reversed(messages):  # the first is the next one
            if member is None and (private := self.session.private.get(queue)) is not None:
                self._sync.soon(private.put_back, item)
        if changes:
            (self._run if self.connection.hub is None else self._sync.start)(_together(changes))

    def after_reply_message_received(self, queue: str) -> None:
        """End the queue of a reply."""
        self._run(self.session.forget(queue))

    def close(self) -> None:
        """Close the channel; messages that are neither acknowledged nor rejected are delivered again at once."""
        receivers, self._receivers = self._receivers, {}
        if self.connection is not None and self._pid == os.getpid():
            for member in receivers.values():
                self.connection.use.receivers.discard(member)
                try:
                    self._run(member.close(partial(self._all_of, member)))
                except (CometMQError, RefusedError) as error:
                    log.warning("messages come again later, because the connection cannot be closed: %s", error)
        super().close()
        self._held.clear()

    def _all_of(self, member: Receiver) -> list[PoppedMessage]:
        """Return the messages of a receiver that wait, or are neither acknowledged nor rejected."""
        waiting = self.connection.mailbox.remove(self, member=member)
        return [item for _, item, its_member in [*self._held.values(), *waiting] if its_member is member]


async def _together(changes: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*changes)
