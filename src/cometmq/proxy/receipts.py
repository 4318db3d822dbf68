"""Message deliveries, and consumers' requests to acknowledge, delay or dead-letter delivered messages.

A client's receipt handle is the POP handle followed by the message's log offset (``ReceiptHandle``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.message.pop_info import NORMAL_TOPIC, HandleError, ReceiptHandle, parse_handle, real_topic
from cometmq.proxy.backend.backend import Link, PoppedHandle
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.pop_headers import ChangeInvisibleTimeResponseHeader
from cometmq.remoting.pop_requests import ack_request, change_request, changed_handle, dead_letter_request

_POP_PARTS: Final = 8
_MAX_OFFSET_DIGITS: Final = 19


class Delivery(NamedTuple):
    """One delivery of a message to a group."""

    topic: str
    """The topic to which the client subscribes."""
    group: str
    handle: ReceiptHandle
    log_offset: int
    """Offset of the message in the broker's log."""
    lite_topic: str | None = None
    """The lite topic of the message, to whose messages the handle's queue offset belongs."""

    @property
    def ends_ms(self) -> int:
        """The time at which the message becomes visible again, in milliseconds since 1970."""
        return self.handle.pop_time + self.handle.invisible_time

    @property
    def stored_topic(self) -> str:
        """The topic in which the message is stored: the client's topic or a retry topic of its group."""
        return real_topic(self.topic, self.group, self.handle.topic_type)

    @property
    def popped(self) -> PoppedHandle:
        """The message, for an acknowledgement."""
        handle = self.handle
        return PoppedHandle(
            *(handle.broker_name, self.stored_topic, self.group, handle.queue_id, handle.queue_offset, handle.pop_time)
        )

    def encode(self) -> str:
        """Return the receipt handle to send to the client."""
        return f"{self.handle.encode()} {self.log_offset}"


def popped_of(topic: str, group: str, text: str, *, now_ms: int) -> PoppedHandle:
    """Parse the receipt handle of a message that is to be acknowledged and is still invisible.

    :raises ProxyError: the handle is malformed or expired.
    """
    try:
        _, pop_time, invisible_ms, _, kind, broker, queue_id, offset = parse_handle(text)
    except HandleError as error:
        raise _invalid(error) from error
    if pop_time + invisible_ms <= now_ms:
        raise _expired()
    stored_topic = topic if kind == NORMAL_TOPIC else real_topic(topic, group, kind)
    return PoppedHandle(broker, stored_topic, group, queue_id, offset, pop_time)


def _invalid(error: HandleError) -> ProxyError:
    return ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is invalid: {error.message}")


def _expired() -> ProxyError:
    return ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")


def parse_delivery(topic: str, group: str, text: str, *, now_ms: int, lite_topic: str | None = None) -> Delivery:
    """Parse the receipt handle of a message that is still invisible.

    :raises ProxyError: the handle is malformed or expired.
    """
    delivery = read_delivery(topic, group, text, lite_topic)
    if delivery.ends_ms <= now_ms:
        raise _expired()
    return delivery


def read_delivery(topic: str, group: str, text: str, lite_topic: str | None = None) -> Delivery:
    """Parse a receipt handle.

    :raises ProxyError: the handle is malformed.
    """
    try:
        handle = parse_handle(text)
    except HandleError as error:
        raise _invalid(error) from error
    parts = text.split(" ", _POP_PARTS + 1)
    last = parts[_POP_PARTS] if len(parts) > _POP_PARTS else ""
    is_offset = last.isascii() and last.isdigit() and len(last) <= _MAX_OFFSET_DIGITS
    return Delivery(topic, group, handle, int(last) if is_offset else 0, lite_topic)


async def acknowledge(link: Link, delivery: Delivery) -> None:
    """Acknowledge a message.

    :raises ProxyError: the broker refuses.
    """
    handle = delivery.handle
    header = ack_request(handle, delivery.topic, delivery.group, lite_topic=delivery.lite_topic)
    (await link.ask(handle.broker_name, RequestCode.ACK_MESSAGE, header)).checked()


async def change_invisible_time(
    link: Link, delivery: Delivery, invisible_ms: int, *, suspend: bool = False
) -> Delivery:
    """Make a message visible again after a given time; return the delivery with its new handle.

    :param suspend: the delivery of a message of a lite topic does not count as an attempt.

    :raises ProxyError: the broker refuses.
    """
    handle, lite_topic = delivery.handle, delivery.lite_topic
    header = change_request(
        *(handle, delivery.topic, delivery.group, invisible_ms), lite_topic=lite_topic, suspend=suspend
    )
    reply = await link.ask(handle.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    changed = reply.checked().header(ChangeInvisibleTimeResponseHeader)
    return delivery._replace(handle=changed_handle(handle, changed))


async def forward_to_dead_letters(link: Link, delivery: Delivery, message_id: str) -> None:
    """Store a message as a dead letter, then acknowledge it.

    If the proxy crashes in between, the message is in both topics.

    :raises ProxyError: the broker refuses.
    """
    header = dead_letter_request(
        *(delivery.handle, delivery.topic, delivery.group), log_offset=delivery.log_offset, message_id=message_id
    )
    (await link.ask(delivery.handle.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, header)).checked()
    await acknowledge(link, delivery)
