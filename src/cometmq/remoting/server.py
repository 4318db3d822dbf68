"""The server's transport: asyncio connections around the sans-IO protocol.

A *turn* is one run of the event loop: the requests that arrived together are handled, then the hooks in
``turn_hooks`` run once (a broker appends and commits everything of the turn there), then every
connection writes its answers by one call. A client that does not read its answers is not read either:
above a high-water mark of unsent bytes its frames stay undecoded until it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from cometmq.clock import SYSTEM_CLOCK, Clock, TimerHandle
from cometmq.errors import CometMQError
from cometmq.limits import (
    FRAME_SECONDS,
    MAX_CONNECTIONS,
    MAX_FRAME_BYTES,
    MAX_PENDING_INVOKES,
    MAX_UNFINISHED_BYTES,
    SERVER_IDLE_SECONDS,
    WRITE_HIGH_WATER_BYTES,
    WRITE_LOW_WATER_BYTES,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    decode_command,
    decode_header,
    request_command,
)
from cometmq.remoting.frame import Frame, FrameDecoder, FrameError
from cometmq.remoting.headers import Header
from cometmq.remoting.processors import (
    Buffer,
    Processor,
    ProcessorTable,
    Request,
    RequestError,
    Response,
    RpcHook,
    RpcRejectedError,
    encode_response,
    not_supported,
)

log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 5.0
_JOIN_BYTES: Final = 64 * 1024


class InvokeError(CometMQError):
    """A client did not answer a request that the server sent it."""


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_decoder",
        "_draining",
        "_opaque",
        "_out",
        "_out_bytes",
        "_paused",
        "_pending",
        "_server",
        "_transport",
        "closed",
        "frame_sweeps",
        "on_close",
        "peer_bytes",
        "peer_ip",
        "peer_port",
        "quiet_sweeps",
        "remote_address",
        "unfinished_bytes",
    )

    def __init__(self, server: RemotingServer) -> None:
        self._server = server
        self._decoder = FrameDecoder(server.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._paused = False
        self._draining = False
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._opaque = 0
        self.unfinished_bytes = 0
        """Bytes of the frame under way."""
        self.closed = False
        self.quiet_sweeps = 0
        """Sweeps since bytes arrived last: the hot path reads no clock."""
        self.frame_sweeps = -1
        """Sweeps since the frame under way began, -1 when none is."""
        self.on_close: list[Callable[[ServerConnection], None]] = []
        self.peer_ip = "0.0.0.0"
        self.peer_port = 0
        self.peer_bytes = b""
        self.remote_address = ""

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the peer; refuse it when there are too many."""
        from cometmq.message.hosts import encode_host, format_address

        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        self.peer_ip, self.peer_port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        self.peer_bytes = encode_host(self.peer_ip, self.peer_port)
        self.remote_address = format_address(self.peer_ip, self.peer_port)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everyone who asked to be told."""
        self.closed = True
        self._out.clear()
        self._server.unfinished_bytes -= self.unfinished_bytes
        self.unfinished_bytes = 0
        for future in self._pending.values():
            if not future.done():
                future.set_exception(InvokeError(f"{self.remote_address} closed its connection"))
        self._pending.clear()
        self._server.lost(self)
        for callback in self.on_close:
            callback(self)

    def pause_writing(self) -> None:
        """The client is slow: stop reading from it."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up: go on with what it asked meanwhile."""
        self._paused = False
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self._drain()

    def data_received(self, data: bytes) -> None:
        """Handle the whole frames among what has arrived."""
        self.quiet_sweeps = 0
        self._decoder.push(data)
        self._drain()

    # --- requests -----------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        server = self._server
        decoder = self._decoder
        try:
            while not self._paused and self._out_bytes < WRITE_HIGH_WATER_BYTES and not self.closed:
                frame = decoder.next()
                if frame is None:
                    pending = decoder.pending
                    if not pending:
                        self.frame_sweeps = -1
                    elif self.frame_sweeps < 0:
                        self.frame_sweeps = 0
                    if pending != self.unfinished_bytes:
                        server.unfinished_bytes += pending - self.unfinished_bytes
                        self.unfinished_bytes = pending
                        if server.unfinished_bytes > MAX_UNFINISHED_BYTES:
                            server.cut_off_largest()
                    break
                self.frame_sweeps = -1
                server.handle(self, frame)
            else:
                self.frame_sweeps = -1
        except FrameError as error:
            log.warning("closing %s: %s", self.remote_address, error)
            self.close()
        finally:
            self._draining = False
            server.schedule_turn()

    def accept_response(self, frame: Frame) -> None:
        """An answer to something that the server asked; one that nobody waits for is dropped."""
        command = decode_command(frame)
        future = self._pending.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    # --- answers ------------------------------------------------------------------------------

    @property
    def hooked(self) -> bool:
        """Whether somebody looks at answers, so that they must go through :meth:`respond`."""
        return bool(self._server.hooks)

    def respond(self, request: Request[Any], response: Response) -> None:
        """Answer ``request``, at once or any time later; nothing is sent for a oneway one."""
        for hook in self._server.hooks:
            try:
                hook.after(self.remote_address, request, response)
            except Exception:
                log.exception("hook %r failed on an answer to %s", hook, self.remote_address)
        if not request.flag & FLAG_ONEWAY:
            self.write(*encode_response(request.serialize_type, request.opaque, response))

    def write(self, *chunks: Buffer) -> None:
        """Queue bytes; all of a turn leave by one write at its end."""
        if self.closed:
            return
        if not self._out:
            self._server.wrote(self)
        if len(chunks) == 1:
            self._out.append(chunks[0])
            self._out_bytes += len(chunks[0])
        else:
            self._out += chunks
            self._out_bytes += sum(map(len, chunks))

    def flush(self) -> None:
        """Hand the queued bytes to the transport."""
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        size = self._out_bytes
        self._out_bytes = 0
        if self.closed or self._transport.is_closing():
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        if self._decoder.pending and not self._paused:
            self._server.resume_soon(self)

    def resume(self) -> None:
        """Go on with frames that waited for unsent answers."""
        if not self._paused and not self.closed:
            self._drain()

    @property
    def is_behind(self) -> bool:
        """Whether the client has not read so much that nothing more should be sent before it has."""
        return self._paused or self._out_bytes >= WRITE_HIGH_WATER_BYTES

    def send_oneway(self, code: int, header: Header | None, body: bytes = b"") -> None:
        """Send the client a request that it does not answer; one that is behind with reading does not get it."""
        if self.is_behind:
            log.debug("code %d is not sent to %s, which does not read", code, self.remote_address)
            return
        self.write(request_command(code, self._next_opaque(), header, body, flag=FLAG_ONEWAY))

    async def invoke(
        self, code: int, header: Header | None, body: bytes = b"", timeout_s: float = 10.0
    ) -> RemotingCommand:
        """Send the client a request and wait for its answer.

        :raises InvokeError: it closes the connection, or does not answer within ``timeout_s`` seconds.
        """
        if self.closed or self.is_behind or len(self._pending) >= MAX_PENDING_INVOKES:
            raise InvokeError(f"{self.remote_address} cannot be asked now")
        opaque = self._next_opaque()
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._pending[opaque] = future

        def expire() -> None:
            if not future.done():
                future.set_exception(InvokeError(f"{self.remote_address} did not answer within {timeout_s:g} s"))

        timer = self._server.clock.call_later(timeout_s, expire)
        try:
            self.write(request_command(code, opaque, header, body))
            return await future
        finally:
            timer.cancel()
            self._pending.pop(opaque, None)

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def close(self) -> None:
        """Send what is queued, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.frame_sweeps = -1
        if self._transport is not None:
            self._transport.abort()


class RemotingServer:
    """Listens, decodes, hands each request to its processor, and closes what is idle or stuck."""

    def __init__(
        self,
        processors: ProcessorTable,
        *,
        hooks: Sequence[RpcHook] = (),
        clock: Clock = SYSTEM_CLOCK,
        idle_timeout_s: float = SERVER_IDLE_SECONDS,
        frame_timeout_s: float = FRAME_SECONDS,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.processors = processors
        self.hooks = list(hooks)
        self.clock = clock
        self.max_frame_bytes = max_frame_bytes
        self.turn_hooks: list[Callable[[], None]] = []
        self.connections: set[ServerConnection] = set()
        self.unfinished_bytes = 0
        """Bytes of frames, of all connections, that have not arrived whole."""
        self._idle_timeout_s = idle_timeout_s
        self._frame_timeout_s = frame_timeout_s
        self._max_connections = max_connections
        self._ssl_context = ssl_context
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dirty: list[ServerConnection] = []
        self._resume: list[ServerConnection] = []
        self._turn_scheduled = False
        self._sweeper: TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one.

        :raises OSError: the port is taken or not allowed.
        """
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: ServerConnection(self), host, port, backlog=4096, ssl=self._ssl_context
        )
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Take no new connections, write what is queued, close all."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is None:
            return
        self._server.close()
        self._end_turn()
        for connection in list(self.connections):
            connection.close()
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        await self._server.wait_closed()
        self._server = None

    def cut_off(self) -> None:
        """End every connection at once and listen no more, as the system does for a process that was killed."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()

    # --- called by connections ----------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> None:
        """Count a new connection in, or close it when there are too many."""
        if len(self.connections) >= self._max_connections:
            log.warning("refusing %s: %d connections are open", connection.remote_address, len(self.connections))
            connection.abort()
            return
        self.connections.add(connection)

    def lost(self, connection: ServerConnection) -> None:
        """Count a connection out."""
        self.connections.discard(connection)

    def wrote(self, connection: ServerConnection) -> None:
        """The connection has bytes to send at the end of the turn."""
        self._dirty.append(connection)
        self.schedule_turn()

    def cut_off_largest(self) -> None:
        """Unfinished frames are too much together: end the connection with the largest."""
        largest = max(self.connections, key=lambda connection: connection.unfinished_bytes)
        log.warning(
            "closing %s: its frame of %d bytes is the largest of unfinished ones of %d",
            largest.remote_address,
            largest.unfinished_bytes,
            self.unfinished_bytes,
        )
        self.unfinished_bytes -= largest.unfinished_bytes
        largest.unfinished_bytes = 0
        largest.abort()

    def resume_soon(self, connection: ServerConnection) -> None:
        """Let a connection go on with waiting frames in the next turn."""
        self._resume.append(connection)
        self.schedule_turn()

    def schedule_turn(self) -> None:
        """See to it that the turn is ended once everything that has arrived is handled."""
        if not self._turn_scheduled and self._loop is not None:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_scheduled = False
        for hook in self.turn_hooks:
            hook()
        dirty = self._dirty
        if dirty:
            self._dirty = []
            for connection in dirty:
                connection.flush()
        if self._resume:
            waiting, self._resume = self._resume, []
            for connection in waiting:
                connection.resume()

    def handle(self, connection: ServerConnection, frame: Frame) -> None:
        """Decode one frame and answer it."""
        processor = self.processors.find(frame.serialize_type, frame.header)
        if processor is None:
            self._handle_unusual(connection, frame)
            return
        self._run(connection, processor, frame)

    def _handle_unusual(self, connection: ServerConnection, frame: Frame) -> None:
        """An answer from the client, a header whose code is not in front, or an unknown code."""
        parsed = decode_header(frame.serialize_type, frame.header)
        if parsed.flag & FLAG_RESPONSE:
            connection.accept_response(frame)
            return
        processor = self.processors.get(parsed.code)
        if processor is not None:
            self._run(connection, processor, frame)
        elif not parsed.flag & FLAG_ONEWAY:
            connection.write(*encode_response(frame.serialize_type, parsed.opaque, not_supported(parsed.code)))

    def _run(self, connection: ServerConnection, processor: Processor, frame: Frame) -> None:
        try:
            request = processor.decode(frame.serialize_type, frame.header)
        except RequestError as error:
            if not error.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
                refusal = Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
                connection.write(*encode_response(error.serialize_type, error.opaque, refusal))
            return
        if request.flag & FLAG_RESPONSE:
            connection.accept_response(frame)
            return
        try:
            for hook in self.hooks:
                hook.before(connection.remote_address, request, frame.body)
            response = processor.handler(connection, request, frame.body)
        except RpcRejectedError as refusal:
            response = Response(refusal.code, remark=refusal.remark)
        except Exception as error:
            log.exception("request %d of %s failed", request.code, connection.remote_address)
            response = Response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if response is not None:
            connection.respond(request, response)

    def _sweep(self) -> None:
        for connection in list(self.connections):
            connection.quiet_sweeps += 1
            if connection.frame_sweeps >= 0:
                connection.frame_sweeps += 1
            if (connection.quiet_sweeps - 1) * _SWEEP_SECONDS >= self._idle_timeout_s:
                log.info("closing %s: idle for %g s", connection.remote_address, self._idle_timeout_s)
                connection.close()
            elif (connection.frame_sweeps - 1) * _SWEEP_SECONDS >= self._frame_timeout_s:
                log.warning("closing %s: one frame took over %g s", connection.remote_address, self._frame_timeout_s)
                connection.abort()
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)
