"""The server's transport: asyncio connections around the sans-IO protocol.

A *turn* is one run of the event loop: the requests that arrived together are handled, then the hooks in
``turn_hooks`` run once (a broker appends and commits everything of the turn there), then every
connection writes its answers by one call. Each connection has a time in a turn: one that has more to ask
than fits into it goes on in the next, after everybody else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from cometmq import descriptors
from cometmq.clock import SYSTEM_CLOCK, Clock, TimerHandle
from cometmq.limits import (
    FRAME_SECONDS,
    MAX_CONNECTIONS,
    MAX_FRAME_BYTES,
    SERVER_IDLE_SECONDS,
)
from cometmq.remoting.closing import close_all
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    decode_header,
)
from cometmq.remoting.frame import Frame
from cometmq.remoting.listener import Listener
from cometmq.remoting.processors import (
    Processor,
    ProcessorTable,
    RequestError,
    Response,
    RpcHook,
    RpcRejectedError,
    encode_response,
    not_supported,
)
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.unsent import UnsentAnswers

log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 5.0
_COUNTS_OF_RESERVE: Final = 8
"""Descriptors are counted each time that an eighth of those kept for files may have gone."""
_BACKLOG: Final = 4_096
"""Connections that wait to be accepted, in the kernel: a client that comes back with all of its at once."""


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
        self.unsent: Final = UnsentAnswers(clock=clock)
        self._idle_timeout_s = idle_timeout_s
        self._frame_timeout_s = frame_timeout_s
        self._max_connections = max_connections
        self._allowed = max_connections
        """How many connections may be open, by the configuration and by the descriptors that are free."""
        self._uncounted = 0
        """Connections accepted since descriptors were last counted: other ports of the process take some, too."""
        self._refused = 0
        """Connections refused since that was last logged."""
        self._ssl_context = ssl_context
        self._listener = Listener(self._accepted, clock=clock)
        self._opening: dict[ServerConnection, asyncio.Task[None]] = {}
        """Connections that are accepted and have no transport yet, such as during a TLS handshake."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dirty: list[ServerConnection] = []
        self._resume: list[ServerConnection] = []
        self._turn_scheduled = False
        self._sweeper: TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one.

        :raises OSError: the port is taken or not allowed.
        """
        self._loop = asyncio.get_running_loop()
        self._count_descriptors()
        await self._listener.start(host, port, _BACKLOG)
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Take no new connections, write what is queued, close all."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if not self._listener.is_open:
            return
        self._listener.close()
        for task in list(self._opening.values()):
            task.cancel()
        self._end_turn()
        self.unsent.stop()
        await close_all(self.connections)

    def cut_off(self) -> None:
        """End every connection at once and listen no more, as the system does for a process that was killed."""
        self._listener.close()
        for connection in list(self.connections):
            connection.abort()

    # --- called by connections ----------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> None:
        """Count a new connection in."""
        self._opening.pop(connection, None)
        self.connections.add(connection)

    def _accepted(self, sock: socket.socket) -> None:
        """Make a connection of a socket, or close it when there are too many."""
        self._uncounted += 1
        if self._uncounted > descriptors.kept_for_files() // _COUNTS_OF_RESERVE:
            self._count_descriptors()
        if len(self.connections) + len(self._opening) >= self._allowed:
            if not self._refused:
                self._warn_of_refusal()
            self._refused += 1
            sock.close()
            return
        connection = ServerConnection(self)
        self._opening[connection] = asyncio.get_running_loop().create_task(self._open(connection, sock))

    async def _open(self, connection: ServerConnection, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, sock, ssl=self._ssl_context)
        except OSError as error:  # it has left already, or its handshake failed
            log.info("a connection was not made: %s", error)
            sock.close()
        finally:
            self._opening.pop(connection, None)

    def _warn_of_refusal(self) -> None:
        reason = "serverMaxConnections"
        if self._allowed < self._max_connections:
            reason = f"the process may have {descriptors.limit()} descriptors; raise it with ulimit -n or LimitNOFILE"
        log.warning("connections are refused: %d are open (%s)", len(self.connections), reason)

    def _count_descriptors(self) -> None:
        """Find how many connections may be open: what files and other sockets have, and some more, is not for them."""
        self._uncounted = 0
        others = max(descriptors.in_use() - len(self.connections), 0)
        free = descriptors.limit() - others - descriptors.kept_for_files()
        self._allowed = max(min(self._max_connections, free), 1)

    def lost(self, connection: ServerConnection) -> None:
        """Count a connection out."""
        self.connections.discard(connection)
        self.unsent.lost(connection)

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
        """Begin a turn if none is under way: it ends once everything that has arrived is handled."""
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
            self.unsent.end_turn()
        if self._resume:
            # Who went first in this turn goes last in the next.
            first, *waiting = self._resume
            self._resume = []
            for connection in (*waiting, first):
                connection.resume()

    def handle(self, connection: ServerConnection, frame: Frame) -> float | None:
        """Decode one frame and answer it; when that began, if it may have taken long."""
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
                if hook.before is not None:
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
        self._count_descriptors()
        if self._refused > 1:
            log.warning("%d connections were refused since %g s", self._refused, _SWEEP_SECONDS)
        self._refused = 0
        for connection in list(self.connections):
            connection.quiet_sweeps += 1
            if connection.frame_sweeps >= 0:
                connection.frame_sweeps += 1
            if (connection.quiet_sweeps - 1) * _SWEEP_SECONDS >= self._idle_timeout_s:
                if connection.is_closing:  # it does not take what is still to be sent
                    connection.abort()
                    continue
                log.info("closing %s: idle for %g s", connection.remote_address, self._idle_timeout_s)
                connection.close()
            elif (connection.frame_sweeps - 1) * _SWEEP_SECONDS >= self._frame_timeout_s:
                log.warning("closing %s: one frame took over %g s", connection.remote_address, self._frame_timeout_s)
                connection.abort()
        self._sweeper = self.clock.call_later(_SWEEP_SECONDS, self._sweep)
