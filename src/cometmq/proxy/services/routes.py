"""The methods QueryRoute and QueryAssignment (``RouteActivity``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from cometmq.proxy.backend.backend import BrokerQueues
from cometmq.proxy.context import EndpointContext
from cometmq.proxy.converter import group_of, topic_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.limits import LARGE_ROUTE_QUEUES
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code, MessageType, Permission
from cometmq.proxy.rpc.call import Call
from cometmq.remoting.permissions import Action, on_group, on_topic

_TYPES: Final[dict[str, tuple[MessageType, ...]]] = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    "LITE": (MessageType.LITE,),
    "MIXED": (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}


class RouteService:
    """Methods that return topics' queues."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context

    async def query_route(self, call: Call, request: v2.QueryRouteRequest) -> v2.QueryRouteResponse:
        """Return all queues of a topic, each with the endpoint address for its broker."""
        topic = topic_of(request.topic)
        session = self._context.sessions.admit(call, [on_topic(topic, Action.PUB, Action.SUB, Action.GET)])
        info = await self._context.backend.topic(topic)
        await call.wait_for_time(sum(max(queues.read, queues.write) for queues in info.queues), LARGE_ROUTE_QUEUES)
        answer = v2.QueryRouteResponse(status=OK)
        types = _TYPES.get(info.message_type, (MessageType.MESSAGE_TYPE_UNSPECIFIED,))
        for queues in info.queues:
            broker = self._broker(call, request.endpoints, queues.broker)
            queue = v2.MessageQueue(topic=request.topic, broker=broker, accept_message_types=types)
            for number, permission in enumerate(_permissions(queues)):
                queue.id, queue.permission = number, permission
                answer.message_queues.append(queue)  # append() copies the queue, which is faster than constructing one
        session.resend_settings(self._context.clock)
        return answer

    async def query_assignment(self, call: Call, request: v2.QueryAssignmentRequest) -> v2.QueryAssignmentResponse:
        """Return a push consumer's queues: one per broker, or every queue if the consumer is orderly.

        Lite topics are read without regard to queues.
        """
        topic, group = topic_of(request.topic), group_of(request.group)
        self._context.sessions.admit(call, [on_topic(topic, Action.SUB), on_group(group, Action.SUB)])
        info = await self._context.backend.topic(topic)
        group_info = await self._context.backend.group(group)
        is_orderly = group_info.is_orderly and not group_info.bind_topic
        if is_orderly:
            await call.wait_for_time(sum(queues.readable for queues in info.queues), LARGE_ROUTE_QUEUES)
        answer = v2.QueryAssignmentResponse(status=OK)
        for queues in info.queues:
            broker = self._broker(call, request.endpoints, queues.broker)
            queue = v2.MessageQueue(topic=request.topic, permission=Permission.READ_WRITE, broker=broker)
            assignment = v2.Assignment(message_queue=queue)
            for number in _assigned(queues, is_orderly=is_orderly):
                assignment.message_queue.id = number
                answer.assignments.append(assignment)
        if not len(answer.assignments):
            raise ProxyError(Code.FORBIDDEN, "no readable queue")
        return answer

    def _broker(self, call: Call, access_point: v2.Endpoints, name: str) -> v2.Broker:
        access_host = access_point.addresses[0].host if len(access_point.addresses) else ""
        host = self._context.backend.advertised_host(access_host)
        if host is None and access_host:
            return v2.Broker(name=name, endpoints=access_point)
        local_host, port = call.peer.local_address
        host = host or local_host
        addresses = [v2.Address(host=host, port=port)]
        return v2.Broker(name=name, endpoints=v2.Endpoints(scheme=_scheme(host), addresses=addresses))


def _assigned(queues: BrokerQueues, *, is_orderly: bool) -> Sequence[int]:
    if is_orderly:
        return range(queues.readable)
    return (-1,) if queues.readable else ()


def _permissions(queues: BrokerQueues) -> Iterator[Permission]:
    """Return the queues' permissions. Queues with a single permission come first, as in Apache's numbering."""
    both = min(queues.readable, queues.writable)
    yield from (Permission.READ for _ in range(queues.readable - both))
    yield from (Permission.WRITE for _ in range(queues.writable - both))
    yield from (Permission.READ_WRITE for _ in range(both))


def _scheme(host: str) -> v2.AddressScheme:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return v2.AddressScheme.DOMAIN_NAME
    return v2.AddressScheme.IPv4 if version == 4 else v2.AddressScheme.IPv6
