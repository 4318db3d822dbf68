"""TLS on the server, as a layer between a connection and its socket's transport.

Theory of operation. For the socket's transport this class is the protocol; for the connection it is the transport.
OpenSSL works on two buffers in memory: the bytes of one read are decrypted with one call for each record, and all
answers of a round are encrypted with one call and sent in one write.

States: *handshake*, until both sides have a key; *open*; *ended*. The steps of the handshake run in the thread of
:class:`~cometmq.remoting.tls.server.HandshakeThread`, one at a time for each connection, and nothing is read during a
step. Until the connection is open, the protocol is notified only if it is lost.

A read that contains many records is decrypted in pieces. When the connection's time in a round has been used up, the
remaining records wait for the next round, and nothing more is read. So a flood of records that have no data, such as
key updates, does not delay other connections.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from cometmq.clock import Clock
from cometmq.limits import MAX_CLIENT_HELLO_BYTES, ROUND_SECONDS, TLS_PIECE_BYTES
from cometmq.message.hosts import format_address
from cometmq.remoting.tls.server import ServerTls

log = logging.getLogger(__name__)

_READ_BYTES: Final = 16_384
"""Maximum size of the data in a TLS record, so that one call returns all of it."""
_PAUSED: Final = 1
_IN_THREAD: Final = 2
_HAS_REST: Final = 4
"""Bits for the reasons why the socket is not read."""


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """A TLS transport for one client connection.

    :param raw: the transport of the socket; this object becomes its protocol.
    :param protocol: the connection, whose ``connection_made`` is called with this transport after the handshake.
    """

    __slots__ = (
        "_clock",
        "_incoming",
        "_is_ended",
        "_is_open",
        "_not_read",
        "_outgoing",
        "_protocol",
        "_raw",
        "_rest",
        "_ssl",
        "_tls",
    )

    def __init__(self, raw: asyncio.Transport, protocol: asyncio.BaseProtocol, tls: ServerTls, clock: Clock) -> None:
        super().__init__()
        self._raw = raw
        self._protocol: asyncio.BaseProtocol = protocol
        self._tls = tls
        self._clock = clock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = None
        self._is_open = False
        self._is_ended = False
        self._not_read = 0
        self._rest = memoryview(b"")
        raw.set_protocol(self)

    # --- the handshake ------------------------------------------------------------------------
    def start(self, data: bytes) -> None:
        """Start the handshake with the client's first bytes."""
        self._tls.began(self)
        self.data_received(data)

    def _queue_step(self, data: bytes) -> None:
        """Queue the next handshake step for the thread, and read nothing until the step is done."""
        is_new = self._ssl is None
        if is_new and len(data) > MAX_CLIENT_HELLO_BYTES:
            log.info("closing %s: it sent too much data before the TLS handshake", self._peer)
            self.abort()
            return
        self._stop_reading(_IN_THREAD)
        loop = asyncio.get_running_loop()
        self._tls.thread.submit(lambda: self._step(data, loop), is_new=is_new)

    def _step(self, data: bytes, loop: asyncio.AbstractEventLoop) -> None:
        """Run one handshake step in the thread."""
        is_done = False
        failure: Exception | None = None
        if self._is_ended:
            return
        try:
            if self._ssl is None:
                context = self._tls.context()
                self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._incoming.write(data)
            self._ssl.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            pass
        except Exception as error:  # the thread also serves other connections
            failure = error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(self._step_done, is_done, failure)

    def _step_done(self, is_done: bool, failure: Exception | None) -> None:
        if self._is_ended:
            return
        self._send()
        if failure is not None:
            self._tls.failed(self._peer, failure)
            self._end()
            self._raw.close()
        elif is_done:
            self._tls.ended(self)
            self._is_open = True
            self._read_again(_IN_THREAD)
            self._protocol.connection_made(self)
            if not self._is_ended and self._incoming.pending:
                self._decrypt(b"")
        else:
            self._read_again(_IN_THREAD)

    # --- asyncio.Protocol: events of the socket -----------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Continue the handshake, or pass on the client's data."""
        if not self._is_open:
            self._queue_step(data)
        elif len(data) <= TLS_PIECE_BYTES and not self._rest:
            self._decrypt(data)
        else:
            self._rest = memoryview(bytes(self._rest) + data) if self._rest else memoryview(data)
            self._decrypt_rest()

    def _decrypt(self, data: bytes | memoryview) -> None:
        assert self._ssl is not None
        incoming, read = self._incoming, self._ssl.read
        if data:
            incoming.write(data)
        parts: list[bytes] = []
        ended = False
        try:
            while incoming.pending:
                part = read(_READ_BYTES)
                if not part:
                    ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            log.info("closing %s: it sent invalid TLS data: %s", self._peer, error.reason or error)
            ended = True
        if self._outgoing.pending:
            self._send()
        if parts:
            self._received(parts[0] if len(parts) == 1 else b"".join(parts))
        if ended:
            self.close()

    def _received(self, data: bytes) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)

    def _decrypt_rest(self) -> None:
        """Decrypt the data piece by piece until the connection's time in this round is used up."""
        ends = self._clock.monotonic() + ROUND_SECONDS
        while self._rest and not self._not_read & _PAUSED and not self._is_ended:
            piece, self._rest = self._rest[:TLS_PIECE_BYTES], self._rest[TLS_PIECE_BYTES:]
            self._decrypt(piece)
            if self._rest and self._clock.monotonic() >= ends:
                if not self._not_read & _HAS_REST:
                    self._stop_reading(_HAS_REST)
                asyncio.get_running_loop().call_soon(self._decrypt_rest)
                return
        if not self._rest and self._not_read & _HAS_REST:
            self._read_again(_HAS_REST)

    def eof_received(self) -> bool:
        """Close the connection because the client has closed its end, with or without a TLS close_notify."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the protocol that the connection is lost."""
        self._end()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Notify the protocol that the client reads slowly."""
        if self._is_open:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Notify the protocol that the client has caught up."""
        if self._is_open:
            self._protocol.resume_writing()

    # --- asyncio.Transport: calls of the connection --------------------------------------------
    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Encrypt and send data."""
        if self._is_ended or self._ssl is None or not len(data):
            return
        self._ssl.write(data)
        self._raw.write(self._outgoing.read())

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Encrypt pieces of data and send them in one write."""
        self.write(b"".join(list_of_data))

    def _send(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def pause_reading(self) -> None:
        """Pass no data to the protocol until ``resume_reading`` is called."""
        self._stop_reading(_PAUSED)

    def resume_reading(self) -> None:
        """Resume passing data to the protocol."""
        if not self._not_read & _PAUSED:
            return
        if self._rest:
            self._not_read = (self._not_read | _HAS_REST) & ~_PAUSED
            asyncio.get_running_loop().call_soon(self._decrypt_rest)
        else:
            self._read_again(_PAUSED)

    def _stop_reading(self, reason: int) -> None:
        self._not_read |= reason
        self._raw.pause_reading()

    def _read_again(self, reason: int) -> None:
        self._not_read &= ~reason
        if not self._not_read and not self._raw.is_closing():
            self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that the system has not accepted yet."""
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the buffer sizes at which writing pauses and resumes."""
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the ``ssl_object``, or other information from the socket's transport."""
        return self._ssl if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass further data to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    @property
    def _peer(self) -> str:
        host, port = (self._raw.get_extra_info("peername") or ("a disconnected client", 0))[:2]
        return format_address(str(host), int(port))

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return self._raw.is_closing()

    def close(self) -> None:
        """Close TLS and the connection after all data has been sent."""
        if not self._is_ended and self._is_open and self._ssl is not None:
            with suppress(ssl.SSLError):  # do not wait for the client's close_notify
                self._ssl.unwrap()
            self._send()
        self._end()
        self._raw.close()

    def abort(self) -> None:
        """Abort the connection."""
        self._end()
        self._raw.abort()

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._rest = memoryview(b"")
            self._tls.ended(self)
