"""Brokers on other machines, CometMQ's or Apache's, found through nameservers (``proxyMode=CLUSTER``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from cometmq.client.errors import ClientError, RouteNotFoundError
from cometmq.client.popping.first_waits import FirstWaits
from cometmq.client.route.table import RouteTable
from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.message.message import split_records
from cometmq.message.names import MASTER_ID
from cometmq.message.properties import PGROUP
from cometmq.message.record import RecordError
from cometmq.periodic import Periodic
from cometmq.proxy.backend.backend import (
    ASK_SECONDS,
    MIXED,
    NORMAL,
    Acknowledged,
    AnyPop,
    BrokerQueues,
    BrokerRequest,
    CallsPeer,
    CallsSession,
    ClientIdentity,
    GroupInfo,
    Link,
    Popped,
    PoppedHandle,
    RenewedHandles,
    Reply,
    TopicInfo,
    heartbeat_body,
    message_type_of,
    no_route,
    pop_code,
)
from cometmq.proxy.errors import BrokerAwayError, ProxyError
from cometmq.proxy.limits import HEARTBEAT_BROKER_SECONDS, MAX_FLEET_TOPICS, TOPIC_CACHE_SECONDS
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from cometmq.remoting.bodies import (
    BodyError,
    ClusterInfo,
    HeartbeatData,
    SubscriptionGroupConfig,
    TopicConfig,
    decode_body,
)
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.connections.client_connection import ClientConnection
from cometmq.remoting.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from cometmq.remoting.headers import CheckTransactionStateRequestHeader, Header, UnregisterClientRequestHeader
from cometmq.remoting.lite.headers import NotifyUnsubscribeLiteRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.security import Security

_log = logging.getLogger(__name__)

Info = TypeVar("Info", TopicInfo, GroupInfo)

AWAY_SECONDS: Final = 1.0
"""Seconds after which a receive fails because its broker is away or stops. Most clients receive again at once."""
_MAX_IN_FLIGHT: Final = 65_536
"""Maximum number of pending requests on a connection, which is shared by all waiting consumers."""


class FleetLink:
    """The connections over which one client's requests reach the brokers.

    Each client has its own connections for heartbeats, as a remoting client has, because brokers identify group members
    by their connections. Requests use connections that all clients share.
    """

    def __init__(self, fleet: FleetBackend, client_id: str, on_request: Callable[[BrokerRequest], None]) -> None:
        self._fleet = fleet
        self.client_id: Final = client_id
        self.on_request: Final = on_request
        self.heartbeat: HeartbeatData | None = None
        self._remoting: RemotingClient | None = None
        self._waits: FirstWaits[tuple[str, str, str]] = FirstWaits()
        """The waits at each broker, by topic and group."""
        self._heartbeats = Periodic(
            "sending a client's heartbeat", HEARTBEAT_BROKER_SECONDS, self._send_heartbeat, clock=fleet.clock
        )

    async def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = ASK_SECONDS
    ) -> Reply:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        return await self._fleet.ask(broker, code, header, body, timeout_s=timeout_s)

    def pop(self, broker: str, header: AnyPop, done: Popped) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        asked = asyncio.ensure_future(self._pop(broker, header))
        asked.add_done_callback(lambda _: None if asked.cancelled() else done(asked.exception() or asked.result()))

    async def _pop(self, broker: str, header: AnyPop) -> Reply:
        """Pop messages, with a short wait before the long one if it is the first wait after a message."""
        clock = self._fleet.clock
        ends = clock.monotonic() + header.poll_time / 1000
        first_ms = self._waits.limit_ms((broker, header.topic, header.consumer_group), header.poll_time)
        reply = await self._pop_once(broker, header, first_ms)
        left_ms = round((ends - clock.monotonic()) * 1000)
        if reply.code != ResponseCode.POLLING_TIMEOUT or first_ms == header.poll_time or left_ms <= 0:
            return reply
        return await self._pop_once(broker, msgspec.structs.replace(header, born_time=clock.now_ms()), left_ms)

    async def _pop_once(self, broker: str, header: AnyPop, poll_ms: int) -> Reply:
        header = msgspec.structs.replace(header, poll_time=poll_ms)
        pause_s = min(AWAY_SECONDS, poll_ms / 1000)
        try:
            reply = await self.ask(broker, pop_code(header), header, timeout_s=poll_ms / 1000 + ASK_SECONDS)
        except BrokerAwayError:
            await self._fleet.clock.sleep(pause_s)
            raise
        if reply.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            await self._fleet.clock.sleep(pause_s)
        place = broker, header.topic, header.consumer_group
        if not reply.code:
            self._waits.found(place)
        elif reply.code == ResponseCode.POLLING_TIMEOUT and poll_ms > 0:
            self._waits.ended(place)
        return reply

    def acknowledge(self, handles: Sequence[PoppedHandle], _done: Acknowledged) -> Sequence[int]:
        """See :class:`~cometmq.proxy.backend.backend.Link`; each message needs a request."""
        return range(len(handles))

    async def register(self, data: HeartbeatData) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        self.heartbeat = data
        self._fleet.links.add(self)
        topics = {producer.group_name for producer in data.producer_data_set}
        topics |= {entry.topic for consumer in data.consumer_data_set for entry in consumer.subscription_data_set}
        for topic in topics:
            try:
                await self._fleet.topic(topic)
            except ProxyError as error:
                _log.debug("no brokers for topic %s yet: %s", topic, error)
        self._heartbeats.start()
        await self._send_heartbeat()

    async def _send_heartbeat(self) -> None:
        if self.heartbeat is not None:
            if self._remoting is None:
                self._remoting = self._fleet.new_client()
            body = heartbeat_body(self.heartbeat)
            await self._fleet.ask_all(self._remoting, RequestCode.HEART_BEAT, None, body)

    async def close(self, data: HeartbeatData | None) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        self.heartbeat = None
        self._fleet.links.discard(self)
        await self._heartbeats.stop(cancels=True)
        if data is None or self._remoting is None:
            return
        for producer in data.producer_data_set:
            header = UnregisterClientRequestHeader(client_id=self.client_id, producer_group=producer.group_name)
            await self._fleet.ask_all(self._remoting, RequestCode.UNREGISTER_CLIENT, header)
        for consumer in data.consumer_data_set:
            header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=consumer.group_name)
            await self._fleet.ask_all(self._remoting, RequestCode.UNREGISTER_CLIENT, header)
        await self._remoting.close()


class FleetBackend:
    """The brokers known to the given nameservers.

    :param security: TLS settings, and the account that signs the endpoint's requests to brokers.
    """

    def __init__(self, namesrv: tuple[str, ...], *, security: Security, clock: Clock) -> None:
        processors = ProcessorTable()
        processors.register(
            RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader, self._check_transaction
        )
        processors.register(
            RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, self._pass_to_client
        )
        processors.register(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader, self._pass_to_client
        )
        processors.register(
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE, NotifyUnsubscribeLiteRequestHeader, self._pass_to_client
        )
        self.clock: Final = clock
        self.links: Final[set[FleetLink]] = set()
        self._processors = processors
        self._security = security
        self._remoting = self.new_client()
        self._routes = RouteTable(self._remoting, namesrv, clock)
        self._masters: dict[str, str] = {}
        self._topics: dict[str, tuple[float, TopicInfo]] = {}
        self._groups: dict[str, tuple[float, GroupInfo]] = {}

    def new_client(self) -> RemotingClient:
        """Return new connections, over which brokers can also send requests to clients."""
        return RemotingClient(
            processors=self._processors, security=self._security, clock=self.clock, max_in_flight=_MAX_IN_FLIGHT
        )

    # --- requests -------------------------------------------------------------------------------
    async def ask(
        self,
        broker: str,
        code: int,
        header: Header | None,
        body: bytes = b"",
        *,
        timeout_s: float = ASK_SECONDS,
        remoting: RemotingClient | None = None,
    ) -> Reply:
        """Send a request to the master with the given broker name.

        :param remoting: the connections to use; by default the connections that all clients share.
        :raises BrokerAwayError: the broker is unknown, or cannot be reached.
        :raises ProxyError: the broker does not answer in time.
        """
        address = self._routes.brokers.master(broker) or self._masters.get(broker)
        if address is None:
            await self._find_brokers()
            address = self._masters.get(broker)
        if address is None:
            raise BrokerAwayError(f"the broker[{broker}] not exist")
        try:
            answer = await (remoting or self._remoting).invoke(address, code, header, body, timeout_s=timeout_s)
        except RemotingTimeoutError as error:
            raise ProxyError(Code.PROXY_TIMEOUT, error.message) from error
        except RemotingConnectError as error:
            raise BrokerAwayError(error.message) from error
        except RemotingError as error:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, error.message) from error
        return Reply(answer.code, answer.remark, answer.ext_fields, answer.body)

    async def ask_all(self, remoting: RemotingClient, code: int, header: Header | None, body: bytes = b"") -> None:
        """Send a request to all known masters; failures are logged."""
        names = list(self._routes.brokers)
        for result in await asyncio.gather(
            *(self.ask(name, code, header, body, remoting=remoting) for name in names), return_exceptions=True
        ):
            if isinstance(result, ProxyError):
                _log.info("cannot send a client's heartbeat to a broker: %s", result)

    async def _find_brokers(self) -> None:
        try:
            answer = await self._routes.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, None)
            table = decode_body(ClusterInfo, answer.body).broker_addr_table
        except (RemotingError, BodyError) as error:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, error.message) from error
        self._masters = {
            name: data.broker_addrs[MASTER_ID] for name, data in table.items() if MASTER_ID in data.broker_addrs
        }

    # --- topics and groups ----------------------------------------------------------------------
    def accept_calls(self, peer: CallsPeer, session: CallsSession, topic: TopicInfo, counter: list[int]) -> None:
        """Do nothing, because the messages are stored in other processes."""

    def accept_acks(self, peer: CallsPeer, session: CallsSession, renewed: RenewedHandles) -> None:
        """Do nothing, because the messages are acknowledged in other processes."""

    async def topic(self, name: str) -> TopicInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`; results are cached for some seconds."""
        current = self.known_topic(name)
        if current is not None:
            return current
        known = self._topics.get(name)
        now = self.clock.monotonic()
        try:
            route = await self._routes.refresh(name)
        except RouteNotFoundError:
            self._topics.pop(name, None)
            raise no_route(name) from None
        except (ClientError, RemotingError) as error:
            if known is not None:
                return known[1]
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, error.message) from error
        queues = tuple(
            BrokerQueues(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
            for data in sorted(route.data.queue_datas, key=lambda data: data.broker_name)
        )
        info = TopicInfo(name, queues, await self._message_type(name, queues))
        if len(self._topics) >= MAX_FLEET_TOPICS:
            self._topics.clear()
        self._topics[name] = (now, info)
        return info

    def known_topic(self, name: str) -> TopicInfo | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return _current(self._topics.get(name), self.clock)

    async def _message_type(self, name: str, queues: tuple[BrokerQueues, ...]) -> str:
        """Return a topic's message type. Brokers before 5.0 have no message types and accept all messages."""
        for broker in (broker_queues.broker for broker_queues in queues):
            header = GetTopicConfigRequestHeader(topic=name)
            try:
                reply = await self.ask(broker, RequestCode.GET_TOPIC_CONFIG, header)
                if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return MIXED
                if not reply.code:
                    return message_type_of(decode_body(TopicConfig, bytes(reply.body)))
            except (ProxyError, CometMQError) as error:
                _log.info("cannot read the message type of a topic from broker %s (topic %s): %s", broker, name, error)
        return NORMAL

    async def group(self, name: str) -> GroupInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`; results are cached for some seconds."""
        current = self.known_group(name)
        if current is not None:
            return current
        known = self._groups.get(name)
        now = self.clock.monotonic()
        info = GroupInfo() if known is None else known[1]
        if not self._routes.brokers:
            await self._find_brokers()
        for broker in self._routes.brokers or self._masters:
            header = GetSubscriptionGroupConfigRequestHeader(group=name)
            try:
                reply = await self.ask(broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
                if not reply.code:
                    info = GroupInfo.of(decode_body(SubscriptionGroupConfig, bytes(reply.body)))
                    break
            except (ProxyError, CometMQError) as error:
                _log.info("cannot read a group's configuration from broker %s (group %s): %s", broker, name, error)
        if len(self._groups) >= MAX_FLEET_TOPICS:
            self._groups.clear()
        self._groups[name] = (now, info)
        return info

    def known_group(self, name: str) -> GroupInfo | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return _current(self._groups.get(name), self.clock)

    def advertised_host(self, access_host: str) -> str | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`: clients keep the address that they connected to."""
        return None

    def connect(self, client: ClientIdentity, on_request: Callable[[BrokerRequest], None]) -> Link:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return FleetLink(self, client.client_id, on_request)

    # --- requests of brokers ----------------------------------------------------------------------
    def _check_transaction(
        self, connection: ClientConnection, request: Request[CheckTransactionStateRequestHeader], body: bytes
    ) -> None:
        """Pass a transaction check on to a producer in the group."""
        try:
            (message,) = split_records(body)
        except (RecordError, ValueError) as error:
            _log.warning("cannot read a transaction check from %s: %s", connection.address, error)
            return
        group = message.properties.get(PGROUP, "")
        addresses = {address: name for name, address in self._masters.items()}
        addresses |= {
            brokers[MASTER_ID]: name for name, brokers in self._routes.brokers.items() if MASTER_ID in brokers
        }
        broker = addresses.get(connection.address, "")
        for link in self.links:
            data = link.heartbeat
            if data is not None and any(producer.group_name == group for producer in data.producer_data_set):
                link.on_request(BrokerRequest(broker, request.code, request.header, body, _drop_response))
                return

    def _pass_to_client(
        self,
        connection: ClientConnection,
        request: Request[GetConsumerRunningInfoRequestHeader]
        | Request[ConsumeMessageDirectlyResultRequestHeader]
        | Request[NotifyUnsubscribeLiteRequestHeader],
        body: bytes,
    ) -> Response | None:
        """Pass a request of a broker or of an administrator on to its target client."""
        client_id, broker = request.header.client_id, getattr(request.header, "broker_name", None)
        link = next((link for link in self.links if link.client_id == client_id), None)
        if link is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the client {client_id} is not connected here")
        respond = partial(connection.respond, request)
        link.on_request(BrokerRequest(broker or "", request.code, request.header, body, respond))
        return None

    async def start(self) -> None:
        """Find the brokers; nameservers that do not respond are asked again later."""
        try:
            await self._find_brokers()
        except ProxyError as error:
            _log.warning("no brokers are known yet: %s", error)

    async def stop(self) -> None:
        """Close all connections."""
        await self._remoting.close()


def _current(known: tuple[float, Info] | None, clock: Clock) -> Info | None:
    """Return a cached configuration, unless it is too old."""
    return known[1] if known is not None and clock.monotonic() - known[0] < TOPIC_CACHE_SECONDS else None


def _drop_response(_response: Response) -> None:
    """Discard the response to a oneway request."""
