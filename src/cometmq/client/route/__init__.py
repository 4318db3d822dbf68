"""Topic routes, and the choice of nameserver and broker for a request, independent of sockets (``TopicRouteData``).

:class:`Nameservers` chooses the nameserver to ask. It is a machine (:mod:`cometmq.client.machines`) that
:class:`.table.RouteTable` drives from an event loop, and :mod:`cometmq.client.blocking.cluster` without one.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from cometmq.client.errors import ClientError, ClientStateError, MasterNotFoundError, RemotingError, refusal
from cometmq.clock import Clock
from cometmq.limits import MAX_ROUTE_QUEUES
from cometmq.message.hosts import parse_address, split_addresses
from cometmq.message.names import MASTER_ID, PERM_READ, PERM_WRITE
from cometmq.message.ports import NAMESRV_PORT
from cometmq.remoting.bodies import MessageQueue, TopicRouteData, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import GetRouteInfoRequestHeader, Header

DEFAULT_NAMESRV: Final = f"127.0.0.1:{NAMESRV_PORT}"
OTHER_NAMESRV_TIMEOUT_S: Final = 1.0
"""Timeout for each further nameserver that is asked about topics unknown to the first one."""
_COUNT_DIGITS: Final = 9
T = TypeVar("T")


class TopicRoute(msgspec.Struct, frozen=True):
    """A topic's queues, and the addresses of their brokers."""

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    """The queues that producers use: writable queues that have a master."""
    read_queues: tuple[MessageQueue, ...]
    """The queues that consumers use, in the same order for every member of a group."""
    auto_create: bool = False
    """True if the topic does not exist yet; the queues are those that a broker would create."""


def route_of(topic: str, data: TopicRouteData, *, auto_create: bool = False) -> TopicRoute:
    """Convert a nameserver's response to the queues of ``topic``.

    An ``orderTopicConf`` (``broker:queues;…``), if present, names the write queues.

    :raises ClientError: the answer names an impossible number of queues.
    """
    ordered = _ordered_queues(data.order_topic_conf or "")
    check_queue_numbers(topic, data, (count for _, count in ordered))
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    write: list[MessageQueue] = []
    if data.order_topic_conf:
        for broker_name, count in ordered:
            write += (MessageQueue(topic, broker_name, number) for number in range(count))
    else:
        for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
            if queues.perm & PERM_WRITE and queues.broker_name in masters:
                write += (MessageQueue(topic, queues.broker_name, number) for number in range(queues.write_queue_nums))
    read = [
        MessageQueue(topic, queues.broker_name, number)
        for queues in data.queue_datas
        if queues.perm & PERM_READ
        for number in range(queues.read_queue_nums)
    ]
    return TopicRoute(topic, data, tuple(write), tuple(sorted(read)), auto_create)


def _ordered_queues(configuration: str) -> list[tuple[str, int]]:
    """Parse the brokers and numbers of queues in an ``orderTopicConf``, ignoring other items."""
    items = (item.partition(":") for item in configuration.split(";"))
    return [(broker, int(count)) for broker, _, count in items if count.isdecimal() and len(count) <= _COUNT_DIGITS]


def check_queue_numbers(topic: str, data: TopicRouteData, ordered: Iterable[int] = ()) -> None:
    """Check the number of queues in a route before creating an object for each queue.

    :raises ClientError: the number is impossible.
    """
    count = sum(ordered) + sum(
        max(queues.read_queue_nums, 0) + max(queues.write_queue_nums, 0) for queues in data.queue_datas
    )
    if count > 2 * MAX_ROUTE_QUEUES:
        raise ClientError(
            f"the nameserver's route for {topic} has {count} read and write queues",
            next_step="find the broker that registered an impossible number of queues",
        )


def namesrv_addresses(text: str | None) -> tuple[str, ...]:
    """Parse ``host:port;host:port``; the default is ``$NAMESRV_ADDR`` or else port 9876 on this host.

    :raises ValueError: an address has no port, or there are only separators.
    """
    chosen = text or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    addresses = split_addresses(chosen)
    if not addresses:
        raise ValueError(f"{chosen!r} contains no address of the form host:port")
    for address in addresses:
        parse_address(address)
    return addresses


class Ask(NamedTuple):
    """A group of requests to send to a nameserver together."""

    address: str
    requests: Sequence[tuple[int, Header | None]]
    timeout_s: float


Exchange = Generator[Ask, list[RemotingCommand], T]
"""A generator that yields requests to nameservers, receives the responses in order, and returns the result."""


