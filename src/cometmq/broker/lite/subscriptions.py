"""LiteSubscriptions: which clients read which lite topics (``LiteSubscriptionRegistryImpl``).

A client has one parent topic, one group, and a set of lite topics; a client of a wildcard group reads all lite topics
of the parent topic. Its *ready* lite topics are those that may have messages for it. In an exclusive group, a lite
topic has one client. A client that loses a lite topic to another one is told so; if it names the lite topic again in
a complete subscription, it is told again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.clock import Clock
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.lite.headers import NotifyUnsubscribeLiteRequestHeader
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_LITES_AT_ONCE: Final = 1_000
NEVER_MS: Final = -1


class LiteClient:
    """A client and its lite topics, by number."""

    __slots__ = (
        *(
            "accessed_ms",
            "attempt",
            "client_id",
            "connection",
            "consumed_ms",
            "evicted",
            "group",
            "index",
            "is_wildcard",
        ),
        *("numbers", "ready", "seen_at", "version"),
    )

    def __init__(self, client_id: str, group: str, index: LiteIndex) -> None:
        self.client_id = client_id
        self.group = group
        self.index = index
        self.numbers: set[int] = set()
        self.ready: dict[int, None] = {}
        """Lite topics that may have messages for the client, in order."""
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


class LiteSubscriptions:
    """The clients by ID, and the clients of each lite topic.

    :param has_more: returns whether a group has messages left in a lite topic.
    """

    def __init__(self, clock: Clock, has_more: Callable[[LiteIndex, int, str], bool]) -> None:
        self._clock = clock
        self._has_more = has_more
        self.clients: Final[dict[tuple[str, str], LiteClient]] = {}
        """The clients by ID and group, so that no group can take a client from another one."""
        self._of: dict[LiteIndex, dict[int, list[LiteClient]]] = {}
        self._wildcard: dict[LiteIndex, dict[LiteClient, None]] = {}
        self.count = 0
        """Number of pairs of a client and one of its lite topics; a client of a wildcard group counts once."""
        self.on_ready: Callable[[LiteClient], None] | None = None
        """Called with a client that has more ready lite topics."""
        self.on_lost: Callable[[LiteIndex, int, str], None] | None = None
        """Called with a lite topic that a client of a group has lost to another one and that it reads from its first
        message on."""
        self.changes = 0
        """Number of changes since the broker started."""

    # --- questions --------------------------------------------------------------------------------
    def of(self, index: LiteIndex, number: int) -> list[LiteClient]:
        """Return the clients that read a lite topic."""
        found = self._of.get(index, {}).get(number, ())
        wildcard = self._wildcard.get(index)
        return [*found, *wildcard] if wildcard else list(found)

    def count_of(self, index: LiteIndex, number: int) -> int:
        """Return the number of clients that read a lite topic."""
        return len(self._of.get(index, {}).get(number, ())) + len(self._wildcard.get(index, ()))

    def of_group(self, group: str) -> list[LiteClient]:
        """Return the clients of a group."""
        return [client for client in self.clients.values() if client.group == group]

    def is_read(self, index: LiteIndex, number: int) -> bool:
        """Return whether a client has subscribed to a lite topic, not by a wildcard."""
        return number in self._of.get(index, ())

    def groups_with_wildcard(self, index: LiteIndex) -> set[str]:
        """Return the groups that read all lite topics of a parent topic."""
        return {client.group for client in self._wildcard.get(index, ())}

    # --- clients ----------------------------------------------------------------------------------
    def client(self, client_id: str, group: str, index: LiteIndex, connection: ServerConnection | None) -> LiteClient:
        """Return a client, which is added if it is missing, and note that it is there."""
        found = self.clients.get((client_id, group))
        if found is not None and found.index is not index:
            self.remove(found)
            found = None
        if found is None:
            found = self.clients[client_id, group] = LiteClient(client_id, group, index)
            self.changes += 1
        if connection is not None:
            found.connection = connection
        found.seen_at = self._clock.monotonic()
        return found

    def has(self, client: LiteClient) -> bool:
        """Return whether a client has not been removed."""
        return self.clients.get(client.key) is client

    def remove(self, client: LiteClient) -> None:
        """Remove a client."""
        if not self.has(client):
            return
        del self.clients[client.key]
        self.changes += 1
        for number in client.numbers:
            self._take_from(client, number)
        self.count -= len(client.numbers)
        client.numbers.clear()
        self.set_wildcard(client, False)
        client.ready.clear()

    def remove_silent(self, seconds: float) -> None:
        """Remove the clients that have not subscribed for a time."""
        since = self._clock.monotonic() - seconds
        for client in [client for client in self.clients.values() if client.seen_at < since]:
            _log.info("removed the lite subscription of the silent client %s in %s", client.client_id, client.group)
            self.remove(client)

    def forget(self, parent: str) -> None:
        """Remove the clients of a parent topic that was deleted."""
        for client in [client for client in self.clients.values() if client.index.parent == parent]:
            self.remove(client)

    def set_wildcard(self, client: LiteClient, is_wildcard: bool) -> None:
        """Let a client read all lite topics of its parent topic, or not."""
        if client.is_wildcard == is_wildcard:
            return
        client.is_wildcard = is_wildcard
        self.changes += 1
        if is_wildcard:
            self._wildcard.setdefault(client.index, {})[client] = None
            self.count += 1
            return
        self.count -= 1
        del self._wildcard[client.index][client]
        if not self._wildcard[client.index]:
            del self._wildcard[client.index]

    # --- lite topics ------------------------------------------------------------------------------
    def add(self, client: LiteClient, number: int, settings: LiteGroup) -> None:
        """Add a lite topic to a client; in an exclusive group, others lose it. A removed client gets nothing."""
        if number in client.numbers or not self.has(client):
            return
        clients = self._of.setdefault(client.index, {}).setdefault(number, [])
        lost = [other for other in clients if other.group == client.group] if settings.is_exclusive else []
        for other in lost:
            self.take(other, number)
            name = client.index.name(number)
            other.evicted.add(name)
            self.notify(other, name)
        if lost and settings.resets_on_eviction and self.on_lost is not None:
            self.on_lost(client.index, number, client.group)
        clients = self._of.setdefault(client.index, {}).setdefault(number, [])
        clients.append(client)
        client.numbers.add(number)
        self.count += 1
        self.changes += 1
        if client.evicted:
            client.evicted.discard(client.index.name(number))
        self.make_ready(client, number)

    def take(self, client: LiteClient, number: int) -> None:
        """Take a lite topic from a client."""
        if number not in client.numbers:
            return
        client.numbers.remove(number)
        client.ready.pop(number, None)
        self.count -= 1
        self.changes += 1
        self._take_from(client, number)

    def _take_from(self, client: LiteClient, number: int) -> None:
        of = self._of[client.index]
        clients = of[number]
        clients.remove(client)
        if not clients:
            del of[number]
            if not of:
                del self._of[client.index]

    def replace(self, client: LiteClient, numbers: Iterable[int], settings: LiteGroup) -> Iterator[None]:
        """Replace a client's lite topics, in slices."""
        wanted = set(numbers)
        for at, number in enumerate(client.numbers - wanted):
            self.take(client, number)
            if at % _LITES_AT_ONCE == _LITES_AT_ONCE - 1:
                yield
        for at, number in enumerate(wanted - client.numbers):
            if not self.has(client):
                return
            name = client.index.name(number)
            if settings.is_exclusive and name in client.evicted and self._has_other(client, number):
                self.notify(client, name)  # it did not hear of this
                continue
            self.add(client, number, settings)
            if at % _LITES_AT_ONCE == _LITES_AT_ONCE - 1:
                yield
        client.evicted &= {client.index.name(number) for number in wanted} if client.evicted else set()

    def _has_other(self, client: LiteClient, number: int) -> bool:
        return any(other.group == client.group for other in self._of.get(client.index, {}).get(number, ()))

    def notify(self, client: LiteClient, lite_topic: str) -> None:
        """Tell a client that it no longer reads a lite topic."""
        connection = client.connection
        if connection is None or connection.is_closing or connection.is_behind:
            return
        connection.send_oneway(
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
            NotifyUnsubscribeLiteRequestHeader(
                lite_topic=lite_topic, consumer_group=client.group, client_id=client.client_id
            ),
        )

    # --- readiness --------------------------------------------------------------------------------
    def make_ready(self, client: LiteClient, number: int) -> None:
        """Make a lite topic ready for a client if its group has messages left there."""
        if self._has_more(client.index, number, client.group):
            client.ready[number] = None
            if self.on_ready is not None:
                self.on_ready(client)

    def arrived(self, index: LiteIndex, first: int, end: int) -> None:
        """Make the lite topics in which messages arrived ready for their clients.

        :param first: the entry of the first message; ``end`` is the one after the last.
        """
        found = self._of.get(index)
        wildcard = self._wildcard.get(index)
        if found is None and wildcard is None:
            return
        for number in index.owners(first, end):
            clients = None if found is None else found.get(number)
            if clients is not None:
                for client in clients:
                    client.ready[number] = None
                self._tell(clients)
            if wildcard is not None and number != NO_NAME:
                for client in wildcard:
                    client.ready[number] = None
                self._tell(wildcard)

    def _tell(self, clients: Iterable[LiteClient]) -> None:
        if self.on_ready is not None:
            for client in clients:
                self.on_ready(client)

    def changed(self, index: LiteIndex, number: int, group: str) -> None:
        """Make a lite topic that a group may read further ready for the group's clients."""
        for client in self.of(index, number):
            if client.group == group:
                client.ready[number] = None
                if self.on_ready is not None:
                    self.on_ready(client)
