"""A blocking connection without an event loop, for executors of Spark, scripts and raw-protocol tests."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Mapping
from typing import Self, TypeVar

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.hosts import parse_address, stored_ip
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command
from cometmq.remoting.connecting import connected_in_time
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.frame import Frame, FrameDecoder
from cometmq.remoting.headers import Header, to_ext
from cometmq.remoting.security import PLAIN, Security
from cometmq.remoting.signing import Stamps
from cometmq.remoting.tls.contexts import trouble_of

_READ_BYTES = 256 * 1024
_BEGIN_BYTES = 64 * 1024
"""Bytes read at once until the length of a body is known that goes to a buffer."""
_Place = TypeVar("_Place")
_Got = TypeVar("_Got")


class BlockingConnectionError(RemotingError):
    """The peer cannot be reached, closed the connection, or does not answer in time."""


class BlockingConnection:
    """One connection to a broker or nameserver; one request at a time.

    :param address: ``host:port``.
    :param timeout_s: for connecting, and for each answer unless ``invoke`` says otherwise.
    :param security: signs every request, and says whether the connection uses TLS.
    :raises BlockingConnectionError: the peer cannot be reached.
    :raises TlsError: a file that TLS needs cannot be used.
    """

    def __init__(self, address: str, timeout_s: float = 5.0, security: Security = PLAIN) -> None:
        self.address = address
        self.security = security
        self._stamps = Stamps()
        self.timeout_s = timeout_s
        """Seconds to wait for an answer."""
        self._opaques = itertools.count(1)
        self._decoder = FrameDecoder()
        self._heard = False
        host, port = parse_address(address)
        tls = None if security.tls is None else security.tls.context()
        try:
            self._socket = connected_in_time(host, port, SYSTEM_CLOCK, timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=stored_ip(host) or host)
        except OSError as error:
            message, next_step = trouble_of(address, error, tls=tls is not None)
            raise BlockingConnectionError(address, message, next_step=next_step) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Write raw bytes."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._ended(f"{self.address} closed the connection: {error}") from error

    def receive(self, timeout_s: float | None = None) -> RemotingCommand:
        """Read the next frame.

        :raises BlockingConnectionError: none arrives in time, or the peer closes.
        """
        self._socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        while (frame := self._decoder.next()) is None:
            self._decoder.push(self._arrived(self._socket.recv, _READ_BYTES))
        return decode_command(frame)

    def receive_into(self, room: Callable[[int], memoryview]) -> tuple[RemotingCommand, memoryview]:
        """Read the next frame; return it without its body, and the body, which is not copied if it is large.

        :param room: gives bytes of the length asked for, which the body is written to.
        :raises BlockingConnectionError: as :meth:`receive`.
        """
        self._socket.settimeout(self.timeout_s)
        missing = 0
        while (frame := self._decoder.next()) is None:
            if (begun := self._decoder.take_begun()) is not None:
                frame, missing = begun
                break
            self._decoder.push(self._arrived(self._socket.recv, _BEGIN_BYTES))
        at = len(frame.body)
        body = room(at + missing)
        body[:at] = frame.body
        while at < len(body):
            at += self._arrived(self._socket.recv_into, body[at:])
        return decode_command(Frame(frame.serialize_type, frame.header, b"")), body

    def _arrived(self, read: Callable[[_Place], _Got], place: _Place) -> _Got:
        try:
            got = read(place)
        except TimeoutError as error:
            raise BlockingConnectionError(self.address, f"{self.address} did not answer in time") from error
        except OSError as error:
            raise self._ended(f"the connection to {self.address} broke: {error}") from error
        if not got:
            raise self._ended(f"{self.address} closed the connection")
        self._heard = True
        return got

    def _ended(self, message: str) -> BlockingConnectionError:
        next_step = None if self._heard else "it may take connections with TLS only"
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
        """Send a request and return its answer, whatever its code; ignore other frames.

        :param ext: fields as text, instead of or beside a typed header.
        :raises BlockingConnectionError: there is no answer within the time.
        """
        opaque = self.submit(code, header, body, ext=ext)
        while True:
            answer = self.receive(timeout_s)
            if answer.is_response and answer.opaque == opaque:
                return answer

    def submit(
        self, code: int, header: Header | None = None, body: bytes = b"", *, ext: Mapping[str, str] | None = None
    ) -> int:
        """Send a request without waiting; return the opaque that its answer will carry."""
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
        """Return a request, signed if there are credentials."""
        fields = {} if header is None else to_ext(header)
        fields.update(ext or {})
        command = RemotingCommand(code=code, opaque=opaque, flag=flag, ext_fields=fields, body=body)
        if self.security.credentials is not None:
            self.security.credentials.sign(command, self._stamps.next())
        return command.encode()
