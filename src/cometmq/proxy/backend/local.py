"""A backend for the broker in this process, which exchanges headers and responses as objects, not as frames.

Each client has its own connection object in the broker, so that client tables, quotas and hooks treat it as a remoting
client. The endpoint checks the account of each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from cometmq.auth.guard import Session
from cometmq.broker.controller import Broker
from cometmq.clock import Clock, TimerHandle
from cometmq.core import CORE
from cometmq.message.hosts import encode_host, format_address
from cometmq.message.names import retry_topic
from cometmq.periodic import Alarm, Deadlines
from cometmq.proxy.backend.backend import (
    ASK_SECONDS,
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
from cometmq.proxy.backend.plain_calls import CallLimits, PlainCalls
from cometmq.proxy.errors import ProxyError, refused
from cometmq.proxy.limits import HEARTBEAT_BROKER_SECONDS, HEARTBEATS_AT_ONCE, HEARTBEATS_PAUSE_SECONDS
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.bodies import HeartbeatData
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import Header, NoHeader
from cometmq.remoting.permissions import CALLER
from cometmq.remoting.processors import Buffer, Request, Response
from cometmq.remoting.server_connection import ServerConnection


class _PendingRequest:
    """A pending request to the broker."""

    __slots__ = ("done", "timer")

    def __init__(self, done: Popped) -> None:
        self.done: Popped | None = done
        """Receives the response; ``None`` once it has been called."""
        self.timer: TimerHandle | None = None

    def end(self, outcome: Reply | ProxyError) -> None:
        """Pass on the response, or the error if there is none."""
        done, self.done = self.done, None
        if self.timer is not None:
            self.timer.cancel()
        if done is not None:
            done(outcome)


class LocalConnection(ServerConnection):
    """A client's connection to the broker in this process; it has no socket."""

    __slots__ = ("_broker_name", "_on_request", "_unanswered")

    is_grpc = True

    def __init__(self, broker: Broker, peer: tuple[str, int], on_request: Callable[[BrokerRequest], None]) -> None:
        super().__init__(broker.server)
        self._broker_name = broker.config.broker_name
        self._on_request = on_request
        self._unanswered: dict[int, _PendingRequest] = {}
        self.peer_ip, self.peer_port = peer
        self.peer_bytes = encode_host(*peer)
        self.remote_address = format_address(*peer)

    @property
    def hooked(self) -> bool:
        """Always true, so that responses are passed to :meth:`respond` as objects and not encoded."""
        return True

    @property
    def is_behind(self) -> bool:
        """Always false: the Telemetry stream limits the commands sent to the client."""
        return False

    def use_account(self, session: Session) -> None:
        """Assign the connection to an account for quotas. Meters are looked up again only when the account changes."""
        if not isinstance(self.account, Session) or self.account.account is not session.account:
            self.account = session

    # --- requests of the client -----------------------------------------------------------------
    def add_pending(self, opaque: int, done: Popped) -> _PendingRequest:
        """Register a request that waits for its response."""
        pending = self._unanswered[opaque] = _PendingRequest(done)
        return pending

    def expire(self, opaque: int) -> None:
        """Fail a request whose time limit has expired."""
        pending = self._unanswered.pop(opaque, None)
        if pending is not None:
            pending.end(ProxyError(Code.PROXY_TIMEOUT, f"the broker[{self._broker_name}] did not respond in time"))

    def deliver(self, request: Request[Any], response: Response) -> None:
        """Pass the broker's response to the caller."""
        pending = self._unanswered.pop(request.opaque, None)
        if pending is not None:
            header: Header | dict[str, str] = response.header or {}
            pending.end(Reply(response.code, response.remark, header, _joined(response.body)))

    # --- requests of the broker -----------------------------------------------------------------
    def _write_request(self, code: int, opaque: int, header: Header | None, body: bytes, *, flag: int = 0) -> None:
        """Pass a request from the broker on to the client."""
        respond = partial(self._take_response, opaque)
        self._on_request(BrokerRequest(self._broker_name, code, header or NoHeader(), body, respond))

    def _take_response(self, opaque: int, response: Response) -> None:
        """Pass the client's response to the broker."""
        body = bytes(_joined(response.body))
        self.accept_response(RemotingCommand(response.code, opaque, remark=response.remark, body=body))

    def write(self, *chunks: Buffer) -> None:
        """Discard the bytes, because there is no socket."""

    def flush(self) -> None:
        """Do nothing, because no bytes are queued."""

    # --- the end --------------------------------------------------------------------------------
    def close(self) -> None:
        """End the connection."""
        if not self.closed:
            self.closed = True
            for callback in self.on_close:
                callback(self)

    def abort(self) -> None:
        """End the connection."""
        self.close()


