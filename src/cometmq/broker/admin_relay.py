"""Questions that only a consumer can answer, relayed to it: its running state (307), one message consumed now (309).

(``AdminBrokerProcessor.callConsumer``.) The answer comes when the client's comes; nothing waits for it here.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import msgspec

from cometmq.broker.clients import ClientChannel, ConsumerManager
from cometmq.broker.in_flight import InFlight
from cometmq.limits import (
    MAX_RELAYED_BODY_BYTES,
    MAX_RELAYED_BYTES,
    MAX_RELAYED_REQUESTS,
    WRITE_LOW_WATER_BYTES,
)
from cometmq.message.ids import decode_offset_msg_id
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    Header,
    to_ext,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import InvokeError, ServerConnection
from cometmq.store.message_store import MessageStore

RELAY_TIMEOUT_S: Final = 10.0
BUSY: Final = "too many questions wait for consumers' answers; ask again later"
_OLDEST_CALL_VERSION: Final = 62
"""V3_1_8_SNAPSHOT: clients from here on answer such requests."""


class RelayAdmin:
    """Hands administrators' questions on to consumers."""

    def __init__(self, broker_name: str, consumers: ConsumerManager, store: MessageStore) -> None:
        self._broker_name = broker_name
        self._consumers = consumers
        self._store = store
        self._relaying: set[asyncio.Task[None]] = set()
        self._in_flight = InFlight(MAX_RELAYED_REQUESTS, MAX_RELAYED_BYTES)

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes that are relayed."""
        processors.register(
            RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, self.running_info
        )
        processors.register(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader, self.consume_directly
        )

    def running_info(
        self, connection: ServerConnection, request: Request[GetConsumerRunningInfoRequestHeader], body: bytes
    ) -> Response | None:
        """GET_CONSUMER_RUNNING_INFO (307)."""
        header = request.header
        if len(body) > MAX_RELAYED_BODY_BYTES:
            remark = f"a body of {len(body)} bytes; at most {MAX_RELAYED_BODY_BYTES} are handed on to a consumer"
            return Response(ResponseCode.SYSTEM_ERROR, remark=remark)
        return self._relay(connection, request, header.consumer_group, header.client_id, header, body)

    def consume_directly(
        self, connection: ServerConnection, request: Request[ConsumeMessageDirectlyResultRequestHeader], _body: bytes
    ) -> Response | None:
        """CONSUME_MESSAGE_DIRECTLY (309): the stored record travels with the question."""
        header = request.header
        try:
            _, _, offset = decode_offset_msg_id(header.msg_id or "")
        except ValueError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"msgId={header.msg_id}: {error}")
        record = self._store.record_at(offset)
        if record is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        named = msgspec.structs.replace(header, broker_name=self._broker_name)
        return self._relay(connection, request, header.consumer_group, header.client_id or "", named, record)

    def _relay(
        self,
        connection: ServerConnection,
        request: Request[Any],
        group: str,
        client_id: str,
        header: Header,
        body: bytes,
    ) -> Response | None:
        channel = self._find(group, client_id)
        if channel is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online")
        if channel.version < _OLDEST_CALL_VERSION:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer <{client_id}> Version <{channel.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        if channel.connection.unsent_bytes > WRITE_LOW_WATER_BYTES:
            return Response(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"consumer <{group}> <{client_id}> Timeout: it does not read what it is sent",
            )
        size = len(body) + sum(map(len, to_ext(header).values()))
        if not self._in_flight.enter(1, size):
            return Response(ResponseCode.SYSTEM_BUSY, remark=BUSY)
        task = asyncio.ensure_future(self._ask(connection, request, channel, group, header, body))
        self._relaying.add(task)
        task.add_done_callback(partial(self._done, size))
        return None

    def _done(self, size: int, task: asyncio.Task[None]) -> None:
        self._relaying.discard(task)
        self._in_flight.leave(1, size)

    def _find(self, group: str, client_id: str) -> ClientChannel | None:
        members = self._consumers.get(group)
        if members is None:
            return None
        return next((channel for channel in members.channels.values() if channel.client_id == client_id), None)

    async def _ask(
        self,
        connection: ServerConnection,
        request: Request[Any],
        channel: ClientChannel,
        group: str,
        header: Header,
        body: bytes,
    ) -> None:
        try:
            answer = await channel.connection.invoke(request.code, header, body, timeout_s=RELAY_TIMEOUT_S)
        except InvokeError as error:
            remark = f"consumer <{group}> <{channel.client_id}> Timeout: {error}"
            connection.respond(request, Response(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark))
            return
        connection.respond(
            request, Response(answer.code, remark=answer.remark, body=answer.body, ext=answer.ext_fields or None)
        )
