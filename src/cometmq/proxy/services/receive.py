"""ReceiveMessage: a pop of remoting (``ReceiveMessageActivity``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Final

from cometmq.message.message import MessageExt, split_records
from cometmq.message.pop_info import HandleError, ReceiptHandle, parse_handle
from cometmq.message.properties import POP_CK
from cometmq.message.tags import split_tags
from cometmq.proxy.backend.backend import ASK_SECONDS, Reply
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.limits import LARGE_ANSWER_BYTES
from cometmq.proxy.names import group_of, topic_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, FilterType
from cometmq.proxy.receipts import Receipt
from cometmq.proxy.renewals import Renewals, change_time
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.services.dead_letters import acknowledge, forward
from cometmq.proxy.sessions import ClientSession
from cometmq.proxy.stored_message import to_proto
from cometmq.proxy.times import ms_of, timestamp
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.permissions import Action, on_group, on_topic
from cometmq.remoting.pop_headers import MAX, PopMessageRequestHeader, PopMessageResponseHeader

_log = logging.getLogger(__name__)

_ALL: Final = "*"
_TAG: Final = "TAG"

_NOT_FOUND: Final = {
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.NO_MESSAGE,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
}
_UNSENT_MS: Final = 1_000
"""Messages for a client that is gone are visible again after this time."""
_NEEDED_MS: Final = 1_000
"""A poll that is cut to the rest of its deadline leaves so much for the answer."""


class ReceiveService:
    """Gives messages to consumers."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals
        self._unsent: set[asyncio.Task[None]] = set()

    async def receive_message(self, call: Call, request: v2.ReceiveMessageRequest) -> None:
        """Wait for messages and send each by itself, after the status and before the time."""
        try:
            status, messages = await self._receive(call, request)
        except ProxyError as error:
            status, messages = error.status, []
        call.send(v2.ReceiveMessageResponse(status=status))
        for message in messages:
            call.send(v2.ReceiveMessageResponse(message=message))
        call.send(v2.ReceiveMessageResponse(delivery_timestamp=timestamp(self._context.clock.now_ms())))

    async def _receive(self, call: Call, request: v2.ReceiveMessageRequest) -> tuple[v2.Status, list[v2.Message]]:
        context = self._context
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        context.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        session: ClientSession = call.session
        poll_ms = self._poll_ms(call, request)
        invisible_ms = self._invisible_ms(request)
        info = await context.backend.group(group)
        broker = request.message_queue.broker.name
        if not broker:
            topic_info = await context.backend.topic(topic)
            broker = next((found.broker for found in topic_info.own if found.readable), "")
        expression = request.filter_expression
        wanted = expression.expression or _ALL
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=min(request.batch_size or 1, context.config.long_polling_batch),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=context.clock.now_ms(),
            init_mode=MAX,
            exp_type="SQL92" if expression.type == FilterType.SQL else _TAG,
            exp=wanted,
            order=info.is_orderly,
            by_message_group=info.is_orderly or None,
            attempt_id=request.attempt_id or None,
        )
        if header.max_msg_nums < 0:
            raise ProxyError(Code.BAD_REQUEST, "batch size must be greater than 0")
        asked = session.link.ask(broker, RequestCode.POP_MESSAGE, header, timeout_s=poll_ms / 1000 + ASK_SECONDS)
        reply = await self._answer(call, asked, group, topic, broker)
        if reply.code in _NOT_FOUND:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, "no new message")
        if reply.code == ResponseCode.POLLING_FULL:
            raise ProxyError(Code.TOO_MANY_REQUESTS, reply.remark or "too many polls wait at the broker")
        if reply.code:
            raise refused(reply.code, reply.remark)
        found = received(reply, broker)
        if header.exp_type == _TAG and wanted != _ALL:
            found = await self._tagged(session, group, topic, found, wanted)
        if not info.is_orderly:
            found = await self._without_dead(session, group, topic, found, info.retry_max_times)
        if not found:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, "no match message")
        if request.auto_renew and self._renewals.has_room:
            for _, receipt, _ in found:
                self._renewals.hold(session, group, topic, receipt)
        return OK, [
            to_proto(message, topic=topic, handle=receipt.encode(), attempt=attempt)
            for message, receipt, attempt in found
        ]

    # --- times ----------------------------------------------------------------------------------
    def _poll_ms(self, call: Call, request: v2.ReceiveMessageRequest) -> int:
        """Milliseconds to wait for messages (``ReceiveMessageActivity``).

        :raises ProxyError: the deadline of the call leaves no time for that.
        """
        config = self._context.config
        left_s = call.left_s
        left_ms = None if left_s is None else int(left_s * 1000)
        settings = call.session.settings
        if request.HasField("long_polling_timeout"):
            poll_ms = ms_of(request.long_polling_timeout)
        elif left_ms is None:
            poll_ms = config.long_polling_max_ms
        else:
            asked_ms = settings.request_timeout_ms if settings is not None else 0
            poll_ms = left_ms - asked_ms // 2
        poll_ms = min(max(poll_ms, config.long_polling_min_ms), config.long_polling_max_ms)
        if left_ms is None or poll_ms <= left_ms:
            return poll_ms
        if left_ms < config.long_polling_min_ms:
            raise ProxyError(
                Code.ILLEGAL_POLLING_TIME,
                "The deadline time remaining is not enough for polling, please check network condition",
            )
        return max(left_ms - _NEEDED_MS, 0)

    def _invisible_ms(self, request: v2.ReceiveMessageRequest) -> int:
        config = self._context.config
        if request.auto_renew:
            return config.invisible_default_ms
        invisible_ms = ms_of(request.invisible_duration)
        if invisible_ms > config.invisible_max_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisibleTime is too large. max is {config.invisible_max_ms}",
            )
        if invisible_ms < config.invisible_min_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisibleTime is too small. min is {config.invisible_min_ms}",
            )
        return invisible_ms

    # --- a client that leaves -------------------------------------------------------------------
    async def _answer(self, call: Call, asked: Awaitable[Reply], group: str, topic: str, broker: str) -> Reply:
        """The answer of the broker; what it gives to a client that is gone is made visible again."""
        future = asyncio.ensure_future(asked)
        try:
            reply = await asyncio.shield(future)
            await call.turn(len(reply.body), LARGE_ANSWER_BYTES)
        except asyncio.CancelledError:
            future.add_done_callback(partial(self._give_back_soon, call.session, group, topic, broker))
            raise
        return reply

    def _give_back_soon(
        self, session: ClientSession, group: str, topic: str, broker: str, future: asyncio.Future[Reply]
    ) -> None:
        if future.cancelled() or future.exception() is not None or future.result().code:
            return
        task = asyncio.get_running_loop().create_task(
            self._give_back(session, group, topic, received(future.result(), broker))
        )
        self._unsent.add(task)
        task.add_done_callback(self._unsent.discard)

    async def _give_back(self, session: ClientSession, group: str, topic: str, found: list[Received]) -> None:
        try:
            for _, receipt, _ in found:
                await change_time(session.link, group, topic, receipt, _UNSENT_MS)
        except ProxyError as error:
            _log.info("messages for a client that is gone stay invisible: %s", error)

    # --- tags -----------------------------------------------------------------------------------
    async def _tagged(
        self, session: ClientSession, group: str, topic: str, found: list[Received], expression: str
    ) -> list[Received]:
        """Acknowledge messages whose tag has only the hash of a wanted one: Apache's brokers hand them out."""
        wanted = frozenset(split_tags(expression))
        tagged = []
        for message, receipt, attempt in found:
            if message.tags in wanted:
                tagged.append((message, receipt, attempt))
                continue
            try:
                await acknowledge(session.link, group, topic, receipt)
            except ProxyError as error:  # it comes again
                _log.warning("a message with another tag is not acknowledged for %s: %s", group, error)
        return tagged

    # --- dead letters ---------------------------------------------------------------------------
    async def _without_dead(
        self, session: ClientSession, group: str, topic: str, found: list[Received], retries: int
    ) -> list[Received]:
        """Move messages that have failed too often to the dead letters; return the others."""
        alive = []
        for message, receipt, attempt in found:
            if attempt <= retries + 1:
                alive.append((message, receipt, attempt))
                continue
            try:
                await forward(session.link, group, topic, receipt, message.msg_id)
            except ProxyError as error:  # it comes again
                _log.warning("a message of %s is no dead letter yet: %s", group, error)
        return alive


