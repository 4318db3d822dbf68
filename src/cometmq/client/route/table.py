"""A client's routes: requested from nameservers, cached, and refreshed every 30 s (``MQClientInstance``)."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from cometmq.client.errors import RemotingConnectError, RemotingError, RouteNotFoundError
from cometmq.client.machines import run_async
from cometmq.client.retries import Pauses
from cometmq.client.route import Ask, BrokerAddresses, Nameservers, TopicRoute, route_of
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.loop import SharedTask, TaskSet
from cometmq.message.names import AUTO_CREATE_TOPIC
from cometmq.remoting.bodies import ClusterInfo, TopicRouteData
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import Header

log = logging.getLogger(__name__)

_AT_ONCE: Final = 50
"""Number of routes that are requested together."""
REFRESH_S: Final = 30.0
"""Seconds between two refreshes of routes (``pollNameServerInterval``) and between two heartbeats.

The heartbeats' interval is ``heartbeatBrokerInterval`` in Java; brokers forget a client after 120 s.
"""

SEEK_S: Final = 1.0
"""Minimum time between two route requests for an unreachable address."""

ROUTE_TIMEOUT_S: Final = 3.0
NEW_TOPIC_PAUSES: Final = Pauses(0.05, 0.4)
"""Pauses between requests for a route that may soon exist."""
NEW_TOPIC_PATIENCE_S: Final = 1.5
"""Maximum time for nameservers to learn about a new topic."""


class RouteTable:
    """A client's routes.

    A stored route remains valid while nameservers or brokers are unavailable.
    """

    def __init__(self, remoting: RemotingClient, namesrv: tuple[str, ...], clock: Clock) -> None:
        self.namesrv = namesrv
        self.brokers: Final = BrokerAddresses()
        """The addresses of the brokers in all stored routes."""
        self.on_change: list[Callable[[str], None]] = []
        """Called with a topic whose route has changed."""
        self.on_moved: list[Callable[[set[str]], None]] = []
        """Called with the new addresses of brokers that were unreachable at their old ones."""
        self._remoting = remoting
        self._clock = clock
        self._routes: dict[str, TopicRoute] = {}
        self._wanted: set[str] = set()
        self._asking: dict[tuple[str, int | None], SharedTask[TopicRoute]] = {}
        self._nameservers = Nameservers(namesrv, clock, first=random.randrange(len(namesrv)))
        self._sought: dict[str, float] = {}
        """Monotonic time in seconds of the last search for the brokers at an address."""
        self._seeking = TaskSet()
        remoting.on_failure.append(self._unreachable)

    # --- stored routes ---

    def known(self, topic: str) -> TopicRoute | None:
        """Return the stored route without sending a request."""
        return self._routes.get(topic)

    def can_write_to(self, broker_name: str) -> bool:
        """Return whether a stored route has a writable queue on the broker."""
        return any(queue.broker_name == broker_name for route in self._routes.values() for queue in route.write_queues)

    # --- requests ---

    async def get(self, topic: str) -> TopicRoute:
        """Return a topic's route, requesting it if it is not stored.

        :raises RouteNotFoundError: the nameserver does not know the topic.
        :raises RemotingError: no nameserver answers.
        """
        self._wanted.add(topic)
        known = self._routes.get(topic)
        if known is not None and not known.auto_create:
            return known
        return await self._ask_once(topic)

    async def get_all(self, topics: Sequence[str]) -> list[RouteNotFoundError]:
        """Request the routes of many topics; return an error for each topic that no nameserver knows.

        :raises RemotingError: no nameserver answers.
        """
        self._wanted.update(topics)
        unknown: list[str] = []
        for at in range(0, len(topics), _AT_ONCE):
            unknown += await self._request(topics[at : at + _AT_ONCE], self._keep)
        return [self._not_found(topic) for topic in unknown]

    async def find_for_send(self, topic: str, queue_nums: int, deadline: float) -> TopicRoute:
        """Return a route like :meth:`get_for_send`, repeating the request like :meth:`find`."""
        return await self.find(partial(self.get_for_send, topic, queue_nums), deadline)

    async def get_for_send(self, topic: str, queue_nums: int) -> TopicRoute:
        """Return a route like :meth:`get`, or the queues that a broker would give a new topic (``TBW102``).

        :param queue_nums: queues that the producer will ask for (``defaultTopicQueueNums``).
        """
        self._wanted.add(topic)
        known = self._routes.get(topic)
        if known is not None and (known.write_queues or not known.auto_create):
            return known
        try:
            return await self._ask_once(topic)
        except RouteNotFoundError as unknown:
            try:
                return await self._ask_once(topic, queue_nums)
            except RouteNotFoundError:
                raise unknown from None

    async def get_soon(self, topic: str) -> TopicRoute:
        """Return a route like :meth:`get`, repeating the request like :meth:`find` for up to three seconds.

        :raises RouteNotFoundError: no nameserver knows the topic.
        :raises RemotingError: no nameserver answers.
        """
        return await self.find(partial(self.get, topic), self._clock.monotonic() + ROUTE_TIMEOUT_S)

    async def find(self, ask: Callable[[], Awaitable[TopicRoute]], deadline: float) -> TopicRoute:
        """Request a route that may soon exist, until it is known or time is up.

        A broker answers the message that creates a topic before the nameservers know the topic, so this method tries an
        unknown topic for a second and a half. A nameserver that was just started knows no broker at all, or is not
        reachable yet; in this case the method tries until ``deadline``.

        :raises RouteNotFoundError: no nameserver knows the topic.
        :raises RemotingError: no nameserver answers.
        """
        patient_until = self._clock.monotonic() + NEW_TOPIC_PATIENCE_S
        failures = 0
        while True:
            try:
                return await ask()
            except (RouteNotFoundError, RemotingConnectError) as error:
                failures += 1
                pause_s = NEW_TOPIC_PAUSES.after(failures)
                next_at = self._clock.monotonic() + pause_s
                is_lasting = next_at >= patient_until and isinstance(error, RouteNotFoundError)
                if next_at >= deadline or (is_lasting and await self._is_surely_missing()):
                    raise
            await self._clock.sleep(pause_s)

    async def _is_surely_missing(self) -> bool:
        """Return whether an unknown topic certainly does not exist."""
        try:
            machine = self._nameservers.body(RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo, ROUTE_TIMEOUT_S)
            return bool((await run_async(machine, self._send)).broker_addr_table)
        except CometMQError:
            return True

    async def refresh(self, topic: str) -> TopicRoute:
        """Request a route even if it is stored.

        :raises RouteNotFoundError: the nameserver does not know the topic, and no broker would create it.
        :raises RemotingError: no nameserver answers.
        """
        try:
            return await self._ask_once(topic)
        except RouteNotFoundError:
            if (queue_nums := self._queues_if_created(topic)) is None:
                raise
        return await self._ask_once(topic, queue_nums)

    async def data_of(self, topics: Sequence[str]) -> list[TopicRouteData | None]:
        """Request the routes of many topics together, without storing them; ``None`` for each unknown topic.

        :raises RemotingError: no nameserver answers.
        """
        return await run_async(self._nameservers.routes(topics, ROUTE_TIMEOUT_S), self._send)

    def _queues_if_created(self, topic: str) -> int | None:
        """Return the number of queues in the stored route of a topic that does not exist yet."""
        known = self._routes.get(topic)
        if known is None or not known.auto_create:
            return None
        return max((queues.write_queue_nums for queues in known.data.queue_datas), default=None)

    async def refresh_all(self) -> None:
        """Refresh the route of every topic in use; if that fails, keep the stored routes.

        If no nameserver answers in time, the other topics wait for the next refresh.
        """
        await self._for_each(sorted(self._wanted), self._keep, self.refresh)

    async def _for_each(
        self, topics: list[str], keep: Callable[[TopicRoute], object], ask: Callable[[str], Awaitable[object]]
    ) -> None:
        """Request many routes; ask for each of those that cannot be requested together, or whose topics are created by
        sends.
        """
        for at in range(0, len(topics), _AT_ONCE):
            some = topics[at : at + _AT_ONCE]
            try:
                unknown = await self._request(some, keep)
                some = [topic for topic in unknown if self._queues_if_created(topic) is not None]
            except RemotingError:
                return
            except CometMQError as error:
                log.debug("cannot request %d routes together: %s", len(some), error)
            for topic in some:
                try:
                    await ask(topic)
                except RemotingError:
                    return
                except CometMQError:
                    continue

    async def _request(self, topics: Sequence[str], keep: Callable[[TopicRoute], object]) -> list[str]:
        """Request some routes together, and keep those that have changed; return the topics that are not known."""
        unknown: list[str] = []
        for topic, data in zip(topics, await self.data_of(topics), strict=True):
            known = self._routes.get(topic)
            if data is None:
                unknown.append(topic)
            elif known is not None and known.data == data and not known.auto_create:
                self.brokers.note(data)
            else:
                keep(route_of(topic, data))
        return unknown

    # --- brokers that cannot be reached ---

    def _unreachable(self, address: str) -> None:
        """Refresh the routes that contain an unreachable address, because its broker may have moved."""
        now = self._clock.monotonic()
        if now - self._sought.get(address, -math.inf) < SEEK_S:
            return
        topics = [topic for topic, route in self._routes.items() if address in _addresses(route.data)]
        if topics:
            self._sought[address] = now
            self._seeking.start(self._seek(topics), f"searching for the broker at {address}")

    async def _seek(self, topics: list[str]) -> None:
        before = self.brokers.addresses
        await self._for_each(topics, self._keep_queues, self._look_for)
        if moved := self.brokers.addresses - before:
            for listener in self.on_moved:
                listener(moved)

    async def _look_for(self, topic: str) -> None:
        """Refresh the addresses of a topic's brokers."""
        try:
            route = await self._fetch(topic, None)
        except RouteNotFoundError:
            if (queue_nums := self._queues_if_created(topic)) is None:
                raise
            route = await self._fetch(topic, queue_nums)
        self._keep_queues(route)

    def _keep_queues(self, route: TopicRoute) -> None:
        """Keep a route, but its addresses only if brokers are missing in it.

        Most missing brokers return, and consumers still read their messages. They keep their queues until
        :meth:`refresh_all`.
        """
        known = self._routes.get(route.topic)
        if known is None or _names(known.data) <= _names(route.data):
            self._keep(route)
        else:
            self.brokers.note(route.data)

    def forget(self, topic: str) -> None:
        """Stop refreshing a topic and forget its route."""
        self._wanted.discard(topic)
        self._routes.pop(topic, None)

    async def ask_namesrv(
        self, code: int, header: Header | None, *, timeout_s: float = ROUTE_TIMEOUT_S
    ) -> RemotingCommand:
        """Send requests to the nameserver that last responded, then to the others; ``timeout_s`` is the total time
        limit.

        :raises RemotingError: no nameserver answers.
        """
        machine = self._nameservers.ask([(code, header)], timeout_s)
        (answer,) = await run_async(machine, self._send)
        return answer

    async def _send(self, ask: Ask) -> list[RemotingCommand]:
        return await self._remoting.invoke_all(ask.address, ask.requests, timeout_s=ask.timeout_s)

    async def _ask_once(self, topic: str, queue_nums: int | None = None) -> TopicRoute:
        key = (topic, queue_nums)
        shared = self._asking.get(key)
        if shared is None:
            shared = self._asking[key] = SharedTask(self._ask(topic, queue_nums))
            shared.task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await shared.wait()

    async def _ask(self, topic: str, queue_nums: int | None) -> TopicRoute:
        """Request a topic's route or, if ``queue_nums`` is given, the brokers that would create the topic."""
        return self._keep(await self._fetch(topic, queue_nums))

    async def _fetch(self, topic: str, queue_nums: int | None) -> TopicRoute:
        asked = topic if queue_nums is None else AUTO_CREATE_TOPIC
        (data,) = await self.data_of([asked])
        if data is None:
            raise self._not_found(topic)
        if queue_nums is not None:
            for queues in data.queue_datas:
                queues.read_queue_nums = queues.write_queue_nums = min(queue_nums, queues.write_queue_nums)
        return route_of(topic, data, auto_create=queue_nums is not None)

    def _not_found(self, topic: str) -> RouteNotFoundError:
        return RouteNotFoundError(topic, f"{';'.join(self.namesrv)} does not know it")

    def _keep(self, route: TopicRoute) -> TopicRoute:
        self.brokers.note(route.data)
        before = self._routes.get(route.topic)
        if before is not None and before.data == route.data and before.auto_create == route.auto_create:
            return before
        self._routes[route.topic] = route
        for listener in self.on_change:
            listener(route.topic)
        return route


def _names(route: TopicRouteData) -> set[str]:
    return {broker.broker_name for broker in route.broker_datas}


def _addresses(route: TopicRouteData) -> set[str]:
    return {address for broker in route.broker_datas for address in broker.broker_addrs.values()}
