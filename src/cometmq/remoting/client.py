"""The client side of remoting: one shared connection per address (``NettyRemotingClient``)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cometmq.clock import SYSTEM_CLOCK, Clock, wait_for
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.loop import SharedTask
from cometmq.message.hosts import parse_address
from cometmq.remoting.command import FLAG_ONEWAY, RemotingCommand
from cometmq.remoting.connections.client_connection import Answer, ClientConnection
from cometmq.remoting.connections.connecting import connect
from cometmq.remoting.errors import (
    ForkedError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from cometmq.remoting.headers import Header, to_ext
from cometmq.remoting.processors import ProcessorTable
from cometmq.remoting.security import PLAIN, Security
from cometmq.remoting.signing import Stamps
from cometmq.remoting.tls.contexts import connection_error

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 3.0
CLOSE_S: Final = 1.0
"""Time limit for closing connections that still have bytes to send."""
MAX_IN_FLIGHT: Final = 4096
"""Maximum number of unanswered requests per connection, which limits the memory used for a slow server."""


@dataclass(frozen=True)
class ClientRpcHook:
    """Two optional functions that are called with a client's requests and their responses (``RPCHook``)."""

    before: Callable[[str, RemotingCommand], None] | None = None
    """Called with the peer and a request before the request is sent. It can change ``ext_fields`` or raise an error."""
    after: Callable[[str, RemotingCommand, RemotingCommand], None] | None = None
    """Called with the peer, a request and its response before the response is returned to the caller."""


