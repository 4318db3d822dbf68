"""DefaultRequestProcessor: the nameserver's request handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Final

import msgspec

from cometmq.clock import Clock
from cometmq.errors import CometMQError
from cometmq.limits import MAX_DATA_VERSION_BYTES
from cometmq.loop import finish, in_rounds, over_rounds
from cometmq.message.listeners import parse_listeners, parse_registered
from cometmq.message.names import AUTO_CREATE_TOPIC, ORDER_TOPIC_CONFIG, TRACE_TOPIC
from cometmq.message.record import body_crc
from cometmq.message.sysflag import TOPIC_UNIT, TOPIC_UNIT_SUB
from cometmq.namesrv.config import PathChangeError, Settings
from cometmq.namesrv.gone import CLOSED, STOPPED, GoneBrokers
from cometmq.namesrv.kv import KvConfig, KvError, KvWriter
from cometmq.namesrv.limits import MAX_NAMESRV_BROKERS
from cometmq.namesrv.registrations import ReadRegistration, RegistrationReader, read_registration
from cometmq.namesrv.routes import BrokerIdentity, Registered, RegistrationError, RouteRegistration, RouteTable
from cometmq.options import ConfigError, no_effect
from cometmq.remoting.admin_headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from cometmq.remoting.bodies import (
    BodyError,
    DataVersion,
    TopicList,
    decode_request,
    encode_body,
    encode_json,
)
from cometmq.remoting.codes import STANDARD_JSON_VERSION, RequestCode, ResponseCode
from cometmq.remoting.headers import GetRouteInfoRequestHeader, NoHeader
from cometmq.remoting.permissions import Action, Kind, needs_cluster, needs_every, needs_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)


_OPEN_ROUTES: Final = frozenset({AUTO_CREATE_TOPIC, TRACE_TOPIC})
"""Topics whose routes every account may read: the template for new topics and the trace topic."""


RIVALS_SECONDS: Final = 60.0
"""Interval in seconds between warnings about two live brokers with the same name and ID."""


class NamesrvRequests:
    """The request handlers of a nameserver, which read and change its tables."""

    def __init__(self, routes: RouteTable, kv: KvConfig, settings: Settings, clock: Clock) -> None:
        self.routes = routes
        self.kv = kv
        self.settings = settings
        self.clock = clock
        self.listeners: Final = parse_listeners(settings.config.listeners)
        self._reader: Final = RegistrationReader()
        self._writer: Final = KvWriter(kv)
        self._watched: set[ServerConnection] = set()
        self.gone: Final = GoneBrokers()
        self._warned_at: dict[tuple[str, int], float] = {}
        """Time of the last warning about two live brokers, by their name and ID."""

    # --- brokers ------------------------------------------------------------------------------
    @answers(
        RequestCode.REGISTER_BROKER,
        limits=(
            "REGISTRATION_BESIDE_BYTES",
            "TOPICS_PER_SLICE",
            "MAX_WAITING_REGISTRATION_BYTES",
            "MAX_NAMESRV_BROKERS",
        ),
        permission=needs_cluster(Action.UPDATE),
    )
    def register_broker(
        self, connection: ServerConnection, request: Request[RegisterBrokerRequestHeader], body: bytes
    ) -> Response | None:
        """Register a broker and its topics; a large body is read in a thread."""
        header = request.header
        if header.body_crc32 and header.body_crc32 != body_crc(body):
            return Response(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        try:
            parse_registered(header.listener_addrs or "")
        except ValueError as error:
            return self._refuse(connection, identity, RegistrationError(str(error)))
        if not self._reader.needs_thread(body, compressed=header.compressed):
            try:
                read = read_registration(identity, body, compressed=header.compressed)
            except BodyError as error:
                return self._refuse(connection, identity, error)
            return finish(self._add_to_routes(connection, request, identity, read))
        if not self._reader.has_room(body):
            return Response(ResponseCode.SYSTEM_BUSY, remark="too many registrations are waiting, try again")

        def add_outcome(outcome: ReadRegistration | BodyError) -> Generator[None, None, None]:
            if isinstance(outcome, BodyError):
                answer = self._refuse(connection, identity, outcome)
            else:
                answer = yield from self._add_to_routes(connection, request, identity, outcome)
            connection.respond(request, answer)

        self._reader.read(connection, identity, body, compressed=header.compressed, then=add_outcome)
        return None

    def _add_to_routes(
        self,
        connection: ServerConnection,
        request: Request[RegisterBrokerRequestHeader],
        identity: BrokerIdentity,
        read: ReadRegistration,
    ) -> Generator[None, None, Response]:
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_close.append(self._remove_brokers_of)
        try:
            outcome = yield from self.routes.register(
                RouteRegistration(
                    identity,
                    read.queues,
                    ha_address=request.header.ha_server_addr,
                    data_version=read.data_version,
                    filter_servers=read.filter_servers,
                    connection=connection,
                    now_s=self.clock.monotonic(),
                    listeners=parse_registered(request.header.listener_addrs or ""),
                )
            )
        except RegistrationError as error:
            return self._refuse(connection, identity, error)
        over_rounds(self.routes.sweep())  # drop the topics of the broker's former name
        if connection.closed:
            return Response()
        if outcome.rival:
            self._warn_of_rival(identity, outcome)
        if outcome.is_ignored:
            return Response(
                header=RegisterBrokerResponseHeader(
                    rival_addr=outcome.rival, rival_state_version=outcome.rival_state_version
                )
            )
        if outcome.is_new:
            _log.info("broker %s at %s registered", identity.name, identity.address)
        self.gone.forget(identity)
        if outcome.skipped_topics:
            _log.warning("ignored invalid topics of broker %s: %s", identity.name, outcome.skipped_topics[:10])
        answer = RegisterBrokerResponseHeader(
            ha_server_addr=outcome.ha_address or None,
            master_addr=outcome.master_address or None,
            rival_addr=outcome.rival or None,
        )
        orders = self.kv.namespace(ORDER_TOPIC_CONFIG)
        return Response(header=answer, body=b"" if orders is None else msgspec.json.encode({"table": orders}))

    def _warn_of_rival(self, identity: BrokerIdentity, outcome: Registered) -> None:
        """Warn about two live brokers with the same name and ID, immediately and then every minute."""
        now_s = self.clock.monotonic()
        key = (identity.name, identity.broker_id)
        if now_s - self._warned_at.get(key, -RIVALS_SECONDS) < RIVALS_SECONDS:
            return
        if len(self._warned_at) >= MAX_NAMESRV_BROKERS:
            self._warned_at.clear()
        self._warned_at[key] = now_s
        what = "is ignored: its stateVersion is lower" if outcome.is_ignored else "displaces the other"
        _log.warning(
            "two live brokers, at %s and %s, have the name %s and the id %d: the first registers and %s; stop one of "
            "them, or give it a brokerName or a brokerId of its own",
            *(identity.address, outcome.rival, identity.name, identity.broker_id, what),
        )

    def _refuse(self, connection: ServerConnection, identity: BrokerIdentity, error: CometMQError) -> Response:
        _log.warning("refused the registration of %s by %s: %s", identity.name[:150], connection.remote_address, error)
        return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _remove_brokers_of(self, connection: ServerConnection) -> None:
        """Remove a connection's brokers, one per round of the event loop."""
        self._watched.discard(connection)
        gone = self.routes.brokers_of(connection)

        def remove_next() -> None:
            identity = gone.pop()
            if self.routes.remove_if_from(identity, connection):
                self.record_departure(identity, CLOSED)
            if gone:
                asyncio.get_running_loop().call_soon(remove_next)

        if gone:
            remove_next()

    def record_departure(self, identity: BrokerIdentity, reason: str) -> None:
        """Log and remember that a broker has left; its topics are dropped in the next rounds of the event loop."""
        over_rounds(self.routes.sweep())
        self.gone.record(identity, reason, self.clock.monotonic())
        level = logging.INFO if reason == STOPPED else logging.WARNING
        _log.log(level, "broker %s at %s is gone: %s", identity.name, identity.address, reason)

    async def stop(self) -> None:
        """Stop reading registrations, and write pending changes to the KV configuration."""
        await self._reader.stop()
        await self._writer.stop()

    @answers(RequestCode.UNREGISTER_BROKER, permission=needs_cluster(Action.UPDATE))
    def unregister_broker(
        self, _connection: ServerConnection, request: Request[UnRegisterBrokerRequestHeader], _body: bytes
    ) -> Response:
        """Remove a broker that unregisters."""
        header = request.header
        identity = BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        if self.routes.unregister(identity):
            self.record_departure(identity, STOPPED)
        return Response()

    @answers(
        RequestCode.QUERY_DATA_VERSION,
        limits=("MAX_DATA_VERSION_BYTES",),
        permission=needs_cluster(Action.UPDATE),
    )
    def query_data_version(
        self, _connection: ServerConnection, request: Request[QueryDataVersionRequestHeader], body: bytes
    ) -> Response:
        """Return whether a broker's topics have changed since it last registered them."""
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

    @answers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, permission=needs_cluster(Action.UPDATE))
    async def wipe_write_perm(
        self, _connection: ServerConnection, request: Request[WipeWritePermOfBrokerRequestHeader], _body: bytes
    ) -> Response:
        """Remove the write permission from all topics on a broker."""
        count = await in_rounds(self.routes.wipe_write_perm(request.header.broker_name))
        return Response(header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    @answers(RequestCode.ADD_WRITE_PERM_OF_BROKER, permission=needs_cluster(Action.UPDATE))
    async def add_write_perm(
        self, _connection: ServerConnection, request: Request[AddWritePermOfBrokerRequestHeader], _body: bytes
    ) -> Response:
        """Restore the write permission for all topics on a broker."""
        count = await in_rounds(self.routes.add_write_perm(request.header.broker_name))
        return Response(header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    def _listener_of(self, connection: ServerConnection) -> str:
        """Return the name of the listener that a client is connected to."""
        return self.listeners.of(connection.listener, connection.peer_ip)

    # --- routes and lists ---------------------------------------------------------------------
    @answers(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        permission=needs_topic(Action.PUB, Action.SUB, Action.GET, free=_OPEN_ROUTES),
    )
    def get_route(
        self, connection: ServerConnection, request: Request[GetRouteInfoRequestHeader], _body: bytes
    ) -> Response:
        """Return a topic's route: its brokers and queues."""
        topic = request.header.topic
        route = self.routes.route(topic, self._listener_of(connection))
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

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO, permission=needs_cluster(Action.GET))
    def cluster_info(self, connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return all clusters and brokers, and the recently departed brokers (``goneBrokers``)."""
        info = self.routes.cluster_info(self._listener_of(connection))
        info.gone_brokers = self.gone.brokers(self.clock.monotonic()) or None
        return Response(body=encode_body(info))

    @answers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, permission=needs_every(Kind.TOPIC, Action.LIST))
    def all_topics(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """List all topics."""
        return _topic_list(self.routes.topics())

    @answers(RequestCode.GET_TOPICS_BY_CLUSTER, permission=needs_every(Kind.TOPIC, Action.LIST))
    def topics_by_cluster(
        self, _connection: ServerConnection, request: Request[GetTopicsByClusterRequestHeader], _body: bytes
    ) -> Response:
        """List the topics in a cluster."""
        return _topic_list(self.routes.topics_of_cluster(request.header.cluster))

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, permission=needs_every(Kind.TOPIC, Action.LIST))
    def system_topics(self, connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """List the names of clusters and brokers, which are also topics."""
        names, address = self.routes.system_topics(self._listener_of(connection))
        return Response(body=encode_body(TopicList(topic_list=names, broker_addr=address or None)))

    @answers(RequestCode.GET_UNIT_TOPIC_LIST, permission=needs_every(Kind.TOPIC, Action.LIST))
    def unit_topics(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """List the topics that belong to a unit (a RocketMQ deployment unit)."""
        return _topic_list(self.routes.topics_with_flag(TOPIC_UNIT))

    @answers(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, permission=needs_every(Kind.TOPIC, Action.LIST))
    def unit_sub_topics(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """List the topics to which groups in units subscribe."""
        return _topic_list(self.routes.topics_with_flag(TOPIC_UNIT_SUB))

    @answers(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, permission=needs_every(Kind.TOPIC, Action.LIST))
    def unit_sub_ununit_topics(
        self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes
    ) -> Response:
        """List the topics that belong to no unit but to which groups in units subscribe."""
        return _topic_list(self.routes.topics_with_flag(TOPIC_UNIT_SUB, TOPIC_UNIT))

    @answers(RequestCode.DELETE_TOPIC_IN_NAMESRV, permission=needs_cluster(Action.UPDATE))
    def delete_topic(
        self, _connection: ServerConnection, request: Request[DeleteTopicFromNamesrvRequestHeader], _body: bytes
    ) -> Response:
        """Remove a topic's routes."""
        self.routes.delete_topic(request.header.topic, request.header.cluster_name or "")
        return Response()

    # --- KV configuration ---------------------------------------------------------------------
    @answers(
        RequestCode.PUT_KV_CONFIG,
        limits=("MAX_KV_ENTRIES", "MAX_KV_VALUE_CHARS", "MAX_WAITING_KV_CHANGES"),
        permission=needs_cluster(Action.UPDATE),
    )
    async def put_kv(
        self, _connection: ServerConnection, request: Request[PutKVConfigRequestHeader], _body: bytes
    ) -> Response:
        """Set a KV value; answer once it is durable."""
        header = request.header
        return await self._change(lambda: self.kv.put(header.namespace, header.key, header.value))

    async def _change(self, change: Callable[[], None]) -> Response:
        if self._writer.is_full:
            return Response(ResponseCode.SYSTEM_BUSY, remark="too many changes are waiting to be written, try again")
        try:
            change()
            await self._writer.write()
        except KvError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return Response()

    @answers(RequestCode.GET_KV_CONFIG, permission=needs_cluster(Action.GET))
    def get_kv(
        self, _connection: ServerConnection, request: Request[GetKVConfigRequestHeader], _body: bytes
    ) -> Response:
        """Return a KV value."""
        header = request.header
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return Response(
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Response(header=GetKVConfigResponseHeader(value=value))

    @answers(RequestCode.DELETE_KV_CONFIG, limits=("MAX_WAITING_KV_CHANGES",), permission=needs_cluster(Action.UPDATE))
    async def delete_kv(
        self, _connection: ServerConnection, request: Request[DeleteKVConfigRequestHeader], _body: bytes
    ) -> Response:
        """Remove a KV value; answer once the removal is durable."""
        header = request.header
        return await self._change(lambda: self.kv.delete(header.namespace, header.key))

    @answers(RequestCode.GET_KVLIST_BY_NAMESPACE, permission=needs_cluster(Action.GET))
    def kv_namespace(
        self, _connection: ServerConnection, request: Request[GetKVListByNamespaceRequestHeader], _body: bytes
    ) -> Response:
        """Return the keys and values in a KV namespace."""
        table = self.kv.namespace(request.header.namespace)
        if table is None:
            return Response(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {request.header.namespace}"
            )
        return Response(body=msgspec.json.encode({"table": table}))

    # --- configuration ------------------------------------------------------------------------
    @answers(
        RequestCode.UPDATE_NAMESRV_CONFIG, limits=("MAX_CONFIG_UPDATE_BYTES",), permission=needs_cluster(Action.UPDATE)
    )
    def update_config(self, connection: ServerConnection, _request: Request[NoHeader], body: bytes) -> Response:
        """Change the nameserver's configuration from properties text in the request body."""
        try:
            without_effect = self.settings.update(body.decode("utf-8"))
        except UnicodeDecodeError:
            return Response(ResponseCode.SYSTEM_ERROR, remark="the body is not UTF-8 text")
        except PathChangeError as error:
            return Response(ResponseCode.NO_PERMISSION, remark=str(error))
        except ConfigError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if not without_effect:
            return Response()
        _log.warning("%s sets %s", connection.remote_address, no_effect(without_effect))
        return Response(remark=no_effect(without_effect))

    @answers(RequestCode.GET_NAMESRV_CONFIG, permission=needs_cluster(Action.GET))
    def get_config(self, _connection: ServerConnection, _request: Request[NoHeader], _body: bytes) -> Response:
        """Return the nameserver's configuration as properties text."""
        return Response(body=self.settings.text().encode())


def _topic_list(topics: list[str]) -> Response:
    # Up to a hundred thousand names: msgspec encodes them without blocking other requests for long.
    return Response(body=msgspec.json.encode({"topicList": topics}))
