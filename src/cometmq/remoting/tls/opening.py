"""Handles new connections until their first bytes show whether they use plain text or TLS (``HandshakeHandler``).

Every connection begins here. No frame begins with the first byte of TLS, since its length would exceed the limit. After
a handshake, the first bytes inside TLS are checked. Then the connection gets its protocol, which receives all further
bytes directly, so that a plain connection costs only one more comparison.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from cometmq.clock import Clock, TimerHandle
from cometmq.limits import HANDSHAKE_SECONDS
from cometmq.periodic import Alarm
from cometmq.remoting.connections.accepted import NO_DESCRIPTOR, Accepted, open_transport
from cometmq.remoting.connections.listener import close_all
from cometmq.remoting.tls.server import ServerTls
from cometmq.remoting.tls.transport import TlsTransport

log = logging.getLogger(__name__)

OPENED_AT_ONCE: Final = 32
"""Number of accepted sockets that are opened in one round of the event loop, if rounds are short."""
MOST_OPENED_AT_ONCE: Final = 128
"""Maximum number of accepted sockets that are opened in one round (about 10 ms with their first requests)."""
OPENED_IN_A_SECOND: Final = 5_000
"""Number of accepted sockets that are opened in a second if rounds are long: clients that are served already do not
keep the others waiting.
"""
ABORTED_AT_ONCE: Final = 64
"""Maximum number of silent connections that are aborted in one round of the event loop."""
_TLS_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection, which is the record type."""


class OpeningConnections:
    """A server's connections whose protocol is not yet known.

    :param protocol: creates the protocol of a connection from the descriptor of its socket, or -1 if bytes must pass
        through the transport.
    :param silence_s: number of seconds in which a client must send its first byte, and its first byte after a
        handshake.
    """

    def __init__(
        self, protocol: Callable[[int], asyncio.Protocol], tls: ServerTls, *, clock: Clock, silence_s: float
    ) -> None:
        self.protocol: Final = protocol
        self.tls: Final = tls
        self.clock: Final = clock
        self.silence_s: Final = silence_s
        self._unopened: deque[Accepted] = deque()
        """Accepted sockets that wait for their transport, the oldest first."""
        self._opened_at = 0.0
        """Time at which sockets were last opened, in monotonic seconds."""
        self._open: dict[_Opening, float] = {}
        """Connections that must send something, those that wait longest first, and the ends of their waits in monotonic
        seconds.
        """
        self._next_end: Final = Alarm(self._abort_silent, clock=clock)
        self._ending: set[_Opening] = set()
        """Aborted connections whose sockets are still open."""

    def __len__(self) -> int:
        return len(self._open) + len(self._unopened)

    def accept(self, sock: Accepted) -> None:
        """Start handling a new connection, after those that were accepted before it."""
        if not self._unopened:
            self._opened_at = self.clock.monotonic()
            asyncio.get_running_loop().call_soon(self._open_some)
        self._unopened.append(sock)

    def _open_some(self) -> None:
        """Open the oldest accepted sockets; the clients that are there already are served before the others."""
        now = self.clock.monotonic()
        due = int((now - self._opened_at) * OPENED_IN_A_SECOND)
        self._opened_at = now
        loop = asyncio.get_running_loop()
        for _ in range(min(len(self._unopened), max(OPENED_AT_ONCE, due), MOST_OPENED_AT_ONCE)):
            self._open_one(loop, self._unopened.popleft())
        if self._unopened:
            # bytes that have arrived in the meantime are handled in between
            loop.call_soon(loop.call_soon, self._open_some)

    def _open_one(self, loop: asyncio.AbstractEventLoop, sock: Accepted) -> None:
        opening = _Opening(self, sock.fileno())
        try:
            open_transport(loop, sock, opening, opening.forget)
        except OSError as error:  # the client has already disconnected
            log.info("a connection could not be opened: %s", error)
        except Exception:  # those behind it are opened in any case
            log.exception("a connection could not be opened")
        else:
            self.waits(opening)

    def waits(self, opening: _Opening) -> None:
        """Wait for the next bytes of a connection, which is aborted if it is silent for too long."""
        self._open.pop(opening, None)
        self._open[opening] = self.clock.monotonic() + self.silence_s
        if not self._next_end.is_set:
            self._next_end.after(self.silence_s)

    def _abort_silent(self) -> None:
        """Abort some of the connections that have been silent for too long."""
        now = self.clock.monotonic()
        for opening, ends in list(itertools.islice(self._open.items(), ABORTED_AT_ONCE)):
            if ends > now:
                self._next_end.after(ends - now)
                return
            opening.abort()
        if self._open:
            asyncio.get_running_loop().call_soon(self._abort_silent)

    def gone(self, opening: _Opening) -> None:
        """Remove a connection that has ended or has been passed to its protocol."""
        self._open.pop(opening, None)
        self._ending.discard(opening)

    def ends(self, opening: _Opening) -> None:
        """Stop counting a connection that is being aborted."""
        if opening in self._open:
            del self._open[opening]
            self._ending.add(opening)

    def abort_oldest(self) -> None:
        """Abort the oldest connection."""
        if self._open:
            next(iter(self._open)).abort()
        else:
            self._unopened.popleft().close()

    def abort(self) -> None:
        """Abort all connections."""
        self._next_end.cancel()
        self._close_unopened()
        for opening in list(self._open):
            opening.abort()

    def _close_unopened(self) -> None:
        while self._unopened:
            self._unopened.popleft().close()

    async def stop(self) -> None:
        """Abort all connections and wait until their sockets are closed."""
        self.abort()
        await close_all(self._ending)


