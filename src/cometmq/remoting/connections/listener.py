"""Listening sockets, the maximum number of their connections, and functions for closing connections.

Connections are accepted some at a time, and a refused one gets no transport. The event loop's own server accepts all
waiting connections and creates a transport for each before it can refuse one. A flood of connections could thus use up
the descriptors of the process, so that it could temporarily open no files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from cometmq import descriptors
from cometmq.clock import Clock
from cometmq.limits import MAX_CONNECTIONS
from cometmq.message.hosts import addresses_of, format_address, unmapped
from cometmq.remoting.connections.accepted import Accepted, acceptor
from cometmq.remoting.connections.pause import PAUSES_PER_SECOND, SocketPause
from cometmq.threads import look_up

_log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE: Final = 2_048
"""Number of connections accepted in one round of the event loop (12 ms).

After a restart, all clients connect at the same time, 10,000 of them in 0.1 s. If the kernel's queue of 4,096 is full,
it drops connections, and their clients try again only after 1, 3 and 7 seconds. So sockets leave it as fast as they
arrive, and are opened later.
"""
_PAUSE_SECONDS: Final = 0.1
"""Pause after a connection could not be accepted because the process had no free descriptor."""

_COUNTS_OF_RESERVE: Final = 8
"""Descriptors are counted again when the reserved descriptors, divided by this value, may have been used."""


class Listener:
    """Listens on an address and passes on each accepted connection as a non-blocking socket."""

    def __init__(self, accepted: Callable[[Accepted], None], *, clock: Clock) -> None:
        self._clock = clock
        self._accepted = accepted
        self._sockets: list[socket.socket] = []
        self._port = 0

    @property
    def is_open(self) -> bool:
        """True once the port is bound."""
        return bool(self._sockets)

    @property
    def port(self) -> int:
        """Return the bound port, also after it has been closed."""
        return self._port

    async def bind(self, host: str, port: int) -> None:
        """Bind the port on every address of ``host``; port 0 selects a free port.

        :raises OSError: the host is unknown, or the port is in use or not allowed.
        """
        # uvloop's own resolver loses the zone of an address.
        found = await look_up(addresses_of, unmapped(host) or None, port, socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                with _with_address(address):
                    listening.bind(address)
            self._port = int(self._sockets[0].getsockname()[1])
        except OSError:
            self.close()
            raise

    def listen(self, backlog: int) -> None:
        """Start accepting connections.

        :param backlog: maximum number of connections that the kernel queues until they are accepted.
        :raises OSError: another program has bound the port at the same time.
        """
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            with _with_address(listening.getsockname()):
                listening.listen(backlog)
            loop.add_reader(listening, self._accept, listening, acceptor(listening, loop))

    def close(self) -> None:
        """Stop listening."""
        for listening in self._sockets:
            if listening.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening)
                listening.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket, accept: Callable[[], Accepted]) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection = accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("pausing before accepting connections again: %s", error)
                asyncio.get_running_loop().remove_reader(listening)
                self._clock.call_later(_PAUSE_SECONDS, self._accept_again, listening, accept)
                return
            self._accepted(connection)

    def _accept_again(self, listening: socket.socket, accept: Callable[[], Accepted]) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening, accept)


class ConnectionLimit:
    """Decides whether a port accepts another connection, and logs how many it refuses.

    The limit is the configured one, or a lower one that leaves enough descriptors for files, other sockets and a
    reserve.

    :param most: the key ``serverMaxConnections``.
    """

    def __init__(self, most: int = MAX_CONNECTIONS) -> None:
        self._most = most
        self._limit = most
        self._uncounted = 0
        """Number of connections accepted since descriptors were last counted."""
        self._most_uncounted = 0
        """Number of connections after which descriptors are counted again."""
        self._refused = 0
        """Number of connections refused since the last report."""

    def admits(self, opened: int) -> bool:
        """Return whether another connection may be opened; if not, count it as refused.

        :param opened: the number of open connections.
        """
        self._uncounted += 1
        if self._uncounted > self._most_uncounted:
            self.count_descriptors(opened)
        if opened < self._limit:
            return True
        if not self._refused:
            self._warn(opened)
        self._refused += 1
        return False

    def count_descriptors(self, opened: int) -> None:
        """Adapt the limit to the number of free descriptors."""
        self._uncounted = 0
        others = max(descriptors.in_use() - opened, 0)
        kept = descriptors.kept_for_files()
        self._most_uncounted = kept // _COUNTS_OF_RESERVE
        free = descriptors.limit() - others - kept
        self._limit = max(min(self._most, free), 1)

    def report(self, seconds: float) -> None:
        """Log how many connections were refused since the last report, ``seconds`` ago."""
        if self._refused > 1:
            _log.warning("refused %d connections in the last %g s", self._refused, seconds)
        self._refused = 0

    def _warn(self, opened: int) -> None:
        reason = "serverMaxConnections"
        if self._limit < self._most:
            reason = (
                f"the process is limited to {descriptors.limit()} descriptors; raise this with ulimit -n or LimitNOFILE"
            )
        _log.warning("refusing connections: %d are open (%s)", opened, reason)


@contextmanager
def _with_address(address: tuple[object, ...]) -> Iterator[None]:
    """In the ``with`` block, replace an ``OSError`` with one whose message contains the address."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        at = format_address(str(address[0]), int(str(address[1])))
        raise OSError(error.errno, f"cannot listen on {at}: {reason.lower()}") from None


class Closing(Protocol):
    """A connection that removes itself from its server's collection when it has ended."""

    def close(self) -> None:
        """Close the connection after all queued data has been written."""

    def abort(self) -> None:
        """Abort the connection."""


async def close_all(connections: Collection[Closing]) -> None:
    """Close every connection, aborting those that take longer than a second."""
    for connection in list(connections):
        connection.close()
    for _ in range(PAUSES_PER_SECOND):
        if not connections:
            return
        await SocketPause.wait()
    for connection in list(connections):
        connection.abort()
