"""A connection cache that outlives tasks, because Spark reuses its Python workers.

A connection belongs to one borrower at a time, and to the credentials and TLS that it was opened with. It returns to
the cache only after every request on it has been answered; after an error it is closed. A connection that was idle for
``IDLE_SECONDS`` is closed when the next connection is borrowed, and all connections are closed when the process ends.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import Header
from cometmq.remoting.security import Security

IDLE_SECONDS: Final = 60.0
"""Seconds after which an idle connection is closed; servers close it after 120 s."""
_WINDOW: Final = 128
"""Maximum number of requests that :func:`invoke_all` sends before it waits for responses."""


class _Cache:
    """Idle connections by address and security, with the time at which they were returned."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, Security], list[tuple[float, BlockingConnection]]] = {}
        self._pid = os.getpid()

    def take(self, address: str, security: Security, timeout_s: float) -> BlockingConnection:
        if self._pid != os.getpid():  # after a fork, the sockets belong to the parent process
            self._idle, self._pid = {}, os.getpid()
        now = SYSTEM_CLOCK.monotonic()
        for known, waiting in self._idle.items():
            fresh = [(since, connection) for since, connection in waiting if now - since < IDLE_SECONDS]
            for since, connection in waiting:
                if now - since >= IDLE_SECONDS:
                    connection.close()
            self._idle[known] = fresh
        if self._idle.get((address, security)):
            connection = self._idle[address, security].pop()[1]
            connection.timeout_s = timeout_s
            return connection
        return BlockingConnection(address, timeout_s, security)

    def put(self, connection: BlockingConnection) -> None:
        key = (connection.address, connection.security)
        self._idle.setdefault(key, []).append((SYSTEM_CLOCK.monotonic(), connection))

    def close(self) -> None:
        for waiting in self._idle.values():
            for _, connection in waiting:
                connection.close()
        self._idle = {}


_cache = _Cache()
atexit.register(_cache.close)


@contextmanager
def borrowed(address: str, security: Security, timeout_s: float) -> Iterator[BlockingConnection]:
    """Lend a connection to a ``with`` block; close it if the block raises an exception.

    :raises BlockingConnectionError: the address is unreachable.
    """
    connection = _cache.take(address, security, timeout_s)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    _cache.put(connection)


def invoke_all(
    address: str, security: Security, requests: Sequence[tuple[int, Header | None]], timeout_s: float
) -> list[RemotingCommand]:
    """Send many requests before waiting for responses; return the responses in request order.

    :raises BlockingConnectionError: the server does not answer all requests.
    """
    answers: dict[int, RemotingCommand] = {}
    order: list[int] = []
    with borrowed(address, security, timeout_s) as connection:
        for code, header in requests:
            while len(order) - len(answers) >= _WINDOW:
                _collect(connection, answers)
            order.append(connection.submit(code, header))
        while len(answers) < len(order):
            _collect(connection, answers)
    return [answers[opaque] for opaque in order]


def _collect(connection: BlockingConnection, answers: dict[int, RemotingCommand]) -> None:
    answer = connection.receive()
    if answer.is_response:
        answers[answer.opaque] = answer
