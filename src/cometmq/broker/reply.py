"""Replies to requests: SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325) (``ReplyMessageProcessor``).

A reply goes to the one client that asked: it is pushed over that client's connection (326), stored for
the record where ``storeReplyMessageEnable`` says so, and its sender hears whether the push arrived.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

from cometmq.broker.answers import SendAnswers
from cometmq.broker.clients import ProducerManager
from cometmq.broker.inner_message import InnerMessage, Stored
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.one_answer import OneAnswer
from cometmq.broker.send import BUSY
from cometmq.broker.send_properties import read_properties
from cometmq.broker.send_targets import SendHeader, SendRefusedError, SendTarget, SendTargets
from cometmq.broker.store_turn import StoreTurn
from cometmq.clock import Clock
from cometmq.limits import MAX_PROPERTIES_BYTES, MAX_WAITING_REPLY_BYTES
from cometmq.message.properties import CLUSTER, PUSH_REPLY_TIME, REPLY_TO_CLIENT, decode_properties
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import InvokeError, ServerConnection

_log = logging.getLogger(__name__)

PUSH_TIMEOUT_S: Final = 10.0
"""For a requester to say that it has the reply."""

_WAITING_BYTES: Final = 4_096
"""Of memory for each reply that waits: its task, its headers, and who is told."""


class ReplyMessageProcessor:
    """Pushes replies to their requesters."""

    def __init__(
        self,
        live: LiveConfig,
        targets: SendTargets,
        turn: StoreTurn,
        producers: ProducerManager,
        answers: SendAnswers,
        address: str,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._targets = targets
        self._turn = turn
        self._producers = producers
        self._answers = answers
        self._address = address
        self._clock = clock
        self._pushing: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of replies."""
        processors.register(RequestCode.SEND_REPLY_MESSAGE, SendMessageRequestHeader, self.reply)
        processors.register(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageRequestHeaderV2, self.reply)

    def reply(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Check a reply as a send is checked, then push it; its sender is answered when its requester has answered."""
        header: SendHeader = request.header
        try:
            target = self._targets.known.get(header.topic) or self._targets.resolve(header)
            queue_id = target.open_queue(header.queue_id, connection.remote_address).queue_id
            self._check_size(header, body)
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark, ext=self._answers.ext)
        size = len(body) + len(header.properties or "") + _WAITING_BYTES
        if self._waiting_bytes + size > MAX_WAITING_REPLY_BYTES:
            return Response(ResponseCode.SYSTEM_BUSY, remark=BUSY, ext=self._answers.ext)
        self._waiting_bytes += size
        task = asyncio.get_running_loop().create_task(self._deliver(connection, request, target, queue_id, body))
        self._pushing.add(task)
        task.add_done_callback(partial(self._delivered, size))
        return None

    def _delivered(self, size: int, task: asyncio.Task[None]) -> None:
        self._pushing.discard(task)
        self._waiting_bytes -= size
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a reply was not handled", exc_info=error)

    def _check_size(self, header: SendHeader, body: bytes) -> None:
        limit = self._live.current.max_message_size
        if len(body) > limit or len((header.properties or "").encode()) > MAX_PROPERTIES_BYTES:
            raise SendRefusedError(
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

        def answer(stored: Stored | SendRefusedError | None) -> None:
            if isinstance(stored, Stored):
                fields = SendMessageResponseHeader(
                    msg_id=self._answers.msg_id(stored.physical_offset),
                    queue_id=queue_id,
                    queue_offset=stored.queue_offset,
                )
            else:
                fields = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
            once.give(Response(code, fields, remark=wrong, ext=self._answers.ext))

        def late() -> None:
            fields = SendMessageResponseHeader(msg_id="0", queue_id=queue_id, queue_offset=0)
            late_code = ResponseCode.FLUSH_DISK_TIMEOUT if wrong is None else code
            once.give(Response(late_code, fields, remark=wrong, ext=self._answers.ext))

        if not self._live.current.store_reply_message_enable:
            answer(None)
            return
        cluster = f"{CLUSTER}\x01{self._live.current.broker_cluster_name}"
        message = InnerMessage(
            target.topic,
            queue_id,
            body,
            read_properties(header.properties or "", cluster).stored.decode(),
            header.flag,
            header.sys_flag | target.sys_flag,
            header.born_timestamp,
            connection.peer_bytes,
            header.reconsume_times or 0,
        )
        try:
            self._turn.put_inner(message, answer, late=late)
        except SendRefusedError as refused:
            answer(refused)

    async def _push(self, connection: ServerConnection, header: SendHeader, queue_id: int, body: bytes) -> str | None:
        """Hand the reply to its requester; what is wrong, in Apache's words, when it does not arrive."""
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
            properties=f"{PUSH_REPLY_TIME}\x01{now}\x02{header.properties or ''}",
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode,
        )
        try:
            answer = await channel.invoke(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, body, PUSH_TIMEOUT_S)
        except InvokeError as error:
            _log.info("a reply to %s did not arrive: %s", requester, error)
            return f"push reply message to {requester}fail."
        return None if answer.code == ResponseCode.SUCCESS else f"push reply message to {requester}fail."
