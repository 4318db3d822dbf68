"""The method ReceiveMessage, which pops messages as a remoting client does (``ReceiveMessageActivity``)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from cometmq.loop import TaskSet
from cometmq.message.message import MessageExt, split_records
from cometmq.message.pop_info import HandleError, ReceiptHandle, parse_handle
from cometmq.message.properties import POP_CK
from cometmq.message.tags import split_tags
from cometmq.proxy.backend.backend import ASK_SECONDS, Reply
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, ms_of, timestamp, to_proto, topic_of
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.limits import LARGE_ANSWER_BYTES
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, FilterType
from cometmq.proxy.receipts import Delivery, acknowledge, change_invisible_time, forward_to_dead_letters
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import ClientSession
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.permissions import Action, on_group, on_topic
from cometmq.remoting.pop_headers import MAX, PopMessageRequestHeader, PopMessageResponseHeader

_log = logging.getLogger(__name__)

_ALL: Final = "*"
_TAG: Final = "TAG"

_NO_MESSAGES: Final = {
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.NO_MESSAGE,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
}
_RELEASE_MS: Final = 1_000
"""Time after which messages become visible again if the client has cancelled its call."""
_ANSWER_MS: Final = 1_000
"""Time reserved for the response if the call's deadline shortens the poll."""


class _Received(NamedTuple):
    """A popped message."""

    message: MessageExt
    delivery: Delivery
    attempt: int
    """The delivery attempt, starting at 1."""


class ReceiveService:
    """The method with which consumers receive messages."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals
        self._releases = TaskSet()
        self._counters: dict[str, Iterator[int]] = {}
        """The next broker for each topic, for requests that do not specify one."""

    async def receive_message(self, call: Call, request: v2.ReceiveMessageRequest) -> None:
        """Wait for messages; send the status, one response per message, and the delivery time."""
        try:
            status, messages = OK, await self._receive(call, request)
        except ProxyError as error:
            status, messages = error.status, []
        call.send(v2.ReceiveMessageResponse(status=status))
        for message in messages:
            call.send(v2.ReceiveMessageResponse(message=message))
        call.send(v2.ReceiveMessageResponse(delivery_timestamp=timestamp(self._context.clock.now_ms())))

    async def _receive(self, call: Call, request: v2.ReceiveMessageRequest) -> list[v2.Message]:
        context = self._context
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        session = context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        poll_ms = self._poll_ms(call, session, request)
        invisible_ms = self._invisible_ms(request)
        info = await context.backend.group(group)
        broker = request.message_queue.broker.name or await self._next_broker(topic)
        expression = request.filter_expression
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=self._batch_size(request),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=context.clock.now_ms(),
            init_mode=MAX,
            exp_type="SQL92" if expression.type == FilterType.SQL else _TAG,
            exp=expression.expression or _ALL,
            order=info.is_orderly,
            by_message_group=info.is_orderly or None,
            attempt_id=request.attempt_id or None,
        )
        pop = session.link.ask(broker, RequestCode.POP_MESSAGE, header, timeout_s=poll_ms / 1000 + ASK_SECONDS)
        received = await self._wait_for_pop(call, session, header, broker, pop)
        if header.exp_type == _TAG and expression.expression not in ("", _ALL):
            received = await self._with_tags(session, received, expression.expression)
        if not info.is_orderly:
            received = await self._without_dead(session, received, info.retry_max_times)
        if not received:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, "no match message")
        if request.auto_renew and self._renewals.has_room:
            for one in received:
                self._renewals.add(session, one.delivery)
        return [
            to_proto(message, topic=topic, handle=delivery.encode(), attempt=attempt)
            for message, delivery, attempt in received
        ]

    async def _next_broker(self, topic: str) -> str:
        """Return a broker that has readable queues of a topic, a different one in each call; empty if there is none."""
        info = await self._context.backend.topic(topic)
        brokers = [queues.broker for queues in info.queues if queues.readable]
        counter = self._counters.get(info.name)
        if counter is None:
            counter = self._counters[info.name] = itertools.count()
        return brokers[next(counter) % len(brokers)] if brokers else ""

    def _batch_size(self, request: v2.ReceiveMessageRequest) -> int:
        size = min(request.batch_size or 1, self._context.config.long_polling_batch)
        if size < 0:
            raise ProxyError(Code.BAD_REQUEST, "batch size must be greater than 0")
        return size

    # --- times ----------------------------------------------------------------------------------
    def _poll_ms(self, call: Call, session: ClientSession, request: v2.ReceiveMessageRequest) -> int:
        """Return the number of milliseconds to wait for messages (``ReceiveMessageActivity``).

        :raises ProxyError: the deadline of the call leaves too little time.
        """
        config = self._context.config
        left_s = call.left_s
        left_ms = None if left_s is None else int(left_s * 1000)
        if request.HasField("long_polling_timeout"):
            poll_ms = ms_of(request.long_polling_timeout)
        elif left_ms is None:
            poll_ms = config.long_polling_max_ms
        else:
            request_timeout_ms = 0 if session.settings is None else session.settings.request_timeout_ms
            poll_ms = left_ms - request_timeout_ms // 2
        poll_ms = min(max(poll_ms, config.long_polling_min_ms), config.long_polling_max_ms)
        if left_ms is None or poll_ms <= left_ms:
            return poll_ms
        if left_ms < config.long_polling_min_ms:
            raise ProxyError(
                Code.ILLEGAL_POLLING_TIME,
                "The deadline time remaining is not enough for polling, please check network condition",
            )
        return max(left_ms - _ANSWER_MS, 0)

    def _invisible_ms(self, request: v2.ReceiveMessageRequest) -> int:
        config = self._context.config
        if request.auto_renew:
            return config.invisible_default_ms
        invisible_ms = ms_of(request.invisible_duration)
        if invisible_ms > config.invisible_max_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {config.invisible_max_ms}"
            )
        if invisible_ms < config.invisible_min_ms:
            raise ProxyError(
                Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {config.invisible_min_ms}"
            )
        return invisible_ms

    # --- the answer of the broker ---------------------------------------------------------------
    async def _wait_for_pop(
        self,
        call: Call,
        session: ClientSession,
        header: PopMessageRequestHeader,
        broker: str,
        pop: Awaitable[Reply],
    ) -> list[_Received]:
        """Return the popped messages; if the client cancels the call, make them visible again.

        :raises ProxyError: there are no messages, or the broker refuses.
        """
        read = partial(_read_pop, topic=header.topic, group=header.consumer_group, broker=broker)
        future = asyncio.ensure_future(pop)
        try:
            reply = await asyncio.shield(future)
            await call.wait_for_time(len(reply.body), LARGE_ANSWER_BYTES)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._release(session, done, read))
            raise
        if reply.code in _NO_MESSAGES:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, "no new message")
        if reply.code == ResponseCode.POLLING_FULL:
            raise ProxyError(Code.TOO_MANY_REQUESTS, reply.remark or "too many polls are waiting on the broker")
        if reply.code:
            raise refused(reply.code, reply.remark)
        return read(reply)

    def _release(
        self, session: ClientSession, pop: asyncio.Future[Reply], read: Callable[[Reply], list[_Received]]
    ) -> None:
        if not pop.cancelled() and pop.exception() is None and not pop.result().code:
            self._releases.start(self._release_all(session, read(pop.result())), "release messages of a cancelled call")

    @staticmethod
    async def _release_all(session: ClientSession, received: list[_Received]) -> None:
        try:
            for one in received:
                await change_invisible_time(session.link, one.delivery, _RELEASE_MS)
        except ProxyError as error:
            _log.info("cannot release the messages of a cancelled call: %s", error)

    # --- messages that are not for the client ---------------------------------------------------
    async def _with_tags(self, session: ClientSession, received: list[_Received], expression: str) -> list[_Received]:
        """Return the messages with matching tags, and acknowledge the others; Apache's brokers compare only hashes."""
        wanted = frozenset(split_tags(expression))
        tagged = []
        for one in received:
            if one.message.tags in wanted:
                tagged.append(one)
                continue
            try:
                await acknowledge(session.link, one.delivery)
            except ProxyError as error:  # this message will be delivered again
                _log.warning(
                    "cannot acknowledge a message with a different tag for group %s: %s", one.delivery.group, error
                )
        return tagged

    async def _without_dead(
        self, session: ClientSession, received: list[_Received], max_retries: int
    ) -> list[_Received]:
        """Return the messages that have attempts left; send the others to the dead-letter topic."""
        alive = []
        for one in received:
            if one.attempt <= max_retries + 1:
                alive.append(one)
                continue
            try:
                await forward_to_dead_letters(session.link, one.delivery, one.message.msg_id)
            except ProxyError as error:  # this message will be delivered again
                _log.warning(
                    "cannot move a message to the dead-letter topic of group %s yet: %s", one.delivery.group, error
                )
        return alive


