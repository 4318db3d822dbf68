"""The gRPC server on one port, with or without TLS.

A connection begins a limited number of calls, for a limited time; then it waits in a queue until the other connections
have had their share. Few calls begin in one round of the event loop, since the next round has to do their work. The
server stops reading from a client that does not read its answers. A silent client gets a ping, and is disconnected if
it does not answer.

Two amounts are limited over all connections: incomplete calls (metadata and parts of messages), and answers that wait
for clients' windows. Above a limit, the connection with the largest amount is closed, so that other clients do not
suffer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Final, cast

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import (
    HANDSHAKE_SECONDS,
    WRITE_HIGH_WATER_BYTES,
    WRITE_LOW_WATER_BYTES,
)
from cometmq.loop import TaskSet
from cometmq.message.hosts import unmapped
from cometmq.periodic import Periodic
from cometmq.proxy.http2.connection import Http2Connection
from cometmq.proxy.http2.frames import ErrorCode, Http2Error
from cometmq.proxy.http2.stream import Inbound, Stream
from cometmq.proxy.limits import (
    CONNECTION_SHARE_SECONDS,
    GRPC_PING_SECONDS,
    GRPC_SILENT_SECONDS,
    MAX_GRPC_CONNECTION_UNSENT_BYTES,
    MAX_GRPC_INCOMPLETE_BYTES,
    MAX_GRPC_UNSENT_BYTES,
    MAX_HEADER_LIST_BYTES,
)
from cometmq.proxy.rpc.call import Call, Method
from cometmq.proxy.rpc.ending import end_all
from cometmq.proxy.rpc.pace import Pace
from cometmq.proxy.rpc.status import HEADERS, GrpcStatus, plain_answer, trailers
from cometmq.remoting.connections.accepted import Accepted
from cometmq.remoting.connections.gradual import Gradual
from cometmq.remoting.connections.listener import ConnectionLimit, Listener, close_all
from cometmq.remoting.connections.peer import peer_of
from cometmq.remoting.permissions import Caller
from cometmq.remoting.tls.opening import OpeningConnections
from cometmq.remoting.tls.server import ServerTls

_log = logging.getLogger(__name__)

_BACKLOG: Final = 4_096
_SWEEP_SECONDS: Final = 5.0
_FRAMES_PER_CHECK: Final = 8
"""Number of frames between two checks of a connection's share; most calls have two frames."""
_CALLS_ALONE: Final = 32
_CALLS_OF_SHARE: Final = 4
"""Maximum number of calls that a connection starts in its share of a round: if it is alone, and if others wait."""
_CALLS_OF_ROUND: Final = 16
"""Maximum number of calls that start in a round while connections are waiting."""


class HeldBytes:
    """Counts the bytes that connections hold, and limits the total.

    :param reason: the reason sent to the connection with the most bytes when it is closed because the limit is
        exceeded.
    """

    def __init__(self, limit: int, reason: str) -> None:
        self._limit = limit
        self._reason = reason
        self._total = 0
        self._held: dict[GrpcConnection, int] = {}

    def add(self, connection: GrpcConnection, change: int) -> None:
        """Adjust the number of bytes held by a connection."""
        held = self._held.get(connection, 0) + change
        self._total += change
        if held:
            self._held[connection] = held
        else:
            self._held.pop(connection, None)
        if change > 0 and self._total > self._limit:
            max(self._held, key=self._held.__getitem__).end_soon(self._reason)

    def of(self, connection: GrpcConnection) -> int:
        """Return the number of bytes held by a connection."""
        return self._held.get(connection, 0)


