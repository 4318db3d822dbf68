"""Routes of topics: asked of a nameserver, stored, asked again every 30 s (``MQClientInstance``)."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from cometmq.client.errors import (
    ClientError,
    ClientStateError,
    MasterNotFoundError,
    RemotingConnectError,
    RemotingError,
    RouteNotFoundError,
    refusal,
)
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_ROUTE_QUEUES
from cometmq.loop import SharedTask, TaskSet
from cometmq.message.hosts import parse_address, split_addresses
from cometmq.message.names import AUTO_CREATE_TOPIC, MASTER_ID, PERM_READ, PERM_WRITE
from cometmq.remoting.bodies import ClusterInfo, MessageQueue, TopicRouteData, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import GetRouteInfoRequestHeader, Header

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
REFRESH_S: Final = 30.0
"""Seconds between two requests for known routes (``pollNameServerInterval``), and between two heartbeats
(``heartbeatBrokerInterval``; brokers forget a client after 120 s)."""

SEEK_S: Final = 1.0
"""Shortest time between two requests for the routes of an address that cannot be reached."""

ROUTE_TIMEOUT_S: Final = 3.0
NEW_TOPIC_FIRST_PAUSE_S: Final = 0.05
NEW_TOPIC_LAST_PAUSE_S: Final = 0.4
"""Pauses between requests for a route that may exist in a moment: doubled from the first to the last."""
NEW_TOPIC_PATIENCE_S: Final = 1.5
"""Longest time in which a new topic becomes known to nameservers that have brokers."""
OTHER_NAMESRV_TIMEOUT_S: Final = 1.0
"""Time-out of each further nameserver for a topic that the first one does not know."""
_COUNT_DIGITS: Final = 9


class TopicRoute(msgspec.Struct, frozen=True):
    """The queues of one topic, and the addresses of the brokers that hold them."""

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    """The queues for producers: writable, and with a master."""
    read_queues: tuple[MessageQueue, ...]
    """The queues for consumers, in the same order at every member of a group."""
    auto_create: bool = False
    """The topic does not exist yet; this is where a broker would create it."""


def route_of(topic: str, data: TopicRouteData, *, auto_create: bool = False) -> TopicRoute:
    """Convert the answer of a nameserver to the queues of ``topic``.

    An ``orderTopicConf`` (``broker:queues;…``) names the write queues where there is one.

    :raises ClientError: the answer names more queues than anyone has.
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
    """Parse the brokers and numbers of queues in an ``orderTopicConf``; ignore other items."""
    items = (item.partition(":") for item in configuration.split(";"))
    return [(broker, int(count)) for broker, _, count in items if count.isdecimal() and len(count) <= _COUNT_DIGITS]


def check_queue_numbers(topic: str, data: TopicRouteData, ordered: Iterable[int] = ()) -> None:
    """Check the number of queues of a route before an object is made for each.

    :raises ClientError: there are impossibly many.
    """
    count = sum(ordered) + sum(
        max(queues.read_queue_nums, 0) + max(queues.write_queue_nums, 0) for queues in data.queue_datas
    )
    if count > 2 * MAX_ROUTE_QUEUES:
        raise ClientError(
            f"the nameserver's route of {topic} names {count} queues to read and write",
            next_step="look for a broker that registered impossible numbers of queues",
        )


def namesrv_addresses(text: str | None) -> tuple[str, ...]:
    """Parse ``host:port;host:port``; default ``$NAMESRV_ADDR``, else port 9876 of this host.

    :raises ValueError: one of them has no port, or there are only separators.
    """
    chosen = text or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    addresses = split_addresses(chosen)
    if not addresses:
        raise ValueError(f"no address of the form host:port in {chosen!r}")
    for address in addresses:
        parse_address(address)
    return addresses


