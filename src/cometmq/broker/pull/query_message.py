"""Queries for messages by key and by ID, and for offsets by queue and time (request codes 12 and 29 to 33).

In Apache's broker, ``QueryMessageProcessor`` handles these requests, and ``AdminBrokerProcessor`` those for offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cometmq.broker.archived.searches import NOT_NOW, find_key, find_position, find_time, is_before_store
from cometmq.broker.context import BrokerContext
from cometmq.broker.stored_access import may_access_archived, may_access_at, not_found
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.record import StoredRecord, decode_record
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
from cometmq.remoting.permissions import CALLER, Action, needs_stored, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.index.index_service import QueryResult
from cometmq.tier.frames import FindKey, TimeFound


class QueryProcessor:
    """Answers queries from the store. A query never creates a queue or a topic."""

    def __init__(self, broker: BrokerContext) -> None:
        self._live = broker.live
        self._store = broker.store
        self._limiter = broker.limiter
        self._archived = broker.archived
        self._topics = broker.topics

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, permission=needs_topic(Action.GET))
    def search_offset(
        self, connection: ServerConnection, request: Request[SearchOffsetRequestHeader], _body: bytes
    ) -> Response | None:
        """Return the queue offset of the message stored at a point in time, or 0 if the queue does not exist.

        Clients of 5.x choose between the first message stored at or after that time and (UPPER) the last message stored
        at or before it. Other clients receive the nearest message, as in 4.9.
        """
        header, store = request.header, self._store
        place = header.topic, header.queue_id
        is_upper = header.boundary_type is not None and header.boundary_type.upper() == UPPER
        timestamp = header.timestamp + is_upper
        if self._archived is not None and self._archived.extent(*place) and is_before_store(store, *place, timestamp):
            before, _ = store.extent(*place)
            find_time(self._archived, *place, timestamp, before, partial(self._time_found, connection, request, before))
            return None
        if header.boundary_type is None:
            offset = store.offset_by_time(*place, header.timestamp)
        elif is_upper:
            first, _ = store.extent(*place)
            offset = max(store.first_by_time(*place, timestamp) - 1, first)
        else:
            offset = store.first_by_time(*place, timestamp)
        return Response(header=SearchOffsetResponseHeader(offset=offset))

    def _time_found(
        self,
        connection: ServerConnection,
        request: Request[SearchOffsetRequestHeader],
        before: int,
        found: TimeFound | None,
    ) -> None:
        """Answer a search for a time before the store's first message.

        :param before: the first offset in the store, at which the search continues.
        """
        if found is None:
            connection.respond(request, Response(ResponseCode.SYSTEM_BUSY, remark=NOT_NOW))
            return
        header = request.header
        at, earlier = (found.offset if found.offset >= 0 else before), found.earlier_offset
        if earlier < 0:
            offset = at
        elif header.boundary_type is None:  # the nearest; of two equally near ones the earlier
            later_ms = (
                found.time_ms if found.offset >= 0 else self._store.store_time(header.topic, header.queue_id, before)
            )
            is_later_nearer = later_ms - header.timestamp < header.timestamp - found.earlier_ms
            offset = at if is_later_nearer or later_ms == header.timestamp else earlier
        else:
            offset = earlier if header.boundary_type.upper() == UPPER else at
        connection.respond(request, Response(header=SearchOffsetResponseHeader(offset=offset)))

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
        place = request.header.topic, request.header.queue_id
        first, _ = self._store.extent(*place)
        if self._archived is not None:
            first = self._archived.first_offset(*place)
        return Response(header=GetMinOffsetResponseHeader(offset=first))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME, permission=needs_topic(Action.GET))
    def earliest_store_time(
        self, _connection: ServerConnection, request: Request[GetEarliestMsgStoretimeRequestHeader], _body: bytes
    ) -> Response:
        """Return the store time of the oldest message in a queue in milliseconds since 1970, or −1 if the queue is
        empty.
        """
        header = request.header
        place = header.topic, header.queue_id
        extent = None if self._archived is None else self._archived.extent(*place)
        first, _ = self._store.extent(*place)
        timestamp = self._store.store_time(*place, first) if extent is None else extent.first_ms
        return Response(header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    @answers(
        RequestCode.VIEW_MESSAGE_BY_ID, limits=("MAX_ARCHIVE_LOOKUPS",), permission=needs_stored(Action.SUB, Action.GET)
    )
    def view(
        self, connection: ServerConnection, request: Request[ViewMessageRequestHeader], _body: bytes
    ) -> Response | None:
        """Return the record at a log offset."""
        offset = request.header.offset
        if self._archived is not None and 0 <= offset < self._store.min_physical_offset:
            may_access = partial(may_access_archived, CALLER.get(), actions=(Action.SUB, Action.GET))
            find_position(
                self._archived,
                offset,
                partial(self._position_found, connection, request, may_access, self._not_found(offset)),
            )
            return None
        record = self._store.readable_record_at(offset)
        if record is None or not may_access_at(self._store, offset, Action.SUB, Action.GET):
            return self._not_found(offset)
        self._limiter.got(connection, None, 1, len(record))
        return Response(body=record)

    @staticmethod
    def _not_found(offset: int) -> Response:
        return Response(ResponseCode.SYSTEM_ERROR, remark=not_found(f"can not find message by the offset, {offset}"))

    def _position_found(
        self,
        connection: ServerConnection,
        request: Request[ViewMessageRequestHeader],
        may_access: Callable[[StoredRecord], bool],
        not_found: Response,
        record: bytes | None,
    ) -> None:
        """Respond with an archived record if the account may read it."""
        if record is None:
            connection.respond(request, Response(ResponseCode.SYSTEM_BUSY, remark=NOT_NOW))
            return
        if not record or not may_access(decode_record(record)):
            connection.respond(request, not_found)
            return
        self._limiter.got(connection, None, 1, len(record))
        connection.respond(request, Response(body=record))

    @answers(
        RequestCode.QUERY_MESSAGE,
        limits=("MAX_QUERY_MESSAGES", "MAX_ARCHIVE_LOOKUPS"),
        permission=needs_topic(Action.SUB, Action.GET),
    )
    def query(
        self, connection: ServerConnection, request: Request[QueryMessageRequestHeader], _body: bytes
    ) -> Response | None:
        """Return the messages with a key or unique key, oldest first."""
        header = request.header
        wanted = self._live.current.default_query_max_num if header.unique_key_query else header.max_num
        most = max(0, min(wanted, MAX_QUERY_MESSAGES))
        times = header.begin_timestamp, header.end_timestamp
        found = self._store.query(header.topic, header.key, most, *times, unique=header.unique_key_query)
        if self._archived is not None and len(found.records) < most:
            asked = FindKey(0, header.topic, header.key, header.unique_key_query, *times, {}, most)
            find_key(self._archived, self._store, asked, found, partial(self._keys_found, connection, request, found))
            return None
        return self._found(connection, found)

    def _keys_found(
        self, connection: ServerConnection, request: Request[Any], stored: QueryResult, found: QueryResult | None
    ) -> None:
        """Respond with stored and archived messages, or with the stored ones if the archive cannot be read now."""
        if found is None and not stored.records:
            connection.respond(request, Response(ResponseCode.SYSTEM_BUSY, remark=NOT_NOW))
            return
        connection.respond(request, self._found(connection, stored if found is None else found))

    def _found(self, connection: ServerConnection, found: QueryResult) -> Response:
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=found.last_update_timestamp,
            index_last_update_phyoffset=found.last_update_physical_offset,
        )
        if not found.records:
            return Response(ResponseCode.QUERY_NOT_FOUND, answer, "can not find message, maybe time range not correct")
        self._limiter.got(connection, None, len(found.records), sum(map(len, found.records)))
        return Response(0, answer, body=found.records)
