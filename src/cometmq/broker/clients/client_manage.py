"""Handles clients' heartbeats and unregistrations, and notifies the members of changed groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    CLIENTS_PER_SLICE,
    FILTER_CHARS_PER_SLICE,
    LARGE_GROUP_MEMBERS,
    LARGE_HEARTBEAT_BYTES,
    MAX_CHECK_CLIENT_BYTES,
    MAX_HEARTBEAT_BYTES,
    MAX_HEARTBEAT_FILTER_CHARS,
    MAX_HEARTBEAT_GROUPS,
    MAX_HEARTBEAT_OBJECTS,
    MAX_KIND_CHARS,
    MAX_NOTICES_REST_SECONDS,
    MAX_SUBSCRIPTION_CHARS,
    NOTICES_PER_ROUND,
    NOTICES_REST_SECONDS,
    SHORT_HEARTBEAT_GROUPS,
    SHORT_HEARTBEATS_PER_ROUND,
)
from cometmq.broker.pull.consumer_filters import ConsumerFilterManager, is_tag_type
from cometmq.broker.pull.filters import SubscriptionError, not_supported_remark, parse_sql
from cometmq.broker.slices import Steps, batches, run_in_slices
from cometmq.broker.tables.clients import ClientRegistry, ConsumerManager
from cometmq.broker.tables.consumer_group import ClientChannel, ConsumerGroup, selection_chars
from cometmq.clock import Clock
from cometmq.limits import MAX_CLIENT_ID_CHARS
from cometmq.message.names import check_group, check_topic, retry_topic
from cometmq.message.sysflag import TOPIC_UNIT_SUB
from cometmq.remoting.bodies import BodyError, CheckClientRequestBody, ConsumerData, HeartbeatData, decode_request
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, request_command
from cometmq.remoting.headers import (
    NoHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from cometmq.remoting.permissions import Action, Need, needs_group, needs_of_body, on_group, on_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

FEW_NOTICES: Final = 500
"""Number of notices in a second after which small groups rest for longer than a round."""
_NO_ROOM: Final = "this broker already has the maximum number of groups and subscriptions"
_TOO_LONG_FILTERS: Final = (
    f"the SQL92 expressions in a heartbeat may have at most {MAX_HEARTBEAT_FILTER_CHARS} characters"
)


def _decoded(body: bytes) -> HeartbeatData:
    return decode_request(HeartbeatData, body, MAX_HEARTBEAT_BYTES, MAX_HEARTBEAT_OBJECTS)


def _heartbeat_needs(body: bytes) -> Iterator[Need]:
    for consumer in _decoded(body).consumer_data_set:
        yield on_group(consumer.group_name, Action.SUB)
        for subscription in consumer.subscription_data_set:
            yield on_topic(subscription.topic, Action.SUB)


def _check_needs(body: bytes) -> Iterator[Need]:
    asked = decode_request(CheckClientRequestBody, body, MAX_CHECK_CLIENT_BYTES) if body else CheckClientRequestBody()
    if asked.group:
        yield on_group(asked.group, Action.SUB)
    if asked.subscription_data is not None:
        yield on_topic(asked.subscription_data.topic, Action.SUB)


class ClientManageProcessor:
    """Registers and removes clients (``ClientManageProcessor``)."""

    def __init__(self, broker: BrokerContext, filters: ConsumerFilterManager) -> None:
        self._broker = broker
        self._filters = filters
        self._handled = 0
        """Number of heartbeats that were handled immediately in this round."""
        self._notices = GroupNotices(broker.clients.consumers, broker.at_end_of_round, clock=broker.clock)
        broker.clients.consumers.on_change.append(self._notify)

    @answers(
        RequestCode.HEART_BEAT,
        limits=("MAX_HEARTBEAT_BYTES", "MAX_HEARTBEAT_OBJECTS", "MAX_HEARTBEAT_GROUPS", "MAX_HEARTBEAT_FILTER_CHARS"),
        permission=needs_of_body(_heartbeat_needs, "each Group and Topic Sub"),
    )
    def heartbeat(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Register or refresh a client's producers and consumers; if it has many groups, over several rounds."""
        is_large = len(body) > LARGE_HEARTBEAT_BYTES
        if is_large:
            steps = self._decode_in_slices(connection, request, body)
        else:
            try:
                data = _decoded(body)
            except BodyError as error:
                return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
            if self._may_handle_now and _is_short(data):
                return self._handle_now(connection, request, data)
            steps = self._in_slices(connection, request, data)
        return run_in_slices(
            connection,
            request,
            steps,
            at_once=not is_large,
            before_answer=partial(self._broker.tables.answer_if_changed, self._broker.tables.changes),
        )

    @property
    def _may_handle_now(self) -> bool:
        """True until the short heartbeats of this round have used their time."""
        return self._handled < SHORT_HEARTBEATS_PER_ROUND

    def _end_round(self) -> None:
        self._handled = 0

    def _handle_now(self, connection: ServerConnection, request: Request[Any], data: HeartbeatData) -> Response | None:
        """Handle a short heartbeat: thousands of clients send one when a broker has started."""
        if not self._handled:
            self._broker.at_end_of_round(self._end_round)
        self._handled += 1
        tables = self._broker.tables
        changes = tables.changes
        clients = self._broker.clients
        known = clients.consumers.known(data.consumer_data_set)
        response = self._refusal(connection, data, known)
        if response is None:
            channel = clients.channel(connection, data.client_id, _language(request), request.version)
            for consumer, is_known in zip(data.consumer_data_set, known, strict=True):
                self._register(consumer, channel, is_known=is_known)
                if self._filters.has_filters(consumer.group_name):  # a short heartbeat has no new ones
                    self._filters.register(consumer.group_name, consumer.subscription_data_set)
            for producer in data.producer_data_set:
                clients.producers.register(producer.group_name, channel)
            response = Response()
        if tables.changes == changes:
            return response
        tables.answer_if_changed(changes, partial(connection.respond, request, response))
        return None

    def _decode_in_slices(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Steps:
        try:
            data = _decoded(body)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        yield
        return (yield from self._in_slices(connection, request, data))

    def _in_slices(self, connection: ServerConnection, request: Request[Any], data: HeartbeatData) -> Steps:
        if sum(map(_filter_chars, data.consumer_data_set)) > MAX_HEARTBEAT_FILTER_CHARS:
            return Response(ResponseCode.SYSTEM_ERROR, remark=_TOO_LONG_FILTERS)
        clients = self._broker.clients
        refusal = self._refusal(connection, data, clients.consumers.known(data.consumer_data_set))
        if refusal is not None:
            return refusal
        channel = clients.channel(connection, data.client_id, _language(request), request.version)
        size, is_first_slice = 0, True
        for consumer in data.consumer_data_set:
            if size >= CLIENTS_PER_SLICE:
                size, is_first_slice = 0, False
                yield
            size += 1 + _filter_chars(consumer) * CLIENTS_PER_SLICE // FILTER_CHARS_PER_SLICE
            if not is_first_slice and not clients.consumers.has_room([consumer], (False,), connection):
                # other clients have registered in the meantime
                return Response(ResponseCode.SYSTEM_ERROR, remark=_NO_ROOM)
            self._register(consumer, channel)
            yield from self._filters.register_in_slices(consumer.group_name, consumer.subscription_data_set)
        for producers in batches(data.producer_data_set, CLIENTS_PER_SLICE):
            if len(data.consumer_data_set) + len(data.producer_data_set) > CLIENTS_PER_SLICE:
                yield
            names = [producer.group_name for producer in producers]
            if not clients.producers.has_room(names, connection):
                return Response(ResponseCode.SYSTEM_ERROR, remark=_NO_ROOM)
            for name in names:
                clients.producers.register(name, channel)
        return Response()

    def _refusal(self, connection: ServerConnection, data: HeartbeatData, known: Sequence[bool]) -> Response | None:
        """Return the response to a heartbeat that is refused, or ``None`` if it is accepted.

        :param known: whether each consumer contains only what other members have sent.
        """
        clients = self._broker.clients
        wrong = _find_fault(data, known, clients)
        if wrong is None and not clients.has_room(data, known, connection):
            wrong = _NO_ROOM
        return None if wrong is None else Response(ResponseCode.SYSTEM_ERROR, remark=wrong)

    def _register(self, consumer: ConsumerData, channel: ClientChannel, *, is_known: bool = False) -> None:
        self._create_retry_topic(consumer)
        consumers = self._broker.clients.consumers
        if is_known:
            consumers.join(consumer.group_name, channel)
        else:
            consumers.register(consumer, channel)

    def _create_retry_topic(self, consumer: ConsumerData) -> None:
        """Create a group and its retry topic, since every consumer requests the retry topic's route."""
        group, topics = self._broker.groups.find(consumer.group_name), self._broker.topics
        name = retry_topic(consumer.group_name)
        if group is not None and topics.get(name) is None and not topics.is_full:
            topics.create_retry(
                name,
                queue_nums=group.retry_queue_nums,
                topic_sys_flag=TOPIC_UNIT_SUB if consumer.unit_mode else 0,
            )

    @answers(RequestCode.UNREGISTER_CLIENT, permission=needs_group(Action.SUB))
    def unregister(
        self, connection: ServerConnection, request: Request[UnregisterClientRequestHeader], _body: bytes
    ) -> Response:
        """Remove a client from its groups, and release its queue locks before the other members are notified."""
        header = request.header
        if header.producer_group:
            self._broker.clients.producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            if not self._broker.clients.is_stranger(connection, header.consumer_group, header.client_id):
                self._broker.locks.unlock_all(header.consumer_group, header.client_id)
            self._broker.clients.consumers.unregister(header.consumer_group, connection)
        return Response()

    @answers(
        RequestCode.CHECK_CLIENT_CONFIG,
        limits=("MAX_CHECK_CLIENT_BYTES",),
        permission=needs_of_body(_check_needs, "Group and Topic Sub"),
    )
    def check_config(self, _connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Check a consumer's subscription before the consumer starts, unless it is a tag expression."""
        try:
            subscription = (
                decode_request(CheckClientRequestBody, body, MAX_CHECK_CLIENT_BYTES).subscription_data if body else None
            )
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        if subscription is None or is_tag_type(subscription.expression_type):
            return Response()
        if not self._broker.config.enable_property_filter:
            return Response(ResponseCode.SYSTEM_ERROR, remark=not_supported_remark(subscription.expression_type))
        try:
            parse_sql(subscription.sub_string, subscription.expression_type)
        except SubscriptionError as error:
            return Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return Response()

    def _notify(self, group: ConsumerGroup) -> None:
        if not group.channels:
            self._filters.unregister(group.name)
        config = self._broker.groups.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        self._notices.send(group.name)


class GroupNotices:
    """Notifies the members of changed groups so that they rebalance (``DefaultConsumerIdsChangeListener``).

    If a group changes again before its notices are sent, its members are notified only once. Each round of the loop
    sends only a few notices, since a client that leaves hundreds of groups with hundreds of members each causes many.
    So they are sent as fast as possible if nothing else is to do, and keep no request waiting after a restart.
    After its notices, a group rests: a small one until the end of the round, a large one for a time that grows with the
    number of its members. If there are many notices in a second, as when all clients come back after a restart, small
    groups rest for the remainder of the second. The changes of a group in this time cause one notice for each member,
    so thousands of members that join at once do not cause millions of notices.

    :param at_end_of_round: calls a function at the end of this round.
    """

    def __init__(
        self, consumers: ConsumerManager, at_end_of_round: Callable[[Callable[[], None]], None], *, clock: Clock
    ) -> None:
        self._clock = clock
        self._consumers = consumers
        self._at_end_of_round = at_end_of_round
        self._changed: dict[str, None] = {}
        self._resting: dict[str, bool] = {}
        """Groups that rest, and whether they have changed meanwhile."""
        self._small: list[str] = []
        """The small groups among them, which rest together."""
        self._second_ends = -math.inf
        """Time in monotonic seconds at which the second ends in which the notices of small groups are counted."""
        self._in_second = 0
        """Number of these notices."""
        self._work: Iterator[None] | None = None
        """Notices to be sent in a later round."""
        self._sent = 0
        """Number of notices sent in this round."""

    def send(self, group_name: str) -> None:
        """Notify all members of a group, except those that read slowly or take no notices."""
        if group_name in self._resting:
            self._resting[group_name] = True
            return
        self._changed[group_name] = None
        self._begin()

    def _begin(self) -> None:
        if self._work is None:
            self._work = self._send_all()
            self._continue()

    def _continue(self) -> None:
        """Send notices until this round has sent enough."""
        if self._work is None or self._sent >= NOTICES_PER_ROUND:
            return
        try:
            for _ in self._work:
                if not self._sent:
                    self._at_end_of_round(self._end_round)
                self._sent += 1
                if self._sent >= NOTICES_PER_ROUND:
                    return
        except Exception:  # the client that joins or leaves is answered in any case
            _log.exception("cannot notify the members of a changed group; they rebalance within 20 s")
        self._work = None

    def _end_round(self) -> None:
        self._sent = 0
        self._continue()

    def _send_all(self) -> Iterator[None]:
        while self._changed:
            name = next(iter(self._changed))
            del self._changed[name]
            group = self._consumers.get(name)
            if group is None:
                continue
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=name)
            frame = request_command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, header, b"", flag=FLAG_ONEWAY)
            self._let_rest(group)
            for connection in [connection for connection in group.channels if not connection.is_grpc]:
                if not connection.is_behind:
                    connection.write(frame)
                yield

    def _let_rest(self, group: ConsumerGroup) -> None:
        """Combine the further changes of a group for a time."""
        self._resting[group.name] = False
        members = len(group.channels)
        if members > LARGE_GROUP_MEMBERS:
            rest_s = min(members * NOTICES_REST_SECONDS, MAX_NOTICES_REST_SECONDS)
            self._clock.call_later(rest_s, self._have_rested, [group.name])
            return
        now = self._clock.monotonic()
        if now >= self._second_ends:
            self._second_ends, self._in_second = now + MAX_NOTICES_REST_SECONDS, 0
        self._in_second += members
        if not self._small:
            self._at_end_of_round(self._small_have_rested)
        self._small.append(group.name)

    def _small_have_rested(self) -> None:
        rest_s = self._second_ends - self._clock.monotonic()
        if self._in_second > FEW_NOTICES and rest_s > 0:
            self._clock.call_later(rest_s, self._small_have_rested)
            return
        small, self._small = self._small, []
        self._have_rested(small)

    def _have_rested(self, names: Iterable[str]) -> None:
        for name in names:
            if self._resting.pop(name):
                self._changed[name] = None
        self._begin()