class RouteTable:
    """The routes of one client.

    A stored route stays while nameservers or brokers are away.
    """

    def __init__(self, remoting: RemotingClient, namesrv: tuple[str, ...], clock: Clock) -> None:
        self.namesrv = namesrv
        self.on_change: list[Callable[[str], None]] = []
        """Called with a topic when its route has changed."""
        self.on_moved: list[Callable[[set[str]], None]] = []
        """Called with the new addresses of brokers that could not be reached at the old ones."""
        self._remoting = remoting
        self._clock = clock
        self._routes: dict[str, TopicRoute] = {}
        self._wanted: set[str] = set()
        self._asking: dict[tuple[str, int | None], SharedTask[TopicRoute]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._sticky = random.randrange(len(namesrv))
        self._sought: dict[str, float] = {}
        """Address → time when its brokers were last looked for, in monotonic seconds."""
        self._seeking = TaskSet()
        remoting.on_failure.append(self._unreachable)

    # --- stored routes ---

    def known(self, topic: str) -> TopicRoute | None:
        """The stored route, without a request."""
        return self._routes.get(topic)

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """brokerName → broker id → address, of all stored routes."""
        return self._brokers

    def can_write_to(self, broker_name: str) -> bool:
        """Tell whether a stored route has a writable queue of the broker."""
        return any(queue.broker_name == broker_name for route in self._routes.values() for queue in route.write_queues)

    def master(self, broker_name: str) -> str | None:
        """The address of the master with this broker name."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def readable(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address to read from: the broker with that id, else any with that name."""
        addresses = self._brokers.get(broker_name)
        if not addresses:
            return None
        return addresses.get(broker_id) or next(iter(addresses.values()))

    # --- requests ---

    async def get(self, topic: str) -> TopicRoute:
        """Return the route of a topic; ask for it if it is not stored.

        :raises RouteNotFoundError: the nameserver does not know the topic.
        :raises RemotingError: no nameserver answers.
        """
        self._wanted.add(topic)
        known = self._routes.get(topic)
        if known is not None and not known.auto_create:
            return known
        return await self._ask_once(topic)

    async def find_for_send(self, topic: str, queue_nums: int, deadline: float) -> TopicRoute:
        """As :meth:`get_for_send`, with the patience of :meth:`find`."""
        return await self.find(partial(self.get_for_send, topic, queue_nums), deadline)

    async def get_for_send(self, topic: str, queue_nums: int) -> TopicRoute:
        """As :meth:`get`; an unknown topic gets the queues that a broker will create for it (``TBW102``).

        :param queue_nums: queues that the producer will ask for (``defaultTopicQueueNums``).
        """
        self._wanted.add(topic)
        known = self._routes.get(topic)
        if known is not None:
            return known
        try:
            return await self._ask_once(topic)
        except RouteNotFoundError as unknown:
            try:
                return await self._ask_once(topic, queue_nums)
            except RouteNotFoundError:
                raise unknown from None

    async def get_soon(self, topic: str) -> TopicRoute:
        """As :meth:`get`, with the patience of :meth:`find`, for at most three seconds.

        :raises RouteNotFoundError: no nameserver knows the topic.
        :raises RemotingError: no nameserver answers.
        """
        return await self.find(partial(self.get, topic), self._clock.monotonic() + ROUTE_TIMEOUT_S)

    async def find(self, ask: Callable[[], Awaitable[TopicRoute]], deadline: float) -> TopicRoute:
        """Ask again and again for a route that may exist in a moment.

        A broker answers the message that creates a topic before the nameservers know the topic, so this method asks for
        an unknown topic for a second and a half. A nameserver that was just started knows no broker at all, or cannot
        be reached yet: then it asks until ``deadline``.

        :raises RouteNotFoundError: no nameserver knows the topic.
        :raises RemotingError: no nameserver answers.
        """
        pause_s = NEW_TOPIC_FIRST_PAUSE_S
        patient_until = self._clock.monotonic() + NEW_TOPIC_PATIENCE_S
        while True:
            try:
                return await ask()
            except (RouteNotFoundError, RemotingConnectError) as error:
                next_at = self._clock.monotonic() + pause_s
                is_lasting = next_at >= patient_until and isinstance(error, RouteNotFoundError)
                if next_at >= deadline or (is_lasting and await self._knows_brokers()):
                    raise
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, NEW_TOPIC_LAST_PAUSE_S)

    async def _knows_brokers(self) -> bool:
        """Tell whether an unknown topic does not exist: a nameserver has brokers, or does not answer."""
        try:
            answer = await self.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, None)
            return answer.code != ResponseCode.SUCCESS or bool(decode_body(ClusterInfo, answer.body).broker_addr_table)
        except CometMQError:
            return True

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask for a route even if it is stored."""
        return await self._ask_once(topic)

    async def refresh_all(self) -> None:
        """Ask again for every topic in use; after a failure the stored route stays.

        When no nameserver answers in time, the other topics wait for the next time.
        """
        await self._for_each(sorted(self._wanted), self._ask_once)

    async def _for_each(self, topics: list[str], ask: Callable[[str], Awaitable[object]]) -> None:
        for topic in topics:
            try:
                await ask(topic)
            except RemotingError:
                return
            except CometMQError:
                continue

    # --- brokers that cannot be reached ---

    def _unreachable(self, address: str) -> None:
        """Ask for the routes of an address that cannot be reached: its broker may be at another one."""
        now = self._clock.monotonic()
        if now - self._sought.get(address, -math.inf) < SEEK_S:
            return
        topics = [topic for topic, route in self._routes.items() if address in _addresses(route.data)]
        if topics:
            self._sought[address] = now
            self._seeking.start(self._seek(topics), f"looking for the broker at {address}")

    async def _seek(self, topics: list[str]) -> None:
        before = self.addresses
        await self._for_each(topics, self._look_for)
        if moved := self.addresses - before:
            for listener in self.on_moved:
                listener(moved)

    async def _look_for(self, topic: str) -> None:
        """Ask where the brokers of a topic are. One that is away keeps its queues until :meth:`refresh_all`.

        Most brokers that are away come back, to consumers that still read what they had.
        """
        route = await self._fetch(topic, None)
        known = self._routes.get(topic)
        if known is None or _names(known.data) <= _names(route.data):
            self._keep(route)
        else:
            self._note_addresses(route)

    @property
    def addresses(self) -> set[str]:
        """The addresses of all brokers of all stored routes."""
        return {address for broker in self._brokers.values() for address in broker.values()}

    def forget(self, topic: str) -> None:
        """Stop refreshing a topic, and forget its route."""
        self._wanted.discard(topic)
        self._routes.pop(topic, None)

    async def ask_namesrv(
        self, code: int, header: Header | None, *, timeout_s: float = ROUTE_TIMEOUT_S
    ) -> RemotingCommand:
        """Ask the nameserver that answered last, then the others in turn; ``timeout_s`` is for all together.

        :raises RemotingError: none of them answers.
        """
        deadline = self._clock.monotonic() + timeout_s
        failure: RemotingError | None = None
        for attempt in range(len(self.namesrv)):
            address = self.namesrv[self._sticky]
            left = max(0.0, deadline - self._clock.monotonic()) / (len(self.namesrv) - attempt)
            try:
                return await self._remoting.invoke(address, code, header, timeout_s=left)
            except RemotingError as error:
                failure = error
                self._sticky = (self._sticky + 1) % len(self.namesrv)
        assert failure is not None
        raise failure

    async def _ask_once(self, topic: str, queue_nums: int | None = None) -> TopicRoute:
        key = (topic, queue_nums)
        shared = self._asking.get(key)
        if shared is None:
            shared = self._asking[key] = SharedTask(self._ask(topic, queue_nums))
            shared.task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await shared.wait()

    async def _ask(self, topic: str, queue_nums: int | None) -> TopicRoute:
        """Ask for a topic or, with ``queue_nums``, for the brokers that would create it with that number of queues."""
        return self._keep(await self._fetch(topic, queue_nums))

    async def _fetch(self, topic: str, queue_nums: int | None) -> TopicRoute:
        asked = topic if queue_nums is None else AUTO_CREATE_TOPIC
        header = GetRouteInfoRequestHeader(topic=asked)
        answer = await self.ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        address = self.namesrv[self._sticky]
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            answer = await self._ask_others(header, answer)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFoundError(topic, f"{';'.join(self.namesrv)} does not know it")
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(address, answer.code, answer.remark, f"asking for the route of {topic}")
        data = decode_body(TopicRouteData, answer.body)
        if queue_nums is not None:
            for queues in data.queue_datas:
                queues.read_queue_nums = queues.write_queue_nums = min(queue_nums, queues.write_queue_nums)
        return route_of(topic, data, auto_create=queue_nums is not None)

    async def _ask_others(self, header: GetRouteInfoRequestHeader, answer: RemotingCommand) -> RemotingCommand:
        """Ask the other nameservers for a topic that the first one does not know: it may have just been started."""
        first = self._sticky
        for step in range(1, len(self.namesrv)):
            address = self.namesrv[(first + step) % len(self.namesrv)]
            try:
                other = await self._remoting.invoke(
                    address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=OTHER_NAMESRV_TIMEOUT_S
                )
            except RemotingError:
                continue
            if other.code == ResponseCode.SUCCESS:
                return other
        return answer

    def _note_addresses(self, route: TopicRoute) -> None:
        for broker in route.data.broker_datas:
            self._brokers[broker.broker_name] = dict(broker.broker_addrs)

    def _keep(self, route: TopicRoute) -> TopicRoute:
        self._note_addresses(route)
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


def queue_or_fail(route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the write queues.

    :raises MasterNotFoundError: none of its writable brokers has a master now; one may be back in a moment.
    :raises ClientStateError: the topic, or each of its brokers, is not writable.
    """
    if not route.write_queues:
        if any(queues.perm & PERM_WRITE for queues in route.data.queue_datas):
            raise MasterNotFoundError(route.topic, "none of its brokers has a master now")
        raise ClientStateError(
            f"topic {route.topic} has no queue that can be written now",
            next_step="check its write permission and that of its brokers",
        )
    return route.write_queues
