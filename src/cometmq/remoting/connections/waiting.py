"""The order in which connections continue whose requests wait for another round of the server.

Thousands of clients may each ask for a megabyte of messages at the same time. A round answers only some of them, and
other clients' sends and heartbeats must not wait for the rest. Apache's broker has threads of their own for pulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cometmq.remoting.codes import RequestCode

if TYPE_CHECKING:
    from cometmq.remoting.server_connection import ServerConnection

_ASK_FOR_MESSAGES: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
    }
)
"""Codes of requests whose answers contain messages, and may be large."""


class WaitingConnections:
    """Connections that continue in a later round: in turn those that ask for messages, and all others."""

    def __init__(self) -> None:
        self._others: list[ServerConnection] = []
        self._asking: list[ServerConnection] = []
        self._was_asking = False
        """True if the last connections were taken from those that ask for messages."""

    def __bool__(self) -> bool:
        return bool(self._others or self._asking)

    def add(self, connection: ServerConnection, code: int) -> None:
        """Let a connection wait behind the others whose next request is of its kind, which ``code`` tells."""
        (self._asking if code in _ASK_FOR_MESSAGES else self._others).append(connection)

    def take(self) -> list[ServerConnection]:
        """Return the connections that continue in this round, in their order."""
        self._was_asking = bool(self._asking) and not (self._was_asking and self._others)
        if self._was_asking:
            taken, self._asking = self._asking, []
        else:
            taken, self._others = self._others, []
        return taken

    def put_back(self, connections: Sequence[ServerConnection]) -> None:
        """Let those of the connections that were taken last go first next time, for which the round had no time."""
        (self._asking if self._was_asking else self._others)[:0] = connections
