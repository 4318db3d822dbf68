"""Clients report: HEART_BEAT (34), UNREGISTER_CLIENT (35), CHECK_CLIENT_CONFIG (46), notices about groups (40).

(``ClientManageProcessor``, ``DefaultConsumerIdsChangeListener``.)
"""

from __future__ import annotations

import logging
from typing import Any

from cometmq.broker.clients import ClientRegistry, ConsumerGroup, selection_chars
from cometmq.broker.consumer_filters import ConsumerFilterManager
from cometmq.broker.group_notices import GroupNotices
from cometmq.broker.groups import SubscriptionGroupManager
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.locks import RebalanceLockManager
from cometmq.broker.pull_filters import not_supported
from cometmq.broker.subscriptions import SubscriptionError, is_tag_type, parse_sql
from cometmq.broker.topics import TopicConfigManager
from cometmq.clock import Clock
from cometmq.limits import (
    MAX_CHECK_CLIENT_BYTES,
    MAX_CLIENT_ID_CHARS,
    MAX_HEARTBEAT_BYTES,
    MAX_HEARTBEAT_FILTER_CHARS,
    MAX_HEARTBEAT_GROUPS,
    MAX_KIND_CHARS,
    MAX_SUBSCRIPTION_CHARS,
)
from cometmq.message.names import check_group, check_topic, retry_topic
from cometmq.message.sysflag import TOPIC_UNIT_SUB
from cometmq.remoting.bodies import BodyError, CheckClientRequestBody, ConsumerData, HeartbeatData, decode_request
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    NoHeader,
    UnregisterClientRequestHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)


class ClientManageProcessor:
    """Enters and removes clients, and tells the members of a group when it changes."""

    def __init__(
        self,
        live: LiveConfig,
        clients: ClientRegistry,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        filters: ConsumerFilterManager,
        locks: RebalanceLockManager,
        *,
        clock: Clock,
    ) -> None:
        self._live = live
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._locks = locks
        self._notices = GroupNotices(clients.consumers, clock=clock)
        clients.consumers.on_change.append(self._notify)

    def register(self, processors: ProcessorTable) -> None:
        """Answer the codes of clients that come, stay and go."""
        processors.register(RequestCode.HEART_BEAT, NoHeader, self.heartbeat)
        processors.register(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader, self.unregister)
        processors.register(RequestCode.CHECK_CLIENT_CONFIG, NoHeader, self.check_config)

    def heartbeat(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response:
        """Enter or refresh the producers and consumers of one client."""
        try:
            data = decode_request(HeartbeatData, body, MAX_HEARTBEAT_BYTES)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        wrong = _check(data)
        if wrong is None and not self._clients.has_room(data, connection):
            wrong = "this broker holds too many groups and subscriptions already"
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        channel = self._clients.channel(connection, data.client_id, _language(request), request.version)
        for consumer in data.consumer_data_set:
            self._prepare(consumer)
            self._clients.consumers.register(consumer, channel)
            self._filters.register(consumer.group_name, consumer.subscription_data_set)
        for producer in data.producer_data_set:
            self._clients.producers.register(producer.group_name, channel)
        return Response()

    def _prepare(self, consumer: ConsumerData) -> None:
        """Make the group and its retry topic, which every consumer looks for."""
        group = self._groups.find(consumer.group_name)
        if group is not None and not self._topics.is_full:
            self._topics.create_retry(
                retry_topic(consumer.group_name),
                queue_nums=group.retry_queue_nums,
                topic_sys_flag=TOPIC_UNIT_SUB if consumer.unit_mode else 0,
            )

    def unregister(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response:
        """Take a client out of the groups it names; its queues are free before the other members hear of it."""
        header: UnregisterClientRequestHeader = request.header
        if header.producer_group:
            self._clients.producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            if not self._clients.is_stranger(connection, header.consumer_group, header.client_id):
                self._locks.unlock_all(header.consumer_group, header.client_id)
            self._clients.consumers.unregister(header.consumer_group, connection)
        return Response()

    def check_config(self, _connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Whether a subscription that is not by tags could be served; asked before a consumer starts."""
        try:
            subscription = (
                decode_request(CheckClientRequestBody, body, MAX_CHECK_CLIENT_BYTES).subscription_data if body else None
            )
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        if subscription is None or is_tag_type(subscription.expression_type):
            return Response()
        if not self._live.current.enable_property_filter:
            return Response(ResponseCode.SYSTEM_ERROR, remark=not_supported(subscription.expression_type))
        try:
            parse_sql(subscription.sub_string, subscription.expression_type)
        except SubscriptionError as error:
            return Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return Response()

    def _notify(self, group: ConsumerGroup) -> None:
        if not group.channels:
            self._filters.unregister(group.name)
        config = self._groups.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        self._notices.send(group.name)


def _language(request: Request[Any]) -> str:
    """What the client says it is written in; it is kept, so it is no longer than a word."""
    return str(request.language or "OTHER")[:MAX_KIND_CHARS]


def _check(data: HeartbeatData) -> str | None:
    """What is wrong with a heartbeat: names become topics, directories and table keys."""
    if len(data.client_id) > MAX_CLIENT_ID_CHARS:
        return f"the clientID is longer than {MAX_CLIENT_ID_CHARS} characters"
    if len(data.consumer_data_set) + len(data.producer_data_set) > MAX_HEARTBEAT_GROUPS:
        return f"a heartbeat may name at most {MAX_HEARTBEAT_GROUPS} groups"
    for producer in data.producer_data_set:
        wrong = check_group(producer.group_name)
        if wrong is not None:
            return wrong
    filter_chars = 0
    for consumer in data.consumer_data_set:
        wrong = check_group(consumer.group_name)
        if wrong is not None:
            return wrong
        kinds = (consumer.consume_type, consumer.message_model, consumer.consume_from_where)
        if max(map(len, kinds)) > MAX_KIND_CHARS:
            return f"consumeType, messageModel and consumeFromWhere have at most {MAX_KIND_CHARS} characters"
        if len(consumer.subscription_data_set) > MAX_HEARTBEAT_GROUPS:
            return f"a group may subscribe to at most {MAX_HEARTBEAT_GROUPS} topics"
        for subscription in consumer.subscription_data_set:
            wrong = check_topic(subscription.topic)
            if wrong is not None:
                return wrong
            if selection_chars(subscription) > MAX_SUBSCRIPTION_CHARS:
                return f"a subscription may have at most {MAX_SUBSCRIPTION_CHARS} characters"
            if not is_tag_type(subscription.expression_type):
                filter_chars += len(subscription.sub_string)
    if filter_chars > MAX_HEARTBEAT_FILTER_CHARS:
        return f"the SQL92 expressions of a heartbeat may have at most {MAX_HEARTBEAT_FILTER_CHARS} characters"
    return None
