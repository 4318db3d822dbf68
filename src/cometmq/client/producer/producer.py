"""The producer, which sends messages (``DefaultMQProducer``)."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from cometmq.client.errors import ClientStateError, RequestTimeoutError
from cometmq.client.group_client import GroupClient
from cometmq.client.hooks import CheckForbiddenHook, CommunicationMode, SendMessageHook, SendObservation
from cometmq.client.instance import ClientInstance
from cometmq.client.own_loop import checks_loop_itself
from cometmq.client.request_reply import reply_to, request_properties
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.delivery import Delivery, Done
from cometmq.client.send.encoding import is_batchable, split_batches
from cometmq.client.send.selection import QueueSelector, by_sharding_key
from cometmq.client.send.sender import Sender
from cometmq.client.send_result import Many, SendResult, Single, raisable
from cometmq.client.serialization import Serializer, to_json, with_body
from cometmq.client.trace.context import TraceHeaders, with_trace_context
from cometmq.clock import wait_for
from cometmq.message.ids import RecallHandle, UniqIdGenerator
from cometmq.message.message import Message, MessageExt
from cometmq.message.properties import WAIT, encode_properties
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from cometmq.remoting.security import Security
from cometmq.threads import in_thread

log = logging.getLogger(__name__)

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)

REQUEST_TIMEOUT_S: Final = 3.0
"""Default timeout for a request and its reply."""

COMPRESS_IN_THREAD_BYTES: Final = 64 * 1024
"""Minimum size of a body that is compressed in a worker thread so that it does not block the event loop."""


MAX_BATCHES_IN_FLIGHT: Final = 16
"""Maximum number of batches in flight per ``send_batch`` call."""


OVERTAKING: Final = "not sent, because it would overtake a message that failed"


class Producer(GroupClient):
    """Sends a producer group's messages.

    Use it as ``async with Producer("orders") as producer: await producer.send(Message("topic", b"…"))``.
    Any number of tasks can send concurrently.

    :param group: the producer group.
    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param config: all other options.
    :param instance: connections to share with other clients; by default it creates its own.
    :param send_hooks: called around every attempt, see :mod:`cometmq.client.hooks`.
    :param check_forbidden_hooks: can refuse a message.
    :param trace_context: returns the W3C headers of the current span, see :mod:`cometmq.client.trace`.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    :param serializer: returns the body for the ``value`` of a message; by default JSON.
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
        serializer: Serializer = to_json,
    ) -> None:
        super().__init__(group, namesrv, instance, security)
        self._serializer = serializer
        self.config = config or ProducerConfig()
        trace = self._begin_trace("PRODUCE", self.config)
        if trace is not None:
            send_hooks = (*send_hooks, trace.send_hook)
        observation = None
        if send_hooks or check_forbidden_hooks:
            observation = SendObservation(group, send_hooks, check_forbidden_hooks, self.instance.clock)
        self._sender = Sender(self.instance, group, self.config, observation)
        self._encoder = self._sender.encoder
        self._trace_context = trace_context
        self._ids = UniqIdGenerator(self.instance.clock)
        self._state = "not started"
        self._loop: AbstractEventLoop | None = None

    async def start(self) -> None:
        """Prepare for sending; no request is sent yet, not even to the nameserver.

        :raises ClientStateError: the producer was started before.
        """
        if self._state != "not started":
            raise ClientStateError(
                f"the producer of group {self.group} is {self._state}", next_step="create a new producer"
            )
        self._state = "running"
        self._loop = get_running_loop()
        self._use.begin(partial(self.instance.remove, producer_group=self.group))
        self.instance.add_producer(self.group)

    async def close(self) -> None:
        """Wait for messages in flight, unregister from the brokers, and close the producer."""
        if self._state != "not started":
            self._state = "closed"
            await self._end_once(self._end)

    async def _end(self) -> None:
        try:
            await wait_for(self.instance.clock, self.config.close_timeout_s, self._sender.idle())
        except TimeoutError:
            log.warning("closing while %d messages are waiting for responses", self._sender.in_flight)
        if self.trace is not None:
            await self.trace.close()
        await self.instance.remove(producer_group=self.group)
        await self._use.end()

    # --- one message ---

    @checks_loop_itself
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

        Without ``queue``, ``sharding_key`` or ``selector``, queues are used in turn, and a failed attempt is repeated
        on another broker. With one of these arguments, an attempt that may have stored the message is the last attempt.
        ``timeout_s`` is for all attempts together.

        After a time-out or a cancelled call, a message that has not left the client is not sent. A message that has
        left may still be stored later: a paused broker reads the waiting messages when it continues.

        :raises IllegalMessageError: no broker would accept it, or its value cannot be serialized; nothing was sent.
        :raises RouteNotFoundError: no broker has the topic, or would create it.
        :raises BrokerError: the broker refused it.
        :raises RemotingError: the only attempt got no answer; the message may be stored.
        :raises SendFailedError: several attempts failed.
        """
        message = with_body(message, self._serializer)
        delivery = await self._prepare_large(message) if is_large(message) else self._prepare(message)
        delivery.pin(queue, sharding_key, selector, timeout_s)
        waiting = Single()
        self._start(delivery, waiting.done, 0)
        try:
            return (await waiting.future)[0]
        except asyncio.CancelledError:
            delivery.given_up = True
            raise

    def send_then(
        self,
        message: Message,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        timeout_s: float | None,
        put: Callable[[SendResult | BaseException], None],
    ) -> None:
        """Send a message like :meth:`send`, and call ``put`` once with the result or the error.

        Call it on the event loop.
        """

        def done(_index: int, outcome: list[SendResult] | BaseException) -> None:
            put(raisable(outcome) if isinstance(outcome, BaseException) else outcome[0])

        try:
            delivery = self._prepare(message)
        except BaseException as error:
            put(error)
            return
        delivery.pin(queue, sharding_key, selector, timeout_s)
        self._start(delivery, done, 0)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send one message without waiting for a response; whether it is stored remains unknown.

        :raises IllegalMessageError: no broker would accept it.
        :raises RouteNotFoundError: no broker has the topic, or would create it.
        :raises RemotingError: no connection.
        """
        self._check_running()
        message = with_body(message, self._serializer)
        if self._trace_context is not None:
            message = with_trace_context(message, self._trace_context)
        self._encoder.check(message)
        chosen = by_sharding_key(sharding_key) if sharding_key is not None else selector
        with self._sender.under_way():
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
        """Send a request message and wait for the first reply; ``timeout_s`` covers both.

        :raises RequestTimeoutError: no reply arrived in time; the request may be stored and consumed later.
        :raises IllegalMessageError: no broker would accept it; nothing was sent.
        :raises CometMQError: the message could not be sent, as for :meth:`send`.
        """
        delivery = await self._prepare_large(message)
        try:
            with self.instance.replies.expected() as (correlation_id, reply):
                client_id = self.instance.client_id
                delivery.properties_text += request_properties(correlation_id, client_id, timeout_s)
                delivery.pin(queue, sharding_key, selector, timeout_s)
                return await wait_for(self.instance.clock, timeout_s, self._ask(delivery, reply))
        except TimeoutError:
            raise RequestTimeoutError(message.topic, timeout_s) from None

    async def _ask(self, delivery: Delivery, reply: asyncio.Future[MessageExt]) -> MessageExt:
        topic, queue_nums = delivery.message.topic, self.config.default_topic_queue_nums
        await self.instance.introduce(await self.instance.routes.find_for_send(topic, queue_nums, delivery.deadline))
        await self._send(delivery)
        return await reply

    async def reply(
        self, request: MessageExt, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Reply to a consumed request; return when the requester has received the reply.

        :param properties: the reply's own properties.
        :raises IllegalMessageError: the message is not a request, or the body cannot be sent.
        :raises BrokerError: the requester is gone, or did not accept the reply.
        :raises CometMQError: the message could not be sent, as for :meth:`send`.
        """
        message, addressed = reply_to(request, body)
        message.properties = dict(properties or {})
        delivery = await self._prepare_large(message)
        delivery.code = _REPLY
        delivery.properties_text += addressed
        return await self._send(delivery)

    # --- many messages ---

    async def send_many(
        self, messages: Iterable[Message], *, selector: QueueSelector | None = None, max_in_flight: int | None = None
    ) -> list[SendResult]:
        """Send independent messages, many in flight; return their results in the given order.

        Each message is stored, is retried or fails independently, as with Java's ``send(message, callback)``. This is
        much cheaper than a task for each message.

        :raises PartlySentError: some messages failed; see its ``outcomes``.
        :raises IllegalMessageError: a message is not allowed; earlier messages may have been sent.
        """
        todo = messages if isinstance(messages, Sequence) else list(messages)
        limit = max_in_flight or self.config.max_in_flight
        outcomes = Many(None, len(todo))
        looked_up: set[str] = set()
        try:
            for index, message in enumerate(todo):
                if outcomes.in_flight >= limit:
                    await outcomes.until(limit // 2)
                message = with_body(message, self._serializer)
                if message.topic not in looked_up:
                    self._check_running()
                    self._encoder.check(message)
                    looked_up.add(message.topic)
                    await self._sender.look_up(message.topic)
                delivery = await self._prepare_large(message) if is_large(message) else self._prepare(message)
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
        """Send messages in as few requests as possible; return their results in the given order.

        The list may have any length and mix topics: it is cut into batches of one topic with at most
        ``max_message_bytes``. Messages of one batch are neighbours in one queue. Messages that cannot be in a batch
        (delayed messages, and messages with a priority or to a retry topic) are sent alone. Bodies in batches are not
        compressed.

        With ``queue`` or ``sharding_key``, the messages keep their order: each request follows the answer to the
        previous request, and after a failure nothing more is sent.

        :raises PartlySentError: some messages failed; see its ``outcomes``.
        :raises IllegalMessageError: a message is not allowed; nothing was sent.
        """
        self._check_running()
        todo = [with_body(message, self._serializer) for message in messages]
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

    # --- recall ---

    async def recall(self, handle: str, *, timeout_s: float | None = None) -> str:
        """Recall a message with an arbitrary delay before it is due; return its ``msg_id``.

        :param handle: ``recall_handle`` of the send's result.
        :raises RecallHandleError: the handle is malformed.
        :raises BrokerError: it is too late (response code 604), or the broker does not recall messages (response code
            16, or 3 before RocketMQ 5.3.2).
        :raises RemotingError: no answer; the message may be recalled. A retry does no harm.
        """
        self._check_running()
        waiting = RecallHandle.decode(handle)
        address = await self.instance.master_of(MessageQueue(waiting.topic, waiting.broker_name, 0))
        header = RecallMessageRequestHeader(topic=waiting.topic, recall_handle=handle, producer_group=self.group)
        answer = await self.instance.call(
            address,
            RequestCode.RECALL_MESSAGE,
            header,
            doing=f"recalling {waiting.unique_key}",
            timeout_s=timeout_s or self.config.send_timeout_s,
        )
        return answer.header(RecallMessageResponseHeader).msg_id

    # --- the topic ---

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues of ``topic``.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        self._check_running()
        return (await self.instance.routes.get_for_send(topic, self.config.default_topic_queue_nums)).write_queues

    # --- deliveries ---

    def _check_running(self) -> None:
        if self._loop is not get_running_loop():
            self._check_loop()
        if self._state != "running":
            raise ClientStateError(
                f"the producer of group {self.group} is {self._state}",
                next_step="create a new producer"
                if self._state == "closed"
                else "use the producer inside `with` or `async with`",
            )

    def _prepare(self, message: Message) -> Delivery:
        self._check_running()
        message = with_body(message, self._serializer)
        if self._trace_context is not None:
            message = with_trace_context(message, self._trace_context)
        self._encoder.check(message)
        body, sys_flag = self._encoder.packed(message)
        return self._delivery(message, body, sys_flag)

    async def _prepare_large(self, message: Message) -> Delivery:
        self._check_running()
        message = with_body(message, self._serializer)
        if self._trace_context is not None:
            message = with_trace_context(message, self._trace_context)
        self._encoder.check(message)
        with self._sender.under_way():
            body, sys_flag = await in_thread(self._encoder.packed, message)
        return self._delivery(message, body, sys_flag)

    def _delivery(self, message: Message, body: bytes, sys_flag: int) -> Delivery:
        key = self._ids.next()
        text = self._encoder.properties_text(message, key)
        return self._sender.delivery(_SEND, message, body, text, sys_flag, (key,), self.config.send_timeout_s)

    def _is_batch(self, messages: Sequence[Message]) -> bool:
        """Return whether messages are sent as a batch; a message that fills a batch is sent alone."""
        if len(messages) > 1:
            return True
        return is_batchable(messages[0]) and self._encoder.piece_bytes(messages[0]) <= self.config.max_message_bytes

    def _prepare_batch(self, messages: Sequence[Message]) -> Delivery:
        keys = tuple(self._ids.many(len(messages)))
        body = self._encoder.batch_body(messages, keys)
        wait = "true" if messages[0].wait_store_msg_ok else "false"
        timeout_s = self.config.send_timeout_s
        delivery = self._sender.delivery(
            _SEND_BATCH, messages[0], body, encode_properties({WAIT: wait}), 0, keys, timeout_s
        )
        delivery.batch = messages
        return delivery

    async def _send(self, delivery: Delivery) -> SendResult:
        waiting = Single()
        self._start(delivery, waiting.done, 0)
        try:
            return (await waiting.future)[0]
        except asyncio.CancelledError:
            delivery.given_up = True
            raise

    def _start(self, delivery: Delivery, done: Done, index: int) -> None:
        delivery.index = index
        delivery.done = done
        self._sender.start(delivery)


def is_large(message: Message) -> bool:
    """Return whether a body is large enough to be compressed in a worker thread."""
    try:
        return len(message.body) >= COMPRESS_IN_THREAD_BYTES
    except TypeError:
        return False
