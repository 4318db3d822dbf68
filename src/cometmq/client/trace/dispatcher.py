"""Message tracing: hooks that record, and a dispatcher that sends the records in batches (``AsyncTraceDispatcher``).

Any thread can add records. They are sent when there are 100 records, or half a second after the first one. No call ever
waits for a trace: while the broker stores no records, they wait in a bounded queue; further records are dropped and
counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import Final

from cometmq.client.hooks import (
    ConsumeMessageContext,
    ConsumeMessageHook,
    EndTransactionContext,
    SendMessageContext,
    SendMessageHook,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send.sender import Sender
from cometmq.client.send_result import SendResult, SendStatus
from cometmq.clock import wait_for
from cometmq.limits import (
    MAX_TRACE_BODY_BYTES,
    MAX_TRACE_IN_FLIGHT,
    MAX_TRACE_KEY_BYTES,
    MAX_TRACE_RECORDS,
    MAX_WAITING_TRACES,
)
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import TRACE_TOPIC
from cometmq.message.properties import KEY_SEPARATOR, KEYS, MSG_REGION, TRACE_ON, MessageType
from cometmq.message.trace_record import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord, encode_trace
from cometmq.periodic import Alarm
from cometmq.remoting.codes import RequestCode

log = logging.getLogger(__name__)

FLUSH_S: Final = 0.5
"""Maximum time for which a record waits for further records, as in Java."""
SEND_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_numbers = itertools.count(1)


class TraceDispatcher:
    """Sends a producer's or consumer's traces.

    :param group: the group of the producer or consumer.
    :param kind: ``PRODUCE`` or ``CONSUME``. Group and kind are in the producer group of the trace messages.
    :param topic: the trace topic.
    """

    def __init__(self, instance: ClientInstance, group: str, kind: str, topic: str) -> None:
        self.topic = topic
        self.dropped = 0
        """Number of records lost because the queue was full or no broker stored them."""
        self._instance = instance
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, max_message_bytes=MAX_TRACE_BODY_BYTES)
        self._timeout_s = config.send_timeout_s
        self._sender = Sender(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_numbers)}", config)
        self._ids = UniqIdGenerator(instance.clock)
        self._waiting: deque[TraceRecord] = deque()
        self._loop = asyncio.get_running_loop()
        self._next_flush = Alarm(self._flush_periodically, clock=instance.clock)
        self._waking = False
        self._failing = False

    def append(self, record: TraceRecord) -> None:
        """Add a record from any thread; drop it if too many records are pending."""
        waiting = self._waiting
        if len(waiting) >= MAX_WAITING_TRACES:
            self.dropped += 1
            return
        waiting.append(record)
        if not self._waking and (len(waiting) >= MAX_TRACE_RECORDS or not self._next_flush.is_set):
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                log.debug("the event loop ended before its traces were sent")

    async def close(self) -> None:
        """Send the pending records, taking at most :data:`CLOSE_TIMEOUT_S` seconds."""
        try:
            await wait_for(self._instance.clock, CLOSE_TIMEOUT_S, self._drain())
        except TimeoutError:
            self.dropped += len(self._waiting)
            log.warning("closing while traces for %s are waiting for responses", self.topic)
        self._next_flush.cancel()
        if self.dropped:
            log.warning("%d traces were not sent to %s", self.dropped, self.topic)

    async def _drain(self) -> None:
        while self._waiting:
            self._flush()
            await self._sender.idle()
        await self._sender.idle()

    # --- on the event loop ---

    def _wake(self) -> None:
        self._waking = False
        while len(self._waiting) >= MAX_TRACE_RECORDS and self._sender.in_flight < MAX_TRACE_IN_FLIGHT:
            self._send_batch()
        if self._waiting and not self._next_flush.is_set:
            self._next_flush.after(FLUSH_S)

    def _flush_periodically(self) -> None:
        self._flush()
        if self._waiting:
            self._next_flush.after(FLUSH_S)

    def _flush(self) -> None:
        while self._waiting and self._sender.in_flight < MAX_TRACE_IN_FLIGHT:
            self._send_batch()

    def _send_batch(self) -> None:
        """Send the first pending records, as many as fit in one message."""
        waiting = self._waiting
        texts: list[str] = []
        keys: dict[str, None] = {}
        body_bytes = key_bytes = 0
        while waiting and len(texts) < MAX_TRACE_RECORDS:
            text = encode_trace(waiting[0])
            found = _keys_of(waiting[0])
            size = len(text.encode())
            more = sum(len(key.encode()) + 1 for key in found)
            if texts and (body_bytes + size > MAX_TRACE_BODY_BYTES or key_bytes + more > MAX_TRACE_KEY_BYTES):
                break
            waiting.popleft()
            texts.append(text)
            body_bytes += size
            key_bytes += more
            keys.update(dict.fromkeys(found))
        message = Message(self.topic, "".join(texts).encode(), keys=tuple(keys))
        key = self._ids.next()
        try:
            encoder = self._sender.encoder
            encoder.check(message)
            body, sys_flag = encoder.packed(message)
            text = encoder.properties_text(message, key)
            delivery = self._sender.delivery(_SEND, message, body, text, sys_flag, (key,), self._timeout_s)
        except Exception as error:
            self._sent(len(texts), error)
            return
        delivery.index = len(texts)
        delivery.done = self._sent
        self._sender.start(delivery)

    def _sent(self, records: int, outcome: list[SendResult] | BaseException) -> None:
        if not isinstance(outcome, BaseException):
            self._failing = False
            return
        self.dropped += records
        if not self._failing:
            log.warning("%d traces were dropped; further drops are not logged: %s", records, outcome)
        self._failing = True


def _keys_of(record: TraceRecord) -> list[str]:
    """Return the keys for a trace message: the traced message's id, and its keys unless they are too long."""
    own = record.keys.split(KEY_SEPARATOR) if record.keys else []
    if sum(map(len, own)) * 4 > MAX_TRACE_KEY_BYTES:
        own = []
    return [key for key in (record.msg_id, *own) if key]


