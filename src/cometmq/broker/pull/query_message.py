"""Queries for messages by key and by ID, and for offsets by queue and time (request codes 12 and 29 to 33).

In Apache's broker, ``QueryMessageProcessor`` handles these requests, and ``AdminBrokerProcessor`` those for offsets.
"""

from __future__ import annotations

from cometmq.broker.context import BrokerContext
from cometmq.broker.stored_access import may_access_at, not_found
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    UPPER,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from cometmq.remoting.permissions import Action, needs_stored, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection


class QueryProcessor:
    """Answers queries from the store. A query never creates a queue or a topic."""

    def __init__(self, broker: BrokerContext) -> None:
        self._live = broker.live
        self._store = broker.store
        self._limiter = broker.limiter

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, permission=needs_topic(Action.GET))
    def search_offset(
        self, _connection: ServerConnection, request: Request[SearchOffsetRequestHeader], _body: bytes
    ) -> Response:
        """Return the offset for a point in time, or 0 if the queue does not exist.

        Clients of 5.x choose between the first message stored at or after that time and (UPPER) the last message stored
        at or before it. Other clients receive the nearest message, as in 4.9.
        """
        header, store = request.header, self._store
        place = header.topic, header.queue_id
        if header.boundary_type is None:
            offset = store.offset_by_time(*place, header.timestamp)
        elif header.boundary_type.upper() == UPPER:
            first, _ = store.extent(*place)
            offset = max(store.first_by_time(*place, header.timestamp + 1) - 1, first)
        else:
            offset = store.first_by_time(*place, header.timestamp)
        return Response(header=SearchOffsetResponseHeader(offset=offset))

    @answers(RequestCode.GET_MAX_OFFSET, permission=needs_topic(Action.GET))
    def max_offset(
        self, _connection: ServerConnection, request: Request[GetMaxOffsetRequestHeader], _body: bytes
    ) -> Response:
        """Return the offset of the next message in a queue."""
        _, end = self._store.extent(request.header.topic, request.header.queue_id)
        return Response(header=GetMaxOffsetResponseHeader(offset=end))

    @answers(RequestCode.GET_MIN_OFFSET, permission=needs_topic(Action.GET))
    def min_offset(
        self, _connection: ServerConnection, request: Request[GetMinOffsetRequestHeader], _body: bytes
    ) -> Response:
        """Return the offset of the oldest message in a queue."""
        first, _ = self._store.extent(request.header.topic, request.header.queue_id)
        return Response(header=GetMinOffsetResponseHeader(offset=first))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME, permission=needs_topic(Action.GET))
    def earliest_store_time(
        self, _connection: ServerConnection, request: Request[GetEarliestMsgStoretimeRequestHeader], _body: bytes
    ) -> Response:
        """Return the store time of the oldest message in a queue in milliseconds since 1970, or −1 if the queue is
        empty.
        """
        header = request.header
        first, _ = self._store.extent(header.topic, header.queue_id)
        timestamp = self._store.store_time(header.topic, header.queue_id, first)
        return Response(header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    @answers(RequestCode.VIEW_MESSAGE_BY_ID, permission=needs_stored(Action.SUB, Action.GET))
    def view(self, connection: ServerConnection, request: Request[ViewMessageRequestHeader], _body: bytes) -> Response:
        """Return the record at a log offset."""
        offset = request.header.offset
        record = self._store.record_at(offset) if offset >= 0 else None
        if record is None or not may_access_at(self._store, offset, Action.SUB, Action.GET):
            return Response(
                ResponseCode.SYSTEM_ERROR, remark=not_found(f"can not find message by the offset, {offset}")
            )
        self._limiter.got(connection, None, 1, len(record))
        return Response(body=record)

    @answers(RequestCode.QUERY_MESSAGE, limits=("MAX_QUERY_MESSAGES",), permission=needs_topic(Action.SUB, Action.GET))
    def query(
        self, connection: ServerConnection, request: Request[QueryMessageRequestHeader], _body: bytes
    ) -> Response:
        """Return the messages with a key or unique key, oldest first."""
        header = request.header
        wanted = self._live.current.default_query_max_num if header.unique_key_query else header.max_num
        found = self._store.query(
            header.topic,
            header.key,
            max(0, min(wanted, MAX_QUERY_MESSAGES)),
            header.begin_timestamp,
            header.end_timestamp,
            unique=header.unique_key_query,
        )
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=found.last_update_timestamp,
            index_last_update_phyoffset=found.last_update_physical_offset,
        )
        if not found.records:
            return Response(ResponseCode.QUERY_NOT_FOUND, answer, "can not find message, maybe time range not correct")
        self._limiter.got(connection, None, len(found.records), sum(map(len, found.records)))
        return Response(0, answer, body=found.records)
