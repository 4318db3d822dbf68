"""Administration of consumer groups: make (200), delete (207), list (201, 352), their topics (343).

(``AdminBrokerProcessor``.)
"""

from __future__ import annotations

import logging

from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.offsets import ConsumerOffsetManager
from cometmq.broker.stats import BrokerStats
from cometmq.limits import MAX_GROUP_CONFIG_BYTES, MAX_TOPIC_QUEUES
from cometmq.message.names import check_group
from cometmq.remoting.bodies import (
    BodyError,
    SubscriptionGroupConfig,
    TopicList,
    decode_request,
    encode_body,
    encode_table,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    NoHeader,
    QueryTopicsByConsumerRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)


class GroupAdmin:
    """Answers administrators about consumer groups."""

    def __init__(self, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, stats: BrokerStats) -> None:
        self._groups = groups
        self._offsets = offsets
        self._stats = stats

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes about consumer groups."""
        code = RequestCode
        processors.register(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader, self.create)
        processors.register(code.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader, self.delete)
        processors.register(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoHeader, self.all_configs)
        processors.register(code.GET_SUBSCRIPTIONGROUP_CONFIG, GetSubscriptionGroupConfigRequestHeader, self.config_of)
        processors.register(code.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequestHeader, self.topics_of)

    def create(self, connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        try:
            group = decode_request(SubscriptionGroupConfig, body, MAX_GROUP_CONFIG_BYTES)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        wrong = check_group(group.group_name)
        if wrong is None and not 0 <= group.retry_queue_nums <= MAX_TOPIC_QUEUES:
            wrong = f"retryQueueNums={group.retry_queue_nums}: allowed is 0 to {MAX_TOPIC_QUEUES}"
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        if self._groups.get(group.group_name) != group:
            _log.info("%s makes the group %s", connection.remote_address, group.group_name)
            self._groups.put(group)
        return Response()

    def delete(
        self, connection: ServerConnection, request: Request[DeleteSubscriptionGroupRequestHeader], _body: bytes
    ) -> Response:
        """DELETE_SUBSCRIPTIONGROUP (207), with its offsets if the request says so."""
        group = request.header.group_name
        if self._groups.delete(group):
            _log.info("%s deletes the group %s", connection.remote_address, group)
            self._stats.forget_group(group)
        if request.header.remove_offset:
            self._offsets.forget(group=group)
        return Response()

    def all_configs(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
        return Response(body=encode_table(self._groups.wrapper()))

    def config_of(
        self, _connection: ServerConnection, request: Request[GetSubscriptionGroupConfigRequestHeader], _body: bytes
    ) -> Response:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352), asked by tools of 5.x."""
        group = self._groups.get(request.header.group)
        if group is None:
            return Response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"No group in this broker. group: {request.header.group}",
            )
        return Response(body=encode_body(group))

    def topics_of(
        self, _connection: ServerConnection, request: Request[QueryTopicsByConsumerRequestHeader], _body: bytes
    ) -> Response:
        """QUERY_TOPICS_BY_CONSUMER (343), asked by tools of 5.x: topics that the group has offsets of."""
        topics = sorted(topic for topic, _ in self._offsets.of_group(request.header.group))
        return Response(body=encode_body(TopicList(topic_list=topics)))
