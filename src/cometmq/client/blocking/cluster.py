"""Nameservers and brokers asked without an event loop: topics, routes, queues, and any request to a broker."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeVar

from cometmq.client.blocking.connections import invoke_all
from cometmq.client.errors import BrokerError, ClientError, RemotingError
from cometmq.client.machines import run
from cometmq.client.queries import Query
from cometmq.client.route import Ask, BrokerAddresses, Exchange, Nameservers, route_of
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.message.names import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, SYSTEM_TOPICS
from cometmq.remoting.bodies import ClusterInfo, TopicList, TopicRouteData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import Header
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
    """Addresses, ``host:port``; the first nameserver that answers is asked, others for topics that it does not know."""
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

    Methods that ask servers raise ``unreachable`` if no nameserver answers, or a broker does not or is not registered.

    Spark sends it to its executors, so it holds nothing that cannot be pickled. A subclass may choose the classes of
    the errors, which are made from a message and ``next_step``.
    """

    unreachable: ClassVar[type[CometMQError]] = ClientError
    """Raised when no nameserver, or a broker, does not answer."""
    refused: ClassVar[type[CometMQError]] = ClientError
    """Raised when a server answers that it does not do what is asked."""
    namesrv_step: ClassVar[str] = "is the nameserver's address right, and is it running?"
    broker_step: ClassVar[str] = "is the broker running?"
    """The next step in errors about servers that do not answer."""

    def __init__(self, options: ClusterOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster_options = options
        self._clock = clock
        self._nameservers = Nameservers(options.namesrv, clock)
        self._brokers = BrokerAddresses()
        self._leaves_slave: set[str] = set()
        self._silent_masters: set[str] = set()

    # Nameserver -----------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Look up every readable queue of the topics asked for, on the brokers that are registered now."""
        self._silent_masters.clear()
        return self._ask_namesrv(self._queues())

    def _queues(self) -> Exchange[list[Queue]]:
        topics = self._cluster_options.topics or (yield from self._topics())
        routes = yield from self._nameservers.routes(topics, self._cluster_options.timeout_s)
        found: list[Queue] = []
        for topic, data in zip(topics, routes, strict=True):
            if data is not None:
                self._brokers.note(data)
                queues = route_of(topic, data).read_queues
                found += (
                    Queue(topic, of.broker_name, of.queue_id) for of in queues if self._brokers.get(of.broker_name)
                )
        return sorted(found)

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic; None for a topic that no nameserver knows."""
        (route,) = self._ask_namesrv(self._nameservers.routes([topic], self._cluster_options.timeout_s))
        return route

    def topics(self) -> Sequence[str]:
        """Return the topics that match the pattern; without one, all topics that it could choose."""
        return self._ask_namesrv(self._topics())

    def _topics(self) -> Exchange[Sequence[str]]:
        pattern = re.compile(self._cluster_options.topic_pattern or ".*")
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        known = yield from self._nameservers.body(code, TopicList, self._cluster_options.timeout_s)
        return [
            topic
            for topic in sorted(known.topic_list)
            if pattern.fullmatch(topic)
            and topic not in SYSTEM_TOPICS
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

    def masters(self) -> frozenset[str]:
        """Return the names of the brokers whose master is registered now."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        known = self._ask_namesrv(self._nameservers.body(code, ClusterInfo, self._cluster_options.timeout_s))
        return frozenset(name for name, of in known.broker_addr_table.items() if MASTER_ID in of.broker_addrs)

    def address_of(self, queue: Queue) -> str:
        """Return the address of the broker that a queue is read from; it is looked up when it is not known."""
        return self._broker_for(queue, slave=self._wants_slave(queue.broker))[1]

    def asked_at(self, queue: Queue) -> str:
        """Return the address of the broker that is asked about a queue: its master; a slave if there is none."""
        return self._broker_for(queue, slave=queue.broker in self._silent_masters)[1]

    def has_master(self, queue: Queue) -> bool:
        """Tell whether the master of a queue is asked about it; only its word proves what the queue does not hold."""
        return queue.broker not in self._silent_masters and self._broker_for(queue, slave=False)[0] == MASTER_ID

    def reads_slave(self, queue: Queue) -> bool:
        """Tell whether a queue is read from a slave."""
        return self._broker_for(queue, slave=self._wants_slave(queue.broker))[0] != MASTER_ID

    def leave_slave(self, broker: str) -> None:
        """Read the queues of a broker from its master from now on, as soon as it has one."""
        self._leaves_slave.add(broker)

    def _wants_slave(self, broker: str) -> bool:
        return self._cluster_options.from_slaves and broker not in self._leaves_slave

    def _broker_for(self, queue: Queue, *, slave: bool) -> tuple[int, str]:
        """Return id and address of the queue's master; of a slave if one is wanted, or there is no master."""
        chosen = self._brokers.choose(queue.broker, slave=slave)
        if chosen is None:
            self._ask_namesrv(self._queues())
            chosen = self._brokers.choose(queue.broker, slave=slave)
        if chosen is None:
            raise self.unreachable(f"broker {queue.broker} of {queue} is not registered with the nameserver")
        return chosen

    def forget(self, broker: str) -> None:
        """Look up the broker's addresses again when they are next needed."""
        self._brokers.pop(broker, None)

    def _ask_namesrv(self, exchange: Exchange[T]) -> T:
        try:
            return run(exchange, self._send)
        except RemotingError as error:
            step = error.next_step or self.namesrv_step
            raise self.unreachable(f"no nameserver answers: {error.message}", next_step=step) from error
        except ClientError as error:
            raise self.refused_by(error) from error

    def refused_by(self, error: ClientError) -> CometMQError:
        """Return the error of this class for a refusal."""
        return self.refused(error.message, next_step=error.next_step)

    def _send(self, ask: Ask) -> list[RemotingCommand]:
        """Send requests; again if there is time, since the server may have closed a connection that was idle."""
        security, give_up_at = self._cluster_options.security(), self._clock.monotonic() + ask.timeout_s
        try:
            return invoke_all(ask.address, security, ask.requests, ask.timeout_s)
        except RemotingError:
            if (left_s := give_up_at - self._clock.monotonic()) <= 0:
                raise
            return invoke_all(ask.address, security, ask.requests, left_s)

    # Brokers --------------------------------------------------------------------------------------

    def ask(self, asked: Sequence[tuple[Queue, Query[T]]], patience_s: float = 0.0) -> list[T]:
        """Ask brokers about queues, all requests of a broker at once; return the results in the same order.

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
                raise self.refused_by(error) from error
        return [found[place] for place in range(len(asked))]

    def ask_broker(
        self, queue: Queue, requests: Sequence[tuple[int, Header]], patience_s: float = 0.0
    ) -> list[RemotingCommand]:
        """Send requests to the broker of a queue: at least twice, and on until ``patience_s`` is over.

        They go to the master; to a slave while no master is registered, or if it is silent and slaves may be read.
        """
        options = self._cluster_options
        patience = Patience(self._clock, patience_s, _PAUSE_SECONDS)
        while True:
            try:
                return invoke_all(self.asked_at(queue), options.security(), requests, options.timeout_s)
            except (RemotingError, self.unreachable) as error:
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
