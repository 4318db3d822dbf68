"""Rebalancing by the broker: QUERY_ASSIGNMENT (400) and the request modes (``QueryAssignmentProcessor``).

A RocketMQ 5 client that does not rebalance itself asks which of a topic's queues on all brokers it should consume, and
how. In POP mode, each member receives its share of the queues, or one message queue with ID -1 for each broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_ASSIGNMENT_BYTES, MAX_CACHED_ROUTES, ROUTE_SECONDS
from cometmq.broker.pop.request_modes import POP, PULL, MessageRequestModeManager, RequestMode
from cometmq.broker.tables.consumer_group import BROADCASTING
from cometmq.broker.turn.targets import RefusedError
from cometmq.errors import CometMQError
from cometmq.message.hosts import split_addresses
from cometmq.message.names import PERM_READ, RETRY_PREFIX, check_group, check_topic
from cometmq.remoting.bodies import (
    Body,
    BodyError,
    MessageQueue,
    TopicRouteData,
    decode_body,
    decode_request,
    encode_body,
)
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetRouteInfoRequestHeader, NoHeader
from cometmq.remoting.permissions import Action, Need, needs_cluster, needs_of_body, on_group, on_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_TIMEOUT_S: Final = 3.0
B = TypeVar("B", bound=Body)
Queues = Sequence[MessageQueue]
Strategy = Callable[[str, Queues, Sequence[str]], list[MessageQueue]]


class QueryAssignmentRequestBody(Body):
    """The request body of QUERY_ASSIGNMENT (400)."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class MessageQueueAssignment(Body):
    """A queue assigned to a client, and the mode in which to consume it."""

    message_queue: MessageQueue
    mode: str


class QueryAssignmentResponseBody(Body):
    """The response body of QUERY_ASSIGNMENT."""

    message_queue_assignments: list[MessageQueueAssignment] = []  # noqa: RUF012 - msgspec copies it


def _assignment_needs(body: bytes) -> Iterator[Need]:
    asked = _read(QueryAssignmentRequestBody, body)
    yield on_topic(asked.topic, Action.SUB)
    yield on_group(asked.consumer_group, Action.SUB)


def _mode_needs(body: bytes) -> Iterator[Need]:
    yield on_group(_read(RequestMode, body).consumer_group, Action.UPDATE)


