"""What the nameserver answers about brokers and topics (``DefaultRequestProcessor``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_DATA_VERSION_BYTES
from cometmq.message.record import body_crc
from cometmq.message.sysflag import TOPIC_UNIT, TOPIC_UNIT_SUB
from cometmq.namesrv.kv import ORDER_TOPIC_CONFIG, KvConfig
from cometmq.namesrv.registrations import ReadRegistration, RegistrationReader, read_registration
from cometmq.namesrv.routes import BrokerIdentity, RegistrationError, RouteTable
from cometmq.namesrv.settings import Settings
from cometmq.remoting.bodies import (
    BodyError,
    DataVersion,
    TopicList,
    decode_request,
    encode_body,
    encode_json,
)
from cometmq.remoting.codes import STANDARD_JSON_VERSION, RequestCode, ResponseCode
from cometmq.remoting.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    NoHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

log = logging.getLogger(__name__)


class NamesrvRequests:
    """The handlers of one nameserver over its tables."""

    def __init__(self, routes: RouteTable, kv: KvConfig, settings: Settings, clock: Clock) -> None:
        self.routes = routes
        self.kv = kv
        self.settings = settings
        self.clock = clock
        self._reader: Final = RegistrationReader()
        self._watched: set[ServerConnection] = set()

    def register(self, processors: ProcessorTable) -> None:
        """Enter every handler into ``processors``."""
        code = RequestCode
        add = processors.register
        add(code.REGISTER_BROKER, RegisterBrokerRequestHeader, self.register_broker)
        add(code.UNREGISTER_BROKER, UnRegisterBrokerRequestHeader, self.unregister_broker)
        add(code.QUERY_DATA_VERSION, QueryDataVersionRequestHeader, self.query_data_version)
        add(code.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader, self.get_route)
        add(code.GET_BROKER_CLUSTER_INFO, NoHeader, self.cluster_info)
        add(code.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequestHeader, self.wipe_write_perm)
        add(code.ADD_WRITE_PERM_OF_BROKER, AddWritePermOfBrokerRequestHeader, self.add_write_perm)
        add(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader, self.all_topics)
        add(code.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader, self.delete_topic)
        add(code.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader, self.topics_by_cluster)
        add(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader, self.system_topics)
        add(code.GET_UNIT_TOPIC_LIST, NoHeader, self._flagged(TOPIC_UNIT))
        add(code.GET_HAS_UNIT_SUB_TOPIC_LIST, NoHeader, self._flagged(TOPIC_UNIT_SUB))
        add(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoHeader, self._flagged(TOPIC_UNIT_SUB, TOPIC_UNIT))

    # --- brokers ------------------------------------------------------------------------------
    def register_broker(
        self, conn: ServerConnection, request: Request[RegisterBrokerRequestHeader], body: bytes
    ) -> Response | None:
        """REGISTER_BROKER (103)."""
        header = request.header
        if header.body_crc32 and header.body_crc32 != body_crc(body):
            return Response(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        if not self._reader.takes(body):
            try:
                read = read_registration(identity, body, compressed=header.compressed)
            except BodyError as error:
                return self._refuse(conn, identity, error)
            return self._enter(conn, request, identity, read)
        if not self._reader.has_room(body):
            return Response(ResponseCode.SYSTEM_BUSY, remark="too many registrations wait already, try again")

        def done(outcome: ReadRegistration | BodyError) -> None:
            if isinstance(outcome, BodyError):
                conn.respond(request, self._refuse(conn, identity, outcome))
            else:
                conn.respond(request, self._enter(conn, request, identity, outcome))

        self._reader.read(conn, identity, body, compressed=header.compressed, then=done)
        return None

    def _enter(
        self,
        conn: ServerConnection,
        request: Request[RegisterBrokerRequestHeader],
        identity: BrokerIdentity,
        read: ReadRegistration,
    ) -> Response:
        try:
            outcome = self.routes.enter(
                identity,
                read.queues,
                ha_address=request.header.ha_server_addr,
                data_version=read.data_version,
                filter_servers=read.filter_servers,
                connection=conn,
                now_s=self.clock.monotonic(),
            )
        except RegistrationError as error:
            return self._refuse(conn, identity, error)
        if conn not in self._watched:
            self._watched.add(conn)
            conn.on_close.append(self._closed)
        if outcome.is_new:
            log.info("broker %s at %s registered", identity.name, identity.address)
        if outcome.skipped_topics:
            log.warning("broker %s has unusable topics: %s", identity.name, outcome.skipped_topics[:10])
        answer = RegisterBrokerResponseHeader(
            ha_server_addr=outcome.ha_address or None, master_addr=outcome.master_address or None
        )
        orders = self.kv.namespace(ORDER_TOPIC_CONFIG)
        return Response(header=answer, body=b"" if orders is None else msgspec.json.encode({"table": orders}))

    def _refuse(self, conn: ServerConnection, identity: BrokerIdentity, error: CometMQError) -> Response:
        log.warning("registration of %s by %s refused: %s", identity.name[:150], conn.remote_address, error)
        return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _closed(self, conn: ServerConnection) -> None:
        """Take out its brokers, one in a turn of the loop: each may have many topics."""
        self._watched.discard(conn)
        gone = self.routes.brokers_of(conn)

        def leave_next() -> None:
            identity = gone.pop()
            if self.routes.leave(identity, conn):
                log.warning("broker %s at %s is gone: its connection closed", identity.name, identity.address)
            if gone:
                asyncio.get_running_loop().call_soon(leave_next)

        if gone:
            leave_next()

    async def stop(self) -> None:
        """Read no more registrations."""
        await self._reader.stop()

    def unregister_broker(
        self, conn: ServerConnection, request: Request[UnRegisterBrokerRequestHeader], body: bytes
    ) -> Response:
        """UNREGISTER_BROKER (104)."""
        header = request.header
        self.routes.unregister(
            BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        )
        return Response()

    def query_data_version(
        self, conn: ServerConnection, request: Request[QueryDataVersionRequestHeader], body: bytes
    ) -> Response:
        """QUERY_DATA_VERSION (322)."""
        header = request.header
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        try:
            version = decode_request(DataVersion, body, MAX_DATA_VERSION_BYTES)
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        is_changed, known = self.routes.query_data_version(identity, version, self.clock.monotonic())
        return Response(
            header=QueryDataVersionResponseHeader(changed=is_changed),
            body=b"" if known is None else encode_body(known),
        )

    def wipe_write_perm(
        self, conn: ServerConnection, request: Request[WipeWritePermOfBrokerRequestHeader], body: bytes
    ) -> Response:
        """WIPE_WRITE_PERM_OF_BROKER (205)."""
        count = self.routes.wipe_write_perm(request.header.broker_name)
        return Response(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def add_write_perm(
        self, conn: ServerConnection, request: Request[AddWritePermOfBrokerRequestHeader], body: bytes
    ) -> Response:
        """ADD_WRITE_PERM_OF_BROKER (327)."""
        count = self.routes.add_write_perm(request.header.broker_name)
        return Response(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    # --- routes and lists ---------------------------------------------------------------------
    def get_route(self, conn: ServerConnection, request: Request[GetRouteInfoRequestHeader], body: bytes) -> Response:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        topic = request.header.topic
        route = self.routes.route(topic)
        if route is None:
            return Response(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {topic}\n"
                "See http://rocketmq.apache.org/docs/faq/ for further details.",
            )
        if self.settings.config.order_message_enable:
            route.order_topic_conf = self.kv.get(ORDER_TOPIC_CONFIG, topic)
        standard = request.version >= STANDARD_JSON_VERSION or bool(request.header.accept_standard_json_only)
        return Response(body=encode_json(route) if standard else encode_body(route))

    def cluster_info(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        """GET_BROKER_CLUSTER_INFO (106)."""
        return Response(body=encode_body(self.routes.cluster_info()))

    def all_topics(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        return _topic_list(self.routes.topics())

    def topics_by_cluster(
        self, conn: ServerConnection, request: Request[GetTopicsByClusterRequestHeader], body: bytes
    ) -> Response:
        """GET_TOPICS_BY_CLUSTER (224)."""
        return _topic_list(self.routes.topics_of_cluster(request.header.cluster))

    def system_topics(self, conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        names, address = self.routes.system_topics()
        return Response(body=encode_body(TopicList(topic_list=names, broker_addr=address or None)))

    def _flagged(
        self, wanted: int, unwanted: int = 0
    ) -> Callable[[ServerConnection, Request[NoHeader], bytes], Response]:
        def answer(conn: ServerConnection, request: Request[NoHeader], body: bytes) -> Response:
            return _topic_list(self.routes.topics_with_flag(wanted, unwanted))

        return answer

    def delete_topic(
        self, conn: ServerConnection, request: Request[DeleteTopicFromNamesrvRequestHeader], body: bytes
    ) -> Response:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        self.routes.delete_topic(request.header.topic, request.header.cluster_name or "")
        return Response()


def _topic_list(topics: list[str]) -> Response:
    # A hundred thousand plain texts: encoded at once instead of one by one, which others would wait for.
    return Response(body=msgspec.json.encode({"topicList": topics}))
