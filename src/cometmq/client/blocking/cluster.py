"""Requests to nameservers and brokers without an event loop."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from cometmq.client.blocking.connections import invoke_all
from cometmq.client.errors import BrokerError, ClientError, RemotingError
from cometmq.client.machines import run
from cometmq.client.queries import Query
from cometmq.client.route import Ask, BrokerAddresses, Exchange, Nameservers, route_of
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.errors import CometMQError
from cometmq.message.names import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, SYSTEM_TOPICS
from cometmq.message.queues import Queue
from cometmq.remoting.bodies import ClusterInfo, TopicList, TopicRouteData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import Header
from cometmq.remoting.security import PLAIN, Security

ANSWER_SECONDS: Final = 10.0
"""Maximum time to wait for a response, unless the caller sets a shorter time."""
_PAUSE_SECONDS: Final = 0.2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The servers of a cluster, and the topics to read."""

    namesrv: tuple[str, ...]
    """Nameserver addresses, ``host:port``. The first that responds is used; the others are asked for unknown topics."""
    security: Callable[[], Security] = lambda: PLAIN
    """A function that returns credentials and TLS options; called whenever a connection is opened."""
    timeout_s: float = ANSWER_SECONDS
    """Maximum number of seconds to wait for a response."""
    patience_s: float = ANSWER_SECONDS
    """Number of seconds for which requests to an unresponsive broker are retried."""
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    """A regular expression for topic names, used if ``topics`` is empty."""
    from_slaves: bool = False
    """If true, messages are read from a slave if there is one; all other requests are sent to the master."""
    group: str = "cometmq"
    """The consumer group for pulls that read store times."""


class Patience:
    """Limits the retries of a request: one immediate retry, then further ones after pauses until time is up."""

    def __init__(self, clock: Clock, seconds: float, pause_s: float) -> None:
        self._clock = clock
        self._give_up_at = clock.monotonic() + seconds
        self._pause_s = pause_s
        self._asked = 0

    def again(self) -> bool:
        """Pause and return True for another retry; return False if time is up after at least one retry."""
        self._asked += 1
        if self._asked > 1:
            if self._clock.monotonic() >= self._give_up_at:
                return False
            threading.Event().wait(self._pause_s)
        return True