class _Opening(asyncio.Protocol):
    """A connection whose protocol is not yet known."""

    __slots__ = ("_descriptor", "_handshake_ends", "_is_aborted", "_owner", "_transport")

    def __init__(self, owner: OpeningConnections, descriptor: int) -> None:
        self._owner = owner
        self._descriptor = descriptor
        self._transport: asyncio.Transport | None = None
        self._handshake_ends: TimerHandle | None = None
        self._is_aborted = False
        """True if the connection ends as soon as it has a transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the connection's first bytes, or for its first bytes inside TLS."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = cast(asyncio.Transport, transport)
        if self._is_aborted:
            self._transport.abort()
        elif self._handshake_ends is not None:
            self._end_handshake()
            self._owner.waits(self)

    def data_received(self, data: bytes) -> None:
        """Detect TLS or plain text from the first bytes."""
        owner, transport = self._owner, self._transport
        assert transport is not None
        if isinstance(transport, TlsTransport):
            self._hand_over(data, NO_DESCRIPTOR)
        elif data[0] == _TLS_HANDSHAKE:
            if owner.tls.accepts_tls:
                owner.waits(self)
                self._handshake_ends = owner.clock.call_later(HANDSHAKE_SECONDS, self.abort)
                TlsTransport(transport, self, owner.tls, owner.clock).start(data)
            else:
                self._refuse("it uses TLS (tls.server.mode=disabled)")
        elif owner.tls.accepts_plain_text:
            self._hand_over(data, self._descriptor)
        else:
            self._refuse("it uses plain text (tls.server.mode=enforcing)")

    def _hand_over(self, data: bytes, descriptor: int) -> None:
        """Pass the connection to its protocol."""
        transport = self._transport
        assert transport is not None
        self.forget()
        protocol = self._owner.protocol(descriptor)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Remove the connection because it has ended."""
        self.forget()

    @property
    def is_connected(self) -> bool:
        """Return whether the connection already has a transport."""
        return self._transport is not None

    def close(self) -> None:
        """Abort the connection; nothing is queued that would have to be sent first."""
        self.abort()

    def abort(self) -> None:
        """Abort the connection."""
        self._end_handshake()
        self._is_aborted = True
        self._owner.ends(self)
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        log.warning("closing a connection from %s: %s", peer[0] if peer else "a disconnected client", why)
        self.abort()

    def _end_handshake(self) -> None:
        if self._handshake_ends is not None:
            self._handshake_ends.cancel()

    def forget(self) -> None:
        """Remove the connection, which has ended or has its protocol."""
        self._end_handshake()
        self._owner.gone(self)