_STATES: Final = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE", "UNKNOWN": "UNKNOW"}
"""The transaction states in traces (``LocalTransactionState``)."""


class MessageTrace:
    """The hooks that trace a producer or consumer, with the same records as Java's hooks.

    ``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl`` and ``EndTransactionTraceHookImpl``. As in Java, a
    failed attempt to send is not recorded.

    :param kind: ``PRODUCE`` or ``CONSUME``.
    :param topic: the trace topic; ``RMQ_SYS_TRACE_TOPIC`` by default.
    """

    def __init__(self, instance: ClientInstance, group: str, kind: str, topic: str | None) -> None:
        self.dispatcher = TraceDispatcher(instance, group, kind, topic or TRACE_TOPIC)
        self.send_hook: Final = SendMessageHook(after=self._sent)
        self.consume_hook: Final = ConsumeMessageHook(self._before_consumption, self._after_consumption)
        self._group = group
        self._clock = instance.clock
        self._ids = UniqIdGenerator(instance.clock)

    async def close(self) -> None:
        """Send the pending records."""
        await self.dispatcher.close()

    def _sent(self, context: SendMessageContext) -> None:
        """Record each message of a successful attempt unless the broker forbids it (``traceOn``)."""
        if not context.results or context.region_id is None or not context.trace_on:
            return
        if context.queue.topic == self.dispatcher.topic:
            return
        cost_ms = (context.ended_at_ms - context.begun_at_ms) // len(context.results)
        for message, result in zip(context.messages, context.results, strict=True):
            self.dispatcher.append(
                Pub(
                    time_ms=context.begun_at_ms,
                    region=context.region_id,
                    group=self._group,
                    topic=message.topic,
                    msg_id=result.msg_id,
                    tags=message.tags,
                    keys=_keys(message),
                    store_host=context.broker_address,
                    body_bytes=context.body_bytes if len(context.messages) == 1 else len(message.body),
                    cost_ms=cost_ms,
                    msg_type=int(context.msg_type),
                    offset_msg_id=result.offset_msg_id,
                    success=result.status is SendStatus.SEND_OK,
                )
            )

    def _before_consumption(self, context: ConsumeMessageContext) -> None:
        traced = [message for message in context.messages if self._is_traced(message)]
        if not traced:
            return
        request_id = self._ids.next()
        context.props["trace"] = (request_id, traced)
        for message in traced:
            self.dispatcher.append(
                SubBefore(
                    time_ms=context.begun_at_ms,
                    region=message.properties.get(MSG_REGION),
                    group=self._group,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(KEYS),
                )
            )

    def _is_traced(self, message: MessageExt) -> bool:
        return message.topic != self.dispatcher.topic and message.properties.get(TRACE_ON) != "false"

    def _after_consumption(self, context: ConsumeMessageContext) -> None:
        before = context.props.get("trace")
        if not isinstance(before, tuple):
            return
        request_id, traced = before
        cost_ms = (context.ended_at_ms - context.begun_at_ms) // len(context.messages)
        for message in traced:
            self.dispatcher.append(
                SubAfter(
                    request_id=request_id,
                    msg_id=message.msg_id,
                    cost_ms=cost_ms,
                    success=context.success,
                    keys=message.properties.get(KEYS),
                    context_code=int(context.return_type),
                    time_ms=context.ended_at_ms,
                    group=self._group,
                )
            )

    def end_hook(self, end: EndTransactionContext) -> None:
        """Record the end of a transaction."""
        message = end.message
        self.dispatcher.append(
            EndTransaction(
                time_ms=self._clock.now_ms(),
                region="",
                group=self._group,
                topic=message.topic,
                msg_id=end.transaction_id,
                tags=message.tags,
                keys=_keys(message),
                store_host=end.broker_address,
                msg_type=int(MessageType.TRANS_COMMIT),
                transaction_id=end.transaction_id,
                transaction_state=_STATES[end.state],
                from_transaction_check=end.from_transaction_check,
            )
        )


def _keys(message: Message | MessageExt) -> str | None:
    keys = message.keys
    return (keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)) or None