class Nameservers:
    """Sends requests to a client's nameservers: first to the one that last responded, then to the others in turn.

    :param first: the index of the nameserver to ask first.
    """

    def __init__(self, addresses: tuple[str, ...], clock: Clock, *, first: int = 0) -> None:
        self.addresses = addresses
        self._clock = clock
        self._sticky = first

    def ask(self, requests: Sequence[tuple[int, Header | None]], timeout_s: float) -> Exchange[list[RemotingCommand]]:
        """Send requests to the first nameserver that responds; ``timeout_s`` is the total time limit.

        :raises RemotingError: no nameserver answers.
        """
        deadline = self._clock.monotonic() + timeout_s
        failures: list[RemotingError] = []
        for untried in range(len(self.addresses), 0, -1):
            left_s = max(0.0, deadline - self._clock.monotonic()) / untried
            try:
                return (yield Ask(self.addresses[self._sticky], requests, left_s))
            except RemotingError as error:
                failures.append(error)
                self._sticky = (self._sticky + 1) % len(self.addresses)
        last = failures[-1]
        last.message = "; ".join(failure.message for failure in failures)
        raise last

    def body(self, code: int, kind: type[T], timeout_s: float) -> Exchange[T]:
        """Request a body of the given type from a nameserver.

        :raises RemotingError: no nameserver answers.
        :raises BrokerError: a nameserver refuses the request.
        """
        (answer,) = yield from self.ask([(code, None)], timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(self.addresses[self._sticky], answer.code, answer.remark, f"requesting {kind.__name__}")
        return decode_body(kind, answer.body)

    def routes(self, topics: Sequence[str], timeout_s: float) -> Exchange[list[TopicRouteData | None]]:
        """Request each topic's route; a route is None if no nameserver knows the topic.

        Topics unknown to the first nameserver are requested from the others, since the first one may have just started.

        :raises RemotingError: no nameserver answers.
        :raises BrokerError: a nameserver refuses the request.
        """
        requests = [(int(RequestCode.GET_ROUTEINFO_BY_TOPIC), GetRouteInfoRequestHeader(topic)) for topic in topics]
        answers = yield from self.ask(requests, timeout_s)
        address, first = self.addresses[self._sticky], self._sticky
        for step in range(1, len(self.addresses)):
            unknown = [place for place, answer in enumerate(answers) if answer.code == ResponseCode.TOPIC_NOT_EXIST]
            if not unknown:
                break
            other = self.addresses[(first + step) % len(self.addresses)]
            try:
                found = yield Ask(other, [requests[place] for place in unknown], OTHER_NAMESRV_TIMEOUT_S)
            except RemotingError:
                continue
            for place, answer in zip(unknown, found, strict=True):
                if answer.code == ResponseCode.SUCCESS:
                    answers[place] = answer
        return [_route_in(answer, address, topic) for topic, answer in zip(topics, answers, strict=True)]


def _route_in(answer: RemotingCommand, address: str, topic: str) -> TopicRouteData | None:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(address, answer.code, answer.remark, f"requesting the route of {topic}")
    return decode_body(TopicRouteData, answer.body)


class BrokerAddresses(dict[str, dict[int, str]]):
    """The brokers' addresses by broker name and broker id, taken from routes."""

    def note(self, data: TopicRouteData) -> None:
        """Add the addresses in a route."""
        for broker in data.broker_datas:
            self[broker.broker_name] = dict(broker.broker_addrs)

    def master(self, broker_name: str) -> str | None:
        """Return the address of the master with this broker name."""
        return self.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address to read from: the broker with that id, or else the one chosen by :meth:`choose`."""
        address = self.get(broker_name, {}).get(broker_id)
        if address is None and (chosen := self.choose(broker_name)) is not None:
            return chosen[1]
        return address

    def choose(self, broker_name: str, *, slave: bool = False) -> tuple[int, str] | None:
        """Return the id and address of the master, or of a slave if one is preferred or there is no master."""
        known = self.get(broker_name, {}).items()
        return min(known, key=lambda of: ((of[0] == MASTER_ID) == slave, of[0]), default=None)

    @property
    def addresses(self) -> set[str]:
        """Return the addresses of all brokers."""
        return {address for broker in self.values() for address in broker.values()}


def queue_or_fail(route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the route's write queues, or raise an error if there are none.

    :raises MasterNotFoundError: none of its writable brokers has a master now; a master may return soon.
    :raises ClientStateError: the topic is not writable, or none of its brokers is writable.
    """
    if not route.write_queues:
        if any(queues.perm & PERM_WRITE for queues in route.data.queue_datas):
            raise MasterNotFoundError(route.topic, "none of its brokers currently has a master")
        raise ClientStateError(
            f"topic {route.topic} currently has no writable queue",
            next_step="check the write permissions of the topic and its brokers",
        )
    return route.write_queues
