"""Replies to requests: SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325) (``ReplyMessageProcessor``).

A reply is pushed to the requester over its connection (request code 326); if ``storeReplyMessageEnable`` is set, it is
also stored. The response to the sender of the reply says whether the requester has received it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_WAITING_REPLY_BYTES
from cometmq.broker.send.send_message import BUSY
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import InnerMessage, Stored, read_properties
from cometmq.broker.turn.targets import RefusedError, SendHeader, SendTarget
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.loop import TaskSet
from cometmq.message.properties import (
    CLUSTER,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
    join_properties,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from cometmq.remoting.permissions import ANY_ACCOUNT
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import InvokeError, ServerConnection

_log = logging.getLogger(__name__)

PUSH_TIMEOUT_S: Final = 10.0
"""Maximum time in seconds to wait for the requester's answer."""

_WAITING_BYTES: Final = 4_096
"""Estimated memory of a pending reply: its task, headers and request."""


class ReplyMessageProcessor:
    """Pushes replies to their requesters."""

    def __init__(self, broker: BrokerContext) -> None:
        self._live = broker.live
        self._targets = broker.targets
        self._turn = broker.turn
        self._producers = broker.clients.producers
        self._answers = broker.answers
        self._address = broker.address
        self._clock = broker.clock
        self._pushing = TaskSet()
        self._waiting_bytes = 0

    @answers(
        RequestCode.SEND_REPLY_MESSAGE,
        header=SendMessageRequestHeader,
        limits=("MAX_PROPERTIES_BYTES", "MAX_WAITING_REPLY_BYTES"),
        permission=ANY_ACCOUNT,
    )
    @answers(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        header=SendMessageRequestHeaderV2,
        limits=("MAX_PROPERTIES_BYTES", "MAX_WAITING_REPLY_BYTES"),
        permission=ANY_ACCOUNT,
    )
    def reply(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Push a reply to its requester; answer the reply's sender after the requester has answered."""
        header: SendHeader = request.header
        try:
            target = self._targets.known.get(header.topic) or self._targets.resolve(header)
            queue_id = target.open_queue(header.queue_id, connection.remote_address).queue_id
            self._check_size(header, body)
        except RefusedError as refused:
            return refused.response(self._answers.ext)
        size = len(body) + len(header.properties or "") + _WAITING_BYTES
        if self._waiting_bytes + size > MAX_WAITING_REPLY_BYTES:
            return Response(ResponseCode.SYSTEM_BUSY, remark=BUSY, ext=self._answers.ext)
        self._pushing.start(
            self._count_while_delivering(size, self._deliver(connection, request, target, queue_id, body))
        )
        self._waiting_bytes += size
        return None

    async def _count_while_delivering(self, size: int, delivery: Awaitable[None]) -> None:
        try:
            await delivery
        except Exception:
            _log.exception("failed to handle a reply")
        finally:
            self._waiting_bytes -= size

    def _check_size(self, header: SendHeader, body: bytes) -> None:
        limit = self._live.current.max_message_size
        if len(body) > limit or len((header.properties or "").encode()) > MAX_PROPERTIES_BYTES:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
                f"{limit}B, msg properties length limit 32KB.",
            )

    async def _deliver(
        self, connection: ServerConnection, request: Request[Any], target: SendTarget, queue_id: int, body: bytes
    ) -> None:
        header: SendHeader = request.header
        wrong = await self._push(connection, header, queue_id, body)
        code = ResponseCode.SUCCESS if wrong is None else ResponseCode.SYSTEM_ERROR
        once = OneAnswer(connection, request)

        def answer(stored: Stored | RefusedError | None) -> None:
            if isinstance(stored, Stored):
                fields = SendMessageResponseHeader(
                    msg_id=self._answers.msg_id(stored.physical_offset),
                    queue_id=queue_id,
                    queue_offset=stored.queue_offset,
                )
            else:
                fields = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
            once.respond(Response(code, fields, remark=wrong, ext=self._answers.ext))

        def answer_late() -> None:
            fields = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
            late_code = ResponseCode.FLUSH_DISK_TIMEOUT if wrong is None else code
            once.respond(Response(late_code, fields, remark=wrong, ext=self._answers.ext))

        if not self._live.current.store_reply_message_enable:
            answer(None)
            return
        cluster = join_properties({CLUSTER: self._live.current.broker_cluster_name})
        message = InnerMessage(
            target.topic,
            queue_id,
            body,
            read_properties(header.properties or "", cluster).text,
            header.flag,
            header.sys_flag | target.sys_flag,
            header.born_timestamp,
            connection.peer_bytes,
            header.reconsume_times or 0,
        )
        try:
            self._turn.put_inner(message, answer, late=answer_late)
        except RefusedError as refused:
            answer(refused)

    async def _push(self, connection: ServerConnection, header: SendHeader, queue_id: int, body: bytes) -> str | None:
        """Push the reply to its requester; return Apache's error text if the push fails."""
        requester = decode_properties(header.properties or "").get(REPLY_TO_CLIENT)
        if requester is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        channel = self._producers.connection_of(requester)
        if channel is None:
            return f"push reply message fail, channel of <{requester}> not found."
        now = self._clock.now_ms()
        pushed = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=connection.remote_address,
            store_host=self._address,
            store_timestamp=now,
            properties=encode_properties({PUSH_REPLY_TIME: str(now)}) + (header.properties or ""),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode,
        )
        try:
            answer = await channel.invoke(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, body, PUSH_TIMEOUT_S)
        except InvokeError as error:
            _log.info("cannot push a reply to %s: %s", requester, error)
            return f"push reply message to {requester}fail."
        return None if answer.code == ResponseCode.SUCCESS else f"push reply message to {requester}fail."
