"""The popped messages in a broker's response, as gRPC clients receive them (hot path).

The compiled core encodes usual messages; Python encodes the others, and all of them without the core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple

from cometmq.core import CORE
from cometmq.message.message import MessageExt, split_records
from cometmq.message.pop_info import NORMAL_TOPIC, HandleError, ReceiptHandle, parse_handle
from cometmq.message.properties import INNER_MULTI_QUEUE_OFFSET, LITE_TOPIC, POP_CK
from cometmq.message.record import RecordError
from cometmq.proxy.backend.backend import Reply
from cometmq.proxy.converter import RESERVED, resource_of
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.message_bytes import field, message_bytes
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.lite.headers import PopLiteMessageResponseHeader
from cometmq.remoting.pop_headers import PopMessageResponseHeader
from cometmq.remoting.pop_requests import queue_handles

_MESSAGE: Final = b"\x12"
"""The head of the field ``message`` in a ``ReceiveMessageResponse``."""
_Failures = Mapping[tuple[int, int], int]
_Heads = Mapping[int, str]
_CORE: Final[Any] = None if CORE is None else CORE.ReceivedMessages(sorted(RESERVED))


class Received(NamedTuple):
    """A popped message."""

    response: bytes
    """The encoded ``ReceiveMessageResponse``; empty if the message has too many attempts."""
    handle: str
    """The client's receipt handle: the POP handle and the message's log offset."""
    attempt: int
    """The delivery attempt, starting at 1."""
    tag: str | None
    message_id: str
    lite_topic: str | None = None


def read_pop(reply: Reply, *, topic: str, broker: str, max_attempts: int) -> Sequence[Received]:
    """Return the messages in a broker's response.

    :param topic: the topic to which the client subscribes.
    :param max_attempts: messages with more delivery attempts are not encoded, because no client receives them.
    :raises ProxyError: the response is malformed.
    """
    try:
        header = reply.header(PopMessageResponseHeader)
        failures = _failed_deliveries(header.order_count_info or "")
        heads = _handle_heads(header, broker)
        resource = resource_of(topic).SerializeToString()
        data = bytes(reply.body)
        if _CORE is not None:
            counted = [(*place, times) for place, times in failures.items()]
            found = _CORE.read(data, resource, list(heads.items()), counted, max_attempts)
            if found is not None:
                return list(starmap(Received, found))
        return [_received(message, resource, heads, failures, max_attempts) for message in split_records(data, broker)]
    except (KeyError, ValueError, OverflowError, HandleError) as error:
        words = f"cannot read the broker's response to a pop: {error}"
        raise ProxyError(Code.INTERNAL_SERVER_ERROR, words) from error


def read_lite_pop(reply: Reply, *, topic: str, broker: str, max_attempts: int) -> Sequence[Received]:
    """Return the messages in a broker's response to a pop of lite topics; see :func:`read_pop`.

    :raises ProxyError: the response is malformed.
    """
    try:
        header = reply.header(PopLiteMessageResponseHeader)
        messages = split_records(bytes(reply.body), broker)
        attempts = _earlier_deliveries(header.order_count_info or "", len(messages))
        resource = resource_of(topic).SerializeToString()
        return [
            _received_lite(message, resource, header, earlier + 1, max_attempts)
            for message, earlier in zip(messages, attempts, strict=True)
        ]
    except (ValueError, OverflowError, RecordError) as error:
        words = f"cannot read the broker's response to a pop of lite topics: {error}"
        raise ProxyError(Code.INTERNAL_SERVER_ERROR, words) from error


def lite_offset(message: MessageExt) -> int:
    """Return a message's offset in its lite topic.

    :raises ValueError: the message has none.
    """
    return int(message.properties.get(INNER_MULTI_QUEUE_OFFSET, ""))


def _received_lite(
    message: MessageExt, resource: bytes, header: PopLiteMessageResponseHeader, attempt: int, max_attempts: int
) -> Received:
    offset = lite_offset(message)
    place = ReceiptHandle(
        *(offset, header.pop_time, header.invisible_time, header.revive_qid, NORMAL_TOPIC),
        *(message.broker_name, 0, offset),
    )
    handle = f"{place.encode()} {message.commit_log_offset}"
    response = b""
    if attempt <= max_attempts:
        encoded = message_bytes(message, resource, handle=handle, attempt=attempt, offset=offset)
        response = field(_MESSAGE, encoded)
    return Received(response, handle, attempt, message.tags, message.msg_id, message.properties.get(LITE_TOPIC))


def _earlier_deliveries(info: str, count: int) -> Sequence[int]:
    """Parse orderCountInfo for lite topics: the number of earlier deliveries of each message, or nothing if all are
    delivered for the first time.

    Apache's brokers write ``n``, or ``kind queue n`` as for ordered pops.
    """
    parts = info.split(";")
    if len(parts) != count:
        return [0] * count
    return [int(part.rpartition(" ")[2] or 0) for part in parts]


def _received(message: MessageExt, resource: bytes, heads: _Heads, failures: _Failures, max_attempts: int) -> Received:
    handle = _handle(message, heads)
    failed = failures.get((message.queue_id, message.queue_offset)) if failures else None
    attempt = (message.reconsume_times if failed is None else failed) + 1
    response = b""
    if attempt <= max_attempts:
        response = field(_MESSAGE, message_bytes(message, resource, handle=handle, attempt=attempt))
    return Received(response, handle, attempt, message.tags, message.msg_id)


def _handle_heads(header: PopMessageResponseHeader, broker: str) -> dict[int, str]:
    """Return the start of a receipt handle up to the queue ID for each queue; a message from a retry topic has its own
    handle.

    :raises HandleError: the response is malformed.
    """
    handles = queue_handles(header, broker)
    return {
        queue_id: handle.encode().rpartition(" ")[0]
        for (kind, queue_id), handle in handles.items()
        if kind == NORMAL_TOPIC
    }


def _handle(message: MessageExt, heads: _Heads) -> str:
    """Return the receipt handle of a message.

    :raises KeyError: the response does not name the message's queue.
    :raises HandleError: the message's own handle is malformed.
    """
    own = message.properties.get(POP_CK)
    if own is not None:
        return f"{parse_handle(own).encode()} {message.commit_log_offset}"
    return f"{heads[message.queue_id]} {message.queue_offset} {message.commit_log_offset}"


def _failed_deliveries(info: str) -> dict[tuple[int, int], int]:
    """Parse orderCountInfo into the number of failed deliveries for each queue and offset."""
    failures = {}
    for part in filter(None, info.split(";")):
        _, position, count = part.split(" ")
        if position.startswith("qo"):
            queue_id, _, offset = position[2:].partition("%")
            failures[int(queue_id), int(offset)] = int(count)
    return failures
