"""The server of one port: TLS and plain text, connections, and the methods that they call.

A connection begins some calls in a turn, for some time; then it waits until all others that wait have had theirs. In
each round of the event loop few calls begin, since their work is done in the next one. A connection that
does not read its answers is not read either. Whoever sends nothing is asked for a sign of life, and closed without it.

Two amounts are bounded for all connections together: calls that are not complete, with their metadata and the parts of
their messages, and answers that wait for the windows of clients. Above a bound the connection that has most of it is
closed, so nobody pays for others.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Mapping
from typing import Final, cast

from cometmq.clock import SYSTEM_CLOCK, Clock, TimerHandle
from cometmq.limits import (
    HANDSHAKE_SECONDS,
    MAX_CONNECTIONS,
    TURN_SECONDS,
    WRITE_HIGH_WATER_BYTES,
    WRITE_LOW_WATER_BYTES,
)
from cometmq.message.hosts import format_address, stored_ip, unmapped
from cometmq.proxy.http2.connection import Http2Connection
from cometmq.proxy.http2.frames import ErrorCode, Http2Error
from cometmq.proxy.http2.stream import Inbound, Stream
from cometmq.proxy.limits import (
    GRPC_PING_SECONDS,
    GRPC_SILENT_SECONDS,
    MAX_GRPC_CONNECTION_WAITING_BYTES,
    MAX_GRPC_UNFINISHED_BYTES,
    MAX_GRPC_WAITING_BYTES,
    MAX_HEADER_LIST_BYTES,
)
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.rpc.pace import Pace
from cometmq.proxy.rpc.status import HEADERS, GrpcStatus, plain_answer, trailers
from cometmq.remoting.listener import Listener, close_all
from cometmq.remoting.permissions import Caller
from cometmq.remoting.tls.opening import Openings
from cometmq.remoting.tls.server import ServerTls

_log = logging.getLogger(__name__)

_BACKLOG: Final = 4_096
_SWEEP_SECONDS: Final = 5.0
_FRAMES_OF_TURN: Final = 8
"""Frames between two looks at what a connection has begun: most calls are two."""
_CALLS_ALONE: Final = 32
_CALLS_OF_TURN: Final = 4
"""Calls that a connection begins in a turn, alone and when others wait."""
_CALLS_OF_ROUND: Final = 16
"""Calls that begin in one round of the event loop when connections wait; fewer while there is no time for so many."""


class Shares:
    """An amount of bytes that connections hold, with a bound for all together."""

    def __init__(self, most: int, reason: str) -> None:
        self._most = most
        self._reason = reason
        self._total = 0
        self._held: dict[GrpcConnection, int] = {}

    def change(self, connection: GrpcConnection, change: int) -> None:
        """Note that a connection holds more, or less."""
        held = self._held.get(connection, 0) + change
        self._total += change
        if held:
            self._held[connection] = held
        else:
            self._held.pop(connection, None)
        if change > 0 and self._total > self._most:
            max(self._held, key=self._held.__getitem__).end(self._reason)

    def of(self, connection: GrpcConnection) -> int:
        """The bytes that a connection holds."""
        return self._held.get(connection, 0)


class GrpcServer:
    """Listens, and passes each call to its method.

    :param methods: path of a method, such as ``/apache.rocketmq.v2.MessagingService/QueryRoute``, to the method.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        tls: ServerTls,
        clock: Clock = SYSTEM_CLOCK,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.methods: Final = methods
        self.clock: Clock = clock
        self.pace = Pace()
        self.connections: Final[set[GrpcConnection]] = set()
        self.unfinished = Shares(MAX_GRPC_UNFINISHED_BYTES, "its calls that are not complete hold too much")
        self.waiting = Shares(MAX_GRPC_WAITING_BYTES, "it does not read its answers")
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: deque[GrpcConnection] = deque()
        self._is_crowded = False
        self._calls_of_round = _CALLS_OF_ROUND
        self.calls = 0
        """Calls that have begun."""
        self._max_connections = max_connections
        self._listener = Listener(self._accepted, clock=clock)
        self._openings = Openings(lambda: GrpcConnection(self), tls, clock=clock, silence_s=HANDSHAKE_SECONDS)
        self._sweeper: TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one.

        :raises OSError: the port is taken or not allowed.
        """
        await self._listener.bind(host, port)
        self._listener.listen(_BACKLOG)
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Take no more calls, give up those under way, close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if not self._listener.is_open:
            return
        self._listener.close()
        await self._openings.stop()
        for connection in self.connections:
            connection.leave()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_all(self.connections)

    def cut_off(self) -> None:
        """Stop listening and end every connection at once, as the system does for a killed process."""
        self._listener.close()
        self._openings.abort()
        for connection in list(self.connections):
            connection.abort()

    def started(self, work: asyncio.Task[None]) -> None:
        """Keep a task of a call until it is done."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    @property
    def is_busy(self) -> bool:
        """Connections, or calls, wait for their turns."""
        return bool(self._turns) or self.pace.is_behind

    @property
    def calls_of_turn(self) -> int:
        """Calls that a connection may begin now."""
        return min(_CALLS_OF_TURN, self._calls_of_round) if self._turns or self._is_crowded else _CALLS_ALONE

    def wait_for_turn(self, connection: GrpcConnection) -> None:
        """Let a connection go on after those that wait already."""
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._round)
        self._turns.append(connection)

    def _round(self) -> None:
        turns, self._turns = self._turns, deque()
        until = self.clock.monotonic() + TURN_SECONDS
        is_behind = self.pace.is_behind
        self._calls_of_round = (
            max(self._calls_of_round // 2, 1) if is_behind else min(self._calls_of_round + 1, _CALLS_OF_ROUND)
        )
        most = self.calls + self._calls_of_round
        while turns and self.calls < most and not is_behind and self.clock.monotonic() < until:
            connection = turns.popleft()
            self._is_crowded = bool(turns)
            connection.go_on()
        self._is_crowded = False
        again, self._turns = self._turns, turns
        self._turns.extend(again)
        if turns and not again:
            asyncio.get_running_loop().call_soon(self._round)

    def _accepted(self, sock: socket.socket) -> None:
        if len(self.connections) + len(self._openings) >= self._max_connections:
            sock.close()
            return
        self._openings.accept(sock)

    def _sweep(self) -> None:
        for connection in list(self.connections):
            connection.look(_SWEEP_SECONDS)
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)


