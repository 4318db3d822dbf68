"""Collects trace records and sends them in batches, beside the messages they tell of (``AsyncTraceDispatcher``).

Records may come from any thread. They are sent when there are 100 of them, or half a second after the
first one. Nobody ever waits for a trace: when the broker does not take them the oldest wait in a bounded
queue, and further ones are dropped and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.send_encoding import SendEncoder
from cometmq.client.send_result import SendResult
from cometmq.client.sender import Delivery, Sender
from cometmq.clock import TimerHandle
from cometmq.limits import (
    MAX_TRACE_BODY_BYTES,
    MAX_TRACE_IN_FLIGHT,
    MAX_TRACE_KEY_BYTES,
    MAX_TRACE_RECORDS,
    MAX_WAITING_TRACES,
)
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.message import Message
from cometmq.message.properties import KEY_SEPARATOR
from cometmq.message.trace_record import TraceRecord, encode_trace
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.deadline import within

log = logging.getLogger(__name__)

FLUSH_S: Final = 0.5
"""How long a record waits for others, as in Java."""
SEND_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 5.0

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_numbers = itertools.count(1)


class TraceDispatcher:
    """Sends the traces of one producer or consumer.

    :param group: whose traces they are.
    :param kind: ``PRODUCE`` or ``CONSUME``; both stand in the group that the trace messages are sent as.
    :param topic: the trace topic.
    """

    def __init__(self, instance: ClientInstance, group: str, kind: str, topic: str) -> None:
        self.topic = topic
        self.dropped = 0
        """Records that were not sent: the queue was full, or no broker took them."""
        self._instance = instance
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, max_message_bytes=MAX_TRACE_BODY_BYTES)
        encoder = SendEncoder(
            f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_numbers)}",
            config.default_topic_queue_nums,
            config.max_message_bytes,
            config.compress_over_bytes,
            config.compression,
            config.compression_level,
            instance.remoting.credentials,
        )
        self._timeout_s = config.send_timeout_s
        self._encoder = encoder
        self._sender = Sender(instance, encoder, config)
        self._ids = UniqIdGenerator(instance.clock)
        self._waiting: deque[TraceRecord] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: TimerHandle | None = None
        self._waking = False
        self._failing = False

    def append(self, record: TraceRecord) -> None:
        """Take a record, from any thread; it is dropped when too many wait."""
        waiting = self._waiting
        if len(waiting) >= MAX_WAITING_TRACES:
            self.dropped += 1
            return
        waiting.append(record)
        if not self._waking and (len(waiting) >= MAX_TRACE_RECORDS or self._timer is None):
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                log.debug("the event loop ended before its traces were sent")

    async def close(self) -> None:
        """Send what waits, within some seconds."""
        try:
            await within(self._instance.clock, CLOSE_TIMEOUT_S, self._drain())
        except TimeoutError:
            self.dropped += len(self._waiting)
            log.warning("closing although traces wait for answers of %s", self.topic)
        if self._timer is not None:
            self._timer.cancel()
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
        if self._waiting and self._timer is None:
            self._timer = self._instance.clock.call_later(FLUSH_S, self._due)

    def _due(self) -> None:
        self._timer = None
        self._flush()
        if self._waiting:
            self._timer = self._instance.clock.call_later(FLUSH_S, self._due)

    def _flush(self) -> None:
        while self._waiting and self._sender.in_flight < MAX_TRACE_IN_FLIGHT:
            self._send_batch()

    def _send_batch(self) -> None:
        """Send the first records, as many as one message takes."""
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
            self._encoder.check(message)
            body, sys_flag = self._encoder.packed(message)
            text = self._encoder.properties_text(message, key)
            delivery = Delivery(self._sender, _SEND, message, body, text, sys_flag, (key,), self._timeout_s)
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
            log.warning("%d traces are dropped, further ones without a word: %s", records, outcome)
        self._failing = True


def _keys_of(record: TraceRecord) -> list[str]:
    """What the trace message is found by: the id of the message, and its keys where they are not too long."""
    own = record.keys.split(KEY_SEPARATOR) if record.keys else []
    if sum(map(len, own)) * 4 > MAX_TRACE_KEY_BYTES:
        own = []
    return [key for key in (record.msg_id, *own) if key]
