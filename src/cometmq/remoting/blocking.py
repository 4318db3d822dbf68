"""A blocking connection that needs no event loop, for Spark executors, scripts and raw-protocol tests."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.hosts import parse_address, stored_ip
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command
from cometmq.remoting.connections.connecting import connected_in_time
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.frame import Frame, FrameDecoder
from cometmq.remoting.headers import Header, to_ext
from cometmq.remoting.security import PLAIN, Security
from cometmq.remoting.signing import Stamps
from cometmq.remoting.tls.contexts import connection_error

_READ_BYTES = 256 * 1024
_BEGIN_BYTES = 64 * 1024
"""Number of bytes to read first, before a frame's length is known."""
_Target = TypeVar("_Target")
_Result = TypeVar("_Result")


class BlockingConnectionError(RemotingError):
    """The peer is unreachable, has closed the connection, or did not respond in time."""


class BlockingConnection:
    """A connection to a broker or nameserver that handles one request at a time.

    :param address: ``host:port``.
    :param timeout_s: time limit for connecting, and for each answer unless ``invoke`` sets a different one.
    :param security: signs every request and decides whether the connection uses TLS.
    :raises BlockingConnectionError: the peer is unreachable.
    :raises TlsError: a TLS file cannot be used.
    """

    def __init__(self, address: str, timeout_s: float = 5.0, security: Security = PLAIN) -> None:
        self.address = address
        self.security = security
        self._stamps = Stamps()
        self.timeout_s = timeout_s
        """The number of seconds to wait for a response."""
        self._opaques = itertools.count(1)
        self._decoder = FrameDecoder()
        self._has_received = False
        host, port = parse_address(address)
        tls = None if security.tls is None else security.tls.context()
        try:
            self._socket = connected_in_time(host, port, SYSTEM_CLOCK, timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=stored_ip(host) or host)
        except OSError as error:
            message, next_step = connection_error(address, error, tls=tls is not None)
            raise BlockingConnectionError(address, message, next_step=next_step) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def is_quiet(self) -> bool:
        """False if something waits to be read that answers no request: the peer has closed the connection."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def send(self, data: bytes) -> None:
        """Write raw bytes."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._disconnected(f"{self.address} closed the connection: {error}") from error

    def receive(self, timeout_s: float | None = None) -> RemotingCommand:
        """Read the next frame from the peer.

        :raises BlockingConnectionError: no frame arrives in time, or the peer closes the connection.
        """
        self._socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        while (frame := self._decoder.next()) is None:
            self._decoder.push(self._read(self._socket.recv, _READ_BYTES))
        return decode_command(frame)

    def receive_into(self, room: Callable[[int], memoryview]) -> tuple[RemotingCommand, memoryview]:
        """Read the next frame, and return its header and its body separately. A large body is not copied.

        :param room: returns a buffer of the requested length, into which the body is read.
        :raises BlockingConnectionError: see :meth:`receive`.
        """
        self._socket.settimeout(self.timeout_s)
        missing = 0
        while (frame := self._decoder.next()) is None:
            if (partial := self._decoder.take_partial()) is not None:
                frame, missing = partial
                break
            self._decoder.push(self._read(self._socket.recv, _BEGIN_BYTES))
        at = len(frame.body)
        body = room(at + missing)
        body[:at] = frame.body
        while at < len(body):
            at += self._read(self._socket.recv_into, body[at:])
        return decode_command(Frame(frame.serialize_type, frame.header, b"")), body

    def _read(self, read: Callable[[_Target], _Result], place: _Target) -> _Result:
        try:
            got = read(place)
        except TimeoutError as error:
            raise BlockingConnectionError(self.address, f"{self.address} did not respond in time") from error
        except OSError as error:
            raise self._disconnected(f"the connection to {self.address} broke: {error}") from error
        if not got:
            raise self._disconnected(f"{self.address} closed the connection")
        self._has_received = True
        return got

    def _disconnected(self, message: str) -> BlockingConnectionError:
        next_step = None if self._has_received else "it may accept only TLS connections"
        return BlockingConnectionError(self.address, message, next_step=next_step)

    def invoke(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Send a request and return its response, whatever the response code; ignore other frames.

        :param ext: header fields as text, instead of a typed header or in addition to one.
        :raises BlockingConnectionError: no answer arrives in time.
        """
        opaque = self.submit(code, header, body, ext=ext)
        while True:
            answer = self.receive(timeout_s)
            if answer.is_response and answer.opaque == opaque:
                return answer

    def submit(
        self, code: int, header: Header | None = None, body: bytes = b"", *, ext: Mapping[str, str] | None = None
    ) -> int:
        """Send a request without waiting for the response; return the request's opaque."""
        opaque = next(self._opaques)
        self.send(self.frame(code, opaque, header, body, ext=ext))
        return opaque

    def invoke_oneway(
        self, code: int, header: Header | None = None, body: bytes = b"", *, ext: Mapping[str, str] | None = None
    ) -> None:
        """Send a oneway request."""
        self.send(self.frame(code, next(self._opaques), header, body, ext=ext, flag=FLAG_ONEWAY))

    def frame(
        self,
        code: int,
        opaque: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> bytes:
        """Encode a request; sign it if there are credentials."""
        fields = {} if header is None else to_ext(header)
        fields.update(ext or {})
        command = RemotingCommand(code=code, opaque=opaque, flag=flag, ext_fields=fields, body=body)
        if self.security.credentials is not None:
            self.security.credentials.sign(command, self._stamps.next())
        return command.encode()