class BlockingCluster:
    """A cluster's brokers, with the routes from the last refresh.

    Methods that send requests raise ``unreachable`` if no nameserver or broker answers, or a broker is not registered.

    Spark sends this object to its executors, so it can be pickled. A subclass may choose the classes of
    the errors, which are created from a message and ``next_step``.
    """

    unreachable: ClassVar[type[CometMQError]] = ClientError
    """Raised when no nameserver responds or a broker does not respond."""
    refused: ClassVar[type[CometMQError]] = ClientError
    """Raised when a server rejects a request."""
    namesrv_step: ClassVar[str] = "check the nameserver's address and that it is running"
    broker_step: ClassVar[str] = "check that the broker is running"
    """The next step in errors about brokers that do not respond."""

    def __init__(self, options: ClusterOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster_options = options
        self._clock = clock
        self._nameservers = Nameservers(options.namesrv, clock)
        self._brokers = BrokerAddresses()
        self._leaves_slave: set[str] = set()
        self._silent_masters: set[str] = set()

    # Nameserver -----------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Return all readable queues of the selected topics on the brokers that are registered now."""
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
        """Return a topic's route, or None if no nameserver knows the topic."""
        (route,) = self._ask_namesrv(self._nameservers.routes([topic], self._cluster_options.timeout_s))
        return route

    def topics(self) -> Sequence[str]:
        """Return the topics that match the pattern, or all candidate topics if none matches."""
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
        """Return the names of the brokers whose master is currently registered."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        known = self._ask_namesrv(self._nameservers.body(code, ClusterInfo, self._cluster_options.timeout_s))
        return frozenset(name for name, of in known.broker_addr_table.items() if MASTER_ID in of.broker_addrs)

    def address_of(self, queue: Queue) -> str:
        """Return the address of the broker from which a queue is read, looking it up if it is unknown."""
        return self._broker_for(queue, slave=self._wants_slave(queue.broker))[1]

    def request_address(self, queue: Queue) -> str:
        """Return the address for requests about a queue: the address of its master or, if there is none, of a slave."""
        return self._broker_for(queue, slave=queue.broker in self._silent_masters)[1]

    def has_master(self, queue: Queue) -> bool:
        """Return whether a queue's master handles requests; only the master can confirm that a message is missing."""
        return queue.broker not in self._silent_masters and self._broker_for(queue, slave=False)[0] == MASTER_ID

    def reads_slave(self, queue: Queue) -> bool:
        """Return whether a queue is read from a slave."""
        return self._broker_for(queue, slave=self._wants_slave(queue.broker))[0] != MASTER_ID

    def leave_slave(self, broker: str) -> None:
        """Switch a broker's queues from its slave to its master, if it has a master."""
        self._leaves_slave.add(broker)

    def _wants_slave(self, broker: str) -> bool:
        return self._cluster_options.from_slaves and broker not in self._leaves_slave

    def _broker_for(self, queue: Queue, *, slave: bool) -> tuple[int, str]:
        """Return the id and address of a queue's master, or of a slave if one is preferred or there is no master."""
        chosen = self._brokers.choose(queue.broker, slave=slave)
        if chosen is None:
            self._ask_namesrv(self._queues())
            chosen = self._brokers.choose(queue.broker, slave=slave)
        if chosen is None:
            raise self.unreachable(f"broker {queue.broker} of {queue} is not registered with the nameserver")
        return chosen

    def forget(self, broker: str) -> None:
        """Forget a broker's addresses, so that they are looked up again when needed."""
        self._brokers.pop(broker, None)

    def _ask_namesrv(self, exchange: Exchange[T]) -> T:
        try:
            return run(exchange, self._send)
        except RemotingError as error:
            step = error.next_step or self.namesrv_step
            raise self.unreachable(f"no nameserver responds: {error.message}", next_step=step) from error
        except ClientError as error:
            raise self.refused_by(error) from error

    def refused_by(self, error: ClientError) -> CometMQError:
        """Return the error for a request that a broker rejected."""
        return self.refused(error.message, next_step=error.next_step)

    def _send(self, ask: Ask) -> list[RemotingCommand]:
        """Send requests, and retry them if they fail and time is left."""
        security, give_up_at = self._cluster_options.security(), self._clock.monotonic() + ask.timeout_s
        try:
            return invoke_all(ask.address, security, ask.requests, ask.timeout_s)
        except RemotingError:
            if (left_s := give_up_at - self._clock.monotonic()) <= 0:
                raise
            return invoke_all(ask.address, security, ask.requests, left_s)

    # Brokers --------------------------------------------------------------------------------------

    def ask(self, asked: Sequence[tuple[Queue, Query[T]]], patience_s: float = 0.0) -> list[T]:
        """Send requests about queues, pipelined for each broker; return the results in the same order.

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
        """Send requests to a queue's broker, retrying at least once and until ``patience_s`` has passed.

        They are sent to the master, or to a slave if no master is registered, or if the master is silent and slaves may
        be read.
        """
        options = self._cluster_options
        patience = Patience(self._clock, patience_s, _PAUSE_SECONDS)
        while True:
            try:
                return invoke_all(self.request_address(queue), options.security(), requests, options.timeout_s)
            except (RemotingError, self.unreachable) as error:
                self.forget(queue.broker)
                if options.from_slaves:  # alternate between master and slave
                    self._silent_masters ^= {queue.broker}
                if not patience.again():
                    raise self.unreachable(
                        f"broker {queue.broker} does not respond: {error.message}",
                        next_step=self.broker_step,
                    ) from error


def by_broker(queues: Iterable[Queue]) -> Iterable[list[Queue]]:
    """Return the queues by broker."""
    found: dict[str, list[Queue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found.values()