class QueryAssignmentProcessor:
    """Handles clients that leave rebalancing to the broker.

    :param client: queries the nameservers for queues on other brokers.
    """

    def __init__(self, broker: BrokerContext, modes: MessageRequestModeManager, client: RemotingClient) -> None:
        self._live = broker.live
        self._topics = broker.topics
        self._consumers = broker.clients.consumers
        self._clock = broker.clock
        self._modes = modes
        self._client = client
        self._tables = broker.tables
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}

    @answers(
        RequestCode.QUERY_ASSIGNMENT,
        header=NoHeader,
        limits=("MAX_ASSIGNMENT_BYTES", "MAX_TOPIC_QUEUES"),
        permission=needs_of_body(_assignment_needs, "Topic and Group Sub"),
    )
    async def query(self, _connection: ServerConnection, _request: Request[Any], body: bytes) -> Response:
        """Return the queues of a topic that a client should consume."""
        asked = _read(QueryAssignmentRequestBody, body)
        mode = self._modes.get(asked.topic, asked.consumer_group) or self._default_mode(asked)
        queues = await self._cached_queues(asked.topic)
        found = QueryAssignmentResponseBody(
            message_queue_assignments=[
                MessageQueueAssignment(message_queue=queue, mode=mode.mode)
                for queue in self._share(asked, mode, queues)
            ]
        )
        return Response(body=encode_body(found))

    @answers(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        header=NoHeader,
        limits=("MAX_ASSIGNMENT_BYTES", "MAX_REQUEST_MODES", "MAX_PENDING_CHANGES"),
        permission=needs_of_body(_mode_needs, "Group Update"),
    )
    def set_mode(self, connection: ServerConnection, request: Request[Any], body: bytes) -> None:
        """Set the mode in which a group consumes a topic; answer once the mode is durable."""
        mode = _read(RequestMode, body)
        if mode.topic.startswith(RETRY_PREFIX):
            raise RefusedError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        wrong = check_topic(mode.topic) or check_group(mode.consumer_group)
        if wrong is not None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, wrong)
        self._tables.require_room()
        if not self._modes.put(mode):
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "the broker already has the maximum number of request modes")
        self._tables.answer(connection, request)

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, permission=needs_cluster(Action.GET))
    def all_modes(self, _connection: ServerConnection, _request: Request[Any], _body: bytes) -> Response:
        """Return all request modes."""
        return Response(body=encode_body(self._modes.table()))

    def _default_mode(self, asked: QueryAssignmentRequestBody) -> RequestMode:
        config = self._live.current
        mode = RequestMode(topic=asked.topic, consumer_group=asked.consumer_group)
        if config.default_message_request_mode == POP and not asked.topic.startswith(RETRY_PREFIX):
            mode.mode, mode.pop_share_queue_num = "POP", config.default_pop_share_queue_num
        return mode

    # --- shares ---------------------------------------------------------------------------------
    def _share(self, asked: QueryAssignmentRequestBody, mode: RequestMode, queues: Queues) -> list[MessageQueue]:
        if asked.message_model == BROADCASTING:
            return list(queues)
        group = self._consumers.get(asked.consumer_group)
        if group is None:
            return []
        clients = sorted(set(group.client_ids))
        strategy = _STRATEGIES.get(asked.strategy_name)
        if strategy is None:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"unknown strategy {asked.strategy_name[:100]!r}: use {' or '.join(_STRATEGIES)}",
            )
        if mode.mode == PULL:
            return strategy(asked.client_id, queues, clients)
        return allocate_for_pop(asked.client_id, queues, clients, mode.pop_share_queue_num, strategy)

    async def _cached_queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues on all brokers; the result is cached for a limited time."""
        now = self._clock.monotonic()
        known = self._routes.get(topic)
        if known is not None and now < known[0]:
            return known[1]
        queues = await self._query_route(topic)
        if queues is None:
            return self._own_queues(topic) if known is None else known[1]
        if len(self._routes) >= MAX_CACHED_ROUTES:
            self._routes.clear()
        self._routes[topic] = (now + ROUTE_SECONDS, queues)
        return queues

    async def _query_route(self, topic: str) -> list[MessageQueue] | None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        for address in split_addresses(self._live.current.namesrv_addr):
            try:
                answer = await self._client.invoke(
                    address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=_TIMEOUT_S
                )
                if answer.code == ResponseCode.SUCCESS:
                    return queues_of(topic, decode_body(TopicRouteData, answer.body))
            except (CometMQError, OSError):
                continue
        return None

    def _own_queues(self, topic: str) -> list[MessageQueue]:
        found = self._topics.get(topic)
        if found is None or not found.perm & PERM_READ:
            return []
        name = self._live.current.broker_name
        return [MessageQueue(topic, name, queue_id) for queue_id in range(found.read_queue_nums)]


def queues_of(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the readable queues in a route, sorted as in RocketMQ's clients."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    )


def allocate_averagely(client_id: str, queues: Queues, clients: Sequence[str]) -> list[MessageQueue]:
    """Divide the queues into consecutive shares and return this client's share (``AllocateMessageQueueAveragely``)."""
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    share, more = divmod(len(queues), len(clients))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def allocate_by_circle(client_id: str, queues: Queues, clients: Sequence[str]) -> list[MessageQueue]:
    """Deal the queues out to the clients one by one; return this client's
    (``AllocateMessageQueueAveragelyByCircle``).
    """
    return list(queues[clients.index(client_id) :: len(clients)]) if client_id in clients else []


_STRATEGIES: Final[dict[str, Strategy]] = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


def allocate_for_pop(
    client_id: str, queues: Queues, clients: Sequence[str], sharing: int, strategy: Strategy
) -> list[MessageQueue]:
    """Return the queues from which a client pops (``allocate4Pop``).

    :param sharing: number of other clients that share each client's queues; 0 for all.
    """
    if sharing <= 0 or sharing >= len(clients) - 1:
        return list(dict.fromkeys(MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues))
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    shared: dict[MessageQueue, None] = {}
    for step in range(sharing + 1):
        shared.update(dict.fromkeys(strategy(clients[(index + step) % len(clients)], queues, clients)))
    return list(shared)


def _read(kind: type[B], body: bytes) -> B:
    try:
        return decode_request(kind, body, MAX_ASSIGNMENT_BYTES)
    except BodyError as error:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
