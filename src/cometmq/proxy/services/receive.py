"""The method ReceiveMessage, which pops messages as a remoting client does (``ReceiveMessageActivity``)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from functools import partial
from typing import Final

from cometmq.loop import TaskSet
from cometmq.message.tags import split_tags
from cometmq.proxy.backend.backend import AnyPop, GroupInfo, Reply
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, ms_of, topic_of
from cometmq.proxy.errors import OK, ProxyError, refused
from cometmq.proxy.limits import LARGE_ANSWER_BYTES
from cometmq.proxy.message_bytes import field, timestamp_bytes
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import ClientType, Code, FilterType
from cometmq.proxy.receipts import (
    Delivery,
    acknowledge,
    change_invisible_time,
    forward_to_dead_letters,
    read_delivery,
)
from cometmq.proxy.received import Received, read_lite_pop, read_pop
from cometmq.proxy.renewals import Renewals
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.services.failures import status_of
from cometmq.proxy.sessions import ClientSession, consumer_needs
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.lite.headers import PopLiteMessageRequestHeader
from cometmq.remoting.pop_headers import MAX, PopMessageRequestHeader

_log = logging.getLogger(__name__)

_ALL: Final = "*"
_TAG: Final = "TAG"
_OK: Final = v2.ReceiveMessageResponse(status=OK).SerializeToString()
_DELIVERY_TIMESTAMP: Final = b"\x1a"
"""The head of the field ``delivery_timestamp`` in a ``ReceiveMessageResponse``."""

_NOTHING: Final = v2.ReceiveMessageResponse(
    status=v2.Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
).SerializeToString()
_NO_MESSAGES: Final = {
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.NO_MESSAGE,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
}
_NO_LIMIT: Final = 2**32
"""More delivery attempts than a message can have."""
_RELEASE_MS: Final = 1_000
"""Time after which messages become visible again if the client has cancelled its call."""
_ANSWER_MS: Final = 1_000
"""Time reserved for the response if the call's deadline shortens the poll."""


class _Poll:
    """A call that waits for messages."""

    __slots__ = ("broker", "call", "header", "is_cancelled", "max_attempts", "renews", "session")

    def __init__(
        self,
        call: Call,
        session: ClientSession,
        header: AnyPop,
        broker: str,
        *,
        max_attempts: int,
        renews: bool,
    ) -> None:
        self.call = call
        self.session = session
        self.header = header
        self.broker = broker
        self.max_attempts = max_attempts
        self.renews = renews
        self.is_cancelled = False

    def cancel(self) -> None:
        """Record that the call has ended, so its client gets no messages."""
        self.is_cancelled = True

    def delivery(self, received: Received) -> Delivery:
        """Return the delivery of a message."""
        return read_delivery(self.header.topic, self.header.consumer_group, received.handle, received.lite_topic)

    def received(self, reply: Reply, max_attempts: int) -> Sequence[Received]:
        """Return the messages in the broker's response.

        :param max_attempts: messages with more delivery attempts are not encoded.
        :raises ProxyError: the response is malformed.
        """
        read = read_lite_pop if isinstance(self.header, PopLiteMessageRequestHeader) else read_pop
        return read(reply, topic=self.header.topic, broker=self.broker, max_attempts=max_attempts)

    def wanted_tags(self) -> frozenset[str] | None:
        """Return the tags to which the client subscribes; ``None`` if the broker's choice is final."""
        header = self.header
        if isinstance(header, PopLiteMessageRequestHeader) or header.exp_type != _TAG:
            return None
        tags = header.exp or _ALL
        return None if tags == _ALL else frozenset(split_tags(tags))