Received = tuple[MessageExt, Receipt, int]
"""A message, its receipt, and its delivery attempt, which begins at 1."""


def received(reply: Reply, broker: str) -> list[Received]:
    """The messages of a pop with their receipts.

    :raises ProxyError: the answer of the broker makes no sense.
    """
    header = reply.header(PopMessageResponseHeader)
    starts = _starts(header.start_offset_info or "")
    counts = _order_counts(header.order_count_info or "")
    found = []
    try:
        for message in split_records(bytes(reply.body), broker):
            text = message.properties.get(POP_CK)
            place = (message.queue_id, message.queue_offset)
            if text is not None:
                handle = parse_handle(text)
            else:
                handle = ReceiptHandle(
                    starts["0", message.queue_id],
                    header.pop_time,
                    header.invisible_time,
                    header.revive_qid,
                    "0",
                    message.broker_name,
                    *place,
                )
            times = counts.get(place, message.reconsume_times)
            found.append((message, Receipt(handle, message.commit_log_offset), times + 1))
    except (KeyError, ValueError, HandleError) as error:
        raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"the pop of the broker cannot be read: {error}") from error
    return found


def _starts(info: str) -> dict[tuple[str, int], int]:
    starts = {}
    for part in filter(None, info.split(";")):
        kind, queue_id, start = part.split(" ")
        starts[kind, int(queue_id)] = int(start)
    return starts


def _order_counts(info: str) -> dict[tuple[int, int], int]:
    """Failed deliveries of messages popped in order: ``type qo<queueId>%<queueOffset> count``."""
    counts = {}
    for part in filter(None, info.split(";")):
        _, place, count = part.split(" ")
        if place.startswith("qo"):
            queue_id, _, offset = place[2:].partition("%")
            counts[int(queue_id), int(offset)] = int(count)
    return counts
