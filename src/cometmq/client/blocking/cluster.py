"""Nameservers and brokers asked without an event loop: topics, routes, queues, and any request to a broker."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeVar

from cometmq.client.blocking.connections import borrowed, invoke_all
from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.queries import Query
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_ROUTE_QUEUES
from cometmq.message.names import DLQ_PREFIX, MASTER_ID, PERM_READ, RETRY_PREFIX, SYSTEM_TOPICS
from cometmq.remoting.blocking import BlockingConnection, BlockingConnectionError
from cometmq.remoting.bodies import (
    ClusterInfo,
    TopicList,
    TopicRouteData,
    decode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import denial_step
from cometmq.remoting.headers import (
    GetRouteInfoRequestHeader,
    Header,
)
from cometmq.remoting.security import PLAIN, Security

ANSWER_SECONDS: Final = 10.0
"""The longest wait for one answer, unless less patience is asked for."""
_PAUSE_SECONDS: Final = 0.2

T = TypeVar("T")


class Queue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The servers of one cluster, and the topics to look at."""

    namesrv: tuple[str, ...]
    """Addresses, ``host:port``; the first nameserver that answers is believed."""
    security: Callable[[], Security] = lambda: PLAIN
    """Credentials and TLS; asked for whenever a connection is opened."""
    timeout_s: float = ANSWER_SECONDS
    """Seconds for one answer."""
    patience_s: float = ANSWER_SECONDS
    """Seconds in which a broker that does not answer is asked again."""
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    """A regular expression for names of topics, where ``topics`` names none."""
    from_slaves: bool = False
    """Read messages from a slave where there is one; all else is asked of the master."""
    group: str = "cometmq"
    """Consumer group of pulls that look at store times."""


class Patience:
    """Repeats a question: at once after the first answer that does not help, then after pauses, until time is up."""

    def __init__(self, clock: Clock, seconds: float, pause_s: float) -> None:
        self._clock = clock
        self._give_up_at = clock.monotonic() + seconds
        self._pause_s = pause_s
        self._asked = 0

    def again(self) -> bool:
        """Pause, and return True to ask again; return False when the question was repeated and time is up."""
        self._asked += 1
        if self._asked > 1:
            if self._clock.monotonic() >= self._give_up_at:
                return False
            threading.Event().wait(self._pause_s)
        return True


