"""Crowd: the clients of one group that share a lite topic, or all lite topics of a parent topic.

A message of a lite topic goes to one client of the group. So if many clients read the same lite topic, they share the
set of ready lite topics, and only one of those that wait is woken. If it does not take all that is ready, it wakes the
next one (:meth:`~cometmq.broker.lite.subscriptions.LiteSubscriptions.looked`). A client that does not wait looks at the
shared set with its next pop.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.lite.index import LiteIndex
from cometmq.remoting.server_connection import ServerConnection

NEVER_MS: Final = -1


class Crowd:
    """Clients that share what is ready."""

    __slots__ = ("clients", "ready", "waiting")

    def __init__(self) -> None:
        self.clients: dict[LiteClient, None] = {}
        self.ready: dict[int, None] = {}
        """Lite topics that may have messages for the group, in order."""
        self.waiting: dict[LiteClient, None] = {}
        """Clients that may have a waiting pop, in the order in which they are woken."""

    def join(self, client: LiteClient) -> None:
        """Add a client."""
        self.clients[client] = None
        self.waiting[client] = None
        client.crowds[self] = None

    def leave(self, client: LiteClient) -> None:
        """Remove a client."""
        del self.clients[client]
        self.waiting.pop(client, None)
        del client.crowds[self]


class LiteClient:
    """A client and its lite topics, by number."""

    __slots__ = (
        *(
            "accessed_ms",
            "attempt",
            "client_id",
            "connection",
            "consumed_ms",
            "crowds",
            "evicted",
            "group",
            "index",
            "is_wildcard",
        ),
        *("numbers", "pops", "ready", "seen_at", "version"),
    )

    def __init__(self, client_id: str, group: str, index: LiteIndex) -> None:
        self.client_id = client_id
        self.group = group
        self.index = index
        self.numbers: set[int] = set()
        self.ready: dict[int, None] = {}
        """Lite topics that may have messages for the client alone, in order."""
        self.crowds: dict[Crowd, None] = {}
        """The clients with which it shares lite topics."""
        self.pops = 0
        """Number of pops that looked for messages."""
        self.is_wildcard = False
        self.version = 0
        self.connection: ServerConnection | None = None
        """The connection on which the client last subscribed."""
        self.evicted: set[str] = set()
        """Lite topics that the client has lost to another one."""
        self.attempt: tuple[str, list[int]] = ("", [])
        """The attempt ID of its last pop that returned messages, and their lite topics."""
        self.seen_at = 0.0
        """Monotonic time of its last subscription."""
        self.accessed_ms = NEVER_MS
        """Time of its last pop in milliseconds since 1970."""
        self.consumed_ms = NEVER_MS
        """Time of its last pop that returned messages."""

    @property
    def key(self) -> tuple[str, str]:
        """Its ID and its group."""
        return self.client_id, self.group

    def is_reading(self, number: int) -> bool:
        """Return whether the client reads a lite topic."""
        return self.is_wildcard or number in self.numbers

    @property
    def has_ready(self) -> bool:
        """Return whether lite topics may have messages for the client."""
        return bool(self.ready) or any(crowd.ready for crowd in self.crowds)

    def sources(self) -> list[dict[int, None]]:
        """Return the sets of ready lite topics that are not empty: its own and those it shares, each first in turn."""
        found = [ready for ready in (self.ready, *(crowd.ready for crowd in self.crowds)) if ready]
        self.pops += 1
        at = self.pops % len(found) if found else 0
        return found[at:] + found[:at]
