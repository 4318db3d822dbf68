"""The server's transport: asyncio connections around the sans-I/O protocol (``NettyRemotingServer``).

A *round* is one run of the event loop. The requests that arrived together are handled. Then the functions in
``end_of_round`` run once; a broker's function stores all messages of the round. Then every connection writes its
answers in one call. Each connection has a time limit per round: a connection with more requests continues in the next
round, after all other connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import astuple

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.limits import (
    FRAME_SECONDS,
    MAX_CONNECTIONS,
    MAX_POSTPONED_BYTES,
    ROUND_OF_ALL_BYTES,
    ROUND_OF_ALL_SECONDS,
    SERVER_IDLE_SECONDS,
)
from cometmq.periodic import Periodic
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, decode_command, decode_header
from cometmq.remoting.connections.accepted import Accepted
from cometmq.remoting.connections.busy_poll import BusyPoll, can_busy_poll
from cometmq.remoting.connections.ending import end_all, is_left_to_reset
from cometmq.remoting.connections.gradual import Gradual, call_on_close
from cometmq.remoting.connections.listener import ConnectionLimit, Listener
from cometmq.remoting.connections.silence import SWEEP_SECONDS, Silence
from cometmq.remoting.connections.unsent import UnsentAnswers
from cometmq.remoting.connections.waiting import WaitingConnections
from cometmq.remoting.frame import JSON, Frame
from cometmq.remoting.processors import (
    PostponeError,
    Processor,
    ProcessorTable,
    Request,
    RequestError,
    Response,
    RpcHook,
    RpcRejectedError,
    encode_response,
    failed,
    not_supported,
)
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server_connection import NewTaker, ServerConnection
from cometmq.remoting.tls.opening import OpeningConnections
from cometmq.remoting.tls.options import TlsOptions
from cometmq.remoting.tls.server import ServerTls

log = logging.getLogger(__name__)

_TOO_MANY_POSTPONED: Final = f"postponed requests already use {MAX_POSTPONED_BYTES} bytes, try again later"
_POSTPONED_REQUEST_BYTES: Final = 1_024
"""Approximate size of a postponed request, not counting its texts."""
_BACKLOG: Final = 4_096
"""Length of the kernel's queue of connections to accept; a client may open all its connections at the same time."""


class RequestGuard(Protocol):
    """Decides whether a request is handled; see :mod:`cometmq.auth.guard`."""

    def check(
        self, connection: ServerConnection, processor: Processor, request: Request[Any], frame: Frame
    ) -> Response | None:
        """Return the response that denies a request, or ``None`` if the request is allowed."""

    def check_unknown(self, connection: ServerConnection, code: int, frame: Frame) -> Response | None:
        """Return the response that denies a request with an unknown code, or ``None`` if the account is known."""


class Limiter(Protocol):
    """Delays or rejects requests that exceed a quota; see :mod:`cometmq.auth.quota.limiter`."""

    @property
    def is_active(self) -> bool:
        """Return whether any quota is set."""

    def holds(
        self,
        connection: ServerConnection,
        processor: Processor,
        request: Request[Any],
        frame: Frame,
        handle: Callable[[ServerConnection, Processor, Request[Any], bytes], None],
    ) -> bool:
        """Return whether a request exceeds a quota; if so, reject it or pass it to ``handle`` later."""


@dataclass(frozen=True, slots=True)
class RequestPath:
    """The steps that a server's requests pass through before and after their processor."""

    guard: RequestGuard | None = None
    """The first step, which denies requests that the account is not allowed to make."""
    limiter: Limiter | None = None
    """The second step, which delays or rejects requests that exceed a quota."""
    hooks: Sequence[RpcHook] = ()
    """Called with every handled request and every response."""
    on_failure: Callable[[ServerConnection, Request[Any], Response], None] | None = None
    """Called with responses whose code is not 0, for the audit log."""
    latency: RpcLatency | None = None
    """Measures the duration of requests, if metrics are enabled."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits for a server's connections."""

    idle_timeout_s: float = SERVER_IDLE_SECONDS
    """Number of seconds without new bytes after which a connection is closed."""
    frame_timeout_s: float = FRAME_SECONDS
    """Number of seconds within which a frame must arrive completely."""
    max_connections: int = MAX_CONNECTIONS


