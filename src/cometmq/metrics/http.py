"""The monitoring port, which serves ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import h11

from cometmq.clock import SYSTEM_CLOCK, Clock, wait_for
from cometmq.errors import reason_of
from cometmq.limits import MAX_MONITOR_CONNECTIONS, MAX_MONITOR_HEAD_BYTES, MONITOR_SECONDS, STALLED_MONITOR_SECONDS
from cometmq.loop import TaskSet, close_server
from cometmq.message.hosts import address_here, unmapped
from cometmq.metrics.exposition import CONTENT_TYPE

_log = logging.getLogger(__name__)

_TEXT: Final = "text/plain; charset=utf-8"
_READ_BYTES: Final = 16 * 1024
_NUMERIC: Final = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
_INDEX: Final = b"/metrics  for Prometheus\n/healthz  the process answers\n/readyz   it serves clients\n"


@dataclass(frozen=True, slots=True)
class _Scrape:
    """A pending request for ``/metrics``."""

    connection: h11.Connection
    writer: asyncio.StreamWriter
    done: asyncio.Future[None]

    def end(self, error: Exception | None = None) -> None:
        """Wake the waiting scrape."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class MonitorServer:
    """An HTTP server for metrics and health checks; it accepts only GET and HEAD.

    :param metrics: yields the current metrics in pieces; other work runs between the pieces.
    :param not_ready: returns the reason why the server cannot serve clients now, or an empty string.
    """

    def __init__(
        self, metrics: Callable[[], Iterator[bytes]], not_ready: Callable[[], str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._metrics = metrics
        self._not_ready = not_ready
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._running = TaskSet()
        self._waiting: list[_Scrape] = []
        """Scrapes that arrived during a collection and wait for the next one, whose result they share."""
        self._is_collecting = False

    @property
    def port(self) -> int:
        """The port on which the server listens; the system may have chosen it."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The URL of the metrics; empty if the server is not listening."""
        if self._server is None:
            return ""
        host, _ = socket.getnameinfo(self._server.sockets[0].getsockname(), _NUMERIC)  # an IPv6 address with its zone
        return f"http://{address_here(host, self.port)}/metrics"

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 selects a free port, and an empty host means every address.

        If the port is in use, an error is logged, and the server still serves its clients.
        """
        try:
            where = unmapped(host) or None
            self._server = await asyncio.start_server(self._accept, where, port, limit=MAX_MONITOR_HEAD_BYTES)
        except (OSError, UnicodeError) as error:
            why = error if isinstance(error, UnicodeError) else f"port {port}: {reason_of(error)}"
            _log.error(
                "metrics are not served: %s; set metricsPromExporterPort (of serve: --metrics-port) to a free port", why
            )

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._server is None:
            return
        await close_server(self._server)
        for writer in list(self._open):
            writer.transport.abort()
        await self._running.stop()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_MONITOR_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(writer)
        self._running.start(self._serve(reader, writer), "answer a monitor")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_MONITOR_HEAD_BYTES)
        try:
            while connection.states[h11.SERVER] is h11.IDLE:
                request = await self._request(connection, reader)
                if request is None:
                    break
                await self._answer(connection, writer, request)
                if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
                    connection.start_next_cycle()
                else:
                    break
        except h11.RemoteProtocolError as error:
            await self._refuse(connection, writer, str(error), error.error_status_hint)
        except (OSError, TimeoutError):
            pass  # the monitor is gone, or too slow
        finally:
            self._open.discard(writer)
            writer.close()

    async def _request(self, connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
        """Return a complete request, or ``None`` if the client has closed its side.

        :raises TimeoutError: the request did not arrive in time.
        """
        deadline = self._clock.monotonic() + MONITOR_SECONDS
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                left = deadline - self._clock.monotonic()
                connection.receive_data(await wait_for(self._clock, left, reader.read(_READ_BYTES)))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("a metrics request must not have a body", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage):
                return request
            else:  # closed
                return None

    async def _answer(self, connection: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request) -> None:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            await self._text(connection, writer, HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n", (("Allow", "GET, HEAD"),))
        elif path == b"/metrics":
            await self._scrape(connection, writer, with_body=request.method == b"GET")
        elif path == b"/healthz":
            await self._text(connection, writer, HTTPStatus.OK, b"ok\n")
        elif path == b"/readyz":
            reason = self._not_ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
            await self._text(connection, writer, status, f"{reason or 'ready'}\n".encode())
        elif path == b"/":
            await self._text(connection, writer, HTTPStatus.OK, _INDEX)
        else:
            await self._text(connection, writer, HTTPStatus.NOT_FOUND, b"use /metrics, /healthz or /readyz\n")

    async def _scrape(self, connection: h11.Connection, writer: asyncio.StreamWriter, *, with_body: bool) -> None:
        head = h11.Response(status_code=200, headers=[("Content-Type", CONTENT_TYPE)], reason=b"OK")
        writer.write(connection.send(head) or b"")
        if with_body:
            scrape = _Scrape(connection, writer, asyncio.get_running_loop().create_future())
            self._waiting.append(scrape)
            if not self._is_collecting:
                self._is_collecting = True
                self._running.start(self._collect(), "collect metrics")
            await scrape.done
        await self._finish(connection, writer)

    async def _collect(self) -> None:
        """Collect metrics once for all waiting scrapes, and once more for scrapes that arrived during the
        collection.
        """
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._write_metrics(group)
        finally:
            self._is_collecting = False

    async def _write_metrics(self, group: list[_Scrape]) -> None:
        deadline = self._clock.monotonic() + MONITOR_SECONDS
        try:
            for piece in self._metrics():
                if piece:
                    for scrape in group:
                        scrape.writer.write(scrape.connection.send(h11.Data(data=piece)) or b"")
                    group = [scrape for scrape in group if await self._has_room(scrape, deadline, len(group))]
                await asyncio.sleep(0)
                if not group:
                    return
        except Exception as error:
            for scrape in group:
                scrape.end(error)
            raise
        for scrape in group:
            scrape.end()

    async def _has_room(self, scrape: _Scrape, deadline: float, group_size: int) -> bool:
        """Wait until the client has read enough data; if it is too slow, end its scrape and return False."""
        left = deadline - self._clock.monotonic()
        try:
            await wait_for(
                self._clock, left if group_size == 1 else min(left, STALLED_MONITOR_SECONDS), scrape.writer.drain()
            )
        except (OSError, TimeoutError) as error:
            scrape.end(error)
            return False
        return True

    async def _text(
        self,
        connection: h11.Connection,
        writer: asyncio.StreamWriter,
        status: int,
        body: bytes,
        more: tuple[tuple[str, str], ...] = (),
    ) -> None:
        headers = [("Content-Type", _TEXT), ("Content-Length", str(len(body))), *more]
        writer.write(
            connection.send(
                h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
            )
            or b""
        )
        writer.write(connection.send(h11.Data(data=body)) or b"")
        await self._finish(connection, writer)

    async def _finish(self, connection: h11.Connection, writer: asyncio.StreamWriter) -> None:
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await wait_for(self._clock, MONITOR_SECONDS, writer.drain())

    async def _refuse(self, connection: h11.Connection, writer: asyncio.StreamWriter, why: str, status: int) -> None:
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with suppress(OSError, TimeoutError):
                await self._text(connection, writer, status, f"{why}\n".encode(), (("Connection", "close"),))