def _resolve(future: asyncio.Future[Reply], outcome: Reply | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _joined(body: Buffer | Any) -> Buffer:
    return body if isinstance(body, (bytes, memoryview)) else b"".join(body)


class _Heartbeats:
    """Sends the heartbeats of all clients: one alarm for all, and a limited number of heartbeats at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[LocalLink, float] = {}
        """The time of each client's next heartbeat; all wait equally long, so the first one is the next."""
        self._alarm = Alarm(self._send, clock=clock)

    def add(self, link: LocalLink) -> None:
        """Send a client's heartbeats from now on."""
        self.remove(link)
        self._due[link] = self._clock.monotonic() + HEARTBEAT_BROKER_SECONDS
        if not self._alarm.is_set:
            self._alarm.after(HEARTBEAT_BROKER_SECONDS)

    def remove(self, link: LocalLink) -> None:
        """Send no more heartbeats of a client."""
        self._due.pop(link, None)

    def close(self) -> None:
        """Send no more heartbeats."""
        self._alarm.close()

    def _send(self) -> None:
        now = self._clock.monotonic()
        for link, due in list(islice(self._due.items(), HEARTBEATS_AT_ONCE)):
            if due > now:
                break
            del self._due[link]
            self._due[link] = now + HEARTBEAT_BROKER_SECONDS
            link.send_heartbeat()
        if self._due:
            next_due = next(iter(self._due.values()))
            self._alarm.after(max(next_due - now, HEARTBEATS_PAUSE_SECONDS))


class LocalLink:
    """A link over which one client's requests reach the broker in this process."""

    __slots__ = ("_broker", "_connection", "_heartbeat", "_heartbeats", "_language", "_name", "_opaque", "_timeouts")

    def __init__(
        self,
        broker: Broker,
        client: ClientIdentity,
        on_request: Callable[[BrokerRequest], None],
        heartbeats: _Heartbeats,
        timeouts: Deadlines,
    ) -> None:
        self._broker = broker
        self._name = broker.config.broker_name
        self._language = client.language
        self._opaque = 0
        self._heartbeat: HeartbeatData | None = None
        self._heartbeats = heartbeats
        self._timeouts = timeouts
        self._connection = LocalConnection(broker, client.peer, on_request)

    def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = ASK_SECONDS
    ) -> Awaitable[Reply]:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._request(broker, code, header, body, partial(_resolve, future), timeout_s)
        return future

    def pop(self, broker: str, header: AnyPop, done: Popped) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        timeout_s = header.poll_time / 1000 + ASK_SECONDS
        self._request(broker, pop_code(header), header, b"", done, timeout_s)

    def _request(
        self, broker: str, code: int, header: Header | None, body: bytes, done: Popped, timeout_s: float
    ) -> None:
        if broker != self._name:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"the broker[{broker}] not exist")
        connection = self._connection
        caller = CALLER.get()
        if isinstance(caller, Session):
            connection.use_account(caller)
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        request = Request(
            code=code,
            header=header or NoHeader(),
            opaque=self._opaque,
            language=self._language,
            version=CURRENT_VERSION,
        )
        pending = connection.add_pending(request.opaque, done)
        self._broker.server.serve(connection, request, body)
        if pending.done is not None:
            pending.timer = self._timeouts.after(timeout_s, connection.expire, request.opaque)

    def acknowledge(self, handles: Sequence[PoppedHandle], done: Acknowledged) -> Sequence[int]:
        """See :class:`~cometmq.proxy.backend.backend.Link`.

        A message needs a request if hooks or quotas are to see it, or if it is not handed out.
        """
        broker = self._broker
        path = broker.server.path
        if path.hooks or broker.is_slave or (path.limiter is not None and path.limiter.is_active):
            return range(len(handles))
        broker.server.schedule_round()
        latency = path.latency
        arrived = 0.0 if latency is None else latency.began

        def answered(positions: Sequence[int], code: int, remark: str | None) -> None:
            if latency is not None:
                latency.answered(RequestCode.ACK_MESSAGE, code, arrived, len(positions))
            done(positions, refused(code, remark) if code else None)

        return broker.pops.acks.acknowledge_handed_out(self._name, handles, answered)

    async def register(self, data: HeartbeatData) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        (await self.ask(self._name, RequestCode.HEART_BEAT, None, heartbeat_body(data))).checked()
        self._heartbeat = data
        if not self._connection.closed:
            self._heartbeats.add(self)

    def send_heartbeat(self) -> None:
        """Repeat the client's heartbeat; if the broker still knows the client and its topics, only the time must be
        renewed.
        """
        data = self._heartbeat
        if data is None:
            return
        broker = self._broker
        is_known = all(
            (live := broker.clients.consumers.get(group := consumer.group_name)) is not None
            and live.has_applied(consumer.subscription_data_set)
            and broker.groups.get(group) is not None
            and broker.topics.get(retry_topic(group)) is not None
            for consumer in data.consumer_data_set
        )
        if not (is_known and broker.clients.renew(self._connection)):
            self.ask(self._name, RequestCode.HEART_BEAT, None, heartbeat_body(data))

    async def close(self, data: HeartbeatData | None) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        self._heartbeats.remove(self)
        self._connection.close()