class RemotingServer:
    """Listens on a port, passes each request to its processor, and closes idle or stuck connections."""

    def __init__(
        self,
        processors: ProcessorTable,
        path: RequestPath = RequestPath(),
        limits: ServerLimits = ServerLimits(),
        *,
        clock: Clock = SYSTEM_CLOCK,
        tls: ServerTls | None = None,
        listener: str = "",
    ) -> None:
        self.processors = processors
        self.listener = listener
        """The name of the listener (port) of this server, if the process has several (see
        :mod:`cometmq.message.listeners`).
        """
        self.path = path
        self.clock = clock
        self.new_taker: NewTaker | None = None
        self.end_of_round: Sequence[Callable[[], None]] = ()
        self.connections: set[ServerConnection] = set()
        self.unfinished_bytes = 0
        """Total size in bytes of the unfinished frames on all connections."""
        self._postponed_bytes = 0
        """Approximate total size of all postponed requests."""
        self.unsent: Final = UnsentAnswers(clock=clock)
        self._departures: Final = Gradual(call_on_close, clock=clock)
        self._silence: Final = Silence(limits.idle_timeout_s, limits.frame_timeout_s, clock=clock)
        self._connection_limit: Final = ConnectionLimit(limits.max_connections)
        self._listener = Listener(self._accepted, clock=clock)
        new, tls = partial(ServerConnection, self), tls or ServerTls(TlsOptions())
        self._openings: Final = OpeningConnections(new, tls, clock=clock, silence_s=limits.idle_timeout_s)
        self._is_bound = False
        self._is_halted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy_poll: BusyPoll | None = None
        self.expects_requests = False
        """True if data has arrived since the last round, unless a client is still reading a large response."""
        self._dirty: list[ServerConnection] = []
        self.waiting: Final = WaitingConnections()
        self._at_end: list[Callable[[], None]] = []
        """Functions to call once, at the end of this round."""
        self.round_is_scheduled = False
        """True from the first request in a round until the end of the round."""
        self.round_bytes = 0
        """Size in bytes of the responses that are queued in this round."""
        self._round_ends = 0.0
        """Monotonic time after which further connections wait for the next round."""
        self._sweeps = Periodic("closing silent connections", SWEEP_SECONDS, self._sweep, clock=clock)

    @property
    def port(self) -> int:
        """Return the server's port."""
        return self._listener.port

    async def bind(self, host: str, port: int) -> None:
        """Bind ``host:port``, so that ``port`` is known; port 0 selects a free port. Call ``listen`` to accept
        connections.

        :raises OSError: the port is in use or not allowed.
        """
        self._is_bound, self._is_halted = True, False
        self._loop = asyncio.get_running_loop()
        if self.clock is SYSTEM_CLOCK and can_busy_poll():  # a clock that tests can move says nothing about processors
            self._busy_poll = BusyPoll(self._loop.call_soon, self.clock)
        await self._listener.bind(host, port)

    def listen(self, end_of_round: Sequence[Callable[[], None]] = (), new_taker: NewTaker | None = None) -> None:
        """Start accepting connections.

        :param end_of_round: the functions to call at the end of each round, in this order.
        :raises OSError: another program has bound the port at the same time.
        """
        self.end_of_round, self.new_taker = end_of_round, new_taker
        self._connection_limit.count_descriptors(self._open)
        self._listener.listen(_BACKLOG)
        self._sweeps.start()

    async def start(
        self,
        host: str,
        port: int,
        end_of_round: Sequence[Callable[[], None]] = (),
        new_taker: NewTaker | None = None,
    ) -> None:
        """Bind the port and start accepting connections.

        :raises OSError: the port is in use or not allowed.
        """
        await self.bind(host, port)
        self.listen(end_of_round, new_taker)

    def halt(self) -> None:
        """Stop listening, and leave new sends of Java clients to the reset by :meth:`stop`, which must follow soon."""
        self._is_halted = True
        self._listener.close()

    async def stop(self) -> None:
        """Stop listening, write all queued data, and end all connections."""
        self._sweeps.close()
        if not self._is_bound:
            return
        self._is_bound = False
        self.halt()
        self._end_round()
        self.unsent.stop()
        await self._openings.stop()
        await end_all(self.connections, self.at_end_of_round)
        self._departures.finish()

    def renew_takers(self) -> None:
        """Replace the frame handler of every connection."""
        for connection in self.connections:
            connection.renew_taker()

    def cut_off(self) -> None:
        """Stop listening and abort every connection, as happens when a process is killed."""
        self._is_bound = False
        self._listener.close()
        self._openings.abort()
        for connection in list(self.connections):
            connection.abort()

    # --- called by connections ----------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> None:
        """Register a new connection."""
        self.connections.add(connection)

    def _accepted(self, sock: Accepted) -> None:
        """Open a connection on a socket, or close the socket if there are too many connections."""
        if not self._connection_limit.admits(self._open):
            sock.close()
            return
        self._openings.accept(sock)

    @property
    def _open(self) -> int:
        """Number of open connections, with those whose first bytes have not arrived."""
        return len(self.connections) + len(self._openings)

    def lost(self, connection: ServerConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        self.unsent.lost(connection)
        if connection.on_close:
            self._departures.add(connection)

    def wrote(self, connection: ServerConnection) -> None:
        """Flush the connection at the end of the round."""
        self._dirty.append(connection)
        if not self.round_is_scheduled:
            self.schedule_round()

    def abort_largest(self) -> None:
        """Abort the connection with the largest unfinished frame, because unfinished frames use too much memory."""
        largest = max(self.connections, key=lambda connection: connection.unfinished_bytes)
        log.warning(
            "closing %s: its unfinished frame of %d bytes is the largest (%d in total)",
            largest.remote_address,
            largest.unfinished_bytes,
            self.unfinished_bytes,
        )
        self.unfinished_bytes -= largest.unfinished_bytes
        largest.unfinished_bytes = 0
        largest.abort()

    def resume_soon(self, connection: ServerConnection, code: int) -> None:
        """Schedule a connection's waiting frames, of which the first has this code, for a later round."""
        self.waiting.add(connection, code)
        self.schedule_round()

    def schedule_round(self) -> None:
        """Start a round unless one has started; it ends when all requests that have arrived are handled."""
        if not self.round_is_scheduled and self._loop is not None:
            self.round_is_scheduled = True
            self._round_ends = self.clock.monotonic() + ROUND_OF_ALL_SECONDS
            if self.path.latency is not None:
                self.path.latency.begin_round()
            self._loop.call_soon(self._end_round)

    def at_end_of_round(self, work: Callable[[], None]) -> None:
        """Call a function once, at the end of this round, before the responses of the round are written."""
        self._at_end.append(work)
        self.schedule_round()

    @property
    def round_is_over(self) -> bool:
        """Return whether the connections have used up the time or the bytes of the current round."""
        if not self.round_is_scheduled:
            return False
        return self.round_bytes >= ROUND_OF_ALL_BYTES or self.clock.monotonic() >= self._round_ends

    def _end_round(self) -> None:
        self.round_is_scheduled = False
        for end in self.end_of_round:
            end()
        works, self._at_end = self._at_end, []
        for work in works:
            work()
        dirty, self._dirty, self.round_bytes = self._dirty, [], 0
        for connection in dirty:
            connection.flush()
        self.unsent.end_round()
        if self.waiting:
            self._resume_connections(self.waiting.take())
        if self.path.latency is not None:
            self.path.latency.end_round()
        if self._busy_poll is not None and self.expects_requests:
            self.expects_requests = False
            self._busy_poll.round_ended()

    def _resume_connections(self, connections: list[ServerConnection]) -> None:
        """Let connections continue until the round's time is used up; the others start the next round."""
        for number, connection in enumerate(connections, 1):
            connection.resume()
            if number < len(connections) and self.round_is_over:
                self.waiting.put_back(connections[number:])
                break
        if self.waiting:
            self.schedule_round()

    def handle(self, connection: ServerConnection, frame: Frame) -> float | None:
        """Handle one frame; return the time at which handling started, unless the request is light."""
        processor = self.processors.find(frame.serialize_type, frame.header)
        if processor is not None and processor.is_light:
            self._run(connection, processor, frame)
            return None
        began = self.clock.monotonic()
        if processor is None:
            self._handle_unusual(connection, frame)
        else:
            self._run(connection, processor, frame)
        return began

    def _handle_unusual(self, connection: ServerConnection, frame: Frame) -> None:
        """Handle a client's response, a header whose first field is not the code, or an unknown code."""
        parsed = decode_header(frame.serialize_type, frame.header)
        if parsed.flag & FLAG_RESPONSE:
            connection.accept_response(decode_command(frame))
            return
        processor = self.processors.get(parsed.code)
        if processor is not None:
            self._run(connection, processor, frame)
        elif not parsed.flag & FLAG_ONEWAY:
            denial = None if self.path.guard is None else self.path.guard.check_unknown(connection, parsed.code, frame)
            answer = denial or not_supported(parsed.code)
            connection.write(*encode_response(frame.serialize_type, parsed.opaque, answer))

    def _run(self, connection: ServerConnection, processor: Processor, frame: Frame) -> None:
        try:
            request = processor.decode(frame.serialize_type, frame.header)
        except RequestError as error:
            if not error.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
                refusal = Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
                connection.write(*encode_response(error.serialize_type, error.opaque, refusal))
            return
        if request.flag & FLAG_RESPONSE:
            connection.accept_response(decode_command(frame))
            return
        if self._is_halted and is_left_to_reset(request.code, request.language):
            return
        if self.path.latency is not None:
            request.arrived = self.path.latency.began
        guard = self.path.guard
        if guard is not None:
            denial = guard.check(connection, processor, request, frame)
            if denial is not None:
                connection.count(request, denial.code)
                if not request.flag & FLAG_ONEWAY:
                    connection.write(*encode_response(request.serialize_type, request.opaque, denial))
                return
        limiter = self.path.limiter
        if (
            limiter is None
            or not limiter.is_active
            or not limiter.holds(connection, processor, request, frame, self._handle_delayed)
        ):
            self._answer(connection, processor, request, frame.body)

    def serve(self, connection: ServerConnection, request: Request[Any], body: bytes) -> None:
        """Handle a request that another part of this process makes for an account that has already been checked."""
        processor = self.processors.get(request.code)
        if processor is None:
            connection.respond(request, not_supported(request.code))
            return
        self.schedule_round()
        if self.path.latency is not None:
            request.arrived = self.path.latency.began
        limiter = self.path.limiter
        if (
            limiter is None
            or not limiter.is_active
            or not limiter.holds(connection, processor, request, Frame(JSON, b"", body), self._handle_delayed)
        ):
            self._answer(connection, processor, request, body)

    def _handle_delayed(
        self, connection: ServerConnection, processor: Processor, request: Request[Any], body: bytes
    ) -> None:
        """Handle a delayed request in the current round."""
        self.schedule_round()
        self._answer(connection, processor, request, body)

    def _answer(self, connection: ServerConnection, processor: Processor, request: Request[Any], body: bytes) -> None:
        try:
            for hook in self.path.hooks:
                if hook.before is not None:
                    hook.before(connection.remote_address, request, body)
        except RpcRejectedError as rejected:
            connection.respond(request, rejected.response())
        except Exception as error:
            connection.respond(request, failed(connection.remote_address, request, error))
        else:
            self._call(connection, processor, request, body)

    def _call(self, connection: ServerConnection, processor: Processor, request: Request[Any], body: bytes) -> None:
        """Run the hooks, then call the handler of a request."""
        try:
            response = processor.handler(connection, request, body)
        except RpcRejectedError as rejected:
            response = rejected.response()
        except PostponeError as postponed:
            self._postpone(postponed, connection, processor, request, body)
            return
        except Exception as error:
            response = failed(connection.remote_address, request, error)
        if response is not None:
            connection.respond(request, response)

    def _postpone(
        self,
        postponed: PostponeError,
        connection: ServerConnection,
        processor: Processor,
        request: Request[Any],
        body: bytes,
    ) -> None:
        """Call a handler again later, or reject the request if postponed requests use too much memory."""
        texts = sum(len(text) for text in astuple(request.header) if isinstance(text, str))
        size = _POSTPONED_REQUEST_BYTES + len(body) + texts
        if self._postponed_bytes + size > MAX_POSTPONED_BYTES:
            connection.respond(request, Response(ResponseCode.SYSTEM_BUSY, remark=_TOO_MANY_POSTPONED))
            return

        def call_again() -> None:
            self._postponed_bytes -= size
            self.schedule_round()
            self._call(connection, processor, request, body)

        self._postponed_bytes += size
        postponed.when(call_again)

    def _sweep(self) -> None:
        self._connection_limit.count_descriptors(self._open)
        self._connection_limit.report(SWEEP_SECONDS)
        self._silence.sweep(self.connections)
