"""Consumers' requests about their group: its members, its offsets and its queue locks for orderly consumption."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_LOCK_REQUEST_BYTES, MAX_LOCK_REQUEST_QUEUES
from cometmq.broker.pull.pull_message import is_in_memory
from cometmq.broker.tables.clients import ClientRegistry
from cometmq.broker.tables.rebalance_locks import RebalanceLockManager
from cometmq.limits import MAX_CLIENT_ID_CHARS, MAX_TOPIC_CHARS
from cometmq.message.names import check_group, check_topic
from cometmq.remoting.bodies import (
    BodyError,
    ConsumerIdList,
    LockBatchRequestBody,
    LockBatchResponseBody,
    decode_request,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    NoHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.remoting.permissions import Action, Need, needs_group, needs_of_body, needs_topic, on_group, on_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.queue.consume_queue import UNIT


class ConsumerManageProcessor:
    """Handles consumers' requests about their group and its offsets (``ConsumerManageProcessor``)."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._consumers = broker.clients.consumers
        self._offsets = broker.offsets
        self._lives = broker.deletions.lives
        self._store = broker.store

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP, permission=needs_group(Action.SUB, Action.GET))
    def consumer_list(
        self, _connection: ServerConnection, request: Request[GetConsumerListByGroupRequestHeader], _body: bytes
    ) -> Response:
        """List the client IDs of all live members of a group."""
        name = request.header.consumer_group
        group = self._consumers.get(name)
        if group is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        # plain JSON is sufficient, and 30 times faster: each of a thousand members asks for the others
        return Response(body=msgspec.json.encode(ConsumerIdList(consumer_id_list=group.client_ids)))

    @answers(
        RequestCode.QUERY_CONSUMER_OFFSET,
        permission=needs_topic(Action.SUB, Action.GET) & needs_group(Action.SUB, Action.GET),
    )
    def query_offset(
        self, connection: ServerConnection, request: Request[QueryConsumerOffsetRequestHeader], _body: bytes
    ) -> Response:
        """Return a group's committed offset in a queue.

        If the group has never committed an offset, return 0 for a young queue, and QUERY_NOT_FOUND for any other queue.
        """
        header = request.header
        self._lives.record_reader(connection, header.consumer_group, header.topic, header.queue_id)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset < 0 and header.consumer_group in self._offsets.lost_of:
            offset, _ = self._store.extent(header.topic, header.queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False or not self._is_young(header.topic, header.queue_id):
                return Response(
                    ResponseCode.QUERY_NOT_FOUND,
                    remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return Response(header=QueryConsumerOffsetResponseHeader(offset=offset))

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue still has its first message and the log after that message fits in memory."""
        queue = self._store.queues().get(topic, {}).get(queue_id)
        if queue is None or queue.max_offset() == 0:
            return True
        if queue.min_offset() > 0:
            return False
        position = UNIT.unpack_from(queue.units(0, 1))[0]
        return is_in_memory(self._store.max_physical_offset - position, self._broker.config)

    @answers(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        permission=needs_topic(Action.SUB, Action.UPDATE) & needs_group(Action.SUB, Action.UPDATE),
    )
    def update_offset(
        self, connection: ServerConnection, request: Request[UpdateConsumerOffsetRequestHeader], _body: bytes
    ) -> Response:
        """Commit a group's offset in a queue, unless the offset belongs to a deleted topic with the same name."""
        header = request.header
        wrong = check_group(header.consumer_group) or check_topic(header.topic)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        if self._lives.deleted and self._is_of_deleted_topic(connection, header):
            return Response()
        if not self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset):
            return Response(
                ResponseCode.SYSTEM_ERROR, remark="this broker already has the maximum number of consumer offsets"
            )
        return Response()

    def _is_of_deleted_topic(self, connection: ServerConnection, header: UpdateConsumerOffsetRequestHeader) -> bool:
        """Return whether an offset is from a deleted topic, since its consumer does not know the new topic yet."""
        if self._lives.reads_earlier(connection, header.consumer_group, header.topic, header.queue_id):
            return True
        is_gone = header.topic in self._lives.deleted
        return is_gone and header.commit_offset > self._store.extent(header.topic, header.queue_id)[1]


def _lock_needs(body: bytes) -> Iterator[Need]:
    asked = _parse(body)
    yield on_group(asked.consumer_group, Action.SUB)
    for topic in {queue.topic for queue in asked.mq_set}:
        yield on_topic(topic, Action.SUB)


class LockProcessor:
    """Handles lock requests from orderly consumers (``AdminBrokerProcessor``)."""

    def __init__(self, locks: RebalanceLockManager, clients: ClientRegistry) -> None:
        self._locks = locks
        self._clients = clients

    @answers(
        RequestCode.LOCK_BATCH_MQ,
        limits=("MAX_LOCK_REQUEST_BYTES", "MAX_LOCK_REQUEST_QUEUES", "MAX_LOCKED_QUEUES"),
        permission=needs_of_body(_lock_needs, "Group and each Topic Sub"),
    )
    def lock(self, connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Lock queues or renew their locks; return the queues that the client now holds.

        The request is refused if the heartbeats on its connection came from other groups or another client.
        """
        try:
            asked = _parse(body)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        if self._clients.is_stranger(connection, asked.consumer_group, asked.client_id):
            remark = f"{asked.client_id} is not a member of {asked.consumer_group} according to its heartbeats"
            return Response(ResponseCode.SYSTEM_ERROR, remark=remark)
        held = self._locks.try_lock(asked.consumer_group, asked.client_id, asked.mq_set)
        if held is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark="this broker already holds too many locks")
        # Thousands of plain queues: encoding them in one call is fast enough not to delay other requests.
        return Response(body=msgspec.json.encode(LockBatchResponseBody(lock_ok_mq_set=held)))

    @answers(
        RequestCode.UNLOCK_BATCH_MQ,
        limits=("MAX_LOCK_REQUEST_BYTES", "MAX_LOCK_REQUEST_QUEUES"),
        permission=needs_of_body(_lock_needs, "Group and each Topic Sub"),
    )
    def unlock(self, _connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Release a client's locks on queues."""
        try:
            asked = _parse(body)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        self._locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return Response()


def _parse(body: bytes) -> LockBatchRequestBody:
    """Parse a lock or unlock request (request codes 41 and 42).

    :raises BodyError: the body is malformed or lacks a group or client.
    """
    asked = decode_request(LockBatchRequestBody, body, MAX_LOCK_REQUEST_BYTES)
    wrong = check_group(asked.consumer_group)
    if not asked.client_id or len(asked.client_id) > MAX_CLIENT_ID_CHARS:
        wrong = f"the clientId is missing or longer than {MAX_CLIENT_ID_CHARS} characters"
    if len(asked.mq_set) > MAX_LOCK_REQUEST_QUEUES:
        wrong = f"a request can lock at most {MAX_LOCK_REQUEST_QUEUES} queues"
    for queue in asked.mq_set:
        wrong = wrong or check_topic(queue.topic)
        if len(queue.broker_name) > MAX_TOPIC_CHARS or not 0 <= queue.queue_id < 2**31:
            wrong = f"no broker has {queue}"
    if wrong is not None:
        raise BodyError(wrong)
    return asked