def _language(request: Request[Any]) -> str:
    """Return the client's language, truncated because the broker stores it."""
    return str(request.language or "OTHER")[:MAX_KIND_CHARS]


def _filter_chars(consumer: ConsumerData) -> int:
    """Return the number of characters in a consumer's SQL92 expressions."""
    return sum([len(one.sub_string) for one in consumer.subscription_data_set if not is_tag_type(one.expression_type)])


def _is_short(data: HeartbeatData) -> bool:
    """Return whether a heartbeat is handled in a fraction of a millisecond: few groups, and no SQL92 expressions."""
    if len(data.consumer_data_set) + len(data.producer_data_set) > SHORT_HEARTBEAT_GROUPS:
        return False
    for consumer in data.consumer_data_set:
        for subscription in consumer.subscription_data_set:
            if subscription.sub_string and not is_tag_type(subscription.expression_type):
                return False
    return True


def _find_fault(data: HeartbeatData, known: Sequence[bool], clients: ClientRegistry) -> str | None:
    """Return why a heartbeat is refused, or ``None`` if it is accepted. What other members have sent is not checked
    again.
    """
    if len(data.client_id) > MAX_CLIENT_ID_CHARS:
        return f"the clientID is longer than {MAX_CLIENT_ID_CHARS} characters"
    if len(data.consumer_data_set) + len(data.producer_data_set) > MAX_HEARTBEAT_GROUPS:
        return f"a heartbeat may contain at most {MAX_HEARTBEAT_GROUPS} groups"
    for producer in data.producer_data_set:
        wrong = None if producer.group_name in clients.producers.groups else check_group(producer.group_name)
        if wrong is not None:
            return wrong
    for consumer, is_known in zip(data.consumer_data_set, known, strict=True):
        if is_known:
            continue
        wrong = check_group(consumer.group_name)
        if wrong is not None:
            return wrong
        kinds = (consumer.consume_type, consumer.message_model, consumer.consume_from_where)
        if max(map(len, kinds)) > MAX_KIND_CHARS:
            return f"consumeType, messageModel and consumeFromWhere may have at most {MAX_KIND_CHARS} characters"
        if len(consumer.subscription_data_set) > MAX_HEARTBEAT_GROUPS:
            return f"a group may subscribe to at most {MAX_HEARTBEAT_GROUPS} topics"
        for subscription in consumer.subscription_data_set:
            wrong = check_topic(subscription.topic)
            if wrong is not None:
                return wrong
            expression_chars = len(subscription.sub_string)
            if max(expression_chars, selection_chars(subscription) - expression_chars) > MAX_SUBSCRIPTION_CHARS:
                return f"a subscription may have at most {MAX_SUBSCRIPTION_CHARS} characters"
    return None
