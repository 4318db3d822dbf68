"""Administers clusters, brokers and topics, and sends all administration requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Self, TypeVar

from cometmq.client.errors import BrokerError, ClientError, RemotingError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.client.own_loop import OwnLoop
from cometmq.client.own_process import refuse_copies
from cometmq.client.use import Use
from cometmq.errors import CometMQError
from cometmq.message.names import AUTO_CREATE_TOPIC, MASTER_ID, MESSAGE_TYPE, check_topic
from cometmq.properties_file import format_pairs, parse_properties
from cometmq.remoting.admin_bodies import BrokerStatsData, GroupList, HARuntimeInfo, TopicStatsTable
from cometmq.remoting.admin_headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from cometmq.remoting.bodies import (
    ClusterInfo,
    KVTable,
    MessageQueue,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    decode_body,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import Header
from cometmq.remoting.security import Security

T = TypeVar("T")

TIMEOUT_S: Final = 5.0

ROUTES_AT_ONCE: Final = 500
"""Number of routes that are requested together."""

_COMETMQ_KEY: Final = "logLevel"
"""A configuration key that only CometMQ servers report."""


def read_configuration(body: bytes) -> dict[str, str]:
    """Parse a broker's or nameserver's configuration.

    CometMQ escapes values for ``java.util.Properties``. Apache does not escape them: a backslash is a backslash.
    """
    text = body.decode("utf-8", "replace")
    found = {key: value for _, key, value in parse_properties(text)}
    if _COMETMQ_KEY in found:
        return found
    pairs = (line.partition("=") for line in text.split("\n") if "=" in line)
    return {key: value for key, _, value in pairs}


class TopicAdmin(OwnLoop):
    """Administers clusters, brokers and topics, and sends all administration requests."""

    __reduce_ex__ = refuse_copies

    instance: ClientInstance

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        instance: ClientInstance | None = None,
        timeout_s: float = TIMEOUT_S,
        security: Security | None = None,
    ) -> None:
        self.instance = ClientInstance.given_or_new(instance, namesrv, security)
        self._use = Use(self, self.instance, type(self).__name__, owns=instance is None)
        self.offsets = Offsets(self.instance, timeout_s)
        self._timeout_s = timeout_s
        self.unanswered: dict[str, RemotingError] | None = None
        """Errors of unresponsive brokers by address, or ``None`` to raise the first error.

        If this is a dict, lists and sums over several brokers skip these brokers and add their errors to it. If it is
        ``None``, the first failure is raised.
        """

    async def __aenter__(self) -> Self:
        self._use.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._use.end()

    # --- clusters and brokers ---

    async def cluster_info(self, namesrv_address: str | None = None) -> ClusterInfo:
        """Return all clusters and brokers that a nameserver knows.

        :param namesrv_address: the nameserver to ask; by default the nameserver that answered last.
        """
        code, doing = RequestCode.GET_BROKER_CLUSTER_INFO, "requesting the cluster information"
        if namesrv_address is not None:
            return await self._ask(ClusterInfo, namesrv_address, code, None, doing)
        return await self._ask_namesrv(ClusterInfo, code, doing)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Return each master's address by broker name, for one cluster or for all clusters."""
        info = await self.cluster_info()
        return {
            name: broker.broker_addrs[MASTER_ID]
            for name, broker in sorted(info.broker_addr_table.items())
            if MASTER_ID in broker.broker_addrs and cluster in (None, broker.cluster)
        }

    async def runtime_info(self, broker_address: str) -> dict[str, str]:
        """Return a broker's runtime information, with the keys reported by Apache's brokers and CometMQ's own keys."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (await self._ask(KVTable, broker_address, code, None, "requesting the runtime information")).table

    async def broker_config(self, broker_address: str) -> dict[str, str]:
        """Return a broker's configuration by ``broker.conf`` key."""
        code = RequestCode.GET_BROKER_CONFIG
        text = await self._call(broker_address, code, doing="requesting the configuration")
        return read_configuration(text)

    async def update_broker_config(self, broker_address: str, values: Mapping[str, str]) -> str:
        """Change keys in a running broker's ``broker.conf``, all or none; return the broker's remark.

        :raises BrokerError: a key cannot be changed while the broker runs, or a value is not allowed.
        """
        return await self._update_config(RequestCode.UPDATE_BROKER_CONFIG, broker_address, values)

    async def namesrv_config(self, namesrv_address: str) -> dict[str, str]:
        """Return a nameserver's configuration by ``namesrv.conf`` key."""
        code = RequestCode.GET_NAMESRV_CONFIG
        text = await self._call(namesrv_address, code, doing="requesting the configuration")
        return read_configuration(text)

    async def update_namesrv_config(self, namesrv_address: str, values: Mapping[str, str]) -> str:
        """Change keys in a running nameserver's ``namesrv.conf``, all or none; return the nameserver's remark.

        :raises BrokerError: a key cannot be changed while the nameserver runs, or a value is not allowed.
        """
        return await self._update_config(RequestCode.UPDATE_NAMESRV_CONFIG, namesrv_address, values)

    async def _update_config(self, code: RequestCode, address: str, values: Mapping[str, str]) -> str:
        doing, body = "changing the configuration", format_pairs(values).encode()
        answer = await self.instance.call(address, code, None, body, doing=doing, timeout_s=self._timeout_s)
        return answer.remark or ""

    async def wipe_write_perm(self, namesrv_address: str, broker: str) -> None:
        """Remove the write permission from a broker's routes on one nameserver.

        It lasts until the broker registers a change.
        """
        header, code = WipeWritePermOfBrokerRequestHeader(broker), RequestCode.WIPE_WRITE_PERM_OF_BROKER
        await self._call(namesrv_address, code, header, doing=f"removing the write permission from {broker}")

    async def ha_status(self, broker_address: str) -> HARuntimeInfo:
        """Return the replication progress of the slaves of a CometMQ or RocketMQ 5 master."""
        code = RequestCode.GET_BROKER_HA_STATUS
        return await self._ask(HARuntimeInfo, broker_address, code, None, "requesting the slaves")

    # --- routes ---

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return a topic's brokers and queues.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        return (await self.instance.routes.refresh(topic)).data

    async def topic_routes(
        self, topics: Sequence[str], advance: Callable[[int], None] | None = None
    ) -> dict[str, TopicRouteData]:
        """Return the routes of many topics, without those that no nameserver knows.

        :param advance: called with the number of topics after each step of :data:`ROUTES_AT_ONCE`.
        """
        found: dict[str, TopicRouteData] = {}
        for first in range(0, len(topics), ROUTES_AT_ONCE):
            some = topics[first : first + ROUTES_AT_ONCE]
            routes = await self.instance.routes.data_of(some)
            found |= {topic: data for topic, data in zip(some, routes, strict=True) if data is not None}
            if advance is not None:
                advance(len(some))
        return found

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return a topic's readable queues, sorted.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        return (await self.instance.routes.refresh(topic)).read_queues

    async def _brokers_of(self, topic: str) -> dict[str, str]:
        """Return the address of each broker with a topic, by broker name: the master's or else a slave's."""
        return {
            broker.broker_name: broker.broker_addrs.get(MASTER_ID) or next(iter(broker.broker_addrs.values()))
            for broker in (await self.topic_route(topic)).broker_datas
            if broker.broker_addrs
        }

    async def _targets(self, cluster: str | None = None, broker_address: str | None = None) -> Collection[str]:
        """Return the given broker, the masters of the cluster, or all masters.

        :raises ClientError: the nameserver knows no such master.
        """
        if broker_address is not None:
            return (broker_address,)
        masters = await self.masters(cluster)
        if not masters:
            raise ClientError(
                "the nameserver knows no brokers"
                if cluster is None
                else f"the nameserver knows no master of cluster {cluster}",
                next_step="start a broker that registers with this nameserver, or check the names",
            )
        return list(masters.values())

    # --- topics ---

    async def topics(self) -> list[str]:
        """Return the sorted names of all topics known to the nameserver, including retry and dead-letter topics."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return sorted((await self._ask_namesrv(TopicList, code, "requesting the topics")).topic_list)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        perm: int = 6,
        order: bool = False,
        message_type: str | None = None,
        cluster: str | None = None,
        broker_address: str | None = None,
        wait_s: float = TIMEOUT_S,
    ) -> None:
        """Create or update a topic on one broker, on the masters of a cluster, or on all masters.

        :param queues: number of read queues, and of write queues unless ``write_queues`` is given.
        :param perm: 6 read and write, 4 read, 2 write.
        :param message_type: the type of its messages for RocketMQ 5 clients: ``NORMAL`` (the default of a new topic),
            ``FIFO``, ``DELAY``, ``TRANSACTION``, ``PRIORITY`` or ``MIXED``.
        :param wait_s: seconds to wait until the nameserver has a route to all brokers; 0 does not wait.
        :raises ValueError: the name is not allowed.
        :raises ClientError: the nameserver knows no master.
        """
        wrong = check_topic(topic)
        if wrong is not None:
            raise ValueError(wrong)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
            order=order,
        )
        addresses = await self._targets(cluster, broker_address)
        change = "" if message_type is None else f"+{MESSAGE_TYPE}={message_type}"
        for address in addresses:
            await self.put_topic(config, address, attribute_change=change)
        await self.until_routed(topic, addresses, wait_s)

    async def put_topic(self, config: TopicConfig, broker_address: str, *, attribute_change: str = "") -> None:
        """Create or replace a topic's complete configuration on one broker.

        :param attribute_change: ``+name=value`` and ``-name``, comma-separated; other attributes remain.
        """
        header = CreateTopicRequestHeader(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            order=config.order,
            topic_sys_flag=config.topic_sys_flag,
            attributes=attribute_change or None,
        )
        doing = f"creating topic {config.topic_name}"
        await self._call(broker_address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, doing=doing)

    async def until_routed(self, topic: str, addresses: Collection[str], wait_s: float = TIMEOUT_S) -> None:
        """Wait up to ``wait_s`` seconds until the nameserver has routes to the topic on all given brokers."""
        wanted = set(addresses)
        clock = self.instance.clock
        deadline = clock.monotonic() + wait_s
        while clock.monotonic() < deadline:
            try:
                route = await self.topic_route(topic)
            except RouteNotFoundError:
                route = None
            if route is not None:
                known = {address for broker in route.broker_datas for address in broker.broker_addrs.values()}
                if wanted <= known:
                    return
            await clock.sleep(0.05)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages on all masters, and its routes on all nameservers."""
        doing = f"deleting topic {topic}"
        for address in await self._targets(cluster):
            await self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic), doing=doing)
        for address in self.instance.routes.namesrv:
            header = DeleteTopicFromNamesrvRequestHeader(topic)
            await self._call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header, doing=doing)
        self.instance.routes.forget(topic)

    async def topic_configs(self, broker_address: str) -> dict[str, TopicConfig]:
        """Return a broker's topic configurations by topic name."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        kind = TopicConfigSerializeWrapper
        return (await self._ask(kind, broker_address, code, None, "requesting the topics")).topic_config_table

    async def topic_types(self, topic: str) -> dict[str, str]:
        """Return the type of a topic's messages by broker name, without brokers that have no types (RocketMQ 4)."""
        found = await self.topic_attributes(topic)
        return {name: attributes.get(MESSAGE_TYPE, "NORMAL") for name, attributes in found.items()}

    async def topic_attributes(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's attributes by broker name, without brokers that have no attributes (RocketMQ 4)."""
        header, code = GetTopicConfigRequestHeader(topic), RequestCode.GET_TOPIC_CONFIG
        found: dict[str, dict[str, str]] = {}
        for name, address in (await self._brokers_of(topic)).items():
            with self._noting_unanswered(), suppress(BrokerError):
                config = await self._ask(TopicConfig, address, code, header, f"requesting the settings of {topic}")
                found[name] = dict(config.attributes or {})
        return found

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Return each queue's first and last offset and the time of its last message."""
        merged = TopicStatsTable(offset_table={})
        for address in (await self._brokers_of(topic)).values():
            with self._noting_unanswered():
                merged.offset_table.update((await self.topic_stats_of(topic, address)).offset_table)
        return merged

    async def topic_stats_of(self, topic: str, broker_address: str) -> TopicStatsTable:
        """Return the statistics of :meth:`topic_stats` for the queues on one broker."""
        header, doing = GetTopicStatsInfoRequestHeader(topic), f"requesting the statistics of {topic}"
        return await self._ask(TopicStatsTable, broker_address, RequestCode.GET_TOPIC_STATS_INFO, header, doing)

    async def rate(self, name: str, key: str) -> float | None:
        """Return a statistic as a rate per second over the last minute, or ``None`` if no broker counts it.

        :param name: ``TOPIC_PUT_NUMS`` with a topic as key, ``GROUP_GET_NUMS`` with ``topic@group``.
        """
        found: list[float] = []
        header, code = ViewBrokerStatsDataRequestHeader(name, key), RequestCode.VIEW_BROKER_STATS_DATA
        for address in await self._targets():
            with self._noting_unanswered(), suppress(BrokerError):  # a broker that has no count yet refuses the request
                data = await self._ask(BrokerStatsData, address, code, header, f"requesting {name} of {key}")
                found.append(data.stats_minute.tps)
        return sum(found) if found else None

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the consumer groups that have committed offsets in a topic, sorted by name."""
        found: set[str] = set()
        header, doing = QueryTopicConsumeByWhoRequestHeader(topic), f"requesting the groups that consume {topic}"
        for address in (await self._brokers_of(topic)).values():
            listed = await self._ask(GroupList, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, doing)
            found.update(listed.group_list)
        return sorted(found)

    # --- requests ---

    async def _call(
        self, address: str, code: int, header: Header | None = None, body: bytes = b"", *, doing: str
    ) -> bytes:
        """Send a request to a server and return the response body."""
        answer = await self.instance.call(address, code, header, body, doing=doing, timeout_s=self._timeout_s)
        return answer.body

    @contextmanager
    def _noting_unanswered(self) -> Iterator[None]:
        """In the ``with`` block, await a request to one of several brokers; add a failure to ``unanswered``, if set."""
        try:
            yield
        except RemotingError as error:
            if self.unanswered is None:
                raise
            self.unanswered[error.address] = error

    async def _ask(self, kind: type[T], address: str, code: int, header: Header | None, doing: str) -> T:
        """Send a request like :meth:`_call`, and decode the response body."""
        return decode_body(kind, await self._call(address, code, header, doing=doing))

    async def _ask_first(self, kind: type[T], broker_address: str | None, code: int, header: Header, doing: str) -> T:
        """Send a request to brokers one after the other, until one does not reject it, and return its response."""
        failure: CometMQError | None = None
        for address in await self._targets(None, broker_address):
            try:
                return await self._ask(kind, address, code, header, doing)
            except BrokerError as error:
                failure = error
            except RemotingError as error:
                if self.unanswered is None:
                    raise
                self.unanswered[address] = error
                failure = failure or error
        assert failure is not None
        raise failure

    async def _ask_namesrv(self, kind: type[T], code: int, doing: str) -> T:
        routes = self.instance.routes
        answer = await routes.ask_namesrv(code, None, timeout_s=self._timeout_s)
        return decode_body(kind, self.instance.expect(answer, routes.namesrv[0], doing).body)
