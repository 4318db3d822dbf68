"""Popped messages, and how they are read from a broker's response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cometmq.client.errors import ClientStateError
from cometmq.client.serialization import DecodedMessage, Deserializer
from cometmq.clock import Clock
from cometmq.message.message import record_starts
from cometmq.message.pop_info import NORMAL_TOPIC, HandleError, ReceiptHandle, parse_handle, read_offset_info
from cometmq.message.properties import POP_CK
from cometmq.remoting.pop_headers import PopMessageResponseHeader
from cometmq.remoting.pop_requests import queue_handles

_Handles = Mapping[tuple[str, int], ReceiptHandle]
_Offsets = Mapping[tuple[str, int], Sequence[int]]


class PoppedMessage(DecodedMessage, eq=False, gc=True, kw_only=True):
    """A message that a :class:`~cometmq.client.SimpleConsumer` has received.

    No other member of the group receives it until it is given back or its invisible time is over. Only the process that
    received a message can acknowledge it.
    """

    _subscribed: str = ""
    """The topic to which the consumer subscribes."""
    _popped: ReceiptHandle | None = None
    """The handle of the message's queue; its ``queue_offset`` is not set."""
    invisible_until_ms: int = 0
    """The time at which the group receives the message again, on this client's clock, in milliseconds since 1970."""
    invisible_until_s: float = 0.0
    """The same in seconds of the client's monotonic clock, which a corrected date does not move."""

    @property
    def handle(self) -> ReceiptHandle:
        """The parts of the receipt.

        :raises ClientStateError: the message was not received by this process.
        """
        return self.queue_handle._replace(queue_offset=self.queue_offset)

    @property
    def queue_handle(self) -> ReceiptHandle:
        """The parts of the receipt that the messages of one pop from one queue share.

        :raises ClientStateError: the message was not received by this process.
        """
        if self._popped is None:
            raise ClientStateError(
                f"message {self.msg_id} has no receipt, because another process received it",
                next_step="return the result to the process with the consumer, and acknowledge the message there",
            )
        return self._popped

    @property
    def receipt(self) -> str:
        """The receipt handle with which the message is acknowledged; each change of its invisible time renews it."""
        return self.handle.encode()

    @property
    def subscribed_topic(self) -> str:
        """The topic to which the consumer subscribes, also for a message of a retry topic."""
        return self._subscribed

    @property
    def delivery_attempt(self) -> int:
        """The number of deliveries up to this one, starting at 1."""
        return self.reconsume_times + 1

    def renew(self, handle: ReceiptHandle, invisible_ms: int, clock: Clock) -> None:
        """Replace the receipt after a change of the invisible time, which begins now."""
        self._popped = handle
        self.invisible_until_ms = clock.now_ms() + invisible_ms
        self.invisible_until_s = clock.monotonic() + invisible_ms / 1000


def read_popped(
    header: PopMessageResponseHeader,
    body: bytes,
    topic: str,
    broker: str,
    deserializer: Deserializer | None,
    clock: Clock,
) -> list[PoppedMessage]:
    """Return the messages in a response to a pop.

    :param topic: the topic that was requested; messages of the group's retry topic are among its messages.
    :param clock: this client's clock; the messages are invisible from now on.
    :raises HandleError: the response is malformed.
    :raises RecordError: the records are malformed.
    """
    handles = queue_handles(header, broker)
    has_retries = any(kind != NORMAL_TOPIC for kind, _ in handles)
    offsets = read_offset_info(header.msg_offset_info or "") if has_retries else {}
    until_ms = clock.now_ms() + header.invisible_time
    until_s = clock.monotonic() + header.invisible_time / 1000
    found = []
    for at in record_starts(body):
        message = PoppedMessage(
            *(body, at, broker),
            deserializer=deserializer,
            _subscribed=topic,
            invisible_until_ms=until_ms,
            invisible_until_s=until_s,
        )
        key = NORMAL_TOPIC, message.queue_id
        handle = handles.get(key) if not has_retries else _of_either_kind(message, handles, offsets)
        if handle is None or message.queue_offset < handle.start_offset:
            raise HandleError(f"the response to a pop of {topic} does not list offset {message.queue_offset}")
        message._popped = handle
        found.append(message)
    return found


def _of_either_kind(message: PoppedMessage, handles: _Handles, offsets: _Offsets) -> ReceiptHandle | None:
    """Return the handle of a message of the topic or of a retry topic, by the offsets that the broker lists.

    If both have a message at this offset, the message of the retry topic has its own handle as a property.
    """
    queue_id, offset = message.queue_id, message.queue_offset
    found = [
        handle
        for (kind, queue), handle in handles.items()
        if queue == queue_id and offset in offsets.get((kind, queue), ())
    ]
    if len(found) > 1:
        own = message.properties.get(POP_CK)
        kind = NORMAL_TOPIC if own is None else parse_handle(own).topic_type
        found = [handle for handle in found if handle.topic_type == kind]
    return found[0] if found else None
