"""LiteSubscriptions: which clients read which lite topics (``LiteSubscriptionRegistryImpl``).

A client has one parent topic, one group, and a set of lite topics; a client of a wildcard group reads all lite topics
of the parent topic. Its *ready* lite topics are those that may have messages for it. In an exclusive group, a lite
topic has one client. A client that loses a lite topic to another one is told so; if it names the lite topic again in
a complete subscription, it is told again.

A message costs as much as the clients that it wakes: if a lite topic has many clients, and for wildcard groups, the
clients of a group share what is ready, and one of them is woken (:mod:`.crowd`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from typing import Final

from cometmq.broker.lite.crowd import Crowd, LiteClient
from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.name_table import NO_NAME
from cometmq.broker.slices import Slice
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.clock import Clock
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.lite.headers import NotifyUnsubscribeLiteRequestHeader
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

_LOOKS_AT_ONCE: Final = 10_000
"""Number of lite topics that are compared in one slice (2 ms)."""
_CHANGE: Final = 10
"""Number of comparisons that cost as much as a change."""
_FEW: Final = 16
"""Number of clients of a lite topic that are made ready one by one. If there are more, those of a group share this."""

_Readers = list[LiteClient] | dict[str, Crowd]
"""The clients of a lite topic: a few, or crowds by group."""


class LiteSubscriptions:
    """The clients by ID, and the clients of each lite topic.

    :param has_more: returns whether a group has messages left in a lite topic.
    """

    def __init__(self, clock: Clock, has_more: Callable[[LiteIndex, int, str], bool]) -> None:
        self._clock = clock
        self._has_more = has_more
        self.clients: Final[dict[tuple[str, str], LiteClient]] = {}
        """The clients by ID and group, so that no group can take a client from another one."""
        self._of: dict[LiteIndex, dict[int, _Readers]] = {}
        self._wildcard: dict[LiteIndex, dict[str, Crowd]] = {}
        self.count = 0
        """Number of pairs of a client and one of its lite topics; a client of a wildcard group counts once."""
        self.on_ready: Callable[[LiteClient], bool] = _is_waiting
        """Wakes a client that has more ready lite topics; returns whether it waits."""
        self.on_lost: Callable[[LiteIndex, int, str], None] | None = None
        """Called with a lite topic that a client of a group has lost to another one and that it reads from its first
        message on."""
        self.changes = 0
        """Number of changes since the broker started."""

    # --- questions --------------------------------------------------------------------------------
    def of(self, index: LiteIndex, number: int) -> list[LiteClient]:
        """Return the clients that read a lite topic."""
        found = self._of.get(index, {}).get(number, ())
        crowds = [*(found.values() if isinstance(found, dict) else ()), *self._wildcard.get(index, {}).values()]
        return [*(() if isinstance(found, dict) else found), *(client for crowd in crowds for client in crowd.clients)]

    def count_of(self, index: LiteIndex, number: int) -> int:
        """Return the number of clients that read a lite topic."""
        found = self._of.get(index, {}).get(number, ())
        crowds = [*(found.values() if isinstance(found, dict) else ()), *self._wildcard.get(index, {}).values()]
        return (0 if isinstance(found, dict) else len(found)) + sum(len(crowd.clients) for crowd in crowds)

    def of_group(self, group: str) -> list[LiteClient]:
        """Return the clients of a group."""
        return [client for client in self.clients.values() if client.group == group]

    def is_read(self, index: LiteIndex, number: int) -> bool:
        """Return whether a client has subscribed to a lite topic, not by a wildcard."""
        return number in self._of.get(index, ())

    def groups_with_wildcard(self, index: LiteIndex) -> set[str]:
        """Return the groups that read all lite topics of a parent topic."""
        return set(self._wildcard.get(index, ()))

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

    def set_wildcard(self, client: LiteClient, is_wildcard: bool) -> bool:
        """Let a client read all lite topics of its parent topic, or not; return whether it is the first of its group
        that does.
        """
        if client.is_wildcard == is_wildcard:
            return False
        client.is_wildcard = is_wildcard
        self.changes += 1
        self.count += 1 if is_wildcard else -1
        crowds = self._wildcard.setdefault(client.index, {})
        if is_wildcard:
            is_first = client.group not in crowds
            crowd = crowds.setdefault(client.group, Crowd())
            crowd.join(client)
            self._wake(crowd)
            return is_first
        self._leave(crowds, client)
        if not crowds:
            del self._wildcard[client.index]
        return False

    def _leave(self, crowds: dict[str, Crowd], client: LiteClient) -> None:
        crowd = crowds[client.group]
        crowd.leave(client)
        if crowd.clients:
            self._wake(crowd)
        else:
            del crowds[client.group]

    # --- lite topics ------------------------------------------------------------------------------
    def add(self, client: LiteClient, number: int, settings: LiteGroup) -> None:
        """Add a lite topic to a client; in an exclusive group, others lose it. A removed client gets nothing."""
        if number in client.numbers or not self.has(client):
            return
        lost = self._of_group(client, number) if settings.is_exclusive else []
        for other in lost:
            self.take(other, number)
            name = client.index.name(number)
            other.evicted.add(name)
            self.notify(other, name)
        if lost and settings.resets_on_eviction and self.on_lost is not None:
            self.on_lost(client.index, number, client.group)
        readers = self._of.setdefault(client.index, {}).setdefault(number, [])
        if isinstance(readers, list) and len(readers) == _FEW:
            readers = self._of[client.index][number] = _crowds(readers, number)
        if isinstance(readers, list):
            readers.append(client)
        else:
            readers.setdefault(client.group, Crowd()).join(client)
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
        readers = of[number]
        if isinstance(readers, list):
            readers.remove(client)
        else:
            self._leave(readers, client)
        if not readers:
            del of[number]
            if not of:
                del self._of[client.index]

    def replace(self, client: LiteClient, wanted: Set[int], settings: LiteGroup) -> Iterator[None]:
        """Replace a client's lite topics, in slices."""
        part = Slice(_LOOKS_AT_ONCE)
        for number in list(client.numbers):
            is_taken = number not in wanted
            if is_taken:
                self.take(client, number)
            if part.ends_after(_CHANGE if is_taken else 1):
                yield
        for number in wanted:
            is_added = number not in client.numbers
            if is_added:
                if not self.has(client):
                    return
                self._add_again(client, number, settings)
            if part.ends_after(_CHANGE if is_added else 1):
                yield
        for name in list(client.evicted):
            if client.index.find(name) not in wanted:
                client.evicted.discard(name)
            if part.ends_after(_CHANGE):
                yield

    def _add_again(self, client: LiteClient, number: int, settings: LiteGroup) -> None:
        """Add a lite topic of a complete subscription to a client, unless the client has lost it to another one."""
        if settings.is_exclusive and client.evicted:
            name = client.index.name(number)
            if name in client.evicted and self._has_other(client, number):
                self.notify(client, name)  # it did not hear of this
                return
        self.add(client, number, settings)

    def _has_other(self, client: LiteClient, number: int) -> bool:
        return bool(self._of_group(client, number))

    def _of_group(self, client: LiteClient, number: int) -> list[LiteClient]:
        """Return the clients of a client's group that read a lite topic."""
        readers = self._of.get(client.index, {}).get(number, [])
        if isinstance(readers, list):
            return [other for other in readers if other.group == client.group]
        crowd = readers.get(client.group)
        return [] if crowd is None else list(crowd.clients)

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
        if not self._has_more(client.index, number, client.group):
            return
        crowd = self._wildcard.get(client.index, {}).get(client.group)
        readers = self._of.get(client.index, {}).get(number)
        if crowd is not None:
            self._offer(crowd, number)
        if number not in client.numbers:
            return
        if isinstance(readers, dict):
            self._offer(readers[client.group], number)
        else:
            client.ready[number] = None
            self.on_ready(client)

    def arrived(self, index: LiteIndex, first: int, end: int) -> None:
        """Make the lite topics in which messages arrived ready for their clients.

        :param first: the entry of the first message; ``end`` is the one after the last.
        """
        found = self._of.get(index, {})
        wildcard = self._wildcard.get(index, {})
        if not found and not wildcard:
            return
        for number in index.owners(first, end):
            readers = found.get(number)
            if isinstance(readers, list):
                for client in readers:
                    client.ready[number] = None
                    self.on_ready(client)
            elif readers is not None:
                for crowd in readers.values():
                    self._offer(crowd, number)
            if wildcard and number != NO_NAME:
                for crowd in wildcard.values():
                    self._offer(crowd, number)

    def changed(self, index: LiteIndex, number: int, group: str) -> None:
        """Make a lite topic that a group may read further ready for the group's clients."""
        readers = self._of.get(index, {}).get(number, [])
        if isinstance(readers, list):
            for client in readers:
                if client.group == group:
                    client.ready[number] = None
                    self.on_ready(client)
        elif group in readers:
            self._offer(readers[group], number)
        crowd = self._wildcard.get(index, {}).get(group)
        if crowd is not None:
            self._offer(crowd, number)

    def _offer(self, crowd: Crowd, number: int) -> None:
        crowd.ready[number] = None
        self._wake(crowd)

    def _wake(self, crowd: Crowd) -> None:
        """Wake one of the clients that wait, if anything is ready."""
        while crowd.ready and crowd.waiting:
            client = next(iter(crowd.waiting))
            del crowd.waiting[client]
            if self.on_ready(client):
                return

    def looked(self, client: LiteClient, *, is_waiting: bool) -> None:
        """Note that a client has looked at what is ready, and wake the next one if it has left something.

        :param is_waiting: True if it waits for more.
        """
        for crowd in client.crowds:
            if is_waiting:
                crowd.waiting[client] = None
            else:
                self._wake(crowd)


def _crowds(clients: list[LiteClient], number: int) -> dict[str, Crowd]:
    """Return the crowds of a lite topic that gets more than a few clients."""
    crowds: dict[str, Crowd] = {}
    for client in clients:
        crowd = crowds.setdefault(client.group, Crowd())
        crowd.join(client)
        if number in client.ready:
            del client.ready[number]
            crowd.ready[number] = None
    return crowds


def _is_waiting(_client: LiteClient) -> bool:
    return False