class ReceiveService:
    """The method with which consumers receive messages."""

    def __init__(self, context: EndpointContext, renewals: Renewals) -> None:
        self._context = context
        self._renewals = renewals
        self._releases = TaskSet()
        self._counters: dict[str, Iterator[int]] = {}
        """The next broker for each topic, for requests that do not specify one."""

    def receive_message(self, call: Call, request: v2.ReceiveMessageRequest) -> None:
        """Wait for messages; send the status, one response per message, and the delivery time."""
        backend = self._context.backend
        try:
            topic, group = topic_of(request.message_queue.topic), group_of(request.group)
            session = self._context.sessions.admit(call, consumer_needs(topic, group))
            times = self._poll_ms(call, session, request), self._invisible_ms(request)
            info = backend.known_group(group)
            broker = _broker_of(session, request)
            if info is None or not broker:
                call.start_task(self._look_up(call, session, request, times))
            else:
                self._pop(self._poll(call, session, request, times, info, broker))
        except ProxyError as error:
            self._refuse(call, error.status)

    async def _look_up(
        self, call: Call, session: ClientSession, request: v2.ReceiveMessageRequest, times: tuple[int, int]
    ) -> None:
        try:
            info = await self._context.backend.group(group_of(request.group))
            broker = _broker_of(session, request) or await self._next_broker(topic_of(request.message_queue.topic))
            self._pop(self._poll(call, session, request, times, info, broker))
        except Exception as error:
            self._refuse(call, status_of(error, call))

    def _poll(
        self,
        call: Call,
        session: ClientSession,
        request: v2.ReceiveMessageRequest,
        times: tuple[int, int],
        info: GroupInfo,
        broker: str,
    ) -> _Poll:
        poll_ms, invisible_ms = times
        if info.bind_topic:
            lite = self._lite_header(session, request, poll_ms, invisible_ms)
            most = info.retry_max_times + 1
            return _Poll(call, session, lite, broker, max_attempts=most, renews=request.auto_renew)
        expression = request.filter_expression
        header = PopMessageRequestHeader(
            consumer_group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            queue_id=-1,
            max_msg_nums=self._batch_size(request),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._context.clock.now_ms(),
            init_mode=MAX,
            exp_type="SQL92" if expression.type == FilterType.SQL else _TAG,
            exp=expression.expression or _ALL,
            order=info.is_orderly,
            by_message_group=info.is_orderly or None,
            attempt_id=request.attempt_id or None,
        )
        max_attempts = _NO_LIMIT if info.is_orderly else info.retry_max_times + 1
        return _Poll(call, session, header, broker, max_attempts=max_attempts, renews=request.auto_renew)

    def _lite_header(
        self, session: ClientSession, request: v2.ReceiveMessageRequest, poll_ms: int, invisible_ms: int
    ) -> PopLiteMessageRequestHeader:
        """Return the request for messages of the lite topics to which a client subscribes."""
        return PopLiteMessageRequestHeader(
            client_id=session.identity.client_id,
            consumer_group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            max_msg_num=self._batch_size(request),
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._context.clock.now_ms(),
            attempt_id=request.attempt_id or None,
        )

    def _pop(self, poll: _Poll) -> None:
        poll.call.on_cancel, poll.call.on_stop = poll.cancel, partial(self._end, poll)
        run = copy_context().run  # the broker answers in the context of any request, maybe of another account
        poll.session.link.pop(poll.broker, poll.header, lambda reply: run(self._popped, poll, reply))

    def _end(self, poll: _Poll) -> None:
        """Answer that there are no messages, because the endpoint stops; the client asks elsewhere."""
        poll.cancel()
        poll.call.answer(_NOTHING, self._delivery_time())

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
    def _popped(self, poll: _Poll, reply: Reply | BaseException) -> None:
        call = poll.call
        try:
            if isinstance(reply, BaseException):
                raise reply
            if poll.is_cancelled:
                self._release(poll, reply)
                return
            if reply.code in _NO_MESSAGES:
                call.answer(_NOTHING, self._delivery_time())
                return
            call.on_cancel, call.on_stop = partial(self._release, poll, reply), None
            if call.has_time(len(reply.body), LARGE_ANSWER_BYTES):
                self._pass_on(poll, reply)
            else:
                call.start_task(self._pass_on_later(poll, reply))
        except Exception as error:
            self._refuse(call, status_of(error, call))

    async def _pass_on_later(self, poll: _Poll, reply: Reply) -> None:
        try:
            await poll.call.wait_for_time(len(reply.body), LARGE_ANSWER_BYTES)
            self._pass_on(poll, reply)
        except Exception as error:
            self._refuse(poll.call, status_of(error, poll.call))

    def _pass_on(self, poll: _Poll, reply: Reply) -> None:
        """Send the popped messages to the client.

        :raises ProxyError: there are no messages for the client, or the broker refuses.
        """
        if reply.code == ResponseCode.POLLING_FULL:
            raise ProxyError(Code.TOO_MANY_REQUESTS, reply.remark or "too many polls are waiting on the broker")
        if reply.code:
            raise refused(reply.code, reply.remark)
        received = poll.received(reply, poll.max_attempts)
        wanted = poll.wanted_tags()
        if all(one.attempt <= poll.max_attempts and (wanted is None or one.tag in wanted) for one in received):
            self._send(poll, received)
        else:
            poll.call.start_task(self._send_some(poll, received, wanted))

    def _send(self, poll: _Poll, received: Sequence[Received]) -> None:
        if not received:
            raise ProxyError(Code.MESSAGE_NOT_FOUND, "no match message")
        if poll.renews and self._renewals.has_room:
            for one in received:
                header = poll.header
                self._renewals.add(poll.session, header.topic, header.consumer_group, one.handle, one.lite_topic)
        poll.call.answer(_OK, *[one.response for one in received], self._delivery_time())

    def _refuse(self, call: Call, status: v2.Status) -> None:
        call.answer(v2.ReceiveMessageResponse(status=status).SerializeToString(), self._delivery_time())

    def _delivery_time(self) -> bytes:
        return field(_DELIVERY_TIMESTAMP, timestamp_bytes(self._context.clock.now_ms()))

    def _release(self, poll: _Poll, reply: Reply) -> None:
        """Make messages visible again that the client of a cancelled call does not get."""
        if not reply.code:
            received = poll.received(reply, 0)
            self._releases.start(_release_all(poll, received), "release messages of a cancelled call")

    # --- messages that are not for the client ---------------------------------------------------
    async def _send_some(self, poll: _Poll, received: Sequence[Received], wanted: frozenset[str] | None) -> None:
        """Send the messages that match and have attempts left."""
        try:
            if wanted is not None:
                received = await _with_tags(poll, received, wanted)
            self._send(poll, await _without_dead(poll, received))
        except Exception as error:
            self._refuse(poll.call, status_of(error, poll.call))