class LocalBackend:
    """A backend for the broker in this process.

    :param limits: the limits for messages that the compiled core handles; ``None`` if it handles none.
    """

    def __init__(self, broker: Broker, limits: CallLimits | None = None) -> None:
        self._broker = broker
        self._heartbeats = _Heartbeats(broker.clock)
        self._timeouts = Deadlines(clock=broker.clock)
        self._calls = None if CORE is None or limits is None else PlainCalls(CORE, broker, limits)

    async def topic(self, name: str) -> TopicInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        info = self.known_topic(name)
        if info is None:
            raise no_route(name)
        return info

    def known_topic(self, name: str) -> TopicInfo | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        broker = self._broker
        config = broker.topics.get(name)
        if config is None:
            return None
        queues = BrokerQueues(
            broker.config.broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm & broker.config.broker_permission,
        )
        return TopicInfo(name, (queues,), message_type_of(config))

    def accept_calls(self, peer: CallsPeer, session: CallsSession, topic: TopicInfo, counter: list[int]) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        if self._calls is not None and self._calls.accept(topic, counter):
            self._calls.use(peer, session)

    def accept_acks(self, peer: CallsPeer, session: CallsSession, renewed: RenewedHandles) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        if self._calls is not None and self._calls.accepts:
            self._calls.use(peer, session).renewed = renewed

    async def group(self, name: str) -> GroupInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return self.known_group(name)

    def known_group(self, name: str) -> GroupInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        config = self._broker.groups.get(name)
        return GroupInfo() if config is None else GroupInfo.of(config)

    def advertised_host(self, access_host: str) -> str | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`; if a listener is configured, clients keep the host they
        used.
        """
        config = self._broker.config
        if access_host and any(name and address.host == access_host for name, address in config.advertised.items()):
            return None
        return config.broker_ip1

    def connect(self, client: ClientIdentity, on_request: Callable[[BrokerRequest], None]) -> Link:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return LocalLink(self._broker, client, on_request, self._heartbeats, self._timeouts)

    async def start(self) -> None:
        """Do nothing, because the broker is already running."""

    async def stop(self) -> None:
        """Send no more heartbeats; the broker stops itself."""
        self._heartbeats.close()
