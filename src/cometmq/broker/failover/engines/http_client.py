"""HTTP/1.1 requests to the API of an engine: JSON in, JSON or a stream of lines out."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import h11

from cometmq.broker.failover.engines.interface import EngineError
from cometmq.broker.limits import MAX_ENGINE_ANSWER_BYTES, MAX_ENGINE_HEAD_BYTES
from cometmq.clock import Clock, wait_for
from cometmq.remoting.connections.connecting import connect
from cometmq.remoting.tls.contexts import FreshContext, connection_error

_READ_BYTES: Final = 65_536
_EXPIRED: Final = 10
"""OpenSSL's code for a certificate that has expired (``X509_V_ERR_CERT_HAS_EXPIRED``)."""


class NotSentError(EngineError):
    """No byte of the request was sent, so it has not been executed."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of an engine."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint that a URL such as ``https://10.0.0.1:2379`` names.

    :raises ValueError: it names none; the error says what is allowed.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = not parts.query and not parts.fragment and parts.path in ("", "/") and parts.username is None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None or not is_plain:
        raise ValueError(
            f"{text[:200]!r} is not an endpoint: use the form https://host:port, for example https://a:2379"
        )
    return Endpoint(parts.hostname, port, parts.scheme == "https")


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    content_type: str = "application/json"


class HttpConnection:
    """A connection to one endpoint, which is opened for the first request, and again after a failure.

    Requests follow each other. A failed request is never repeated here.
    """

    def __init__(self, endpoint: Endpoint, tls: FreshContext | None, clock: Clock) -> None:
        self.endpoint: Final = endpoint
        self._tls = tls
        self._clock = clock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ENGINE_HEAD_BYTES)
        self._lock = asyncio.Lock()

    async def request(self, call: Call, limit_s: float) -> tuple[int, bytes]:
        """Return the status and the body of the answer.

        :raises NotSentError: no connection could be made.
        :raises EngineError: there is no complete answer; the request may have been executed.
        """
        async with self._lock:
            deadline = self._clock.monotonic() + limit_s
            try:
                await self._open(limit_s)
                left = deadline - self._clock.monotonic()
                return await wait_for(self._clock, left, self._answer(call))
            except TimeoutError as error:
                self.abort()
                raise self._failure(error) from error
            except BaseException:
                self.abort()
                raise

    async def lines(self, call: Call, open_s: float, silent_s: float) -> AsyncIterator[bytes]:
        """Yield the lines of an answer that does not end, and an empty line once it has begun.

        :raises EngineError: the answer has ended, is an error, or was silent for ``silent_s`` seconds.
        """
        try:
            await self._open(open_s)
            reader, writer = self._open_streams
            writer.write(self._encode(call))
            status, rest = 0, b""
            limit_s = open_s
            while True:
                event = await wait_for(self._clock, limit_s, self._next_event(reader))
                if isinstance(event, h11.Response):
                    status, limit_s = event.status_code, silent_s
                    if status == 200:
                        yield b""
                elif isinstance(event, h11.Data) and status == 200:
                    *whole, rest = (rest + bytes(event.data)).split(b"\n")
                    if len(rest) > MAX_ENGINE_ANSWER_BYTES:
                        raise self._error("sent a line without an end")
                    for line in whole:
                        yield line
                elif not isinstance(event, h11.Data):
                    raise self._error(f"ended the watch with HTTP status {status}")
        except (OSError, h11.ProtocolError) as error:
            raise self._failure(error) from error
        finally:
            self.abort()

    async def _open(self, limit_s: float) -> None:
        if self._streams is not None and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            self.abort()
        if self._streams is not None:
            return
        endpoint = self.endpoint
        context = None
        if endpoint.is_tls:
            assert self._tls is not None, "an endpoint with https needs a context"
            context = self._tls.current()
        reader = asyncio.StreamReader()
        try:
            protocol = asyncio.StreamReaderProtocol(reader)
            transport = await connect(protocol, endpoint.host, endpoint.port, self._clock, limit_s, tls=context)
        except TimeoutError as error:
            raise NotSentError(f"{endpoint} does not answer", next_step="check the address and the firewall") from error
        except OSError as error:
            message, step = _connection_error(endpoint, error)
            raise NotSentError(message, next_step=step) from error
        self._streams = reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ENGINE_HEAD_BYTES)

    @property
    def _open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._streams is not None
        return self._streams

    def _encode(self, call: Call) -> bytes:
        headers = [
            ("Host", f"{self.endpoint.host}:{self.endpoint.port}"),
            ("Content-Type", call.content_type),
            ("Content-Length", str(len(call.body))),
            *call.headers,
        ]
        connection = self._connection
        request = h11.Request(method=call.method, target=call.target, headers=headers)
        parts = (connection.send(request), connection.send(h11.Data(call.body)), connection.send(h11.EndOfMessage()))
        return b"".join(part or b"" for part in parts)

    async def _answer(self, call: Call) -> tuple[int, bytes]:
        reader, writer = self._open_streams
        try:
            writer.write(self._encode(call))
            status, parts, size = 0, [], 0
            while True:
                event = await self._next_event(reader)
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > MAX_ENGINE_ANSWER_BYTES:
                        raise self._error(f"sent more than {MAX_ENGINE_ANSWER_BYTES} bytes")
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    break
                elif not isinstance(event, h11.InformationalResponse):
                    raise self._error("closed the connection")
        except (OSError, h11.ProtocolError) as error:
            raise self._failure(error) from error
        if self._connection.our_state is h11.DONE and self._connection.their_state is h11.DONE:
            self._connection.start_next_cycle()
        else:
            self.abort()
        return status, b"".join(parts)

    async def _next_event(self, reader: asyncio.StreamReader) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._connection.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            data = await reader.read(_READ_BYTES)
            if not data and self._connection.their_state is h11.SEND_RESPONSE:
                raise self._error("closed the connection before it answered")
            self._connection.receive_data(data)

    def _failure(self, error: Exception) -> EngineError:
        if isinstance(error, TimeoutError):
            return self._error("has not answered in time")
        if isinstance(error, OSError):
            message, step = _connection_error(self.endpoint, error)
            return EngineError(message, next_step=step)
        return EngineError(
            f"{self.endpoint} does not speak HTTP/1.1: {error}",
            next_step="use the engine's client port; if it is etcd, check that the JSON gateway is on "
            "(--enable-grpc-gateway), and that an endpoint with TLS begins with https",
        )

    def _error(self, what: str) -> EngineError:
        return EngineError(f"{self.endpoint} {what}", next_step="check the engine's log")

    def abort(self) -> None:
        """Close the connection at once."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()


def _connection_error(endpoint: Endpoint, error: OSError) -> tuple[str, str]:
    """Return the message and the next step for a failed connection, in the words of this broker's configuration."""
    message, step = connection_error(str(endpoint), error, tls=endpoint.is_tls)
    if isinstance(error, ssl.SSLCertVerificationError):
        step = "check the authority in etcdCaFile, and that the certificate has the host name of the endpoint"
        if error.verify_code == _EXPIRED:
            step = "renew the certificate of the engine's server, and let it read the new one"
    elif isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "") and "CERT" in (error.reason or ""):
        message = f"{endpoint} does not accept the certificate of this member: {_words(error)}"
        step = "renew the files of etcdCertFile and etcdKeyFile; they are read again without a restart"
    return message, step


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
