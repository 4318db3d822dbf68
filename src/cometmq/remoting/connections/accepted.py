"""Accepted sockets, and their transports.

After a restart, thousands of clients connect in a second. A ``socket.socket`` and a task for each of them would cost as
much processor time as the rest of the opening. So uvloop gets the descriptor alone, and no task waits for a transport.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, cast

NO_DESCRIPTOR: Final = -1
"""Instead of the descriptor of a socket."""


class AcceptedSocket:
    """The descriptor of an accepted TCP socket, with the parts of a ``socket.socket`` that uvloop uses."""

    __slots__ = ("_descriptor", "family")

    type: ClassVar[int] = int(socket.SOCK_STREAM)

    def __init__(self, descriptor: int, family: int) -> None:
        self._descriptor = descriptor
        self.family = family

    def fileno(self) -> int:
        """Return the descriptor, or -1 if it is closed or belongs to a transport."""
        return self._descriptor

    def detach(self) -> int:
        """Return the descriptor, which this object closes no longer."""
        descriptor, self._descriptor = self._descriptor, NO_DESCRIPTOR
        return descriptor

    def close(self) -> None:
        """Close the descriptor, unless it belongs to a transport: uvloop closes it before it calls this method."""
        descriptor = self.detach()
        if descriptor != NO_DESCRIPTOR:
            os.close(descriptor)


Accepted: TypeAlias = AcceptedSocket | socket.socket


def acceptor(listening: socket.socket, loop: asyncio.AbstractEventLoop) -> Callable[[], Accepted]:
    """Return a function that accepts one connection, in the form that the event loop takes.

    It raises ``OSError`` as ``socket.accept`` does.
    """
    family = int(listening.family)
    if type(loop).__module__.partition(".")[0] == "uvloop":
        accept_descriptor = getattr(listening, "_accept", None)  # ``socket.accept`` without the socket object
        if accept_descriptor is not None:
            return lambda: AcceptedSocket(accept_descriptor()[0], family)
        return lambda: AcceptedSocket(listening.accept()[0].detach(), family)

    def accept() -> socket.socket:
        connection, _ = listening.accept()
        connection.setblocking(False)
        return connection

    return accept


def open_transport(
    loop: asyncio.AbstractEventLoop, accepted: Accepted, protocol: asyncio.Protocol, failed: Callable[[], object]
) -> None:
    """Make the transport of a connection; it calls the protocol soon. It closes the socket, which is detached here.

    :param failed: called if the connection has ended before.
    :raises OSError: the client has already disconnected; the socket is closed.
    """
    steps = loop.connect_accepted_socket(lambda: protocol, cast(socket.socket, accepted))
    try:
        waiter: asyncio.Future[Any] = steps.send(None)
    except BaseException:
        accepted.close()
        raise
    if isinstance(accepted, AcceptedSocket):
        accepted.detach()
    waiter.add_done_callback(partial(_finish, steps, failed))


def _finish(steps: Coroutine[Any, Any, Any], failed: Callable[[], object], _: asyncio.Future[Any]) -> None:
    """Continue after the only pause: the transport has called its protocol, or it never will."""
    try:
        steps.send(None)
    except StopIteration:
        return
    except Exception:
        failed()