class GrpcServer:
    """A gRPC server that dispatches calls to methods.

    :param methods: the methods by path, such as ``/apache.rocketmq.v2.MessagingService/QueryRoute``.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        tls: ServerTls,
        clock: Clock = SYSTEM_CLOCK,
        connection_limit: ConnectionLimit | None = None,
    ) -> None:
        self.methods: Final = methods
        self.clock: Clock = clock
        self.connections: Final[set[GrpcConnection]] = set()
        self.incomplete: Final = HeldBytes(MAX_GRPC_INCOMPLETE_BYTES, "its incomplete calls use too much memory")
        self.unsent: Final = HeldBytes(MAX_GRPC_UNSENT_BYTES, "the client does not read its responses")
        self._tasks = TaskSet()
        self._queue: deque[GrpcConnection] = deque()
        """The connections waiting for their share."""
        self._is_crowded = False
        self._calls_of_round = _CALLS_OF_ROUND
        self.calls = 0
        """The number of calls started so far."""
        self._connection_limit: Final = connection_limit or ConnectionLimit()
        self._listener = Listener(self._accept, clock=clock)
        self._openings = OpeningConnections(
            lambda _: GrpcConnection(self), tls, clock=clock, silence_s=HANDSHAKE_SECONDS
        )
        self._checks: Final = Gradual(self._check_silence, clock=clock)
        self._sweeps = Periodic("closing silent connections", _SWEEP_SECONDS, self._sweep, clock=clock)

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; asking asyncio for it takes a system call."""
        return asyncio.get_running_loop()

    @cached_property
    def pace(self) -> Pace:
        """Decides when a piece of work can start."""
        return Pace(self.loop)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Start listening; port 0 selects a free port.

        :raises OSError: the port is in use or not allowed.
        """
        await self._listener.bind(host, port)
        self._connection_limit.count_descriptors(self._open)
        self._listener.listen(_BACKLOG)
        self._sweeps.start()

    async def stop(self) -> None:
        """Stop accepting connections, answer the calls under way, and close all connections; see
        :mod:`cometmq.proxy.rpc.ending`.
        """
        self._sweeps.close()
        if not self._listener.is_open:
            return
        self._listener.close()
        await self._openings.stop()
        await end_all(self.connections)
        await self._tasks.stop()
        await close_all(self.connections)

    def cut_off(self) -> None:
        """Stop listening and close every connection immediately, as happens when a process is killed."""
        self._listener.close()
        self._openings.abort()
        for connection in list(self.connections):
            connection.abort()

    def hold_task(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a call's task until the task ends."""
        self._tasks.hold(task)

    @property
    def is_busy(self) -> bool:
        """True if connections or calls are waiting."""
        return bool(self._queue) or self.pace.is_behind

    @property
    def calls_of_share(self) -> int:
        """The number of calls that a connection can start in its share."""
        return min(_CALLS_OF_SHARE, self._calls_of_round) if self._queue or self._is_crowded else _CALLS_ALONE

    def enqueue(self, connection: GrpcConnection) -> None:
        """Queue a connection behind the connections that are already waiting."""
        if not self._queue:
            self.loop.call_soon(self._run_round)
        self._queue.append(connection)

    def _run_round(self) -> None:
        waiting, self._queue = self._queue, deque()
        until = self.clock.monotonic() + CONNECTION_SHARE_SECONDS
        is_behind = self.pace.is_behind
        self._calls_of_round = (
            max(self._calls_of_round // 2, 1) if is_behind else min(self._calls_of_round + 1, _CALLS_OF_ROUND)
        )
        limit = self.calls + self._calls_of_round
        while waiting and self.calls < limit and not is_behind and self.clock.monotonic() < until:
            connection = waiting.popleft()
            self._is_crowded = bool(waiting)
            connection.continue_reading()
        self._is_crowded = False
        again, self._queue = self._queue, waiting
        self._queue.extend(again)
        if waiting and not again:
            self.loop.call_soon(self._run_round)

    def _accept(self, sock: Accepted) -> None:
        if not self._connection_limit.admits(self._open):
            sock.close()
            return
        self._openings.accept(sock)

    @property
    def _open(self) -> int:
        """Number of open connections, with those whose first bytes have not arrived."""
        return len(self.connections) + len(self._openings)

    def _sweep(self) -> None:
        self._connection_limit.count_descriptors(self._open)
        self._connection_limit.report(_SWEEP_SECONDS)
        for connection in self.connections:
            self._checks.add(connection)

    def _check_silence(self, connection: GrpcConnection) -> None:
        if connection in self.connections:
            connection.check_silence(_SWEEP_SECONDS)


class GrpcConnection(asyncio.Protocol):
    """A client's connection."""

    __slots__ = (
        "_is_draining",
        "_is_ending",
        "_is_paused",
        "_is_waiting",
        "_server",
        "_silent_s",
        "_transport",
        "account",
        "http2",
        "local_address",
        "peer_ip",
        "peer_port",
        "remote_address",
    )

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self.http2: Final = Http2Connection(
            self._open_call, self._schedule_flush, self._count_unsent, self.count_incomplete, server.clock
        )
        self._is_ending = False
        self._is_draining = False
        """True while frames are handled; then all bytes that they queue are written together."""
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
        """Send the server's settings."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.peer_ip, self.peer_port, _, self.remote_address = peer_of(transport)
        own = transport.get_extra_info("sockname") or ("", 0)
        self.local_address = (unmapped(str(own[0])), int(own[1]))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self._server.connections.add(self)
        self.http2.begin()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Cancel all calls."""
        self._server.connections.discard(self)
        self._transport = None
        self.http2.take_calls = None  # it references this connection
        self.http2.cancel_streams()

    def pause_writing(self) -> None:
        """Stop reading, because the client is slow."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._is_paused = False
        if self._transport is not None and not self._is_waiting:
            self._transport.resume_reading()
            self._drain()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._silent_s = 0.0
        self.http2.add_bytes(data)
        if self._is_waiting or self._is_paused:
            return
        if self._server.is_busy:
            self._wait_in_queue()
        else:
            self._drain()

    def _drain(self) -> None:
        clock = self._server.clock
        ends = clock.monotonic() + CONNECTION_SHARE_SECONDS
        limit = self._server.calls + self._server.calls_of_share
        self._is_draining = True
        try:
            while self._transport is not None and not self._is_paused and self.http2.handle_frames(_FRAMES_PER_CHECK):
                if self.http2.must_wait or self._server.calls >= limit or clock.monotonic() >= ends:
                    self._wait_in_queue()
                    return
        except Http2Error as error:
            _log.info("closing %s: %s", self.remote_address, error)
            self.http2.send_goaway(error.code, str(error))
            self.close()
        except Exception:
            _log.exception("closing %s: cannot handle a frame", self.remote_address)
            self.http2.send_goaway(ErrorCode.INTERNAL_ERROR)
            self.close()
        finally:
            self._is_draining = False
            self.flush()

    def _wait_in_queue(self) -> None:
        assert self._transport is not None
        self._is_waiting = True
        self._transport.pause_reading()
        self._server.enqueue(self)

    def continue_reading(self) -> None:
        """Handle further frames, after the other connections have had their share."""
        self._is_waiting = False
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()
            self._drain()

    # --- calls ----------------------------------------------------------------------------------
    def _open_call(self, stream: Stream, headers: dict[str, str], size: int) -> Inbound:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            stream.end(plain_answer(415))
            return _IGNORE
        if self._server.unsent.of(self) > MAX_GRPC_CONNECTION_UNSENT_BYTES:
            reason = "the client does not read the responses to earlier calls on this connection"
            stream.end(HEADERS + trailers(GrpcStatus.RESOURCE_EXHAUSTED, reason))
            return _IGNORE
        if size > MAX_HEADER_LIST_BYTES:
            reason = "the call's metadata is too large"
            stream.end(HEADERS + trailers(GrpcStatus.RESOURCE_EXHAUSTED, reason))
            return _IGNORE
        path = headers.get(":path", "")
        method = self._server.methods.get(path)
        if method is None:
            stream.end(HEADERS + trailers(GrpcStatus.UNIMPLEMENTED, f"Method not found: {path[1:200]}"))
            return _IGNORE
        self._server.calls += 1
        return Call(self._server, self, stream, headers, method, size)

    # --- writing --------------------------------------------------------------------------------
    def count_incomplete(self, change: int) -> None:
        """Adjust the number of bytes held by the connection's incomplete calls."""
        self._server.incomplete.add(self, change)

    def _count_unsent(self, change: int) -> None:
        self._server.unsent.add(self, change)

    def _schedule_flush(self) -> None:
        if not self._is_draining:
            self._server.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the queued bytes to the transport."""
        out = self.http2.out
        if not out:
            return
        self.http2.out = []
        if self._transport is None or self._transport.is_closing():
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.write(b"".join(out))

    def write_now(self, data: bytes) -> None:
        """Write bytes to the transport, behind those that are queued."""
        out = self.http2.out
        if out:
            out.append(data)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def check_silence(self, seconds: float) -> None:
        """Send a ping to an idle client, and close the connection if the client does not respond.

        A connection that waits for its share is not silent: the server has not handled its bytes yet.
        """
        self._silent_s = 0.0 if self._is_waiting else self._silent_s + seconds
        if self._silent_s > GRPC_SILENT_SECONDS:
            _log.info("closing %s: the client does not respond to pings", self.remote_address)
            self.abort()
        elif self._silent_s > HANDSHAKE_SECONDS and not self.http2.has_preface:
            self.abort()
        elif self._silent_s > GRPC_PING_SECONDS:
            self.http2.ping()

    def end_soon(self, reason: str) -> None:
        """Send GOAWAY and close the connection in the next round, because it holds too many bytes."""
        if not self._is_ending:
            self._is_ending = True
            _log.warning("closing %s: %s", self.remote_address, reason)
            self.http2.send_goaway(ErrorCode.ENHANCE_YOUR_CALM, reason)
            self.flush()
            asyncio.get_running_loop().call_soon(self.abort)

    def announce_end(self) -> None:
        """Send GOAWAY, so that the client opens a new connection for its next calls."""
        self.http2.announce_goaway()

    def stop_waiting(self) -> None:
        """End the calls that wait for something to happen."""
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.inbound, Call):
                stream.inbound.stop_waiting()

    def refuse_calls(self) -> None:
        """Accept no more calls, even if the client has not confirmed that it makes none."""
        self.http2.send_goaway()

    @property
    def is_over(self) -> bool:
        """True if no more calls can arrive and all calls are answered, except those of this round."""
        return self.http2.is_over

    def close(self) -> None:
        """Close the connection after the queued bytes have been sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            self._transport.abort()


class _IgnoreRest:
    """A receiver that ignores the rest of a request that has already been answered."""

    def receive_data(self, chunk: bytes) -> None:
        """Ignore the data."""

    def receive_end(self) -> None:
        """Ignore the end of the request."""

    def cancel(self) -> None:
        """Do nothing, because the request is already answered."""


_IGNORE: Final = _IgnoreRest()
