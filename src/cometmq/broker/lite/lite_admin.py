"""Questions of tools about lite topics (200074 to 200079) (``LiteManagerProcessor``)."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_LITE_LISTED
from cometmq.broker.lite.checks import LiteChecks
from cometmq.broker.lite.crowd import LiteClient
from cometmq.broker.lite.index import NO_ENTRY, LiteIndex, numbers_of
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.lite.progress import GroupProgress, LiteProgress
from cometmq.broker.lite.subscriptions import LiteSubscriptions
from cometmq.broker.slices import Steps, run_in_slices
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.broker.tables.topic_attributes import is_lite, lite_expiration
from cometmq.broker.turn.targets import RefusedError
from cometmq.remoting.admin_bodies import OffsetWrapper, TopicOffset
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.lite.bodies import (
    ClientGroup,
    GetBrokerLiteInfoResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
    LiteLagInfo,
)
from cometmq.remoting.lite.headers import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    TriggerLiteDispatchRequestHeader,
)
from cometmq.remoting.permissions import Action, needs_cluster, needs_group, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore

_AT_ONCE: Final = 2_000
_WALKED_AT_ONCE: Final = 50
"""Number of messages whose entries are walked in the time that one lite topic takes."""
_READ_AT_ONCE: Final = 100
"""Number of lite topics whose first unread message is read in one slice."""


class LiteAdmin:
    """Answers questions about lite topics, their clients and groups."""

    def __init__(
        self,
        broker: BrokerContext,
        indexes: LiteIndexes,
        progress: LiteProgress,
        subscriptions: LiteSubscriptions,
        checks: LiteChecks,
    ) -> None:
        self._topics = broker.topics
        self._groups = broker.groups
        self._store = broker.store
        self._indexes = indexes
        self._progress = progress
        self._subscriptions = subscriptions
        self._checks = checks

    @answers(RequestCode.GET_BROKER_LITE_INFO, permission=needs_cluster(Action.GET))
    def broker_info(self, connection: ServerConnection, request: Request[NoHeader], _body: bytes) -> Response | None:
        """Return the numbers of lite topics, subscriptions and groups of this broker."""
        return run_in_slices(connection, request, self._broker_info())

    def _broker_info(self) -> Steps:
        offsets = flights = 0
        for progress in self._progress:
            flights += len(progress.flights)
            offsets += progress.known_count
            yield
        groups = yield from self._groups_by_parent()
        clients = self._subscriptions.clients.values()
        body = GetBrokerLiteInfoResponseBody(
            store_type="default",
            max_lmq_num=self._indexes.most,
            current_lmq_num=self._indexes.count,
            lite_subscription_count=self._subscriptions.count,
            order_info_count=flights,
            cq_table_size=len(self._store.queues()),
            offset_table_size=offsets,
            event_map_size=sum(client.has_ready for client in clients),
            topic_meta={
                name: lite_expiration(topic.attributes)
                for name, topic in self._topics.table.items()
                if is_lite(topic.attributes)
            },
            group_meta=groups,
        )
        return Response(body=encode_body(body))

    def _groups_by_parent(self) -> Generator[None, None, dict[str, list[str]]]:
        found: dict[str, list[str]] = {}
        for at, config in enumerate(list(self._groups.table.values())):
            parent = LiteGroup.of(config).bind_topic
            if parent:
                found.setdefault(parent, []).append(config.group_name)
            if at % _AT_ONCE == _AT_ONCE - 1:
                yield
        return found

    @answers(RequestCode.GET_PARENT_TOPIC_INFO, permission=needs_topic(Action.GET))
    def parent_info(
        self, connection: ServerConnection, request: Request[GetParentTopicInfoRequestHeader], _body: bytes
    ) -> Response | None:
        """Return the expiration, the groups and the number of lite topics of a parent topic."""
        self._checks.parent(request.header.topic)
        return run_in_slices(connection, request, self._parent_info(request.header.topic))

    def _parent_info(self, topic: str) -> Steps:
        groups = yield from self._groups_by_parent()
        config = self._topics.get(topic)
        index = self._indexes.by_parent.get(topic)
        body = GetParentTopicInfoResponseBody(
            topic=topic,
            ttl=lite_expiration(None if config is None else config.attributes),
            groups=groups.get(topic, []),
            lmq_num=self._indexes.count,
            lite_topic_count=0 if index is None else index.count,
        )
        return Response(body=encode_body(body))

    @answers(RequestCode.GET_LITE_TOPIC_INFO, permission=needs_topic(Action.GET, field="parent_topic"))
    def topic_info(
        self, _connection: ServerConnection, request: Request[GetLiteTopicInfoRequestHeader], _body: bytes
    ) -> Response:
        """Return the offsets and the clients of a lite topic."""
        header = request.header
        self._checks.parent(header.parent_topic)
        index = self._indexes.by_parent.get(header.parent_topic)
        number = NO_NAME if index is None else index.find(header.lite_topic)
        offset = TopicOffset(min_offset=0, max_offset=0, last_update_timestamp=0)
        clients: list[LiteClient] = []
        if index is not None and number != NO_NAME:
            begin, end = index.extent(number)
            offset = TopicOffset(
                min_offset=begin,
                max_offset=end,
                last_update_timestamp=stored_at(self._store, index, index.last(number)),
            )
            clients = self._subscriptions.of(index, number)[:MAX_LITE_LISTED]
        body = GetLiteTopicInfoResponseBody(
            parent_topic=header.parent_topic,
            lite_topic=header.lite_topic,
            subscriber=[ClientGroup(client_id=client.client_id, group=client.group) for client in clients],
            topic_offset=offset,
            sharding_to_broker=True,
        )
        return Response(body=encode_body(body))

    @answers(
        RequestCode.GET_LITE_CLIENT_INFO,
        limits=("MAX_LITE_LISTED",),
        permission=needs_topic(Action.GET, field="parent_topic") & needs_group(Action.GET, field="group"),
    )
    def client_info(
        self, _connection: ServerConnection, request: Request[GetLiteClientInfoRequestHeader], _body: bytes
    ) -> Response:
        """Return the lite topics and the last pops of a client."""
        header = request.header
        self._checks.parent(header.parent_topic)
        if self._checks.group(header.group).bind_topic != header.parent_topic:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER, f"Subscription [{header.group}]-[{header.parent_topic}] not match."
            )
        client = self._subscriptions.clients.get((header.client_id, header.group))
        names: list[str] = []
        if client is not None:
            most = min(max(header.max_count, 0), MAX_LITE_LISTED)
            names = [client.index.name(number) for number, _ in zip(client.numbers, range(most), strict=False)]
        body = GetLiteClientInfoResponseBody(
            parent_topic=header.parent_topic,
            group=header.group,
            client_id=header.client_id,
            last_access_time=-1 if client is None else client.accessed_ms,
            last_consume_time=-1 if client is None else client.consumed_ms,
            lite_topic_count=-1 if client is None else len(client.numbers),
            lite_topic_set=names,
        )
        return Response(body=encode_body(body))

    @answers(
        RequestCode.GET_LITE_GROUP_INFO,
        limits=("MAX_LITE_LISTED",),
        permission=needs_group(Action.GET, field="group"),
    )
    def group_info(
        self, connection: ServerConnection, request: Request[GetLiteGroupInfoRequestHeader], _body: bytes
    ) -> Response | None:
        """Return a group's progress in one lite topic, or the lite topics in which it lags most."""
        header = request.header
        parent = self._bound(header.group)
        body = GetLiteGroupInfoResponseBody(
            group=header.group, parent_topic=parent, lite_topic=header.lite_topic, total_lag_count=-1
        )
        index, progress = self._indexes.of(parent), self._progress.of(parent, header.group)
        if not header.lite_topic:
            most = min(max(header.top_k, 0), MAX_LITE_LISTED)
            return run_in_slices(connection, request, self._lags(body, index, progress, most))
        number = index.find(header.lite_topic)
        if number != NO_NAME and index.next_offset(number):
            offset, end = progress.offset(number), index.next_offset(number)
            body.total_lag_count = end - offset
            body.earliest_unconsumed_timestamp = self._unread_since(progress, number)
            body.lite_topic_offset_wrapper = OffsetWrapper(
                broker_offset=end,
                consumer_offset=offset,
                last_timestamp=stored_at(self._store, index, progress.entry(number, offset - 1)),
            )
        return Response(body=encode_body(body))

    def _lags(self, body: GetLiteGroupInfoResponseBody, index: LiteIndex, progress: GroupProgress, most: int) -> Steps:
        total, first = 0, NO_ENTRY
        largest: list[tuple[int, int]] = []
        oldest: list[tuple[int, int]] = []
        steps = 0
        for number in numbers_of(index):
            steps += 1
            if steps >= _AT_ONCE:
                yield
                steps = 0
            lag = index.next_offset(number) - progress.offset(number)
            if lag <= 0:
                continue
            steps += (progress.offset(number) - index.extent(number)[0]) // _WALKED_AT_ONCE
            total += lag
            entry = progress.entry(number, progress.offset(number))
            first = entry if first == NO_ENTRY else min(first, entry)
            _keep(largest, (lag, number), most)
            _keep(oldest, (-entry, number), most)
        body.total_lag_count = total
        body.earliest_unconsumed_timestamp = stored_at(self._store, index, first) if first != NO_ENTRY else -1
        body.lag_count_top_k = yield from self._infos(index, progress, largest)
        body.lag_timestamp_top_k = yield from self._infos(index, progress, oldest)
        return Response(body=encode_body(body))

    def _infos(
        self, index: LiteIndex, progress: GroupProgress, found: list[tuple[int, int]]
    ) -> Generator[None, None, list[LiteLagInfo]]:
        infos: list[LiteLagInfo] = []
        for _, number in sorted(found, reverse=True):
            infos.append(
                LiteLagInfo(
                    lite_topic=index.name(number),
                    lag_count=index.next_offset(number) - progress.offset(number),
                    earliest_unconsumed_timestamp=self._unread_since(progress, number),
                )
            )
            if len(infos) % _READ_AT_ONCE == 0:
                yield
        return infos

    @answers(RequestCode.TRIGGER_LITE_DISPATCH, permission=needs_group(Action.UPDATE, field="group"))
    def dispatch(
        self, connection: ServerConnection, request: Request[TriggerLiteDispatchRequestHeader], _body: bytes
    ) -> Response | None:
        """Make all lite topics with messages ready for a client, or for all clients of a group."""
        header = request.header
        self._bound(header.group)
        clients = self._subscriptions.of_group(header.group)
        if header.client_id:
            clients = [client for client in clients if client.client_id == header.client_id]
        return run_in_slices(connection, request, self._dispatch(clients))

    def _dispatch(self, clients: list[LiteClient]) -> Steps:
        for client in clients:
            numbers = numbers_of(client.index) if client.is_wildcard else list(client.numbers)
            for at, number in enumerate(numbers):
                if client.is_reading(number):
                    self._subscriptions.make_ready(client, number)
                if at % _AT_ONCE == _AT_ONCE - 1:
                    yield
        return Response()

    # --- parts of answers -------------------------------------------------------------------------
    def _bound(self, group: str) -> str:
        parent = self._checks.group(group).bind_topic
        if not parent:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return parent

    def _unread_since(self, progress: GroupProgress, number: int) -> int:
        entry = progress.entry(number, progress.offset(number))
        return stored_at(self._store, progress.index, entry) if entry != NO_ENTRY else -1


def stored_at(store: MessageStore, index: LiteIndex, entry: int) -> int:
    """Return the store time of an entry in milliseconds since 1970, or 0 if it is not known."""
    record = None if entry == NO_ENTRY else store.decoded_at(index.log_offset(entry))
    return 0 if record is None else record.store_timestamp


def _keep(heap: list[tuple[int, int]], one: tuple[int, int], most: int) -> None:
    """Keep the largest items."""
    if len(heap) < most:
        heapq.heappush(heap, one)
    elif most:
        heapq.heappushpop(heap, one)