def _broker_of(session: ClientSession, request: v2.ReceiveMessageRequest) -> str:
    """Return the broker of a request; empty if any broker will do.

    A simple consumer of lite topics always names the first broker, so its requests go to the brokers in turn.
    """
    settings = session.settings
    is_simple = settings is not None and settings.client_type == ClientType.LITE_SIMPLE_CONSUMER
    return "" if is_simple else request.message_queue.broker.name


async def _release_all(poll: _Poll, received: Sequence[Received]) -> None:
    try:
        for one in received:
            delivery = poll.delivery(one)
            is_lite = delivery.lite_topic is not None
            await change_invisible_time(poll.session.link, delivery, _RELEASE_MS, suspend=is_lite)
    except ProxyError as error:
        _log.info("cannot release the messages of a cancelled call: %s", error)


async def _with_tags(poll: _Poll, received: Sequence[Received], wanted: frozenset[str]) -> Sequence[Received]:
    """Return the messages with matching tags, and acknowledge the others; Apache's brokers compare only hashes."""
    tagged = []
    for one in received:
        if one.tag in wanted:
            tagged.append(one)
            continue
        try:
            await acknowledge(poll.session.link, poll.delivery(one))
        except ProxyError as error:  # this message will be delivered again
            group = poll.header.consumer_group
            _log.warning("cannot acknowledge a message with a different tag for group %s: %s", group, error)
    return tagged


async def _without_dead(poll: _Poll, received: Sequence[Received]) -> Sequence[Received]:
    """Return the messages that have attempts left; send the others to the dead-letter topic."""
    alive = []
    for one in received:
        if one.attempt <= poll.max_attempts:
            alive.append(one)
            continue
        try:
            await forward_to_dead_letters(poll.session.link, poll.delivery(one), one.message_id)
        except ProxyError as error:  # this message will be delivered again
            group = poll.header.consumer_group
            _log.warning("cannot move a message to the dead-letter topic of group %s yet: %s", group, error)
    return alive
