"""Gives back the messages that a client has popped and left behind: all its connections have closed.

Only pops with an ``owner`` (the client's ID) take part, which is CometMQ's extension. Without it, a message of a dead
client becomes visible again when its invisible time has ended.

For each group, a connection belongs to the owner of its first such pop, or of its heartbeat. So nobody without the
right to consume for a group touches the messages of its members. For each owner, the table has the messages that its
pops have handed out, with their pop times; acknowledgements and changes on its connections update them. When its last
connection has closed, the owner has :data:`GRACE_SECONDS` to pop or to send a heartbeat on a new connection, as a
client does that has only lost its connection. After that, each of its messages that is still invisible with its pop
time becomes visible immediately, which counts as a delivery. The table is not stored: after a restart of the broker,
the invisible times apply.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import MAX_OWNED_GROUPS_OF_CONNECTION
from cometmq.broker.pop.entries import Changed
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.state import PopQueue
from cometmq.broker.tables.consumer_group import ClientChannel
from cometmq.broker.turn.targets import RefusedError
from cometmq.periodic import Alarm
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 0.5
"""Time after which a client without a connection gives back its messages, so that they come again within a second."""
MESSAGES_AT_ONCE: Final = 1_000
"""Number of messages that are given back in one round of the loop (about 5 ms)."""
_PAUSE_SECONDS: Final = 0.001
FEW_MESSAGES: Final = 1_000
"""Number of messages up to which those that have ended elsewhere are not looked for."""
MAX_MESSAGES: Final = 100_000
"""Maximum number of messages that a client gives back; the others become visible when their time ends."""

Name = tuple[str, str]
"""A group, and the client ID of a member."""
PoppedFrom = tuple[str, int, list[int]]
"""The topic, queue ID and offsets of messages that a pop has handed out."""


class _Owner:
    """A client, its connections, and the pop times of its messages."""

    __slots__ = ("alarm", "connections", "name", "popped")

    def __init__(self, name: Name, alarm: Alarm) -> None:
        self.name = name
        self.alarm = alarm
        self.connections: set[ServerConnection] = set()
        self.popped: dict[tuple[PopQueue, int], int] = {}


class LeftBehind:
    """The messages of clients that want to give back what they leave behind."""

    def __init__(self, broker: BrokerContext, log: PopLog) -> None:
        self._clock = broker.clock
        self._log = log
        self._consumers = broker.clients.consumers
        self._consumers.on_move.append(self._moved)
        self._owners: dict[Name, _Owner] = {}
        self._owner_of: dict[tuple[ServerConnection, str], _Owner] = {}
        self._groups_of: Counter[ServerConnection] = Counter()
        """The number of groups in which each connection has an owner."""
        self._stopped = False

    def stop(self) -> None:
        """Give nothing back any more: the broker closes its connections."""
        self._stopped = True
        for owner in self._owners.values():
            owner.alarm.close()

    def __len__(self) -> int:
        return sum(len(owner.popped) for owner in self._owners.values())

    # --- what happens to messages -----------------------------------------------------------------
    def popped(
        self, connection: ServerConnection, group: str, client_id: str, found: Iterable[PoppedFrom], pop_time: int
    ) -> None:
        """Remember messages that a pop has handed out, also if its connection has closed in the meantime."""
        if self._stopped:
            return
        owner = self._owner_of.get((connection, group)) or self._owner((group, client_id))
        before = len(owner.popped)
        for topic, queue_id, offsets in found:
            queue = self._log.state.queue(topic, group, queue_id)
            owner.popped.update(dict.fromkeys(((queue, offset) for offset in offsets), pop_time))
        if before > FEW_MESSAGES:
            _forget_ended(owner, 2 * (len(owner.popped) - before))
        if len(owner.popped) > MAX_MESSAGES:
            _make_room(owner)
        if not owner.connections and not owner.alarm.is_set:
            owner.alarm.after(GRACE_SECONDS)

    def changed(self, connection: ServerConnection, queue: PopQueue, offset: int, pop_time: int) -> None:
        """Remember the new pop time of a message whose invisible time was changed."""
        owner = self._owner_of.get((connection, queue.group))
        if owner is not None and (queue, offset) in owner.popped:
            owner.popped[queue, offset] = pop_time

    def ended(self, connection: ServerConnection, queue: PopQueue, offsets: Iterable[int]) -> None:
        """Forget messages that were acknowledged."""
        owner = self._owner_of.get((connection, queue.group))
        if owner is not None:
            for offset in offsets:
                owner.popped.pop((queue, offset), None)

    # --- connections ------------------------------------------------------------------------------
    def enter(self, connection: ServerConnection, group: str, client_id: str) -> None:
        """Note that a client pops on a connection.

        :raises RefusedError: the connection has an owner in too many other groups.
        """
        if (connection, group) in self._owner_of or self._stopped or connection.closed:
            return
        if self._groups_of[connection] >= MAX_OWNED_GROUPS_OF_CONNECTION:
            remark = (
                f"this connection has pops with an owner for {MAX_OWNED_GROUPS_OF_CONNECTION} groups, the maximum; "
                "use another connection"
            )
            raise RefusedError(ResponseCode.INVALID_PARAMETER, remark)
        name = group, client_id
        is_new = name not in self._owners
        owner = self._owner(name)
        self._join(owner, connection)
        members = self._consumers.get(group) if is_new else None
        for member in () if members is None else members.channels.values():
            if member.client_id == client_id:
                self._join(owner, member.connection)

    def _moved(self, group: str, member: ClientChannel, here: bool) -> None:
        """Note that a client's heartbeats come on a new connection."""
        owner = self._owners.get((group, member.client_id)) if here and not self._stopped else None
        if owner is not None:
            self._join(owner, member.connection)

    def _join(self, owner: _Owner, connection: ServerConnection) -> None:
        group, _ = owner.name
        is_new = (connection, group) not in self._owner_of and not connection.closed
        if is_new and self._groups_of[connection] < MAX_OWNED_GROUPS_OF_CONNECTION:
            owner.alarm.cancel()
            owner.connections.add(connection)
            self._owner_of[connection, group] = owner
            self._groups_of[connection] += 1
            connection.on_close.append(partial(self._connection_closed, group))

    def _owner(self, name: Name) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner(name, Alarm(lambda: self._give_back(name), clock=self._clock))
        return owner

    def _connection_closed(self, group: str, connection: ServerConnection) -> None:
        owner = self._owner_of.pop((connection, group), None)
        if owner is None:
            return
        del self._groups_of[connection]  # all of its groups are closing
        owner.connections.discard(connection)
        if not owner.connections:
            owner.alarm.after(GRACE_SECONDS)

    def _give_back(self, name: Name) -> None:
        """Make some messages of a client that is gone visible, and the others in the next rounds."""
        owner = self._owners[name]
        try:
            self._log.check()
        except RefusedError as refused:
            _log.warning("messages of %s become visible when their time ends: %s", _named(name), refused)
            del self._owners[name]
            return
        now_ms, count = self._clock.now_ms(), 0
        for queue, offset in list(islice(owner.popped, MESSAGES_AT_ONCE)):
            pop_time = owner.popped.pop((queue, offset))
            is_there = self._log.state.find(*queue.key) is queue  # else its topic or group was deleted
            if is_there and _is_invisible(queue, offset, pop_time):
                later = max(now_ms, pop_time + 1)
                self._log.add(Changed(*queue.key, pop_time, offset, later, now_ms - later))
                count += 1
        if count:
            _log.info("%s is gone, and gives back %d messages", _named(name), count)
            self._log.when_stored(_ignore_outcome)
        if owner.popped:
            owner.alarm.after(_PAUSE_SECONDS)
        else:
            del self._owners[name]


def _named(name: Name) -> str:
    group, client_id = name
    return f"client {client_id} of group {group}"


def _forget_ended(owner: _Owner, count: int) -> None:
    """Look at some messages, and forget those whose time has ended, or that other connections have acknowledged."""
    for key in list(islice(owner.popped, count)):
        pop_time = owner.popped.pop(key)
        if _is_invisible(*key, pop_time):
            owner.popped[key] = pop_time


def _make_room(owner: _Owner) -> None:
    """Forget some messages that are no longer invisible, and the latest ones if there are too many."""
    _forget_ended(owner, MESSAGES_AT_ONCE)
    while len(owner.popped) > MAX_MESSAGES:
        owner.popped.popitem()


def _ignore_outcome(_refusal: RefusedError | None) -> None:
    pass


def _is_invisible(queue: PopQueue, offset: int, pop_time: int) -> bool:
    times = queue.invisible.find(offset)
    return times is not None and times[0] == pop_time