class BlockingCluster:
    """A view of the brokers behind some nameservers; the routes are those of its last look.

    Spark sends it to its executors, so it holds nothing that cannot be pickled. A subclass may choose the classes of
    the errors, which are made from a message and ``next_step``.
    """

    unreachable: ClassVar[type[CometMQError]] = BlockingConnectionError
    """Raised when no nameserver, or a broker, does not answer."""
    refused: ClassVar[type[CometMQError]] = ClientError
    """Raised when a server answers that it does not do what is asked."""
    namesrv_step: ClassVar[str] = "is the nameserver's address right, and is it running?"
    broker_step: ClassVar[str] = "is the broker running?"
    """The next step in errors about servers that do not answer."""

    def __init__(self, options: ClusterOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster_options = options
        self._clock = clock
        self._addresses: dict[str, dict[int, str]] = {}
        """Of each broker's master and slaves, by broker id."""
        self._leaves_slave: set[str] = set()
        self._silent_masters: set[str] = set()

    def _success(self, answer: RemotingCommand) -> RemotingCommand:
        if answer.code != ResponseCode.SUCCESS:
            raise self.refused(
                f"the server answered with code {answer.code}: {answer.remark or 'no remark'}",
                next_step=denial_step(answer.code, answer.remark),
            )
        return answer

    # Nameserver -----------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Look up every readable queue of the topics asked for, on the brokers that are registered now.

        :raises unreachable: no nameserver answers.
        """
        self._silent_masters.clear()
        return self._routed()

    def _routed(self) -> list[Queue]:
        found: list[Queue] = []

        def look(connection: BlockingConnection) -> None:
            topics = self._cluster_options.topics or self._matching(connection)
            found.clear()
            for topic, answer in zip(
                topics, invoke_all(connection, [_route_request(of) for of in topics]), strict=True
            ):
                if answer.code != ResponseCode.TOPIC_NOT_EXIST:
                    found.extend(self._read_queues(topic, decode_body(TopicRouteData, self._success(answer).body)))

        self._ask_namesrv(look)
        return sorted(found)

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic; None for a topic that no nameserver knows.

        :raises unreachable: no nameserver answers.
        """
        (answer,) = self._ask_namesrv(lambda connection: invoke_all(connection, [_route_request(topic)]))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(TopicRouteData, self._success(answer).body)

    def topics(self) -> Sequence[str]:
        """Return the topics that match the pattern; without one, all topics that it could choose.

        :raises unreachable: no nameserver answers.
        """
        return self._ask_namesrv(self._matching)

    def masters(self) -> frozenset[str]:
        """Return the names of the brokers whose master is registered now.

        :raises unreachable: no nameserver answers.
        """

        def look(connection: BlockingConnection) -> frozenset[str]:
            answer = self._success(connection.invoke(RequestCode.GET_BROKER_CLUSTER_INFO))
            table = decode_body(ClusterInfo, answer.body).broker_addr_table
            return frozenset(name for name, broker in table.items() if MASTER_ID in broker.broker_addrs)

        return self._ask_namesrv(look)

    def address_of(self, queue: Queue) -> str:
        """Return the address of the broker that a queue is read from; it is looked up when it is not known.

        :raises unreachable: no nameserver answers, or the broker is not registered.
        """
        addresses = self._addresses_of(queue)
        return addresses[self._chosen(queue.broker, addresses)]

    def asked_at(self, queue: Queue) -> str:
        """Return the address of the broker that is asked about a queue: the master, or a slave if there is no master.

        :raises unreachable: as :meth:`address_of`.
        """
        addresses = self._addresses_of(queue)
        slaves = addresses.keys() - {MASTER_ID}
        return addresses[min(slaves) if slaves and queue.broker in self._silent_masters else min(addresses)]

    def has_master(self, queue: Queue) -> bool:
        """Tell whether the master of a queue is asked about it; only its word proves what the queue does not hold.

        :raises unreachable: as :meth:`address_of`.
        """
        return MASTER_ID in self._addresses_of(queue) and queue.broker not in self._silent_masters

    def reads_slave(self, queue: Queue) -> bool:
        """Tell whether a queue is read from a slave.

        :raises unreachable: as :meth:`address_of`.
        """
        return self._chosen(queue.broker, self._addresses_of(queue)) != MASTER_ID

    def leave_slave(self, broker: str) -> None:
        """Read the queues of a broker from its master from now on, as soon as it has one."""
        self._leaves_slave.add(broker)

    def _chosen(self, broker: str, addresses: Mapping[int, str]) -> int:
        slaves = addresses.keys() - {MASTER_ID}
        wanted = self._cluster_options.from_slaves and broker not in self._leaves_slave
        return min(slaves) if slaves and wanted else min(addresses)

    def _addresses_of(self, queue: Queue) -> Mapping[int, str]:
        if queue.broker not in self._addresses:
            self._routed()
        if queue.broker not in self._addresses:
            raise self.unreachable(f"broker {queue.broker} of {queue} is not registered with the nameserver")
        return self._addresses[queue.broker]

    def forget(self, broker: str) -> None:
        """Look up the broker's addresses again when they are next needed."""
        self._addresses.pop(broker, None)

    def _ask_namesrv(self, ask: Callable[[BlockingConnection], T]) -> T:
        """Ask the first nameserver that answers; each one twice, since a cached connection may have been closed."""
        options = self._cluster_options
        failures: list[BlockingConnectionError] = []
        for address in options.namesrv:
            for _ in range(2):
                try:
                    with borrowed(address, options.security(), options.timeout_s) as connection:
                        return ask(connection)
                except BlockingConnectionError as error:
                    failure = error
            failures.append(failure)
        raise self.unreachable(
            f"no nameserver answers: {'; '.join(failure.message for failure in failures)}",
            next_step=failures[-1].next_step or self.namesrv_step,
        )

    def _matching(self, connection: BlockingConnection) -> Sequence[str]:
        pattern = re.compile(self._cluster_options.topic_pattern or ".*")
        answer = self._success(connection.invoke(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        return [
            topic
            for topic in sorted(decode_body(TopicList, answer.body).topic_list)
            if pattern.fullmatch(topic)
            and topic not in SYSTEM_TOPICS
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

    def _read_queues(self, topic: str, route: TopicRouteData) -> Iterable[Queue]:
        for broker in route.broker_datas:
            if broker.broker_addrs:
                self._addresses[broker.broker_name] = dict(broker.broker_addrs)
        named = sum(data.read_queue_nums for data in route.queue_datas)
        if named > MAX_ROUTE_QUEUES:
            raise self.refused(
                f"the nameserver's route of {topic} names {named} queues",
                next_step="look for a broker that registered impossible numbers of queues",
            )
        for data in route.queue_datas:
            if data.perm & PERM_READ and data.broker_name in self._addresses:
                for queue_id in range(data.read_queue_nums):
                    yield Queue(topic, data.broker_name, queue_id)

    # Brokers --------------------------------------------------------------------------------------

    def ask(self, asked: Sequence[tuple[Queue, Query[T]]], patience_s: float = 0.0) -> list[T]:
        """Ask brokers about queues, all requests of a broker at once; return the results in the same order.

        :raises unreachable: a broker does not answer.
        :raises refused: a broker refuses a request.
        """
        places: dict[str, list[int]] = {}
        for place, (queue, _) in enumerate(asked):
            places.setdefault(queue.broker, []).append(place)
        found: dict[int, T] = {}
        for broker, of_broker in places.items():
            queries = [asked[place][1] for place in of_broker]
            requests = [(query.code, query.header) for query in queries]
            answers = self.ask_broker(asked[of_broker[0]][0], requests, patience_s)
            try:
                for place, query, answer in zip(of_broker, queries, answers, strict=True):
                    found[place] = query.result(answer, broker)
            except BrokerError as error:
                raise self.refused(error.message, next_step=error.next_step) from error
        return [found[place] for place in range(len(asked))]

    def ask_broker(
        self, queue: Queue, requests: Sequence[tuple[int, Header]], patience_s: float = 0.0
    ) -> list[RemotingCommand]:
        """Send requests to the broker of a queue: at least twice, and on until ``patience_s`` is over.

        They go to the master; to a slave while no master is registered, or if it is silent and slaves may be read.

        :raises unreachable: the broker does not answer.
        """
        options = self._cluster_options
        patience = Patience(self._clock, patience_s, _PAUSE_SECONDS)
        while True:
            try:
                with borrowed(self.asked_at(queue), options.security(), options.timeout_s) as connection:
                    return invoke_all(connection, requests)
            except (BlockingConnectionError, self.unreachable) as error:
                self.forget(queue.broker)
                if options.from_slaves:  # the next one in turn
                    self._silent_masters ^= {queue.broker}
                if not patience.again():
                    raise self.unreachable(
                        f"broker {queue.broker} does not answer: {error.message}",
                        next_step=self.broker_step,
                    ) from error


def by_broker(queues: Iterable[Queue]) -> Iterable[list[Queue]]:
    """Return the queues of each broker."""
    found: dict[str, list[Queue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found.values()


def _route_request(topic: str) -> tuple[int, Header]:
    return RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
