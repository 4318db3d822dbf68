"""Administration of groups: create, delete and list groups, and list their connected members."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    MAX_GROUP_CONFIG_BYTES,
    MAX_LIST_BYTES,
    MAX_LISTED,
    MAX_TOPIC_QUEUES,
)
from cometmq.broker.slices import Slice, Steps, list_in_slices, names_in_slices, run_in_slices, table_in_slices
from cometmq.broker.tables.consumer_group import ClientChannel
from cometmq.broker.tables.group_attributes import changed_group
from cometmq.broker.tables.table_writer import change_response
from cometmq.broker.tables.topic_attributes import TopicAttributeError
from cometmq.message.names import check_group
from cometmq.remoting.admin_bodies import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    SubscriptionGroupList,
)
from cometmq.remoting.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from cometmq.remoting.bodies import (
    BodyError,
    SubscriptionGroupConfig,
    TopicList,
    decode_request,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import (
    Action,
    Kind,
    Need,
    needs_cluster,
    needs_every,
    needs_group,
    needs_of_body,
    on_group,
)
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_NO_CONNECTIONS: Final = b'"connectionSet":[]'
_NO_TOPICS: Final = b'"topicList":[]'


def _group_needs(body: bytes) -> Iterator[Need]:
    yield on_group(decode_request(SubscriptionGroupConfig, body, MAX_GROUP_CONFIG_BYTES).group_name, Action.CREATE)


def _listed(body: bytes) -> list[SubscriptionGroupConfig]:
    """Return the groups in a request.

    :raises BodyError: the body is malformed or contains too many groups.
    """
    groups = decode_request(SubscriptionGroupList, body, MAX_LIST_BYTES).group_config_list
    if len(groups) > MAX_LISTED:
        raise BodyError(f"{len(groups)} groups in one request; at most {MAX_LISTED} are allowed")
    return groups


def _list_needs(body: bytes) -> Iterator[Need]:
    for group in _listed(body):
        yield on_group(group.group_name, Action.CREATE)


class GroupAdmin:
    """Handles requests about groups and their connected clients (``AdminBrokerProcessor``)."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    @answers(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        limits=("MAX_GROUP_CONFIG_BYTES", "MAX_TOPIC_QUEUES", "MAX_PENDING_CHANGES"),
        permission=needs_of_body(_group_needs, "Group Create"),
    )
    def create(self, connection: ServerConnection, request: Request[NoHeader], body: bytes) -> Response | None:
        """Create or change a group; answer once the change is durable."""
        return self._timed(
            connection, request, lambda: [decode_request(SubscriptionGroupConfig, body, MAX_GROUP_CONFIG_BYTES)]
        )

    @answers(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        limits=("MAX_LIST_BYTES", "MAX_LISTED", "MAX_TOPIC_QUEUES", "MAX_PENDING_CHANGES"),
        permission=needs_of_body(_list_needs, "Group:`groupConfigList` Create"),
    )
    def create_all(self, connection: ServerConnection, request: Request[NoHeader], body: bytes) -> Response | None:
        """Create or change all groups in a request, or, if one is refused, none; answer once the changes are
        durable.
        """
        return self._timed(connection, request, lambda: _listed(body))

    def _timed(
        self,
        connection: ServerConnection,
        request: Request[NoHeader],
        read: Callable[[], list[SubscriptionGroupConfig]],
    ) -> Response | None:
        self._broker.tables.require_room()
        ended = self._broker.stats.creations.group()
        try:
            wrong = self._make(connection, read())
        except BodyError as error:
            wrong = error.message
        if wrong is not None:
            return ended(Response(ResponseCode.SYSTEM_ERROR, remark=wrong))
        self._broker.tables.when_copied(lambda failure: connection.respond(request, ended(change_response(failure))))
        return None

    def _make(self, connection: ServerConnection, groups: list[SubscriptionGroupConfig]) -> str | None:
        """Create or change all groups or none; return the reason if this is refused."""
        for group in groups:
            wrong = check_group(group.group_name)
            if wrong is None and not 0 <= group.retry_queue_nums <= MAX_TOPIC_QUEUES:
                wrong = f"retryQueueNums={group.retry_queue_nums} must be from 0 to {MAX_TOPIC_QUEUES}"
            if wrong is not None:
                return wrong
        known = self._broker.groups
        try:
            groups = [changed_group(known.get(group.group_name), group) for group in groups]
        except TopicAttributeError as error:
            return error.message
        for group in groups:
            if self._broker.groups.get(group.group_name) != group:
                _log.info("%s is creating or changing the group %s", connection.remote_address, group.group_name)
                self._broker.groups.put(group)
        return None

    @answers(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        limits=("MAX_PENDING_CHANGES",),
        permission=needs_group(Action.DELETE, field="group_name"),
    )
    def delete(
        self, connection: ServerConnection, request: Request[DeleteSubscriptionGroupRequestHeader], _body: bytes
    ) -> None:
        """Delete a group, and its offsets if requested; answer once the deletion is durable."""
        self._broker.tables.require_room()
        group = request.header.group_name
        is_known = self._broker.groups.delete(group)
        if is_known:
            _log.info("%s is deleting the group %s", connection.remote_address, group)
        with_offsets = request.header.remove_offset
        if is_known or (with_offsets and self._broker.offsets.has_group(group)):
            self._broker.deletions.group(group, self._broker.store.max_physical_offset, with_offsets=with_offsets)
        self._broker.tables.answer(connection, request)

    @answers(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        limits=("TABLE_ROWS_PER_SLICE",),
        permission=needs_every(Kind.GROUP, Action.LIST),
    )
    def all_configs(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> Response | None:
        """Return the table of groups."""
        groups = self._broker.groups
        return run_in_slices(connection, request, table_in_slices(groups.version, groups.field, groups.table))

    @answers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, permission=needs_group(Action.GET, field="group"))
    def config_of(
        self, _connection: ServerConnection, request: Request[GetSubscriptionGroupConfigRequestHeader], _body: bytes
    ) -> Response:
        """Return a group's configuration, for 5.x tools."""
        group = self._broker.groups.get(request.header.group)
        if group is None:
            return Response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"No group in this broker. group: {request.header.group}",
            )
        return Response(body=encode_body(group))

    @answers(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        limits=("TABLE_ROWS_PER_SLICE",),
        permission=needs_group(Action.GET, field="group"),
    )
    def topics_of(
        self, connection: ServerConnection, request: Request[QueryTopicsByConsumerRequestHeader], _body: bytes
    ) -> Response | None:
        """List the topics in which a group has offsets, for 5.x tools."""
        topics = (topic for topic, _ in self._broker.offsets.of_group(request.header.group))
        return run_in_slices(connection, request, _topics_in_slices(topics))

    # --- members ------------------------------------------------------------------------------
    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST, limits=("QUEUES_PER_SLICE",), permission=needs_group(Action.GET))
    def consumers(
        self, connection: ServerConnection, request: Request[GetConsumerConnectionListRequestHeader], _body: bytes
    ) -> Response | None:
        """List a group's connected consumers and their subscriptions."""
        name = request.header.consumer_group
        group = self._broker.clients.consumers.get(name)
        if group is None:
            return Response(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        described = ConsumerConnection(
            connection_set=[],
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return run_in_slices(connection, request, _with_connections(encode_body(described), group.channels.values()))

    @answers(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, limits=("QUEUES_PER_SLICE",), permission=needs_cluster(Action.GET)
    )
    def producers(
        self, connection: ServerConnection, request: Request[GetProducerConnectionListRequestHeader], _body: bytes
    ) -> Response | None:
        """List a group's connected producers."""
        name = request.header.producer_group
        channels = self._broker.clients.producers.groups.get(name)
        if channels is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        empty = encode_body(ProducerConnection(connection_set=[]))
        return run_in_slices(connection, request, _with_connections(empty, channels.values()))

    @answers(RequestCode.GET_ALL_PRODUCER_INFO, limits=("QUEUES_PER_SLICE",), permission=needs_cluster(Action.GET))
    def all_producers(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> Response | None:
        """List the producers of all groups; producers that connect or leave in the meantime may be missing."""
        return run_in_slices(connection, request, self._all_producers())

    def _all_producers(self) -> Steps:
        groups = self._broker.clients.producers.groups
        parts: list[bytes] = []
        part = Slice()
        for name in list(groups):
            channels = groups.get(name)
            if channels is not None:
                listed = yield from list_in_slices(map(_inform, list(channels.values())))
                parts.append(b"%s:[%s]" % (encode_body(name), listed))
                if part.ends_after(len(channels)):
                    yield
        return Response(body=b'{"data":{%s}}' % b",".join(parts))


def _topics_in_slices(topics: Iterable[str]) -> Steps:
    listed = yield from names_in_slices(topics)
    return Response(body=encode_body(TopicList()).replace(_NO_TOPICS, b'"topicList":[%s]' % listed, 1))


def _with_connections(body: bytes, channels: Iterable[ClientChannel]) -> Steps:
    """Return a response body that includes its connections."""
    listed = yield from list_in_slices(map(_describe, list(channels)))
    return Response(body=body.replace(_NO_CONNECTIONS, b'"connectionSet":[%s]' % listed, 1))


def _inform(channel: ClientChannel) -> ProducerInfo:
    return ProducerInfo(
        client_id=channel.client_id,
        remote_ip=f"/{channel.connection.remote_address}",
        language=channel.language,
        version=channel.version,
        last_update_timestamp=channel.last_update_ms,
        is_grpc=channel.connection.is_grpc or None,
    )


def _describe(channel: ClientChannel) -> Connection:
    return Connection(
        client_id=channel.client_id,
        client_addr=channel.connection.remote_address,
        language=channel.language,
        version=channel.version,
    )
