"""Administration of topics (``AdminBrokerProcessor``).

Make (17), delete (215), list (21, 305, 351), offsets (202), who consumes (300), clean up (316).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cometmq.broker.clients import ConsumerManager
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.slices import Steps, members, run_in_slices, slices
from cometmq.broker.stats import BrokerStats
from cometmq.broker.topics import TopicConfigManager, describe_topic
from cometmq.limits import MAX_TOPIC_QUEUES
from cometmq.message.names import PERM_INHERIT, PERM_PRIORITY, PERM_READ, PERM_WRITE, check_topic
from cometmq.remoting.bodies import (
    GroupList,
    MessageQueue,
    TopicConfig,
    TopicList,
    TopicOffset,
    encode_body,
    encode_table,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    NoHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

DEFAULT_REMARK: Final = "not set any response code"
"""Apache leaves this remark on some successful answers; tools show it."""
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_PERM_BITS: Final = PERM_PRIORITY | PERM_READ | PERM_WRITE | PERM_INHERIT


class TopicAdmin:
    """Answers administrators about topics."""

    def __init__(
        self,
        broker_name: str,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        store: MessageStore,
        stats: BrokerStats,
        when_registered: Callable[[Callable[[], None]], None],
    ) -> None:
        self._when_registered = when_registered
        self._broker_name = broker_name
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._stats = stats

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about topics."""
        code = RequestCode
        processors.register(code.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader, self.create)
        processors.register(code.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader, self.delete)
        processors.register(code.GET_ALL_TOPIC_CONFIG, NoHeader, self.all_configs)
        processors.register(code.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader, self.config_of)
        processors.register(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoHeader, self.system_topics)
        processors.register(code.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader, self.offsets_of)
        processors.register(code.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequestHeader, self.consumed_by)
        processors.register(code.CLEAN_UNUSED_TOPIC, NoHeader, self.clean_unused)

    def create(
        self, connection: ServerConnection, request: Request[CreateTopicRequestHeader], _body: bytes
    ) -> Response | None:
        """UPDATE_AND_CREATE_TOPIC (17); answered once the nameservers know the topic."""
        header = request.header
        wrong = self._refuse_name(header.topic) or _refuse_numbers(header)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        if self._topics.get(header.topic) != topic:
            _log.info("%s makes %s", connection.remote_address, describe_topic(topic))
            self._topics.put(topic)
        self._when_registered(lambda: connection.respond(request, Response(remark=DEFAULT_REMARK)))
        return None

    def delete(
        self, connection: ServerConnection, request: Request[DeleteTopicRequestHeader], _body: bytes
    ) -> Response:
        """DELETE_TOPIC_IN_BROKER (215): its configuration, queues and consumer offsets; the log keeps its records."""
        topic = request.header.topic
        wrong = self._refuse_name(topic)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        if self._topics.delete(topic):
            _log.info("%s deletes the topic %s", connection.remote_address, topic)
            self._offsets.forget(topic=topic)
            self._stats.forget_topic(topic)
        self._store.delete_topic(topic)
        return Response()

    def _refuse_name(self, topic: str) -> str | None:
        if topic in self._topics.system_topics:
            return f"The topic[{topic}] is conflict with system topic."
        return check_topic(topic)

    def all_configs(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_ALL_TOPIC_CONFIG (21)."""
        return Response(body=encode_table(self._topics.wrapper()))

    def config_of(
        self, _connection: ServerConnection, request: Request[GetTopicConfigRequestHeader], _body: bytes
    ) -> Response:
        """GET_TOPIC_CONFIG (351), asked by tools of 5.x."""
        topic = self._topics.get(request.header.topic)
        if topic is None:
            return Response(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {request.header.topic}"
            )
        return Response(body=encode_body(topic))

    def system_topics(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        return Response(body=encode_body(TopicList(topic_list=sorted(self._topics.system_topics))))

    def offsets_of(
        self, connection: ServerConnection, request: Request[GetTopicStatsInfoRequestHeader], _body: bytes
    ) -> Response | None:
        """GET_TOPIC_STATS_INFO (202): first and next offset of each queue, and when its last message was stored."""
        name = request.header.topic
        topic = self._topics.get(name)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        return run_in_slices(connection, request, self._offsets_of(name, topic.write_queue_nums))

    def _offsets_of(self, name: str, queue_nums: int) -> Steps:
        parts: list[bytes] = []
        for queue_ids in slices(range(queue_nums)):
            if parts:
                yield
            queues = self._store.queues().get(name, {})
            table: dict[MessageQueue, TopicOffset] = {}
            for queue_id in queue_ids:
                queue = queues.get(queue_id)
                first, end = (0, 0) if queue is None else (max(queue.min_offset(), 0), max(queue.max_offset(), 0))
                last = self._store.store_time(name, queue_id, end - 1) if end > 0 else 0
                table[MessageQueue(name, self._broker_name, queue_id)] = TopicOffset(
                    min_offset=first, max_offset=end, last_update_timestamp=max(last, 0)
                )
            parts.append(members(table))
        return Response(body=b'{"offsetTable":{' + b",".join(parts) + b"}}")

    def consumed_by(
        self, _connection: ServerConnection, request: Request[QueryTopicConsumeByWhoRequestHeader], _body: bytes
    ) -> Response:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe now or have offsets."""
        topic = request.header.topic
        groups = self._consumers.groups_of(topic) | self._offsets.groups_of(topic)
        return Response(body=encode_body(GroupList(group_list=sorted(groups))))

    def clean_unused(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """CLEAN_UNUSED_TOPIC (316): drop the queues of topics that have no configuration any more."""
        known = self._topics.table.keys() | self._topics.system_topics
        for topic, queues in list(self._store.queues().items()):
            if topic not in known and any(queue.max_offset() for queue in queues.values()):
                _log.info("drop the queues of %s, which has no configuration", topic)
                self._store.delete_topic(topic)
        return Response()


def _refuse_numbers(header: CreateTopicRequestHeader) -> str | None:
    for what, number in (("readQueueNums", header.read_queue_nums), ("writeQueueNums", header.write_queue_nums)):
        if not 0 <= number <= MAX_TOPIC_QUEUES:
            return f"{what}={number}: allowed is 0 to {MAX_TOPIC_QUEUES}"
    if header.perm & ~_PERM_BITS:
        return f"perm={header.perm}: allowed is 0 to {_PERM_BITS}"
    if header.topic_filter_type not in _FILTER_TYPES:
        return f"topicFilterType={header.topic_filter_type}: allowed is SINGLE_TAG or MULTI_TAG"
    return None
