"""A blocking connection without an event loop, for executors of Spark, scripts and raw-protocol tests."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from typing import Self

from cometmq.errors import CometMQError, reason_of
from cometmq.message.hosts import parse_address
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder
from cometmq.remoting.headers import Header, to_ext

_READ_BYTES = 256 * 1024


class BlockingConnectionError(CometMQError):
    """The peer cannot be reached, closed the connection, or does not answer in time."""


class BlockingConnection:
    """One connection to a broker or nameserver; one request at a time.

    :param address: ``host:port``.
    :param timeout_s: for connecting, and for each answer unless ``invoke`` says otherwise.
    :raises BlockingConnectionError: the peer cannot be reached.
    """

    def __init__(self, address: str, timeout_s: float = 5.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._opaques = itertools.count(1)
        self._decoder = FrameDecoder()
        try:
            self._socket = socket.create_connection(parse_address(address), timeout_s)
        except OSError as error:
            raise BlockingConnectionError(
                f"cannot connect to {address}: {reason_of(error)}",
                next_step="is the server running, and is this its address?",
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
            raise BlockingConnectionError(f"{self.address} closed the connection: {error}") from error

    def receive(self, timeout_s: float | None = None) -> RemotingCommand:
        """The next frame that arrives, whatever it is.

        :raises BlockingConnectionError: none arrives in time, or the peer closes.
        """
        self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
        while (frame := self._decoder.next()) is None:
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError as error:
                raise BlockingConnectionError(f"{self.address} did not answer in time") from error
            except OSError as error:
                raise BlockingConnectionError(f"the connection to {self.address} broke: {error}") from error
            if not data:
                raise BlockingConnectionError(f"{self.address} closed the connection")
            self._decoder.push(data)
        return decode_command(frame)

    def invoke(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever its code; frames that answer nothing are passed over.

        :param ext: fields as text, instead of or beside a typed header.
        :raises BlockingConnectionError: there is no answer within the time.
        """
        opaque = next(self._opaques)
        self.send(self._command(code, opaque, header, body, ext, 0).encode())
        while True:
            answer = self.receive(timeout_s)
            if answer.is_response and answer.opaque == opaque:
                return answer

    def invoke_oneway(
        self, code: int, header: Header | None = None, body: bytes = b"", *, ext: Mapping[str, str] | None = None
    ) -> None:
        """Send a request that is not answered."""
        self.send(self._command(code, next(self._opaques), header, body, ext, FLAG_ONEWAY).encode())

    def _command(
        self, code: int, opaque: int, header: Header | None, body: bytes, ext: Mapping[str, str] | None, flag: int
    ) -> RemotingCommand:
        fields = {} if header is None else to_ext(header)
        fields.update(ext or {})
        return RemotingCommand(code=code, opaque=opaque, flag=flag, ext_fields=fields, body=body)
