"""Administration of topics: create, delete and list topics, and show their queue offsets and consumer groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_LIST_BYTES, MAX_LISTED, MAX_TOPIC_QUEUES
from cometmq.broker.slices import Steps, members, names_in_slices, run_in_slices, slices, table_in_slices
from cometmq.broker.tables.table_writer import change_response
from cometmq.broker.tables.topic_attributes import TopicAttributeError, changed_attributes, is_lite
from cometmq.broker.tables.topics import describe_topic
from cometmq.broker.turn.targets import RefusedError
from cometmq.message.names import (
    EPOCHS_TOPIC,
    PERM_INHERIT,
    PERM_PRIORITY,
    PERM_READ,
    PERM_WRITE,
    check_topic,
    is_system_topic,
)
from cometmq.remoting.admin_bodies import CreateTopicListRequestBody, TopicOffset
from cometmq.remoting.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from cometmq.remoting.bodies import (
    BodyError,
    MessageQueue,
    TopicConfig,
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
    needs_of_body,
    needs_topic,
    on_topic,
)
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

DEFAULT_REMARK: Final = "not set any response code"
"""Apache's remark in some successful responses, which tools show."""
_NO_STATIC_TOPICS: Final = (
    "static topics are not supported: add brokers, and create the topic on all of them; drain a broker that is removed"
)
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_PERM_BITS: Final = PERM_PRIORITY | PERM_READ | PERM_WRITE | PERM_INHERIT


def _listed(body: bytes) -> list[TopicConfig]:
    """Return the topics in a request.

    :raises BodyError: the body is malformed or contains too many topics.
    """
    topics = decode_request(CreateTopicListRequestBody, body, MAX_LIST_BYTES).topic_config_list
    if len(topics) > MAX_LISTED:
        raise BodyError(f"{len(topics)} topics in one request; at most {MAX_LISTED} are allowed")
    return topics


def _list_needs(body: bytes) -> Iterator[Need]:
    for topic in _listed(body):
        yield on_topic(topic.topic_name, Action.CREATE)