class GrpcConnection(asyncio.Protocol):
    """The connection of one client."""

    __slots__ = (
        "_has_answered",
        "_http2",
        "_is_ending",
        "_is_paused",
        "_is_waiting",
        "_server",
        "_silent_s",
        "_transport",
        "account",
        "local_address",
        "peer_ip",
        "peer_port",
        "remote_address",
    )

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._http2 = Http2Connection(self._opened, self._wrote, self._waits, self.unfinished, server.clock)
        self._is_ending = False
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_waiting = False
        self._silent_s = 0.0
        self.account: Caller | None = None
        self.peer_ip = "0.0.0.0"
        self.peer_port = 0
        self.remote_address = ""
        self.local_address: tuple[str, int] = ("", 0)

    # --- asyncio.Protocol -----------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send our settings."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        self.peer_ip, self.peer_port = stored_ip(str(peer[0])) or str(peer[0]), int(peer[1])
        self.remote_address = format_address(unmapped(str(peer[0])), self.peer_port)
        own = transport.get_extra_info("sockname") or ("", 0)
        self.local_address = (unmapped(str(own[0])), int(own[1]))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self._server.connections.add(self)
        self._http2.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up all calls."""
        self._server.connections.discard(self)
        self._transport = None
        self._http2.lost()

    def pause_writing(self) -> None:
        """Stop reading: the client is slow."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self._is_paused = False
        if self._transport is not None and not self._is_waiting:
            self._transport.resume_reading()
            self._drain()

    def data_received(self, data: bytes) -> None:
        """Handle the frames."""
        self._silent_s = 0.0
        self._http2.push(data)
        if self._is_waiting or self._is_paused:
            return
        if self._server.is_busy:
            self._wait_for_turn()
        else:
            self._drain()

    def _drain(self) -> None:
        clock = self._server.clock
        ends = clock.monotonic() + TURN_SECONDS
        most = self._server.calls + self._server.calls_of_turn
        try:
            while self._transport is not None and not self._is_paused and self._http2.handle(_FRAMES_OF_TURN):
                if self._server.calls >= most or clock.monotonic() >= ends:
                    self._wait_for_turn()
                    return
        except Http2Error as error:
            _log.info("closing %s: %s", self.remote_address, error)
            self._http2.leave(error.code, str(error))
            self.close()
        except Exception:
            _log.exception("closing %s: a frame failed", self.remote_address)
            self._http2.leave(ErrorCode.INTERNAL_ERROR)
            self.close()

    def _wait_for_turn(self) -> None:
        assert self._transport is not None
        self._is_waiting = True
        self._transport.pause_reading()
        self._server.wait_for_turn(self)

    def go_on(self) -> None:
        """Have a turn."""
        self._is_waiting = False
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()
            self._drain()

    # --- calls ----------------------------------------------------------------------------------
    def _opened(self, stream: Stream, headers: dict[str, str], size: int) -> Inbound:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            stream.end(plain_answer(415))
            return _NOBODY
        if self._server.waiting.of(self) > MAX_GRPC_CONNECTION_WAITING_BYTES:
            words = "the answers to earlier calls of this connection are not read"
            stream.end(HEADERS + trailers(GrpcStatus.RESOURCE_EXHAUSTED, words))
            return _NOBODY
        if size > MAX_HEADER_LIST_BYTES:
            words = "the metadata of the call is too large"
            stream.end(HEADERS + trailers(GrpcStatus.RESOURCE_EXHAUSTED, words))
            return _NOBODY
        path = headers.get(":path", "")
        method = self._server.methods.get(path)
        if method is None:
            stream.end(HEADERS + trailers(GrpcStatus.UNIMPLEMENTED, f"Method not found: {path[1:200]}"))
            return _NOBODY
        self._server.calls += 1
        return Call(self._server, self, stream, headers, method, size)

    # --- writing --------------------------------------------------------------------------------
    def unfinished(self, change: int) -> None:
        """Note that more, or fewer, bytes of what is not complete are here."""
        self._server.unfinished.change(self, change)

    def _waits(self, change: int) -> None:
        self._server.waiting.change(self, change)

    def _wrote(self) -> None:
        asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Hand the queued bytes to the transport."""
        out = self._http2.out
        if not out:
            return
        self._http2.out = []
        if self._transport is None or self._transport.is_closing():
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.write(b"".join(out))

    def look(self, seconds: float) -> None:
        """Ask a client that is silent for a sign of life, and close it when there is none."""
        self._silent_s += seconds
        if self._silent_s > GRPC_SILENT_SECONDS:
            _log.info("closing %s: it is silent", self.remote_address)
            self.abort()
        elif self._silent_s > HANDSHAKE_SECONDS and not self._http2.has_preface:
            self.abort()
        elif self._silent_s > GRPC_PING_SECONDS:
            self._http2.ping()

    def end(self, reason: str) -> None:
        """End the connection soon: it holds too much."""
        if not self._is_ending:
            self._is_ending = True
            _log.warning("closing %s: %s", self.remote_address, reason)
            self._http2.leave(ErrorCode.ENHANCE_YOUR_CALM, reason)
            self.flush()
            asyncio.get_running_loop().call_soon(self.abort)

    def leave(self) -> None:
        """Tell the client to make a new connection for its next calls."""
        self._http2.leave()

    def close(self) -> None:
        """Close after what is queued is sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


class _Nobody:
    """Takes what comes on a stream that was answered already."""

    def data(self, chunk: bytes) -> None:
        """Drop it."""

    def ended(self) -> None:
        """Do nothing."""

    def cancelled(self) -> None:
        """Do nothing."""


_NOBODY: Final = _Nobody()