class RemotingClient:
    """Sends requests to servers and answers their requests.

    Create it on a running event loop, and use it only there and in this process: after a fork every call raises
    :class:`ForkedError`. A timeout covers everything: connecting, waiting for capacity, and waiting for the answer.

    :param processors: the handlers of requests that servers send to this client.
    :param hooks: called with every request and answer; they may change or refuse requests.
    :param security: signs every request after the hooks, and decides whether connections use TLS.
    :param max_in_flight: maximum number of unanswered requests on one connection.
    :param max_frame_bytes: maximum size of an answer.
    :raises TlsError: a TLS file cannot be used.
    """

    def __init__(
        self,
        *,
        processors: ProcessorTable | None = None,
        hooks: Sequence[ClientRpcHook] = (),
        security: Security = PLAIN,
        clock: Clock = SYSTEM_CLOCK,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.hooks = tuple(hooks)
        self.credentials = security.credentials
        self._stamps = Stamps(clock.now_ms)
        self._tls = None if security.tls is None else security.tls.fresh_context()
        self.clock = clock
        self.on_open: list[Callable[[str], None]] = []
        """Called with the address of each new connection."""
        self.on_failure: list[Callable[[str], None]] = []
        """Called with an address that refuses a connection or has lost one."""
        self.processors = ProcessorTable() if processors is None else processors
        self._max_in_flight = max_in_flight
        self._max_frame_bytes = max_frame_bytes
        self._connections: dict[str, ClientConnection] = {}
        self._connecting: dict[str, SharedTask[ClientConnection]] = {}
        self._opaques = itertools.count(1)
        self._pid = os.getpid()
        self._closed = False

    async def __aenter__(self) -> RemotingClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def invoke(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ext: dict[str, str] | None = None,
    ) -> RemotingCommand:
        """Send a request and return its response, whatever the response code.

        ``ext`` has additional header fields.

        :raises RemotingConnectError: no connection could be opened; nothing was sent.
        :raises RemotingTooMuchRequestError: too many requests are unanswered; nothing was sent.
        :raises RemotingTimeoutError: no answer arrived within ``timeout_s`` seconds.
        :raises RemotingSendError: the connection ended before the answer.
        :raises RemotingClosedError: the client is closed.
        :raises ForkedError: another process created the client.
        """
        deadline = self.clock.monotonic() + timeout_s
        connection = await self.ready(address, deadline)
        request = self.request(address, code, header, body, ext)
        now = self.clock.monotonic()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        connection.submit(request.opaque, request.encode(), deadline, now, lambda got: _resolve(answer, got))
        try:
            response = await answer
        except asyncio.CancelledError:
            connection.forget(request.opaque)
            raise
        if isinstance(response, RemotingError):
            raise response
        self.run_answer_hooks(address, request, response)
        return response

    async def invoke_all(
        self, address: str, requests: Sequence[tuple[int, Header | None]], *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[RemotingCommand]:
        """Send many requests without waiting in between; return their responses in request order.

        The timeout covers all of them.

        :raises RemotingError: see :meth:`invoke`; the other responses are ignored.
        """
        deadline = self.clock.monotonic() + timeout_s
        done = asyncio.Event()
        sent: dict[int, RemotingCommand] = {}
        answers: dict[int, RemotingCommand] = {}
        failures: list[RemotingError] = []

        def take(opaque: int, answer: Answer) -> None:
            if isinstance(answer, RemotingError):
                failures.append(answer)
            else:
                answers[opaque] = answer
            if failures or len(answers) == len(requests):
                done.set()

        try:
            for code, header in requests:
                connection = await self.ready(address, deadline)
                request = self.request(address, code, header, b"", None)
                sent[request.opaque] = request
                now = self.clock.monotonic()
                connection.submit(request.opaque, request.encode(), deadline, now, partial(take, request.opaque))
            if requests:
                await done.wait()
        finally:
            if (live := self.connected(address)) is not None:
                for opaque in sent.keys() - answers.keys():
                    live.forget(opaque)
        if failures:
            raise failures[0]
        for opaque, request in sent.items() if self.hooks else ():
            self.run_answer_hooks(address, request, answers[opaque])
        return [answers[opaque] for opaque in sent]

    async def invoke_oneway(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Send a oneway request; return as soon as it is in the connection's buffer.

        :raises RemotingError: see :meth:`invoke`, except for the errors that concern the answer.
        """
        connection = await self.ready(address, self.clock.monotonic() + timeout_s)
        request = self.request(address, code, header, body, ext)
        request.flag |= FLAG_ONEWAY
        connection.write(request.encode())

    def request(
        self, address: str, code: int, header: Header | None, body: bytes, ext: dict[str, str] | None
    ) -> RemotingCommand:
        """Run the hooks on a request to ``address``, sign the request, and return it."""
        fields = {} if header is None else to_ext(header)
        if ext:
            fields.update(ext)
        command = RemotingCommand(code=code, opaque=self.next_opaque(), ext_fields=fields, body=body)
        for hook in self.hooks:
            if hook.before is None:
                continue
            try:
                hook.before(address, command)
            except Exception:
                raise
            except BaseException as error:  # a hook may raise, for example, SystemExit, which would end the event loop
                raise RuntimeError(f"hook {hook!r} raised {error!r} for a request to {address}") from error
        if self.credentials is not None:
            self.credentials.sign(command, self._stamps.next())
        return command

    @property
    def connections(self) -> Collection[ClientConnection]:
        """The open connections."""
        return self._connections.values()

    def certificate(self, address: str) -> bytes | None:
        """Return the TLS certificate (DER) of a recently used server, or ``None`` if TLS is not used."""
        connection = self._connections.get(address)
        return None if connection is None else connection.certificate

    def run_answer_hooks(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Call the hooks with a response, and log their errors."""
        for hook in self.hooks:
            if hook.after is None:
                continue
            try:
                hook.after(address, request, response)
            except BaseException:
                log.exception("hook %r failed for a response from %s", hook, address)

    def next_opaque(self) -> int:
        """Return an opaque for the next request, an int32 that no unanswered request uses."""
        return next(self._opaques) & 0x7FFFFFFF

    def live(self, address: str) -> ClientConnection | None:
        """Return the connection to ``address`` if it is open and can accept a request now."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.has_room else None

    def connected(self, address: str) -> ClientConnection | None:
        """Return the connection to ``address`` if it is open, even if it is full."""
        return self._connections.get(address)

    async def ready(self, address: str, deadline: float) -> ClientConnection:
        """Return a connection to ``address`` that accepts another request, waiting until ``deadline`` (monotonic
        seconds).

        :raises RemotingError: see :meth:`invoke`.
        """
        if self._pid != os.getpid():
            raise ForkedError(
                address, "this client was created in the parent process", next_step="create a new client after the fork"
            )
        connection = self._connections.get(address)
        if connection is None:
            connection = await self._connect(address, deadline)
        if not connection.has_room:
            await connection.room(deadline)
        if self._closed:
            raise _closed(address)
        return connection

    def finish(self) -> None:
        """Send no further requests: servers forget those that wait, and send the responses that are on their way.

        Requests that wait for a connection fail with :exc:`RemotingClosedError`.
        """
        self._closed = True
        for shared in self._connecting.values():
            shared.task.cancel()
        for connection in list(self._connections.values()):
            connection.finish()

    async def close(self) -> None:
        """Close every connection; unanswered requests fail."""
        self._closed = True
        connecting = [shared.task for shared in self._connecting.values()]
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        try:  # the loop may end after this: the transports first send what is queued, TLS also close_notify
            await wait_for(self.clock, CLOSE_S, asyncio.gather(*(connection.gone for connection in connections)))
        except TimeoutError:
            for connection in connections:
                connection.abort("this client was closed")
            await asyncio.sleep(0)

    async def _connect(self, address: str, deadline: float) -> ClientConnection:
        if self._closed:
            raise _closed(address)
        shared = self._connecting.get(address)
        if shared is None:
            shared = self._connecting[address] = SharedTask(self._open(address))
            shared.task.add_done_callback(lambda _: self._connecting.pop(address, None))
        caller = asyncio.current_task()
        cancellations = 0 if caller is None else caller.cancelling()
        try:
            return await wait_for(self.clock, deadline - self.clock.monotonic(), shared.wait())
        except TimeoutError:
            raise RemotingTimeoutError(
                address,
                f"could not connect to {address} in time",
                next_step="check the address and that the server is running, or increase the timeout",
            ) from None
        except asyncio.CancelledError:
            is_cancelled = caller is not None and caller.cancelling() > cancellations
            if shared.task.cancelled() and not is_cancelled:
                raise _closed(address) from None
            raise

    async def _open(self, address: str) -> ClientConnection:
        try:
            host, port = parse_address(address)
        except ValueError as error:
            raise RemotingConnectError(address, str(error), next_step="write addresses as host:port") from error
        connection = ClientConnection(
            address, self.clock, self._max_in_flight, self.processors, self._lost, self._max_frame_bytes
        )
        context = None if self._tls is None else self._tls.current()
        try:
            await connect(connection, host, port, self.clock, CONNECT_TIMEOUT_S, tls=context)
        except asyncio.CancelledError:
            connection.abort("this client was closed")  # another task may have just opened the connection
            raise
        except TimeoutError:
            self._failed(address)
            raise RemotingConnectError(
                address,
                f"could not connect to {address} within {CONNECT_TIMEOUT_S:g} s",
                next_step="check the address and any firewalls in between",
            ) from None
        except OSError as error:
            self._failed(address)
            message, next_step = connection_error(address, error, tls=self._tls is not None)
            raise RemotingConnectError(address, message, next_step=next_step) from error
        self._connections[address] = connection
        for listener in self.on_open:
            listener(address)
        return connection

    def _lost(self, connection: ClientConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if not self._closed:
                self._failed(connection.address)

    def _failed(self, address: str) -> None:
        for listener in self.on_failure:
            listener(address)


def _resolve(waiter: asyncio.Future[Answer], answer: Answer) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _closed(address: str) -> RemotingClosedError:
    return RemotingClosedError(address, "this client is closed", next_step="create a new client")