def _read_pop(reply: Reply, *, topic: str, group: str, broker: str) -> list[_Received]:
    """Return the popped messages with their handles.

    :raises ProxyError: the answer of the broker is malformed.
    """
    header = reply.header(PopMessageResponseHeader)
    starts = _start_offsets(header.start_offset_info or "")
    failures = _failed_deliveries(header.order_count_info or "")
    received = []
    try:
        for message in split_records(bytes(reply.body), broker):
            text = message.properties.get(POP_CK)
            position = (message.queue_id, message.queue_offset)
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
                    *position,
                )
            failed = failures.get(position, message.reconsume_times)
            delivery = Delivery(topic, group, handle, message.commit_log_offset)
            received.append(_Received(message, delivery, failed + 1))
    except (KeyError, ValueError, HandleError) as error:
        words = f"cannot read the broker's response to a pop: {error}"
        raise ProxyError(Code.INTERNAL_SERVER_ERROR, words) from error
    return received


def _start_offsets(info: str) -> dict[tuple[str, int], int]:
    """Parse startOffsetInfo into the first offset for each topic type and queue."""
    starts = {}
    for part in filter(None, info.split(";")):
        kind, queue_id, start = part.split(" ")
        starts[kind, int(queue_id)] = int(start)
    return starts


def _failed_deliveries(info: str) -> dict[tuple[int, int], int]:
    """Parse orderCountInfo into the number of failed deliveries for each queue and offset."""
    failures = {}
    for part in filter(None, info.split(";")):
        _, position, count = part.split(" ")
        if position.startswith("qo"):
            queue_id, _, offset = position[2:].partition("%")
            failures[int(queue_id), int(offset)] = int(count)
    return failures
