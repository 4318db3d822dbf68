"""A client's connection to a server, with requests and responses in both directions.

The server stops reading from a client that does not read its answers: above a high-water mark of unsent bytes, the
client's frames remain undecoded until it has caught up. If a client sends more requests than fit into a round, the
server continues with them in the next round, so that no client has to wait for a thousand frames of another client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, cast

from cometmq.errors import CometMQError
from cometmq.limits import (
    FRAMES_PER_LOOK,
    LATE_SECONDS,
    MAX_PENDING_INVOKES,
    MAX_UNFINISHED_BYTES,
    ROUND_SECONDS,
    WRITE_HIGH_WATER_BYTES,
    WRITE_LOW_WATER_BYTES,
)
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand, request_command
from cometmq.remoting.connections.accepted import NO_DESCRIPTOR
from cometmq.remoting.connections.ending import is_confirmed, is_unread, reset, reset_if_sent
from cometmq.remoting.connections.owner import ConnectionOwner
from cometmq.remoting.connections.peer import peer_of
from cometmq.remoting.frame import FrameDecoder, FrameError, FrameTaker, whole_frame
from cometmq.remoting.headers import Header
from cometmq.remoting.permissions import Caller
from cometmq.remoting.processors import Buffer, Request, Response, encode_response

log = logging.getLogger(__name__)

_LARGE_BYTES: Final = 64 * 1024
"""Larger responses are not joined. Their client reads them for longer than a busy poll lasts, so none follows."""
_BUFFER_IS_FULL: Final = 1
_IS_HELD_BACK: Final = 2
_IS_WORKED_FOR: Final = 4
"""Bits for the reasons why the server does not read from a connection."""

NewTaker = Callable[["ServerConnection"], FrameTaker]
"""A function that returns a connection's fast path: the handler of simple requests (such as sends) as raw frames."""


class InvokeError(CometMQError):
    """The client did not answer a request from the server."""


