"""Administration of messages: consume queue units, open transactions, and delayed messages."""

from __future__ import annotations

import logging
import struct
from collections.abc import Coroutine
from typing import Any, Final

from cometmq.broker.admin.topics import DEFAULT_REMARK
from cometmq.broker.context import BrokerContext
from cometmq.broker.delay.timer_message import TimerMessageService
from cometmq.broker.delay.waiting_messages import count_waiting, list_waiting
from cometmq.broker.limits import (
    HALF_MESSAGES_PER_SLICE,
    MAX_CONSUME_QUEUE_UNITS,
    MAX_LISTED_TRANSACTIONS,
    MAX_LISTED_WAITING,
    MAX_SEARCHED_TRANSACTIONS,
    MAX_TIMER_LOOKS,
)
from cometmq.broker.pull.consumer_filters import is_tag_type
from cometmq.broker.pull.filters import SubscriptionError, parse_tags
from cometmq.broker.slices import Steps, run_in_slices
from cometmq.broker.transaction.half_message import describe, real_queue
from cometmq.broker.transaction.open_transactions import OpenTransactions
from cometmq.message.properties import REAL_QID, REAL_TOPIC, UNIQ_KEY
from cometmq.remoting import admin_bodies
from cometmq.remoting.admin_bodies import (
    ConsumeQueueData,
    OpenTransaction,
    QueryConsumeQueueResponseBody,
    TimerMetrics,
    TopicTimerMetrics,
    WaitingMessage,
    WaitingMessages,
)
from cometmq.remoting.admin_headers import (
    GetOpenTransactionsRequestHeader,
    GetWaitingMessagesRequestHeader,
    QueryConsumeQueueRequestHeader,
)
from cometmq.remoting.bodies import Body, DataVersion, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, needs_cluster, needs_group, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.timer.waiting import Listed, WaitingOfTopic, Wanted

_log = logging.getLogger(__name__)

_CHECK_POINT: Final = struct.Struct(">qqqqqqq")
_NO_FILTER_DATA: Final = "null"
"""Response text for a group that has no SQL filter data."""


