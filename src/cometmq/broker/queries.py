"""Questions about what is stored: offsets by queue and time (29, 30, 31, 32), messages by key (12) and by id (33).

(``AdminBrokerProcessor`` for the offsets, ``QueryMessageProcessor``.)
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.broker.live_config import LiveConfig
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
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
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore, TopicQueue

_NO_TIME: Final = -1


class QueryProcessor:
    """Answers from the store; it never makes a queue or a topic."""

    def __init__(self, live: LiveConfig, store: MessageStore) -> None:
        self._live = live
        self._store = store

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of questions about messages and offsets."""
        processors.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetRequestHeader, self.search_offset)
        processors.register(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader, self.max_offset)
        processors.register(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader, self.min_offset)
        processors.register(
            RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretimeRequestHeader, self.earliest_store_time
        )
        processors.register(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader, self.view)
        processors.register(RequestCode.QUERY_MESSAGE, QueryMessageRequestHeader, self.query)

    def _queue(self, topic: str, queue_id: int) -> TopicQueue | None:
        return self._store.queues().get(topic, {}).get(queue_id)

    def search_offset(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """The offset of the message stored nearest to a time; 0 for a queue that is not there."""
        header: SearchOffsetRequestHeader = request.header
        queue = self._queue(header.topic, header.queue_id)
        offset = 0 if queue is None else self._store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return Response(header=SearchOffsetResponseHeader(offset=offset))

    def max_offset(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """The offset that the next message of a queue will get."""
        queue = self._queue(request.header.topic, request.header.queue_id)
        return Response(header=GetMaxOffsetResponseHeader(offset=0 if queue is None else queue.max_offset()))

    def min_offset(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """The offset of the oldest message of a queue that is still kept."""
        queue = self._queue(request.header.topic, request.header.queue_id)
        return Response(header=GetMinOffsetResponseHeader(offset=0 if queue is None else queue.min_offset()))

    def earliest_store_time(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """When the oldest message of a queue was stored, ms since 1970; −1 when there is none."""
        header: GetEarliestMsgStoretimeRequestHeader = request.header
        queue = self._queue(header.topic, header.queue_id)
        timestamp = (
            _NO_TIME if queue is None else self._store.store_time(header.topic, header.queue_id, queue.min_offset())
        )
        return Response(header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    def view(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """The record at a log offset."""
        offset = request.header.offset
        record = self._store.record_at(offset) if offset >= 0 else None
        if record is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        return Response(body=record)

    def query(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """The messages with a key, or with a unique key, oldest first."""
        header: QueryMessageRequestHeader = request.header
        wanted = self._live.current.default_query_max_num if header.unique_key_query else header.max_num
        found = self._store.query(
            header.topic,
            header.key,
            max(0, min(wanted, MAX_QUERY_MESSAGES)),
            header.begin_timestamp,
            header.end_timestamp,
        )
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=found.last_update_timestamp,
            index_last_update_phyoffset=found.last_update_physical_offset,
        )
        if not found.records:
            return Response(ResponseCode.QUERY_NOT_FOUND, answer, "can not find message, maybe time range not correct")
        return Response(0, answer, body=found.records)
