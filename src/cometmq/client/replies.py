"""Replies on their way to those who asked: matched by CORRELATION_ID (``RequestFutureHolder``)."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cometmq.clock import Clock
from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.message import MessageExt
from cometmq.message.properties import ARRIVE_TIME, CORRELATION_ID, decode_properties
from cometmq.message.record import encode_record
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.headers import ReplyMessageRequestHeader
from cometmq.remoting.processors import Request, Response

log = logging.getLogger(__name__)

_NOWHERE: Final = encode_host("0.0.0.0", 0)


class Replies:
    """The requests of one client that wait for a reply."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    @contextmanager
    def expected(self) -> Iterator[tuple[str, asyncio.Future[MessageExt]]]:
        """A new correlation id and the reply to it; one that comes after the block is nobody's."""
        correlation_id = str(uuid.uuid4())
        waiting = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            yield correlation_id, waiting
        finally:
            del self._waiting[correlation_id]
            waiting.cancel()

    def arrived(self, _connection: object, request: Request[ReplyMessageRequestHeader], body: bytes) -> Response:
        """PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""
        header = request.header
        correlation_id = decode_properties(header.properties or "").get(CORRELATION_ID, "")
        waiting = self._waiting.get(correlation_id)
        if waiting is None or waiting.done():
            log.info("a reply comes too late, or is to no request of this client: %s", correlation_id)
            return Response()
        try:
            waiting.set_result(_message(header, body, self._clock.now_ms()))
        except ValueError as error:
            log.warning("a reply cannot be read: %s", error)
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return Response()


def _message(header: ReplyMessageRequestHeader, body: bytes, now_ms: int) -> MessageExt:
    """The reply as a received message; it stands in no queue.

    :raises ValueError: its topic or properties are longer than any message's.
    """
    record = encode_record(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        body=body,
        properties_text=f"{ARRIVE_TIME}\x01{now_ms}\x02{header.properties}",
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
        return _NOWHERE
