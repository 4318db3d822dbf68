"""The broker of this process: its handlers are called without a socket between.

Each client has a connection of its own in the broker, so that the tables of clients, quotas and hooks see it as they
see a client of remoting. Accounts are checked by the endpoint, for each call.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from cometmq.broker.controller import Broker
from cometmq.clock import TimerHandle
from cometmq.message.hosts import encode_host, format_address
from cometmq.proxy.backend.backend import (
    ASK_SECONDS,
    Answer,
    Asked,
    BrokerQueues,
    GroupInfo,
    Link,
    Reply,
    TopicInfo,
    heartbeat_body,
)
from cometmq.proxy.backend.topics import GroupBody, group_info, message_type_of, no_route
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.limits import HEARTBEAT_BROKER_SECONDS
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.bodies import HeartbeatData, decode_body, encode_body
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode
from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import Header, NoHeader
from cometmq.remoting.permissions import CALLER
from cometmq.remoting.processors import Buffer, Request, Response
from cometmq.remoting.server_connection import ServerConnection


class LocalConnection(ServerConnection):
    """The connection of one client in the broker of this process; it has no socket."""

    __slots__ = ("_asked", "_waiting")

    def __init__(
        self, broker: Broker, peer: tuple[str, int], asked: Callable[[int, dict[str, str], bytes, Answer], None]
    ):
        super().__init__(broker.server)
        self._asked = asked
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self.peer_ip, self.peer_port = peer
        self.peer_bytes = encode_host(*peer)
        self.remote_address = format_address(*peer)

    @property
    def hooked(self) -> bool:
        """Answers go through :meth:`respond`: nobody needs their bytes."""
        return True

    @property
    def is_behind(self) -> bool:
        """Commands to the client are bounded by its Telemetry stream."""
        return False

    def expect(self, opaque: int, done: Callable[[Reply], None]) -> None:
        """Call a function with the answer to a request."""
        self._waiting[opaque] = done

    def forget(self, opaque: int) -> None:
        """Drop the answer to a request."""
        self._waiting.pop(opaque, None)

    def deliver(self, request: Request[Any], response: Response) -> None:
        """Give the answer to the caller that waits for it."""
        done = self._waiting.pop(request.opaque, None)
        if done is None:
            return
        body = response.body
        whole: Buffer = body if isinstance(body, (bytes, memoryview)) else b"".join(body)
        done(Reply(response.code, response.remark, response.header or {}, whole))

    def write(self, *chunks: Buffer) -> None:
        """Take answers and requests of the broker that are encoded already."""
        if self.closed:
            return
        for frame in FrameDecoder().feed(b"".join(chunks)):
            command = decode_command(frame)
            if not command.is_response:
                self._asked(command.code, command.ext_fields, command.body, partial(self._answered, command.opaque))
                continue
            done = self._waiting.pop(command.opaque, None)
            if done is not None:
                done(Reply(command.code, command.remark, command.ext_fields, command.body))

    def _answered(self, opaque: int, response: Response) -> None:
        """Give the broker the answer of the client."""
        body = response.body
        whole = bytes(body) if isinstance(body, (bytes, memoryview)) else b"".join(body)
        self.take_answer(RemotingCommand(response.code, opaque, remark=response.remark, body=whole))

    def flush(self) -> None:
        """Nothing is queued."""

    def close(self) -> None:
        """End it."""
        if not self.closed:
            self.closed = True
            for callback in self.on_close:
                callback(self)

    def abort(self) -> None:
        """End it."""
        self.close()


class LocalLink:
    """The way of one client to the broker of this process."""

    def __init__(self, broker: Broker, client_id: str, peer: tuple[str, int], language: str, asked: Asked) -> None:
        self._broker = broker
        self._name = broker.config.broker_name
        self._language = language
        self._peer = peer
        self._asked = asked
        self._opaques = itertools.count(1)
        self._data: HeartbeatData | None = None
        self._renewal: TimerHandle | None = None
        self.connection = self._connect()

    def _connect(self) -> LocalConnection:
        name, asked = self._name, self._asked
        return LocalConnection(self._broker, self._peer, partial(asked, name))

    def ask(
        self, broker: str, code: int, header: Header | None, body: bytes = b"", *, timeout_s: float = ASK_SECONDS
    ) -> Awaitable[Reply]:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        if broker != self._name:
            raise ProxyError(Code.INTERNAL_SERVER_ERROR, f"the broker[{broker}] not exist")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        opaque = next(self._opaques) & 0x7FFFFFFF
        connection = self.connection
        caller: Any = CALLER.get()
        if caller is not None and (connection.account is None or connection.account.account is not caller.account):
            connection.account = caller  # quotas count for it
        timer: TimerHandle | None = None

        def done(reply: Reply) -> None:
            if timer is not None:
                timer.cancel()
            if not future.done():
                future.set_result(reply)

        def late() -> None:
            connection.forget(opaque)
            if not future.done():
                future.set_exception(ProxyError(Code.PROXY_TIMEOUT, f"the broker[{broker}] does not answer in time"))

        connection.expect(opaque, done)
        request = Request(
            code=code, header=header or NoHeader(), opaque=opaque, language=self._language, version=CURRENT_VERSION
        )
        self._broker.server.serve(connection, request, body)
        if not future.done():
            timer = self._broker.clock.call_later(timeout_s, late)
        return future

    async def register(self, data: HeartbeatData) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        (await self.ask(self._name, RequestCode.HEART_BEAT, None, heartbeat_body(data))).checked()
        self._data = data
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = self._broker.clock.call_later(HEARTBEAT_BROKER_SECONDS, self._renew)

    def _renew(self) -> None:
        assert self._data is not None
        self._renewal = self._broker.clock.call_later(HEARTBEAT_BROKER_SECONDS, self._renew)
        self.ask(self._name, RequestCode.HEART_BEAT, None, heartbeat_body(self._data))

    async def close(self, data: HeartbeatData | None) -> None:
        """See :class:`~cometmq.proxy.backend.backend.Link`."""
        if self._renewal is not None:
            self._renewal.cancel()
        self.connection.close()


class LocalBackend:
    """The broker of this process.

    :param port: gives the port of the endpoint.
    """

    def __init__(self, broker: Broker, port: Callable[[], int]) -> None:
        self._broker = broker
        self._port = port

    async def topic(self, name: str) -> TopicInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        broker = self._broker
        config = broker.topics.get(name)
        if config is None:
            raise no_route(name)
        queues = BrokerQueues(
            broker.config.broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm & broker.config.broker_permission,
        )
        return TopicInfo(name, (queues,), message_type_of(config), (queues,))

    async def group(self, name: str) -> GroupInfo:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        config = self._broker.groups.get(name)
        return GroupInfo() if config is None else group_info(decode_body(GroupBody, encode_body(config)))

    def endpoint(self, broker: str, came_by: str) -> tuple[str, int] | None:
        """See :class:`~cometmq.proxy.backend.backend.Backend`: the host of a listener leads to this broker only."""
        config = self._broker.config
        if came_by and any(name and address.host == came_by for name, address in config.advertised.items()):
            return None
        return config.broker_ip1, self._port()

    def link(self, client_id: str, peer: tuple[str, int], language: str, asked: Asked) -> Link:
        """See :class:`~cometmq.proxy.backend.backend.Backend`."""
        return LocalLink(self._broker, client_id, peer, language, asked)

    async def start(self) -> None:
        """Do nothing: the broker runs."""

    async def stop(self) -> None:
        """Do nothing."""
