"""The end of a server's connections when the server stops.

Theory of operation. A request may be under way when its connection ends. If the end is a plain one (FIN), Java clients
of RocketMQ 4 do not notice that their requests are lost: a send waits until its timeout, and a pull for 30 seconds.
After a reset (RST) they fail at once, and a send goes to another broker. So each connection ends with a reset.

A reset discards what the client's system has not confirmed. So a connection ends only when all earlier responses are
confirmed. Until then requests are still read and answered, as a rule with a refusal, which other brokers make good. The
best moment is right behind a response: a client that sends one request after the other has then none under way. Other
connections end when nothing has arrived for a moment. One that always has requests under way is no longer read after a
while, so that its responses get confirmed. A client that does not read its responses in time gets a plain end behind
those that the system has accepted.

A Java client repeats an asynchronous send after a reset, but not after a refusal. So sends of Java clients are not
refused, but left to the reset. When nothing more arrives, the threads of such a client wait for answers: if it found
the reset while it writes, and not while it reads, a Java 4 client would wait for its other requests as after a plain
end. Other clients are refused: some of them wait for their timeout also after a reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from cometmq.remoting.codes import LanguageCode, RequestCode
from cometmq.remoting.connections.pause import PAUSES_PER_SECOND, SocketPause

_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_JAVA: Final = frozenset({LanguageCode.JAVA.name, LanguageCode.JAVA.value})
"""The language of Java clients in JSON and in binary headers."""
_PAUSES_OF_BUSY: Final = 10
"""Pauses after which no more requests are read."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_COUNT_BYTES: Final = 4
"""Size of the kernel's ``int``."""


class Ending(Protocol):
    """A connection that ends behind its last response, and then removes itself from its server's collection."""

    def end(self) -> None:
        """End the connection soon, right behind the next responses if all earlier ones are confirmed."""

    def end_if_quiet(self) -> None:
        """End the connection now if nothing has arrived since the last call and all responses are confirmed."""

    def pause_requests(self) -> None:
        """Stop reading requests."""

    def abort(self) -> None:
        """Abort the connection."""


def is_left_to_reset(code: int, language: str | int | None) -> bool:
    """Return whether a client sends a request to another broker at once if its connection is reset.

    :param language: the language in the request's header.
    """
    return code in _SENDS and language in _JAVA


async def end_all(connections: Collection[Ending], at_end_of_round: Callable[[Callable[[], None]], None]) -> None:
    """End every connection with a reset, aborting those whose responses are not confirmed within a second.

    :param at_end_of_round: calls a function when all requests that have been read are answered.
    """

    def end_quiet() -> None:
        for connection in list(connections):
            connection.end_if_quiet()

    for connection in list(connections):
        connection.end()
    for pauses in range(PAUSES_PER_SECOND):
        if not connections:
            return
        if pauses == _PAUSES_OF_BUSY:
            for connection in list(connections):
                connection.pause_requests()
        at_end_of_round(end_quiet)
        await SocketPause.wait()
    for connection in list(connections):
        connection.abort()


def is_confirmed(transport: asyncio.Transport) -> bool:
    """Return whether the client's system has received everything that was written."""
    return not transport.get_write_buffer_size() and not _count(transport, "TIOCOUTQ")


def is_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes have arrived that nobody has read."""
    return _count(transport, "FIONREAD") > 0


def reset(transport: asyncio.Transport) -> None:
    """Abort a connection with a reset."""
    with suppress(OSError):  # it is already closed
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def reset_if_sent(transport: asyncio.Transport) -> None:
    """Abort a connection with a reset if the system has accepted everything that was written."""
    if not transport.is_closing() and not transport.get_write_buffer_size():
        reset(transport)


def _count(transport: asyncio.Transport, request: str) -> int:
    """Return a number of bytes that the system has for the transport's socket, or 0 if it does not tell.

    :param request: the name of the kernel's request for it (``ioctl``).
    """
    import fcntl  # clients are imported also where Unix's modules are missing
    import termios

    count = bytearray(_COUNT_BYTES)
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), getattr(termios, request), count)
    except (OSError, ValueError):  # already closed
        return 0
    return int.from_bytes(count, sys.byteorder)