class ServerConnection(asyncio.Protocol):
    """A client's connection, with its unread requests and queued responses.

    :param descriptor: that of the socket, by which the compiled core writes to it, or -1 if it must not, as with TLS.
    """

    __slots__ = (
        "_decoder",
        "_draining",
        "_fd",
        "_is_ending",
        "_opaque",
        "_out",
        "_out_bytes",
        "_paused",
        "_pending",
        "_server",
        "_socket_fd",
        "_taker",
        "_transport",
        "_waits_for_round",
        "account",
        "closed",
        "direct_fd",
        "frame_sweeps",
        "on_close",
        "peer_bytes",
        "peer_ip",
        "peer_port",
        "quiet_sweeps",
        "remote_address",
        "unfinished_bytes",
    )

    is_grpc: ClassVar[bool] = False
    """True if the client uses the gRPC endpoint of this broker's process, which has no notices of groups' changes."""

    def __init__(self, server: ConnectionOwner, descriptor: int = NO_DESCRIPTOR) -> None:
        self._server = server
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._taker: FrameTaker | None = None
        self._paused = 0
        self._draining = self._waits_for_round = self._is_ending = False
        self._socket_fd = self._fd = descriptor
        """The descriptor of a socket without TLS, and the same while all bytes that were written are sent."""
        self.direct_fd = NO_DESCRIPTOR
        """The descriptor to which the core may write the answers of this round, or -1 if anything else is queued."""
        self._pending: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._opaque = 0
        self.unfinished_bytes = 0
        """Size in bytes of the unfinished frame."""
        self.closed = False
        self.quiet_sweeps = 0
        """Number of sweeps since bytes last arrived, so that the hot path need not read the clock."""
        self.frame_sweeps = -1
        """Number of sweeps since the unfinished frame started, or -1 if there is none."""
        self.on_close: list[Callable[[ServerConnection], None]] = []
        """Functions that are called soon after the connection has closed."""
        self.peer_ip, self.peer_port, self.peer_bytes, self.remote_address = "0.0.0.0", 0, b"", ""
        self.account: Caller | None = None
        """The account that made the last request; set by the server's guard."""

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and the client's address."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.peer_ip, self.peer_port, self.peer_bytes, self.remote_address = peer_of(transport)
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)
        self.renew_taker()
        self._server.opened(self)

    def renew_taker(self) -> None:
        """Get a new fast path from the server."""
        if self._server.new_taker is not None and not self.hooked:
            self._taker = self._server.new_taker(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Release the connection's resources; the server calls the functions in ``on_close``."""
        self.closed = True
        self._socket_fd = self._fd = self.direct_fd = NO_DESCRIPTOR
        self._out.clear()
        self._taker = None  # the taker references this connection: the cycle would keep unread bytes in memory
        self._server.unfinished_bytes -= self.unfinished_bytes
        self.unfinished_bytes = 0
        for future in self._pending.values():
            if not future.done():
                future.set_exception(InvokeError(f"{self.remote_address} closed its connection"))
        self._pending.clear()
        self._server.lost(self)

    def pause_writing(self) -> None:
        """Stop reading requests because the client is slow."""
        self._pause(_BUFFER_IS_FULL)

    def resume_writing(self) -> None:
        """Resume reading requests because the client has read its responses."""
        self._unpause(_BUFFER_IS_FULL)

    def pause_requests(self) -> None:
        """Stop reading requests because there are too many unread responses and this client is slow."""
        self._pause(_IS_HELD_BACK)

    def resume_requests(self) -> None:
        """Resume reading requests because the client has read its responses or there is capacity again."""
        self._unpause(_IS_HELD_BACK)

    def wait_for_work(self) -> None:
        """Stop reading until the last request, which runs in a task, has been answered."""
        self._pause(_IS_WORKED_FOR)

    def work_is_done(self) -> None:
        """Resume reading after the last request has been answered."""
        self._unpause(_IS_WORKED_FOR)

    def _pause(self, reason: int) -> None:
        self._paused |= reason
        if self._transport is not None:
            self._transport.pause_reading()

    def _unpause(self, reason: int) -> None:
        self._paused &= ~reason
        if not self._paused and self._transport is not None and not self.closed and not self._waits_for_round:
            self._transport.resume_reading()
            self._drain()

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames that have arrived."""
        self.quiet_sweeps = 0
        server = self._server
        server.expects_requests = True
        self.direct_fd = NO_DESCRIPTOR
        if self._paused or self._waits_for_round or self._out_bytes or self._draining or self._decoder.pending:
            self._decoder.push(data)
            if self._waits_for_round and self._transport is not None:
                self._transport.pause_reading()
            else:
                self._drain()
            return
        # The usual cases, without the decoder: plain requests only, or one other request.
        taken = 0 if self._taker is None else self._taker(data, 0)
        if taken:
            if not server.round_is_scheduled:
                server.schedule_round()
            if taken == len(data):
                self.direct_fd = self._fd
                return
        if not taken and (frame := whole_frame(data)) is not None and not server.round_is_over:
            server.schedule_round()
            try:
                server.handle(self, frame)
            except Exception as error:
                self._end_because_of(error)
            return
        self._decoder.begin(data, taken)
        self._drain(is_for_taker=False)

    # --- requests -----------------------------------------------------------------------------

    def _drain(self, *, is_for_taker: bool = True) -> None:
        """Handle the frames that have arrived.

        :param is_for_taker: False if the taker has refused the first frame.
        """
        if self._draining or self._waits_for_round:
            return
        server = self._server
        if server.round_is_over:
            self._wait_for_round(is_late=False)
            return
        self._draining = True
        decoder = self._decoder
        if not server.round_is_scheduled:
            server.schedule_round()
        clock = server.clock
        taker = self._taker
        look = FRAMES_PER_LOOK
        ends: float | None = None
        try:
            while decoder.pending and not self._paused and self._out_bytes < WRITE_HIGH_WATER_BYTES and not self.closed:
                if not look:
                    now = clock.monotonic()
                    if ends is not None and now >= ends:
                        self._wait_for_round(is_late=now - ends >= LATE_SECONDS)
                        break
                    look, ends = FRAMES_PER_LOOK, now + ROUND_SECONDS if ends is None else ends
                look -= 1
                if taker is not None and is_for_taker:
                    decoder.pass_to(taker)
                is_for_taker = True
                frame = decoder.next()
                if frame is None:
                    self._count_unfinished(decoder.pending)
                    break
                self.frame_sweeps = -1
                began = server.handle(self, frame)
                if began is not None:
                    look, ends = 0, began + ROUND_SECONDS if ends is None else ends
            else:
                self.frame_sweeps = -1
                if self.unfinished_bytes and not decoder.pending:
                    self._count_unfinished(0)
        except Exception as error:
            self._end_because_of(error)
        finally:
            self._draining = False

    def _end_because_of(self, error: Exception) -> None:
        """Close the connection after an error; other requests in the same round must still be answered."""
        if isinstance(error, FrameError):
            log.warning("closing %s: %s", self.remote_address, error)
            self.close()
        else:
            log.exception("closing %s: cannot handle a request", self.remote_address)
            self.abort()

    def _count_unfinished(self, pending: int) -> None:
        """Count the bytes in an unfinished frame."""
        if not pending:
            self.frame_sweeps = -1
        elif self.frame_sweeps < 0:
            self.frame_sweeps = 0
        if pending != self.unfinished_bytes:
            server = self._server
            server.unfinished_bytes += pending - self.unfinished_bytes
            self.unfinished_bytes = pending
            if server.unfinished_bytes > MAX_UNFINISHED_BYTES:
                server.abort_largest()

    def _wait_for_round(self, *, is_late: bool) -> None:
        """Let other connections go first in this round. Until a later round, at most one more read follows.

        :param is_late: true if a request took long: others with unread bytes are late as well, and go first.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self._waits_for_round = True
        if is_late:
            asyncio.get_running_loop().call_soon(self._server.resume_soon, self, self._decoder.next_code())
        else:
            self._server.resume_soon(self, self._decoder.next_code())

    def accept_response(self, command: RemotingCommand) -> None:
        """Pass a client's response to the caller that waits for it, if there is one."""
        future = self._pending.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    # --- answers ------------------------------------------------------------------------------

    @property
    def listener(self) -> str:
        """Return the name of the port to which the client connected; it is empty for the first port."""
        return self._server.listener

    @property
    def hooked(self) -> bool:
        """Return whether there are hooks. If so, responses must be sent through :meth:`respond`."""
        return bool(self._server.path.hooks)

    def count(self, request: Request[Any], code: int, *, polling: bool = False) -> None:
        """Count a response if metrics are enabled."""
        latency = self._server.path.latency
        if latency is not None:
            latency.answered(request.code, code, request.arrived, polling=polling)

    def respond(self, request: Request[Any], response: Response, *, polling: bool = False) -> None:
        """Answer ``request``; a oneway request gets no response.

        :param polling: true if the request is a pull that waited for messages.
        """
        self.count(request, response.code, polling=polling)
        path = self._server.path
        if response.code and path.on_failure is not None:
            path.on_failure(self, request, response)
        for hook in path.hooks:
            if hook.after is None:
                continue
            try:
                hook.after(self.remote_address, request, response)
            except Exception:
                log.exception("hook %r failed for a response to %s", hook, self.remote_address)
        if not request.flag & FLAG_ONEWAY:
            self.deliver(request, response)

    def deliver(self, request: Request[Any], response: Response) -> None:
        """Queue the response to a request."""
        self.write(*encode_response(request.serialize_type, request.opaque, response))

    def write(self, *chunks: Buffer) -> None:
        """Queue bytes to be written at the end of the round."""
        if self.closed:
            return
        if not self._out:
            self.direct_fd = NO_DESCRIPTOR
            self._server.wrote(self)
        self._out += chunks
        size = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        self._out_bytes += size
        self._server.round_bytes += size

    def write_last(self, data: bytes, _count: int = 1) -> None:
        """Write the last responses of a round; this is faster than :meth:`write` if nothing else is queued."""
        transport = self._transport
        if self._out or self._decoder.pending or transport is None:
            self.write(data)
        elif not (self.closed or transport.is_closing()):
            transport.write(data)
            if self._count_unsent(transport):
                self._server.wrote(self)  # at the end of the round, the bytes of all connections are counted

    def refuse_all(self, opaques: Iterable[tuple[int, int]], response: Response) -> None:
        """Send the same response to several requests, given by opaque and serialize type."""
        for opaque, serialize_type in opaques:
            self.write(*encode_response(serialize_type, opaque, response))

    def _count_unsent(self, transport: asyncio.Transport) -> bool:
        """Count the bytes that the client has not read; return whether there are any."""
        size = transport.get_write_buffer_size()
        unsent = self._server.unsent
        self._fd = self._socket_fd
        if size:
            self._fd = self.direct_fd = NO_DESCRIPTOR
        if size or unsent.total_bytes:
            unsent.count(self, size)
            return True
        return False

    def flush(self) -> None:
        """Write the queued bytes to the transport."""
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        size = self._out_bytes
        self._out_bytes = 0
        if self.closed or self._transport.is_closing():
            return
        if self._is_ending and is_confirmed(self._transport):
            asyncio.get_running_loop().call_soon(reset_if_sent, self._transport)
        if size > _LARGE_BYTES:
            self._server.expects_requests = False
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= _LARGE_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self._count_unsent(self._transport)
        if self._decoder.pending and not self._paused and not self._waits_for_round:
            self._server.resume_soon(self, self._decoder.next_code())

    def resume(self) -> None:
        """Handle the frames that were held back until responses were sent or the next round started."""
        if self.closed or self._transport is None:
            return
        waited, self._waits_for_round = self._waits_for_round, False
        if not self._paused:
            self._drain()
            if waited and not (self._waits_for_round or self._paused or self._transport.is_closing()):
                self._transport.resume_reading()

    @property
    def is_behind(self) -> bool:
        """Return whether nothing more should be sent because the client is slow or the connection is closed."""
        return self.closed or bool(self._paused & ~_IS_WORKED_FOR) or self._out_bytes >= WRITE_HIGH_WATER_BYTES

    @property
    def unsent_bytes(self) -> int:
        """Return the number of response bytes queued in this process because the client does not read them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send_oneway(self, code: int, header: Header | None, body: bytes = b"") -> None:
        """Send a oneway request to the client, unless the client is too slow."""
        if self.is_behind:
            log.debug("not sending code %d to %s, which reads too slowly", code, self.remote_address)
            return
        self._write_request(code, self._next_opaque(), header, body, flag=FLAG_ONEWAY)

    async def invoke(
        self, code: int, header: Header | None, body: bytes = b"", timeout_s: float = 10.0
    ) -> RemotingCommand:
        """Send a request to the client and wait for the response.

        :raises InvokeError: the client closes the connection, or does not answer within ``timeout_s`` seconds.
        """
        if self.is_behind or len(self._pending) >= MAX_PENDING_INVOKES:
            raise InvokeError(f"{self.remote_address} reads too slowly or has disconnected")
        opaque = self._next_opaque()
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._pending[opaque] = future

        def expire() -> None:
            if not future.done():
                future.set_exception(InvokeError(f"{self.remote_address} did not respond within {timeout_s:g} s"))

        timer = self._server.clock.call_later(timeout_s, expire)
        try:
            self._write_request(code, opaque, header, body)
            return await future
        finally:
            timer.cancel()
            self._pending.pop(opaque, None)

    def _write_request(self, code: int, opaque: int, header: Header | None, body: bytes, *, flag: int = 0) -> None:
        """Queue a request for the client."""
        self.write(request_command(code, opaque, header, body, flag=flag))

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    @property
    def is_closing(self) -> bool:
        """True if the connection will close when the client has read all queued responses."""
        return self._transport is not None and self._transport.is_closing()

    def close(self) -> None:
        """Close the connection after all responses have been sent, or abort it if the client never reads them."""
        self.flush()
        self._socket_fd = self._fd = self.direct_fd = NO_DESCRIPTOR
        if self._transport is not None:
            self._transport.close()

    def end(self) -> None:
        """End the connection with a reset right behind the next responses; see :mod:`.connections.ending`."""
        self._is_ending = True
        self._taker = None  # its responses are not written by ``flush``
        self._socket_fd = self._fd = self.direct_fd = NO_DESCRIPTOR

    def end_if_quiet(self) -> None:
        """End the connection with a reset if the client has all responses, and has sent nothing since the last call."""
        transport, was_quiet, self.quiet_sweeps = self._transport, self.quiet_sweeps, 1
        if transport is None or self._out or transport.is_closing() or not is_confirmed(transport):
            return
        if self._paused or (was_quiet and not is_unread(transport)):
            reset(transport)

    def abort(self) -> None:
        """Abort the connection."""
        self._socket_fd = self._fd = self.direct_fd = NO_DESCRIPTOR
        self.frame_sweeps = -1
        if self._transport is not None:
            self._transport.abort()
