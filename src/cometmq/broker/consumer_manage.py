"""What consumers ask about their group: its members (38) and its offsets (14, 15) (``ConsumerManageProcessor``)."""

from __future__ import annotations

from typing import Any

from cometmq.broker.clients import ConsumerManager
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.log_memory import is_in_memory
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.message.names import check_group, check_topic
from cometmq.remoting.bodies import ConsumerIdList, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore
from cometmq.store.topic_queue import UNIT


class ConsumerManageProcessor:
    """Answers consumers about their group."""

    def __init__(
        self, live: LiveConfig, consumers: ConsumerManager, offsets: ConsumerOffsetManager, store: MessageStore
    ) -> None:
        self._live = live
        self._consumers = consumers
        self._offsets = offsets
        self._store = store

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about members and offsets of groups."""
        processors.register(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader, self.consumer_list
        )
        processors.register(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequestHeader, self.query_offset)
        processors.register(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader, self.update_offset)

    def consumer_list(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """Client ids of all live members."""
        name = request.header.consumer_group
        group = self._consumers.get(name)
        if group is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return Response(body=encode_body(ConsumerIdList(consumer_id_list=group.client_ids)))

    def query_offset(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """The offset that a group committed for a queue.

        A group that never committed starts at 0 on a young queue; otherwise it is told that there is none (22).
        """
        header: QueryConsumerOffsetRequestHeader = request.header
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0 and header.consumer_group in self._offsets.lost_of:
            queue = self._store.queues().get(header.topic, {}).get(header.queue_id)
            offset = queue.min_offset() if queue is not None else 0
        if offset < 0:
            if header.set_zero_if_not_found is False or not self._is_young(header.topic, header.queue_id):
                return Response(
                    ResponseCode.QUERY_NOT_FOUND,
                    remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return Response(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether the queue's first message is there and the log has not outgrown memory since it was stored."""
        queue = self._store.queues().get(topic, {}).get(queue_id)
        if queue is None or queue.max_offset() == 0:
            return True
        if queue.min_offset() > 0:
            return False
        position = UNIT.unpack_from(queue.units(0, 1))[0]
        return is_in_memory(self._store.max_physical_offset - position, self._live.current)

    def update_offset(self, _connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """Note how far a group has come in a queue."""
        header: UpdateConsumerOffsetRequestHeader = request.header
        wrong = check_group(header.consumer_group) or check_topic(header.topic)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        if not self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset):
            return Response(ResponseCode.SYSTEM_ERROR, remark="this broker holds too many consumer offsets already")
        return Response()
