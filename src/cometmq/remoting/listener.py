"""The listening sockets of a server: connections are accepted a few at a time, and nothing is made of those refused.

An event loop's own server accepts all that wait and makes a transport of each before anybody can say no: a flood of
connections then takes every descriptor of the process, and for that moment no file can be opened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from cometmq.clock import Clock

_log = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE: Final = 32
_PAUSE_SECONDS: Final = 0.1
"""After an accept that failed, since the process or the machine has no descriptor left."""


class Listener:
    """Listens on an address and hands over each connection that comes, as a socket that does not block."""

    def __init__(self, accepted: Callable[[socket.socket], None], *, clock: Clock) -> None:
        self._clock = clock
        self._accepted = accepted
        self._sockets: list[socket.socket] = []

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return bool(self._sockets)

    @property
    def port(self) -> int:
        """The port listened on."""
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen on every address of ``host``; port 0 takes a free one.

        :param backlog: connections that the kernel keeps until they are accepted.
        :raises OSError: the host is unknown, or the port is taken or not allowed.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                _bind(listening, address)
                listening.listen(backlog)
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Listen no more."""
        for listening in self._sockets:
            if listening.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening)
                listening.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be accepted for a moment: %s", error)
                asyncio.get_running_loop().remove_reader(listening)
                self._clock.call_later(_PAUSE_SECONDS, self._go_on, listening)
                return
            connection.setblocking(False)
            self._accepted(connection)

    def _go_on(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)


def _bind(listening: socket.socket, address: tuple[object, ...]) -> None:
    try:
        listening.bind(address)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, f"cannot listen on {address[0]}:{address[1]}: {reason.lower()}") from None
