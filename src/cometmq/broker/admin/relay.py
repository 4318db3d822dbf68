"""Requests that only a consumer can answer; the broker forwards them and returns the responses.

These requests read a consumer's running state or offsets, or make it consume a message
(``AdminBrokerProcessor.callConsumer``, ``Broker2Client``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from cometmq.broker.admin.topics import DEFAULT_REMARK
from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    MAX_CONSUMER_STATUS_BYTES,
    MAX_RELAYED_BODY_BYTES,
    MAX_RELAYED_BYTES,
    MAX_RELAYED_REQUESTS,
    MAX_STATUS_ANSWERS_BYTES,
)
from cometmq.broker.stored_access import may_access_at, not_found
from cometmq.broker.tables.consumer_group import ClientChannel
from cometmq.limits import WRITE_LOW_WATER_BYTES
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.admin_bodies import GetConsumerStatusBody
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from cometmq.remoting.bodies import BodyError, MessageQueue, decode_body, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import Header, to_ext
from cometmq.remoting.permissions import Action, needs_group, needs_stored, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import InvokeError, ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

RELAY_TIMEOUT_S: Final = 10.0
_STATUS_TIMEOUT_S: Final = 5.0
_BUSY: Final = Response(ResponseCode.SYSTEM_BUSY, remark="too many requests are waiting for consumers; try again later")
_OLDEST_CALL_VERSION: Final = 62
"""V3_1_8_SNAPSHOT, the first client version that answers forwarded requests."""


class InFlight:
    """Limits the forwarded requests that are pending to :data:`~cometmq.broker.limits.MAX_RELAYED_REQUESTS` and
    ``max_bytes`` bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._count = 0
        self._bytes = 0

    def has_room(self, count: int, size: int) -> bool:
        """Return whether ``count`` more requests with a total of ``size`` bytes are allowed."""
        return self._count + count <= MAX_RELAYED_REQUESTS and self._bytes + size <= self._max_bytes

    def enter(self, count: int, size: int) -> None:
        """Add requests and bytes to the counts; negative numbers subtract."""
        self._count += count
        self._bytes += size

    @contextmanager
    def counted(self, count: int, size: int) -> Iterator[None]:
        """Count these requests as pending for the duration of a ``with`` block."""
        self.enter(count, size)
        try:
            yield
        finally:
            self.enter(-count, -size)