class TopicAdmin:
    """Handles requests about topics (``AdminBrokerProcessor``).

    :param when_registered: calls the given function once the nameservers know the current topics.
    """

    def __init__(self, broker: BrokerContext, when_registered: Callable[[Callable[[], None]], None]) -> None:
        self._broker = broker
        self._when_registered = when_registered

    @answers(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        limits=("MAX_TOPIC_QUEUES", "MAX_ATTRIBUTES_CHARS", "MAX_PENDING_CHANGES"),
        permission=needs_topic(Action.CREATE),
    )
    def create(
        self, connection: ServerConnection, request: Request[CreateTopicRequestHeader], _body: bytes
    ) -> Response | None:
        """Create or change a topic; answer once the change is durable and the nameservers know it."""
        header = request.header
        asked = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        self._broker.tables.require_room()
        ended = self._broker.stats.creations.topic(is_system=is_system_topic(asked.topic_name))
        try:
            self._make(connection, [self._changed(asked, header.attributes or "")])
        except RefusedError as refused:
            return ended(refused.response())
        self._when_known(lambda answer: connection.respond(request, ended(answer)), Response(remark=DEFAULT_REMARK))
        return None

    @answers(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        header=NoHeader,
        limits=("MAX_LIST_BYTES", "MAX_LISTED", "MAX_TOPIC_QUEUES", "MAX_ATTRIBUTES_CHARS", "MAX_PENDING_CHANGES"),
        permission=needs_of_body(_list_needs, "Topic:`topicConfigList` Create"),
    )
    def create_all(self, connection: ServerConnection, request: Request[NoHeader], body: bytes) -> Response | None:
        """Create or change all topics in a request, or, if one is refused, none; answer once nameservers know them."""
        self._broker.tables.require_room()
        try:
            listed = _listed(body)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        ended = self._broker.stats.creations.topic(is_system=any(is_system_topic(asked.topic_name) for asked in listed))
        changed: list[TopicConfig] = []
        try:
            for asked in listed:
                changes = ",".join(f"{name}={value}" for name, value in (asked.attributes or {}).items())
                changed.append(self._changed(asked, changes))
        except RefusedError as refused:
            return ended(refused.response())
        self._make(connection, changed)
        self._when_known(lambda answer: connection.respond(request, ended(answer)), Response())
        return None

    @answers(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, permission=needs_topic(Action.CREATE))
    def create_static(
        self, _connection: ServerConnection, _request: Request[CreateTopicRequestHeader], _body: bytes
    ) -> Response:
        """Refuse: CometMQ has no static topics, whose logical queues move between brokers."""
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=_NO_STATIC_TOPICS)

    def _changed(self, asked: TopicConfig, attribute_changes: str) -> TopicConfig:
        """Return a topic's configuration after a change.

        :raises RefusedError: the change is not allowed.
        """
        wrong = self._refuse_name(asked.topic_name) or _refuse_numbers(asked)
        if wrong is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        existing = self._broker.topics.get(asked.topic_name)
        try:
            attributes = changed_attributes(
                None if existing is None else existing.attributes, attribute_changes, is_new=existing is None
            )
        except TopicAttributeError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, error.message) from None
        if existing is not None and is_lite(existing.attributes) and not is_lite(attributes):
            self._check_no_lite_topics(asked.topic_name)
        return msgspec.structs.replace(asked, attributes=attributes or None)

    def _check_no_lite_topics(self, topic: str) -> None:
        """Check that a topic of type LITE may get another type, with which nobody could read its lite topics.

        :raises RefusedError: it has lite topics.
        """
        lite = self._broker.turn.lite
        count = 0 if lite is None else lite.count_of(topic)
        if count:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"message.type of topic {topic} must stay LITE while it has lite topics ({count}); remove them first: "
                f"cometmq topic lite expire {topic}",
            )

    def _make(self, connection: ServerConnection, topics: list[TopicConfig]) -> None:
        for topic in topics:
            if self._broker.topics.get(topic.topic_name) != topic:
                _log.info("%s is creating or changing %s", connection.remote_address, describe_topic(topic))
                self._broker.topics.put(topic)

    def _when_known(self, respond: Callable[[Response], None], response: Response) -> None:
        """Respond once the change is durable and the nameservers know it, or with the reason for a failure."""

        def written(failure: Exception | None) -> None:
            if failure is None:
                self._when_registered(lambda: respond(response))
            else:
                respond(change_response(failure))

        self._broker.tables.when_copied(written)

    @answers(RequestCode.DELETE_TOPIC_IN_BROKER, limits=("MAX_PENDING_CHANGES",), permission=needs_topic(Action.DELETE))
    def delete(
        self, connection: ServerConnection, request: Request[DeleteTopicRequestHeader], _body: bytes
    ) -> Response | None:
        """Delete a topic's configuration, queues and consumer offsets. The log keeps its records.

        The request is answered once the deletion is durable.
        """
        topic = request.header.topic
        wrong = self._refuse_name(topic)
        if wrong is not None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=wrong)
        self._broker.tables.require_room()
        self._broker.turn.end()  # so that all messages of the topic are below the log's end
        is_known = self._broker.topics.delete(topic)
        if is_known:
            _log.info("%s is deleting the topic %s", connection.remote_address, topic)
        if is_known or topic in self._broker.store.queues():
            self._broker.deletions.topics([topic], self._broker.store.max_physical_offset)
        self._broker.tables.answer(connection, request)
        return None

    def _refuse_name(self, topic: str) -> str | None:
        if topic in self._broker.topics.system_topics:
            return f"The topic[{topic}] is conflict with system topic."
        return check_topic(topic)

    @answers(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        limits=("TABLE_ROWS_PER_SLICE",),
        permission=needs_every(Kind.TOPIC, Action.LIST),
    )
    def all_configs(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> Response | None:
        """Return the table of topics."""
        topics = self._broker.topics
        return run_in_slices(connection, request, table_in_slices(topics.version, topics.field, topics.table))

    @answers(RequestCode.GET_TOPIC_CONFIG, permission=needs_topic(Action.GET))
    def config_of(
        self, _connection: ServerConnection, request: Request[GetTopicConfigRequestHeader], _body: bytes
    ) -> Response:
        """Return a topic's configuration, for 5.x tools."""
        topic = self._broker.topics.get(request.header.topic)
        if topic is None:
            return Response(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {request.header.topic}"
            )
        return Response(body=encode_body(topic))

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, permission=needs_every(Kind.TOPIC, Action.LIST))
    def system_topics(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """List the topics that the broker itself uses."""
        return Response(body=encode_body(TopicList(topic_list=sorted(self._broker.topics.system_topics))))

    @answers(RequestCode.GET_TOPIC_STATS_INFO, limits=("QUEUES_PER_SLICE",), permission=needs_topic(Action.GET))
    def offsets_of(
        self, connection: ServerConnection, request: Request[GetTopicStatsInfoRequestHeader], _body: bytes
    ) -> Response | None:
        """Return each queue's first and next offset, and the store time of its last message."""
        name = request.header.topic
        topic = self._broker.topics.get(name)
        if topic is None:
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        return run_in_slices(connection, request, self._offsets_of(name, topic.write_queue_nums))

    def _offsets_of(self, name: str, queue_nums: int) -> Steps:
        parts: list[bytes] = []
        for queue_ids in slices(range(queue_nums)):
            if parts:
                yield
            table: dict[MessageQueue, TopicOffset] = {}
            for queue_id in queue_ids:
                first, end = self._broker.store.extent(name, queue_id)
                last = self._broker.store.store_time(name, queue_id, end - 1) if end > 0 else 0
                if self._broker.archived is not None:
                    first = self._broker.archived.first_offset(name, queue_id)
                table[MessageQueue(name, self._broker.config.broker_name, queue_id)] = TopicOffset(
                    min_offset=first, max_offset=end, last_update_timestamp=max(last, 0)
                )
            parts.append(members(table))
        return Response(body=b'{"offsetTable":{' + b",".join(parts) + b"}}")

    @answers(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, limits=("TABLE_ROWS_PER_SLICE",), permission=needs_topic(Action.GET)
    )
    def consumed_by(
        self, connection: ServerConnection, request: Request[QueryTopicConsumeByWhoRequestHeader], _body: bytes
    ) -> Response | None:
        """List the groups that subscribe to a topic or have offsets in it."""
        topic = request.header.topic
        groups = self._broker.clients.consumers.groups_of(topic) | self._broker.offsets.groups_of(topic)
        return run_in_slices(connection, request, _groups_in_slices(groups))

    @answers(RequestCode.CLEAN_UNUSED_TOPIC, limits=("MAX_PENDING_CHANGES",), permission=needs_cluster(Action.UPDATE))
    def clean_unused(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> None:
        """Delete the queues of topics that no longer have a configuration."""
        self._broker.tables.require_room()
        known = self._broker.topics.table.keys() | self._broker.topics.system_topics | {EPOCHS_TOPIC}
        self._broker.turn.end()
        unused = [
            topic
            for topic, queues in self._broker.store.queues().items()
            if topic not in known and any(queue.committed for queue in queues.values())
        ]
        if unused:
            _log.info("deleting the queues of %s, which have no topic configuration", ", ".join(unused))
            self._broker.deletions.topics(unused, self._broker.store.max_physical_offset)
        self._broker.tables.answer(connection, request)


def _groups_in_slices(groups: Iterable[str]) -> Steps:
    listed = yield from names_in_slices(groups)
    return Response(body=b'{"groupList":[%s]}' % listed)


def _refuse_numbers(header: TopicConfig) -> str | None:
    for what, number in (("readQueueNums", header.read_queue_nums), ("writeQueueNums", header.write_queue_nums)):
        if not 0 <= number <= MAX_TOPIC_QUEUES:
            return f"{what}={number} must be from 0 to {MAX_TOPIC_QUEUES}"
    if header.perm & ~_PERM_BITS:
        return f"perm={header.perm} must be from 0 to {_PERM_BITS}"
    if header.topic_filter_type not in _FILTER_TYPES:
        return f"topicFilterType={header.topic_filter_type} must be SINGLE_TAG or MULTI_TAG"
    return None
