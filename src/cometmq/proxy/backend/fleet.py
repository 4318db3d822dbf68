"""Brokers on other machines, CometMQ's or Apache's, found by their nameservers (``proxyMode=CLUSTER``)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from cometmq.client.errors import ClientError, RouteNotFoundError
from cometmq.client.route import RouteTable
from cometmq.clock import Clock, TimerHandle
from cometmq.errors import CometMQError
from cometmq.loop import TaskSet
from cometmq.message.message import split_records
from cometmq.message.names import MASTER_ID
from cometmq.message.properties import PGROUP
from cometmq.message.record import RecordError
from cometmq.proxy.backend.backend import (
    ASK_SECONDS,
    Asked,
    BrokerQueues,
    GroupInfo,
    Link,
    Reply,
    TopicInfo,
    heartbeat_body,
)
from cometmq.proxy.backend.topics import MIXED, NORMAL, GroupBody, group_info, message_type_of, no_route
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.limits import HEARTBEAT_BROKER_SECONDS, MAX_FLEET_TOPICS, TOPIC_LOOK_SECONDS
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.admin_headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from cometmq.remoting.bodies import BodyError, ClusterInfo, HeartbeatData, TopicConfig, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.client_connection import ClientConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import RemotingError, RemotingTimeoutError
from cometmq.remoting.headers import CheckTransactionStateRequestHeader, Header, UnregisterClientRequestHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.security import Security

_log = logging.getLogger(__name__)

_MAX_IN_FLIGHT: Final = 65_536
"""Requests of one connection that wait for answers: all consumers that wait for messages share it."""


class FleetLink:
    """The way of one client to the brokers.

    Heartbeats have connections of their own, as those of a remoting client: brokers know a member of a group by its
    connection. Requests go over connections that all clients share.
    """

    def __init__(self, fleet: FleetBackend, client_id: str, asked: Asked) -> None:
        self._fleet = fleet
        self.client_id = client_id
        self.asked: Final = asked
        self.data: HeartbeatData | None = None
        self._remoting: RemotingClient | None = None
        self._renewal: TimerHandle | None = None

    async def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = ASK_SECONDS
    ) -> Reply:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        return await self._fleet.ask(broker, code, header, body, timeout_s=timeout_s)

    async def register(self, data: HeartbeatData) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        self.data = data
        self._fleet.links.add(self)
        topics = {found.group_name for found in data.producer_data_set}
        topics |= {found.topic for consumer in data.consumer_data_set for found in consumer.subscription_data_set}
        for topic in topics:
            try:
                await self._fleet.topic(topic)
            except ProxyError as error:
                _log.debug("no brokers of %s yet: %s", topic, error)
        await self._beat()

    async def _beat(self) -> None:
        if self.data is not None:
            if self._remoting is None:
                self._remoting = self._fleet.new_client()
            if self._renewal is not None:
                self._renewal.cancel()
            self._renewal = self._fleet.clock.call_later(HEARTBEAT_BROKER_SECONDS, self._beat_soon)
            await self._fleet.tell_all(self._remoting, RequestCode.HEART_BEAT, None, heartbeat_body(self.data))

    def _beat_soon(self) -> None:
        self._fleet.work.start(self._beat(), "tell brokers of a client")

    async def close(self, data: HeartbeatData | None) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        self.data = None
        self._fleet.links.discard(self)
        if self._renewal is not None:
            self._renewal.cancel()
        if data is None or self._remoting is None:
            return
        for producer in data.producer_data_set:
            header = UnregisterClientRequestHeader(client_id=self.client_id, producer_group=producer.group_name)
            await self._fleet.tell_all(self._remoting, RequestCode.UNREGISTER_CLIENT, header)
        for consumer in data.consumer_data_set:
            header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=consumer.group_name)
            await self._fleet.tell_all(self._remoting, RequestCode.UNREGISTER_CLIENT, header)
        await self._remoting.close()


class FleetBackend:
    """All brokers that some nameservers know.

    :param security: the account of the endpoint at brokers, and TLS.
    """

    def __init__(self, namesrv: tuple[str, ...], *, security: Security, clock: Clock) -> None:
        processors = ProcessorTable()
        processors.register(
            RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionStateRequestHeader, self._check_transaction
        )
        processors.register(
            RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequestHeader, self._ask_client
        )
        processors.register(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader, self._ask_client
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
        self.work: Final = TaskSet()

    def new_client(self) -> RemotingClient:
        """Connections that brokers may ask clients by."""
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
        by: RemotingClient | None = None,
    ) -> Reply:
        """Send a request to the master of that name.

        :param by: the connections; else those that all clients share.
        :raises ProxyError: there is no such broker, or no answer in time.
        """
        address = self._routes.master(broker) or self._masters.get(broker)
        if address is None:
            await self._look_for_brokers()
            address = self._masters.get(broker)
        if address is None:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"the broker[{broker}] not exist")
        try:
            answer = await (by or self._remoting).invoke(address, code, header, body, timeout_s=timeout_s)
        except RemotingTimeoutError as error:
            raise ProxyError(Code.PROXY_TIMEOUT, error.message) from error
        except RemotingError as error:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, error.message) from error
        return Reply(answer.code, answer.remark, answer.ext_fields, answer.body)

    async def tell_all(self, by: RemotingClient, code: int, header: Header | None, body: bytes = b"") -> None:
        """Send a request to all masters that are known; what one of them answers decides nothing."""
        names = list(self._routes.brokers)
        for result in await asyncio.gather(
            *(self.ask(name, code, header, body, by=by) for name in names), return_exceptions=True
        ):
            if isinstance(result, ProxyError):
                _log.info("a broker did not get the heartbeat of a client: %s", result)

    async def _look_for_brokers(self) -> None:
        try:
            answer = await self._routes.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, None)
            table = decode_body(ClusterInfo, answer.body).broker_addr_table
        except (RemotingError, BodyError) as error:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, error.message) from error
        self._masters = {
            name: data.broker_addrs[MASTER_ID] for name, data in table.items() if MASTER_ID in data.broker_addrs
        }

    # --- topics and groups ----------------------------------------------------------------------
    async def topic(self, name: str) -> TopicInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`; asked for again after some seconds."""
        known = self._topics.get(name)
        now = self.clock.monotonic()
        if known is not None and now - known[0] < TOPIC_LOOK_SECONDS:
            return known[1]
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
            BrokerQueues(found.broker_name, found.read_queue_nums, found.write_queue_nums, found.perm)
            for found in sorted(route.data.queue_datas, key=lambda found: found.broker_name)
        )
        info = TopicInfo(name, queues, await self._message_type(name, queues), queues)
        if len(self._topics) >= MAX_FLEET_TOPICS:
            self._topics.clear()
        self._topics[name] = (now, info)
        return info

    async def _message_type(self, name: str, queues: tuple[BrokerQueues, ...]) -> str:
        """The type of a topic's messages; a broker of 4.x knows none, and takes all."""
        for found in queues:
            header = GetTopicConfigRequestHeader(topic=name)
            try:
                reply = await self.ask(found.broker, RequestCode.GET_TOPIC_CONFIG, header)
                if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return MIXED
                if not reply.code:
                    return message_type_of(decode_body(TopicConfig, bytes(reply.body)))
            except (ProxyError, CometMQError) as error:
                _log.info("%s does not say of which type messages of %s are: %s", found.broker, name, error)
        return NORMAL

    async def group(self, name: str) -> GroupInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`; asked for again after some seconds."""
        known = self._groups.get(name)
        now = self.clock.monotonic()
        if known is not None and now - known[0] < TOPIC_LOOK_SECONDS:
            return known[1]
        info = GroupInfo() if known is None else known[1]
        if not self._routes.brokers:
            await self._look_for_brokers()
        for broker in self._routes.brokers or self._masters:
            header = GetSubscriptionGroupConfigRequestHeader(group=name)
            try:
                reply = await self.ask(broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
                if not reply.code:
                    info = group_info(decode_body(GroupBody, bytes(reply.body)))
                    break
            except (ProxyError, CometMQError) as error:
                _log.info("%s does not describe the group %s: %s", broker, name, error)
        if len(self._groups) >= MAX_FLEET_TOPICS:
            self._groups.clear()
        self._groups[name] = (now, info)
        return info

    def endpoint(self, broker: str, came_by: str) -> tuple[str, int] | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`: clients come back the way that they came."""
        return None

    def link(self, client_id: str, peer: tuple[str, int], language: str, asked: Asked) -> Link:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return FleetLink(self, client_id, asked)

    # --- requests of brokers ----------------------------------------------------------------------
    def _check_transaction(
        self, connection: ClientConnection, request: Request[CheckTransactionStateRequestHeader], body: bytes
    ) -> None:
        """Pass a question on to a producer of the group."""
        try:
            (message,) = split_records(body)
        except (RecordError, ValueError) as error:
            _log.warning("a transaction check of %s cannot be read: %s", connection.address, error)
            return
        group = message.properties.get(PGROUP, "")
        addresses = {address: name for name, address in self._masters.items()}
        addresses |= {
            brokers[MASTER_ID]: name for name, brokers in self._routes.brokers.items() if MASTER_ID in brokers
        }
        broker = addresses.get(connection.address, "")
        for link in self.links:
            if link.data is not None and any(found.group_name == group for found in link.data.producer_data_set):
                link.asked(broker, RequestCode.CHECK_TRANSACTION_STATE, request.header, body, _nobody)
                return

    def _ask_client(
        self,
        connection: ClientConnection,
        request: Request[GetConsumerRunningInfoRequestHeader] | Request[ConsumeMessageDirectlyResultRequestHeader],
        body: bytes,
    ) -> Response | None:
        """Pass a question of an administrator on to the client that is meant."""
        client_id, broker = request.header.client_id, getattr(request.header, "broker_name", None)
        link = next((link for link in self.links if link.client_id == client_id), None)
        if link is None:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"the client {client_id} is not here")
        link.asked(broker or "", request.code, request.header, body, partial(connection.respond, request))
        return None

    async def start(self) -> None:
        """Look for brokers once; nameservers that are not there yet may come later."""
        try:
            await self._look_for_brokers()
        except ProxyError as error:
            _log.warning("no brokers are known yet: %s", error)

    async def stop(self) -> None:
        """Close all connections."""
        await self.work.stop()
        await self._remoting.close()


def _nobody(_response: Response) -> None:
    """Nobody waits for an answer."""
