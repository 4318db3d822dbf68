"""Sends messages (``DefaultMQProducer``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from cometmq.client.any_delay import recall
from cometmq.client.batching import split_batches
from cometmq.client.errors import ClientStateError, RequestTimeoutError
from cometmq.client.hooks import CheckForbiddenHook, CommunicationMode, SendMessageHook
from cometmq.client.instance import ClientInstance
from cometmq.client.outcomes import Many, Single, raisable
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.request_reply import reply_to, request_properties
from cometmq.client.selectors import QueueSelector, by_sharding_key
from cometmq.client.send_encoding import SendEncoder, is_batchable
from cometmq.client.send_observation import SendObservation
from cometmq.client.send_result import SendResult
from cometmq.client.sender import Delivery, Done, Sender
from cometmq.client.trace import MessageTrace
from cometmq.client.trace_context import TraceHeaders, with_trace_context
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import check_group
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.deadline import within
from cometmq.remoting.security import Security

log = logging.getLogger(__name__)

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)

REQUEST_TIMEOUT_S: Final = 3.0
"""For a request and the reply to it, unless told otherwise."""

PACK_IN_THREAD_BYTES: Final = 64 * 1024
"""Bodies from this size on are packed in a worker thread, so that the event loop is not held up."""


MAX_BATCHES_IN_FLIGHT: Final = 16
"""Batches of one ``send_batch`` call on their way; bounds memory to as many times ``max_message_bytes``."""


OVERTAKING: Final = "not sent, since it would overtake one that failed"


class Producer:
    """Sends messages as one producer group.

    Use it as ``async with Producer("orders") as producer: await producer.send(Message("topic", b"…"))``.
    Any number of tasks may send at once.

    :param group: the producer group.
    :param namesrv: ``host:port;host:port``; default ``$NAMESRV_ADDR``, else ``127.0.0.1:9876``.
    :param config: everything else.
    :param instance: connections to share with others; by default it makes its own.
    :param send_hooks: see every attempt, see :mod:`cometmq.client.hooks`.
    :param check_forbidden_hooks: may refuse a message.
    :param trace_context: gives each message the W3C headers of the current span, see
        :mod:`cometmq.client.trace_context`.
    :param security: credentials and TLS of its own instance; default: what the environment says.
    :raises ValueError: the group's name is not allowed, or an address has no port.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ProducerConfig | None = None,
        instance: ClientInstance | None = None,
        send_hooks: Sequence[SendMessageHook] = (),
        check_forbidden_hooks: Sequence[CheckForbiddenHook] = (),
        trace_context: TraceHeaders | None = None,
        security: Security | None = None,
    ) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise ValueError(wrong)
        self.group = group
        self.config = config or ProducerConfig()
        self.instance = ClientInstance.given_or_new(instance, namesrv, security)
        self._encoder = SendEncoder(
            group,
            self.config.default_topic_queue_nums,
            self.config.max_message_bytes,
            self.config.compress_over_bytes,
            self.config.compression,
            self.config.compression_level,
            self.instance.remoting.credentials,
        )
        self.trace: MessageTrace | None = None
        """The trace of this producer, with ``enable_msg_trace``."""
        if self.config.enable_msg_trace:
            self.trace = MessageTrace(self.instance, group, "PRODUCE", self.config.customized_trace_topic)
            send_hooks = (*send_hooks, self.trace.send_hook)
        observation = None
        if send_hooks or check_forbidden_hooks:
            observation = SendObservation(group, send_hooks, check_forbidden_hooks, self.instance.clock)
        self._sender = Sender(self.instance, self._encoder, self.config, observation)
        self._trace_context = trace_context
        self._ids = UniqIdGenerator(self.instance.clock)
        self._state = "not started"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Make ready to send; nothing is sent yet, not even to the nameserver.

        :raises ClientStateError: it was started before.
        """
        if self._state != "not started":
            raise ClientStateError(f"the producer of group {self.group} is {self._state}", next_step="make a new one")
        self._state = "running"
        self.instance.acquire()
        self.instance.add_producer(self.group)

    async def close(self) -> None:
        """Wait for messages on their way, say goodbye to the brokers, close."""
        if self._state != "running":
            return
        self._state = "closed"
        try:
            await within(self.instance.clock, self.config.close_timeout_s, self._sender.idle())
        except TimeoutError:
            log.warning("closing although %d messages wait for answers", self._sender.in_flight)
        if self.trace is not None:
            await self.trace.close()
        await self.instance.remove(producer_group=self.group)
        await self.instance.release()

    # --- one message ---

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored.

        Without ``queue``, ``sharding_key`` or ``selector`` queues are taken in turn, and a failed
        attempt is repeated on another broker; with one of them an attempt that may have stored the
        message is the last. ``timeout_s`` is for all attempts together.

        :raises IllegalMessageError: no broker would take it; nothing was sent.
        :raises RouteNotFoundError: no broker has the topic, nor would make it.
        :raises BrokerError: the broker refused it.
        :raises RemotingError: the only attempt got no answer; the message may be stored.
        :raises SendFailedError: several attempts failed.
        """
        large = len(message.body) >= PACK_IN_THREAD_BYTES
        delivery = await self._prepare_large(message) if large else self._prepare(message)
        waiting = Single()
        self._start_one(delivery, queue, sharding_key, selector, timeout_s, waiting.done)
        return (await waiting.future)[0]

    def send_then(
        self,
        message: Message,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        timeout_s: float | None,
        put: Callable[[SendResult | BaseException], None],
    ) -> None:
        """As :meth:`send`, with a callback instead of a wait: ``put`` gets the result or the failure, once.

        To be called on the event loop.
        """

        def done(index: int, outcome: list[SendResult] | BaseException) -> None:
            put(raisable(outcome) if isinstance(outcome, BaseException) else outcome[0])

        try:
            delivery = self._prepare(message)
        except BaseException as error:
            put(error)
            return
        self._start_one(delivery, queue, sharding_key, selector, timeout_s, done)

    def _start_one(
        self,
        delivery: Delivery,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        timeout_s: float | None,
        done: Done,
    ) -> None:
        if queue is not None or selector is not None or sharding_key is not None:
            delivery.target = queue
            delivery.selector = by_sharding_key(sharding_key) if sharding_key is not None else selector
            delivery.retries = 0
        if timeout_s is not None:
            delivery.deadline = delivery.begun_at + timeout_s
        self._start(delivery, done, 0)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send one message and wait for nothing: whether it is stored stays unknown.

        :raises IllegalMessageError: no broker would take it.
        :raises RouteNotFoundError: no broker has the topic, nor would make it.
        :raises RemotingError: no connection.
        """
        self._demand_running()
        if self._trace_context is not None:
            message = with_trace_context(message, self._trace_context)
        self._encoder.check(message)
        chosen = by_sharding_key(sharding_key) if sharding_key is not None else selector
        await self._sender.oneway(message, queue, chosen, self._ids.next())

    # --- requests and replies ---

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> MessageExt:
        """Send a message that asks for a reply, and wait for the first one; ``timeout_s`` is for all of it.

        :raises RequestTimeoutError: no reply in time; the request may be stored, and be consumed later.
        :raises IllegalMessageError: no broker would take it; nothing was sent.
        :raises CometMQError: it could not be sent, as :meth:`send`.
        """
        delivery = await self._prepare_large(message)
        try:
            with self.instance.replies.expected() as (correlation_id, reply):
                client_id = self.instance.client_id
                delivery.properties_text += request_properties(correlation_id, client_id, timeout_s)
                asking = self._ask(delivery, queue, sharding_key, selector, timeout_s, reply)
                return await within(self.instance.clock, timeout_s, asking)
        except TimeoutError:
            raise RequestTimeoutError(message.topic, timeout_s) from None

    async def _ask(
        self,
        delivery: Delivery,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        timeout_s: float,
        reply: asyncio.Future[MessageExt],
    ) -> MessageExt:
        routes = self.instance.routes
        deadline = delivery.begun_at + timeout_s
        route = await routes.find_for_send(delivery.message.topic, self.config.default_topic_queue_nums, deadline)
        await self.instance.introduce(route)
        waiting = Single()
        self._start_one(delivery, queue, sharding_key, selector, timeout_s, waiting.done)
        await waiting.future
        return await reply

    async def reply(self, request: MessageExt, body: bytes) -> SendResult:
        """Reply to a consumed request; returns when its requester has it.

        :raises IllegalMessageError: it is no request, or the body is none that can be sent.
        :raises BrokerError: its requester is gone, or did not take it.
        :raises CometMQError: it could not be sent, as :meth:`send`.
        """
        message, properties = reply_to(request, body)
        delivery = await self._prepare_large(message)
        delivery.code = _REPLY
        delivery.properties_text += properties
        waiting = Single()
        self._start(delivery, waiting.done, 0)
        return (await waiting.future)[0]

    # --- many messages ---

    async def send_many(
        self, messages: Iterable[Message], *, selector: QueueSelector | None = None, max_in_flight: int | None = None
    ) -> list[SendResult]:
        """Send independent messages, many in flight at once; results in the order given.

        Each is stored, retried and may fail by itself, as Java's ``send(message, callback)``. Much cheaper
        than a task per message.

        :raises PartlySentError: some failed; its ``outcomes`` tell which.
        :raises IllegalMessageError: one is not allowed; those before it may have been sent.
        """
        todo = messages if isinstance(messages, Sequence) else list(messages)
        limit = max_in_flight or self.config.max_in_flight
        outcomes = Many(None, len(todo))
        try:
            for index, message in enumerate(todo):
                if outcomes.in_flight >= limit:
                    await outcomes.until(limit // 2)
                large = len(message.body) >= PACK_IN_THREAD_BYTES
                delivery = await self._prepare_large(message) if large else self._prepare(message)
                delivery.retries = self.config.retry_times_when_send_async_failed
                delivery.mode = CommunicationMode.ASYNC
                if selector is not None:
                    delivery.selector, delivery.retries = selector, 0
                outcomes.in_flight += 1
                self._start(delivery, outcomes.done, index)
        finally:
            await outcomes.until(0)
        return outcomes.results()

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> list[SendResult]:
        """Send messages in as few requests as possible; results in the order given.

        The list may be of any length and mix topics: it is cut into batches of one topic within
        ``max_message_bytes``. Messages of one batch stand side by side in one queue. Messages that cannot
        be in a batch (delayed ones, those to a retry topic) go alone. Bodies in batches are not packed.

        With ``queue`` or ``sharding_key`` they keep their order: one request follows the answer to the
        other, and after one that failed nothing more is sent.

        :raises PartlySentError: some failed; its ``outcomes`` tell which.
        :raises IllegalMessageError: one is not allowed; nothing was sent.
        """
        self._demand_running()
        todo = messages if isinstance(messages, Sequence) else list(messages)
        if self._trace_context is not None:
            todo = [with_trace_context(message, self._trace_context) for message in todo]
        encoder = self._encoder
        for message in todo:
            encoder.check(message)
        sizes = [encoder.piece_bytes(message) for message in todo]
        positions = split_batches(todo, self.config.max_message_bytes, sizes)
        selector = by_sharding_key(sharding_key) if sharding_key is not None else None
        in_order = queue is not None or selector is not None
        limit = 1 if in_order else MAX_BATCHES_IN_FLIGHT
        outcomes = Many(positions, len(todo))
        try:
            for index, batch in enumerate(positions):
                if outcomes.in_flight >= limit:
                    await outcomes.until(limit - 1)
                if in_order and outcomes.failed:
                    outcomes.give_up(index, OVERTAKING)
                    continue
                chosen = [todo[position] for position in batch]
                delivery = self._prepare_batch(chosen) if self._is_batch(chosen) else self._prepare(chosen[0])
                if in_order:
                    delivery.target, delivery.selector, delivery.retries = queue, selector, 0
                outcomes.in_flight += 1
                self._start(delivery, outcomes.done, index)
        finally:
            await outcomes.until(0)
        return outcomes.results()

    # --- taking back ---

    async def recall(self, handle: str, *, timeout_s: float | None = None) -> str:
        """Take back a message that waits for its time; returns its ``msg_id``.

        :param handle: ``recall_handle`` of the result of its send.
        :raises RecallHandleError: that is no handle.
        :raises BrokerError: it is too late (code 604), or the broker does not recall (16; 3 before RocketMQ 5.3.2).
        :raises RemotingError: no answer; it may be taken back. Trying again does no harm.
        """
        self._demand_running()
        return await recall(self.instance, self.group, handle, timeout_s or self.config.send_timeout_s)

    # --- the topic ---

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that messages of ``topic`` can be sent to.

        :raises RouteNotFoundError: nobody knows the topic.
        """
        self._demand_running()
        return (await self.instance.routes.get_for_send(topic, self.config.default_topic_queue_nums)).write_queues

    # --- deliveries ---

    def _demand_running(self) -> None:
        if self._state != "running":
            raise ClientStateError(
                f"the producer of group {self.group} is {self._state}",
                next_step="make a new one" if self._state == "closed" else "use it inside `with` or `async with`",
            )

    def _prepare(self, message: Message) -> Delivery:
        self._demand_running()
        if self._trace_context is not None:
            message = with_trace_context(message, self._trace_context)
        self._encoder.check(message)
        body, sys_flag = self._encoder.packed(message)
        return self._delivery(message, body, sys_flag)

    async def _prepare_large(self, message: Message) -> Delivery:
        self._demand_running()
        if self._trace_context is not None:
            message = with_trace_context(message, self._trace_context)
        self._encoder.check(message)
        body, sys_flag = await asyncio.to_thread(self._encoder.packed, message)
        return self._delivery(message, body, sys_flag)

    def _delivery(self, message: Message, body: bytes, sys_flag: int) -> Delivery:
        key = self._ids.next()
        text = self._encoder.properties_text(message, key)
        return Delivery(self._sender, _SEND, message, body, text, sys_flag, (key,), self.config.send_timeout_s)

    def _is_batch(self, messages: Sequence[Message]) -> bool:
        """Whether they go as a batch; a message that fills one alone goes by itself."""
        if len(messages) > 1:
            return True
        return is_batchable(messages[0]) and self._encoder.piece_bytes(messages[0]) <= self.config.max_message_bytes

    def _prepare_batch(self, messages: Sequence[Message]) -> Delivery:
        keys = tuple(self._ids.many(len(messages)))
        body = self._encoder.batch_body(messages, keys)
        wait = "true" if messages[0].wait_store_msg_ok else "false"
        timeout_s = self.config.send_timeout_s
        delivery = Delivery(self._sender, _SEND_BATCH, messages[0], body, f"WAIT\x01{wait}\x02", 0, keys, timeout_s)
        delivery.batch = messages
        return delivery

    def _start(self, delivery: Delivery, done: Done, index: int) -> None:
        delivery.index = index
        delivery.done = done
        self._sender.start(delivery)
