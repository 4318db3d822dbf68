"""Accepted connections until their first bytes tell what they are: plain text or TLS (``HandshakeHandler``).

Every connection begins here. TLS begins with its own first byte, which no frame begins with (its length would exceed
the limit); after the handshake the first bytes inside are looked at. Then the connection gets its protocol, and from
then on its bytes go straight to that: plain connections pay for TLS by one comparison each.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from cometmq.clock import Clock, TimerHandle
from cometmq.limits import HANDSHAKE_SECONDS
from cometmq.remoting.listener import close_all
from cometmq.remoting.tls.server import ServerTls
from cometmq.remoting.tls.transport import TlsTransport

log = logging.getLogger(__name__)

_TLS_HANDSHAKE: Final = 0x16
"""First byte of a client that begins with TLS: the type of the record."""


class Openings:
    """The connections of one server whose protocol is not known yet.

    :param protocol: makes the protocol of a connection.
    :param silence_s: seconds that a client has for its first byte, and after a handshake for the next one.
    """

    def __init__(
        self, protocol: Callable[[], asyncio.Protocol], tls: ServerTls, *, clock: Clock, silence_s: float
    ) -> None:
        self.protocol: Final = protocol
        self.tls: Final = tls
        self.clock: Final = clock
        self.silence_s: Final = silence_s
        self._open: dict[_Opening, asyncio.Task[None]] = {}
        self._ending: set[_Opening] = set()
        """Those that were ended, until their sockets are closed."""

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, sock: socket.socket) -> None:
        """Take a connection."""
        opening = _Opening(self)
        self._open[opening] = asyncio.get_running_loop().create_task(self._make(opening, sock))

    async def _make(self, opening: _Opening, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: opening, sock)
        except OSError as error:  # it has left already
            log.info("a connection was not made: %s", error)
            sock.close()
        finally:
            if not opening.is_made:
                self.gone(opening)

    def gone(self, opening: _Opening) -> None:
        """Remove a connection, which has its protocol now or has ended."""
        self._open.pop(opening, None)
        self._ending.discard(opening)

    def ends(self, opening: _Opening) -> None:
        """Count a connection no more."""
        if self._open.pop(opening, None) is not None:
            self._ending.add(opening)

    def abort_oldest(self) -> None:
        """End the one that was accepted first."""
        next(iter(self._open)).abort()

    def abort(self) -> None:
        """End all at once."""
        for opening in list(self._open):
            opening.abort()

    async def stop(self) -> None:
        """End all and wait until their sockets are closed."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.abort()
        await close_all(self._ending)


class _Opening(asyncio.Protocol):
    """One connection without a protocol of its own."""

    __slots__ = ("_owner", "_timer", "_transport")

    def __init__(self, owner: Openings) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes: of the connection, then of what is inside TLS."""
        # uvloop's transports implement asyncio.Transport without inheriting from it.
        self._transport = cast(asyncio.Transport, transport)
        self._end_within(self._owner.silence_s)

    def data_received(self, data: bytes) -> None:
        """Look at the first bytes."""
        owner, transport = self._owner, self._transport
        assert transport is not None
        if isinstance(transport, TlsTransport):
            self._hand_over(data)
        elif data[0] == _TLS_HANDSHAKE:
            if owner.tls.takes_tls:
                self._end_within(HANDSHAKE_SECONDS)
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                TlsTransport(transport, self, owner.tls, owner.clock).start(data)
            else:
                self._refuse("it speaks TLS (tls.server.mode=disabled)")
        elif owner.tls.takes_plain_text:
            self._hand_over(data)
        else:
            self._refuse("it speaks plain text (tls.server.mode=enforcing)")

    def _hand_over(self, data: bytes) -> None:
        """Give the connection its protocol. Other protocols on this port are recognised here."""
        transport = self._transport
        assert transport is not None
        self._forget()
        protocol = self._owner.protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget()

    @property
    def is_made(self) -> bool:
        """It has a transport."""
        return self._transport is not None

    def close(self) -> None:
        """End it at once: nothing is queued."""
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._owner.ends(self)
            self._transport.abort()

    def _refuse(self, why: str) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        log.warning("closing a connection of %s: %s", peer[0] if peer else "a client that has left", why)
        self.abort()

    def _end_within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._owner.clock.call_later(seconds, self.abort)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._owner.gone(self)