class RelayAdmin:
    """Forwards administrators' requests to consumers and returns the consumers' responses."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._calls = InFlight(MAX_RELAYED_BYTES)
        self._status_calls = InFlight(MAX_RELAYED_BYTES)
        self._statuses = InFlight(MAX_STATUS_ANSWERS_BYTES)

    @answers(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        limits=("MAX_RELAYED_BODY_BYTES", "MAX_RELAYED_REQUESTS", "MAX_RELAYED_BYTES"),
        permission=needs_group(Action.GET),
    )
    async def running_info(
        self, _connection: ServerConnection, request: Request[GetConsumerRunningInfoRequestHeader], body: bytes
    ) -> Response:
        """Ask a consumer for its running state."""
        header = request.header
        if len(body) > MAX_RELAYED_BODY_BYTES:
            remark = f"the body has {len(body)} bytes; at most {MAX_RELAYED_BODY_BYTES} can be forwarded to a consumer"
            return Response(ResponseCode.SYSTEM_ERROR, remark=remark)
        return await self._relay(request.code, header.consumer_group, header.client_id, header, body)

    @answers(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        limits=("MAX_RELAYED_REQUESTS", "MAX_RELAYED_BYTES"),
        permission=needs_group(Action.SUB) & needs_stored(Action.SUB),
    )
    async def consume_directly(
        self, _connection: ServerConnection, request: Request[ConsumeMessageDirectlyResultRequestHeader], _body: bytes
    ) -> Response:
        """Make a consumer consume a message immediately."""
        header = request.header
        try:
            _, _, offset = decode_offset_msg_id(header.msg_id or "")
        except ValueError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"msgId={header.msg_id}: {error}")
        record = self._broker.store.readable_record_at(offset)
        if record is None or not may_access_at(self._broker.store, offset, Action.SUB):
            return Response(
                ResponseCode.SYSTEM_ERROR, remark=not_found(f"can not find message by the offset, {offset}")
            )
        named = msgspec.structs.replace(header, broker_name=self._broker.config.broker_name)
        return await self._relay(request.code, header.consumer_group, header.client_id or "", named, record)

    async def _relay(self, code: int, group: str, client_id: str, header: Header, body: bytes) -> Response:
        channel = self._find(group, client_id)
        if channel is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online")
        if channel.version < _OLDEST_CALL_VERSION:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer <{client_id}> Version <{channel.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        timeout = f"consumer <{group}> <{client_id}> Timeout"
        if channel.connection.unsent_bytes > WRITE_LOW_WATER_BYTES:
            return Response(
                ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"{timeout}: it is not reading from its connection"
            )
        size = len(body) + sum(map(len, to_ext(header).values()))
        if not self._calls.has_room(1, size):
            return _BUSY
        with self._calls.counted(1, size):
            try:
                answer = await channel.connection.invoke(code, header, body, timeout_s=RELAY_TIMEOUT_S)
            except InvokeError as error:
                return Response(ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"{timeout}: {error}")
        return Response(answer.code, remark=answer.remark, body=answer.body, ext=answer.ext_fields or None)

    def _find(self, group: str, client_id: str) -> ClientChannel | None:
        members = self._broker.clients.consumers.get(group)
        if members is None:
            return None
        return next((channel for channel in members.channels.values() if channel.client_id == client_id), None)

    # --- current offsets of members --------------------------------------------------------------
    @answers(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        limits=("MAX_RELAYED_REQUESTS", "MAX_RELAYED_BYTES", "MAX_CONSUMER_STATUS_BYTES", "MAX_STATUS_ANSWERS_BYTES"),
        permission=needs_topic(Action.GET) & needs_group(Action.GET, field="group"),
    )
    async def consumer_status(
        self, _connection: ServerConnection, request: Request[GetConsumerStatusRequestHeader], _body: bytes
    ) -> Response:
        """Ask the members of a group for their current offsets.

        ``clientAddr`` is the client ID of the member to ask; if it is empty, all members are asked.
        """
        header = request.header
        group = self._broker.clients.consumers.get(header.group)
        if group is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the consumer group[{header.group}] not online")
        asked = [
            channel
            for channel in group.channels.values()
            if not header.client_addr or header.client_addr == channel.client_id
        ]
        texts = sum(map(len, to_ext(header).values()))
        if not self._status_calls.has_room(len(asked) + 1, texts):
            return _BUSY
        question = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        sizes: list[int] = []
        with self._status_calls.counted(len(asked) + 1, texts):
            try:
                bodies = await asyncio.gather(
                    *(self._status(channel, question, sizes) for channel in asked), return_exceptions=True
                )
                return Response(remark=DEFAULT_REMARK, body=await _merged(asked, bodies))
            finally:
                self._statuses.enter(-len(sizes), -sum(sizes))

    async def _status(self, channel: ClientChannel, question: Header, sizes: list[int]) -> bytes:
        """Ask a client, return the body of its response, and append the body's size to ``sizes``.

        :raises InvokeError: the client does not answer, or its response is too large.
        """
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await channel.connection.invoke(code, question, timeout_s=_STATUS_TIMEOUT_S)
        size = len(answer.body)
        if size > MAX_CONSUMER_STATUS_BYTES or not self._statuses.has_room(1, size):
            raise InvokeError(f"the response of {size} bytes exceeds the remaining limit")
        self._statuses.enter(1, size)
        sizes.append(size)
        return answer.body


async def _merged(asked: list[ClientChannel], bodies: list[Any]) -> bytes:
    """Merge the responses of all clients; skip malformed ones."""
    table: dict[str, dict[MessageQueue, int]] = {}
    for channel, body in zip(asked, bodies, strict=True):
        try:
            if isinstance(body, BaseException):
                raise body
            status = await in_thread(decode_body, GetConsumerStatusBody, body or b"{}")  # parsing fastjson is slow
        except (InvokeError, BodyError) as error:
            _log.warning("malformed consumer status from %s: %s", channel.client_id, error)
            continue
        if status.message_queue_table:
            table[channel.client_id] = status.message_queue_table
    return await in_thread(encode_body, GetConsumerStatusBody(message_queue_table={}, consumer_table=table))
