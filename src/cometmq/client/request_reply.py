"""Requests and replies: their properties, and the pending requests (``RequestFutureHolder``)."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cometmq.client.errors import IllegalMessageError
from cometmq.clock import Clock
from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import reply_topic
from cometmq.message.properties import (
    ARRIVE_TIME,
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    decode_properties,
    encode_properties,
)
from cometmq.message.record import encode_record
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import ReplyMessageRequestHeader
from cometmq.remoting.processors import Request, Response

REPLY: Final = "reply"
"""The MSG_TYPE of a reply."""


def request_properties(correlation_id: str, client_id: str, timeout_s: float) -> str:
    """Encode a request's properties."""
    return encode_properties(
        {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL: str(int(timeout_s * 1000))}
    )


def reply_to(request: MessageExt, body: bytes) -> tuple[Message, str]:
    """Return the reply to a consumed request, with its encoded properties.

    :raises IllegalMessageError: the message is not a request.
    """
    if not isinstance(request, MessageExt):
        raise IllegalMessageError(
            f"a {type(request).__name__} object is not a consumed request",
            "reply to a message that the listener received",
        )
    asked = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if name not in asked]
    if missing:
        raise IllegalMessageError(
            f"{request.msg_id} is not a request: it has no {', '.join(missing)}",
            "reply only to messages that were sent with request()",
        )
    properties = {
        MSG_TYPE: REPLY,
        CORRELATION_ID: asked[CORRELATION_ID],
        REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
        TTL: asked.get(TTL, ""),
    }
    return Message(reply_topic(asked[CLUSTER]), body), encode_properties(properties)


log = logging.getLogger(__name__)

_NO_QUEUE: Final = encode_host("0.0.0.0", 0)


class Replies:
    """A client's pending requests by correlation id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    @contextmanager
    def expected(self) -> Iterator[tuple[str, asyncio.Future[MessageExt]]]:
        """Yield a new correlation id and a future for its reply; replies after the block are ignored."""
        correlation_id = str(uuid.uuid4())
        waiting = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            yield correlation_id, waiting
        finally:
            del self._waiting[correlation_id]
            waiting.cancel()

    def arrived(self, _connection: object, request: Request[ReplyMessageRequestHeader], body: bytes) -> Response:
        """Handle PUSH_REPLY_MESSAGE_TO_CLIENT (request code 326)."""
        header = request.header
        correlation_id = decode_properties(header.properties or "").get(CORRELATION_ID, "")
        waiting = self._waiting.get(correlation_id)
        if waiting is None or waiting.done():
            log.info("a reply is late or belongs to another client's request: %s", correlation_id)
            return Response()
        try:
            waiting.set_result(_message(header, body, self._clock.now_ms()))
        except ValueError as error:
            log.warning("cannot decode a reply: %s", error)
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return Response()


def _message(header: ReplyMessageRequestHeader, body: bytes, now_ms: int) -> MessageExt:
    """Return a reply in the form of a received message that has no queue.

    :raises ValueError: the topic or the properties of the reply exceed the maximum length in messages.
    """
    record = encode_record(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        body=body,
        properties_text=encode_properties({ARRIVE_TIME: str(now_ms)}) + (header.properties or ""),
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
    )
    return MessageExt(record, 0)


def _host(text: str) -> bytes:
    try:
        return encode_host(*parse_address(text.removeprefix("/")))
    except ValueError:
        return _NO_QUEUE