class QueueAdmin:
    """Handles requests for consume queue units (``AdminBrokerProcessor.queryConsumeQueue``)."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    @answers(
        RequestCode.QUERY_CONSUME_QUEUE,
        limits=("MAX_CONSUME_QUEUE_UNITS",),
        permission=needs_topic(Action.GET) & needs_group(Action.GET),
    )
    def units(
        self, _connection: ServerConnection, request: Request[QueryConsumeQueueRequestHeader], _body: bytes
    ) -> Response:
        """Return up to ``count`` consume queue units, starting at ``index``.

        If the group has members, ``eval`` shows which units match its tags.
        """
        header = request.header
        topic = header.topic or ""
        queue = self._broker.store.queues().get(topic, {}).get(header.queue_id)
        if queue is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"{header.queue_id}@{topic} is not exist!")
        begin, end = queue.min_offset(), queue.max_offset()
        if not begin <= header.index < end:
            return Response(
                ResponseCode.SYSTEM_ERROR, remark=f"Index {header.index} of {header.queue_id}@{topic} is not exist!"
            )
        subscription = self._subscription(header.consumer_group, topic)
        codes = _tag_codes(subscription)
        listed: list[ConsumeQueueData] = []
        for offset in range(header.index, min(end, header.index + min(max(header.count, 0), MAX_CONSUME_QUEUE_UNITS))):
            unit = queue.unit(offset)
            if unit is None:
                break
            log_offset, size, tags_code = unit
            passes = codes is not None and (not codes or tags_code in codes)
            listed.append(
                ConsumeQueueData(physic_offset=log_offset, physic_size=size, tags_code=tags_code, eval=passes)
            )
        answer = QueryConsumeQueueResponseBody(
            queue_data=listed,
            max_queue_index=end,
            min_queue_index=begin,
            subscription_data=subscription,
            filter_data=None if subscription is None else _NO_FILTER_DATA,
        )
        return Response(remark=DEFAULT_REMARK, body=encode_body(answer))

    def _subscription(self, group: str | None, topic: str) -> SubscriptionData | None:
        members = self._broker.clients.consumers.get(group) if group else None
        return None if members is None else members.subscriptions.get(topic)


class TransactionAdmin:
    """Handles requests for transactions that are neither committed nor rolled back."""

    def __init__(self, table: OpenTransactions) -> None:
        self._table = table

    @answers(
        RequestCode.GET_OPEN_TRANSACTIONS,
        limits=("MAX_LISTED_TRANSACTIONS", "MAX_SEARCHED_TRANSACTIONS"),
        permission=needs_cluster(Action.GET),
    )
    def list(
        self, connection: ServerConnection, request: Request[GetOpenTransactionsRequestHeader], _body: bytes
    ) -> Response | None:
        """List the open transactions of a group or of all groups, starting at an offset."""
        return run_in_slices(connection, request, self._list(request.header))

    def _list(self, header: GetOpenTransactionsRequestHeader) -> Steps:
        most = min(max(header.max_num, 1), MAX_LISTED_TRANSACTIONS)
        listed: list[OpenTransaction] = []
        next_offset = None
        for looked_at, offset in enumerate(self._table.offsets(header.offset, MAX_SEARCHED_TRANSACTIONS + 1)):
            if len(listed) == most or looked_at == MAX_SEARCHED_TRANSACTIONS:
                next_offset = offset
                break
            if looked_at % HALF_MESSAGES_PER_SLICE == HALF_MESSAGES_PER_SLICE - 1:
                yield
            found = self._describe(offset) if self._table.is_open(offset) else None
            if found is not None and header.group in (None, found.group):
                listed.append(found)
        answer = admin_bodies.OpenTransactions(count=self._table.count, transactions=listed, next_offset=next_offset)
        return Response(body=encode_body(answer))

    def _describe(self, offset: int) -> OpenTransaction | None:
        half = self._table.read_half(offset)
        if half is None:
            return None
        known = self._table.get_recorded(offset) or describe(half)
        try:
            topic, queue_id = real_queue(half)
        except ValueError:
            topic, queue_id = "", -1
        return OpenTransaction(
            half_offset=offset,
            group=known.group,
            topic=topic,
            queue_id=queue_id,
            uniq_key=half.properties.get(UNIQ_KEY, ""),
            begun=known.begun_ms,
            check_times=known.check_times,
            immunity_ms=known.immunity_ms,
        )


class TimerAdmin:
    """Handles requests about delayed messages.

    The response bodies are RocketMQ 5's (``TimerCheckpoint.encode``, ``TimerMetrics``).
    """

    def __init__(self, timer: TimerMessageService) -> None:
        self._timer = timer
        self._looking = 0

    @answers(RequestCode.GET_TIMER_CHECK_POINT, permission=needs_cluster(Action.GET))
    def check_point(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the due time up to which messages have been delivered, and the queue offset up to which they have been
        read.
        """
        position = self._timer.log.position
        return Response(body=_CHECK_POINT.pack(max(position.until_ms, 0), 0, position.serial, position.serial, 0, 0, 0))

    @answers(RequestCode.GET_TIMER_METRICS, limits=("MAX_TIMER_LOOKS",), permission=needs_cluster(Action.GET))
    async def metrics(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Count the delayed messages for each topic, and those due within a minute, an hour, a day and thirty days."""
        return await self._read_in_thread(self._metrics())

    @answers(
        RequestCode.GET_WAITING_MESSAGES,
        limits=("MAX_TIMER_LOOKS", "MAX_LISTED_WAITING"),
        permission=needs_cluster(Action.GET),
    )
    async def list(
        self, _connection: ServerConnection, request: Request[GetWaitingMessagesRequestHeader], _body: bytes
    ) -> Response:
        """List the delayed messages for one topic or all topics, ordered by due time (a CometMQ extension)."""
        return await self._read_in_thread(self._page(request.header))

    async def _read_in_thread(self, work: Coroutine[Any, Any, Body]) -> Response:
        if self._looking >= MAX_TIMER_LOOKS:
            work.close()
            remark = f"{MAX_TIMER_LOOKS} requests are already searching the delayed messages, try again"
            return Response(ResponseCode.SYSTEM_BUSY, remark=remark)
        self._looking += 1
        try:
            return Response(body=encode_body(await work))
        except OSError as error:
            _log.error("cannot read the delayed messages: %s", error)
            remark = f"cannot read the delayed messages: {error.strerror}"
            return Response(ResponseCode.SYSTEM_ERROR, remark=remark)
        finally:
            self._looking -= 1

    async def _metrics(self) -> TimerMetrics:
        topics = await count_waiting(self._timer)
        return TimerMetrics(
            timing_count={name: _metrics(waiting) for name, waiting in topics.items()},
            data_version=DataVersion(timestamp=self._timer.log.position.until_ms, counter=0),
        )

    async def _page(self, header: GetWaitingMessagesRequestHeader) -> WaitingMessages:
        most = min(max(header.max_num, 1), MAX_LISTED_WAITING)
        wanted = Wanted((header.begin_time, header.position), header.end_time, most)
        listed, next_place = await list_waiting(self._timer, wanted, header.topic)
        next_due, next_position = next_place or (None, None)
        return WaitingMessages([_waiting_message(one) for one in listed], next_due, next_position)


def _tag_codes(subscription: SubscriptionData | None) -> frozenset[int] | None:
    """Return a subscription's tags codes: none if it selects all messages; ``None`` if it is not a tag expression."""
    if subscription is None or not is_tag_type(subscription.expression_type):
        return None
    try:
        return parse_tags(subscription.sub_string).codes or frozenset()
    except SubscriptionError:
        return None


def _metrics(waiting: WaitingOfTopic) -> TopicTimerMetrics:
    return TopicTimerMetrics(
        count=waiting.count,
        time_stamp=waiting.first_ms,
        first_due_time=waiting.first_ms,
        last_due_time=waiting.last_ms,
        due_within=waiting.due_within,
    )


def _waiting_message(listed: Listed) -> WaitingMessage:
    message = listed.message
    properties = message.properties if message is not None else {}
    return WaitingMessage(
        topic=properties.get(REAL_TOPIC, "?"),
        queue_id=int(properties.get(REAL_QID, -1)),
        due=listed.due_ms,
        uniq_key=properties.get(UNIQ_KEY, ""),
        position=listed.serial,
        size=listed.size,
        born=message.born_timestamp if message is not None else 0,
    )
