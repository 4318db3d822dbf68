"""Connected producers and consumers by group and connection (``ProducerManager``, ``ConsumerManager``).

A heartbeat registers a client. The client is removed when it unregisters, when its connection closes, or when it sends
no heartbeat for :data:`~cometmq.broker.limits.CLIENT_EXPIRY_SECONDS`.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

from cometmq.broker.limits import (
    CLIENT_EXPIRY_SECONDS,
    CLIENTS_PER_SLICE,
    MAX_GROUP_MEMBERS,
    MAX_GROUPS,
    MAX_LIVE_SUBSCRIPTION_CHARS,
)
from cometmq.broker.tables.consumer_group import ClientChannel, ConsumerGroup, contradiction_of, subscription_chars
from cometmq.clock import Clock
from cometmq.loop import finish
from cometmq.multimap import MultiMap
from cometmq.remoting.bodies import ConsumerData, HeartbeatData
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)


GroupChanged = Callable[[ConsumerGroup], None]
MemberMoved = Callable[[str, ClientChannel, bool], None]
"""Callback whose arguments are a group, a client, and True if the client joined the group or False if it left."""


class Heartbeats:
    """The latest heartbeat of each registered client, oldest first, so that expired clients are found immediately."""

    def __init__(self) -> None:
        self._groups: dict[ClientChannel, int] = {}
        """Number of groups for each registered heartbeat."""

    def enter(self, channel: ClientChannel, before: ClientChannel | None) -> None:
        """Register a group member's heartbeat, which replaces the member's earlier one."""
        self._groups[channel] = self._groups.get(channel, 0) + 1
        if before is not None:
            self.leave(before)

    def leave(self, channel: ClientChannel) -> None:
        """Remove a group member and its heartbeat."""
        left = self._groups[channel] - 1
        if left:
            self._groups[channel] = left
        else:
            del self._groups[channel]

    def before(self, horizon: float) -> list[ClientChannel]:
        """Return the heartbeats received before ``horizon``."""
        return list(itertools.takewhile(lambda channel: channel.last_update < horizon, self._groups))


class ConsumerManager:
    """The live consumers by group.

    ``on_change`` is called with each group whose members or topics have changed.
    """

    def __init__(self, beats: Heartbeats) -> None:
        self._beats = beats
        self._groups: dict[str, ConsumerGroup] = {}
        self._names_of: MultiMap[ServerConnection, str] = MultiMap()
        """Names of the groups on each connection, so that a closed connection is removed without searching all
        groups.
        """
        self._chars = 0
        self._members = 0
        self.gone = 0
        """Number of members that have left since the broker started."""
        self.on_change: list[GroupChanged] = []
        self.on_move: list[MemberMoved] = []

    def get(self, group: str) -> ConsumerGroup | None:
        """Return the live members of a group, or ``None`` if it has no members."""
        return self._groups.get(group)

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """Return all groups with live members; callers must not modify the result."""
        return self._groups

    def knows(self, connection: ServerConnection) -> bool:
        """Return whether a member of any group uses the connection."""
        return connection in self._names_of

    def groups_of(self, topic: str) -> set[str]:
        """Return the groups that currently subscribe to a topic (``queryTopicConsumeByWho``)."""
        return {name for name, group in self._groups.items() if topic in group.subscriptions}

    def known(self, consumers: Iterable[ConsumerData]) -> list[bool]:
        """Return for each consumer in a heartbeat whether it contains only what other members have sent."""
        return [(group := self._groups.get(one.group_name)) is not None and group.repeats(one) for one in consumers]

    def has_room(self, consumers: Iterable[ConsumerData], known: Iterable[bool], connection: ServerConnection) -> bool:
        """Return whether the limits allow all consumers in a heartbeat.

        :param known: the result of :meth:`known`, or False for each consumer.
        """
        groups = members = chars = 0
        for data, is_known in zip(consumers, known, strict=True):
            group = self._groups.get(data.group_name)
            groups += group is None
            members += group is None or connection not in group.channels
            if is_known or (group is not None and group.has_applied(data.subscription_data_set)):
                continue
            chars += sum(map(subscription_chars, data.subscription_data_set))
            chars -= 0 if group is None else group.subscription_chars
        return (
            (not groups or len(self._groups) + groups <= MAX_GROUPS)
            and (not members or self._members + members <= MAX_GROUP_MEMBERS)
            and (chars <= 0 or self._chars + chars <= MAX_LIVE_SUBSCRIPTION_CHARS)
        )

    def register(self, data: ConsumerData, channel: ClientChannel) -> None:
        """Add or update a consumer from its heartbeat."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where, {}, {}
            )
        subscribed = False
        if not group.repeats(data):
            if len(group.channels) > (channel.connection in group.channels):  # the group has other members
                _warn_of_contradiction(group, data)
            group.consume_type = data.consume_type
            group.message_model = data.message_model
            group.consume_from_where = data.consume_from_where
            subscribed = not group.has_applied(data.subscription_data_set) and self._subscribe(group, data)
        self._join(group, channel, subscribed=subscribed)

    def join(self, group_name: str, channel: ClientChannel) -> None:
        """Add or refresh a consumer that is :meth:`known`."""
        self._join(self._groups[group_name], channel, subscribed=False)

    def _join(self, group: ConsumerGroup, channel: ClientChannel, *, subscribed: bool) -> None:
        """Set a member's last heartbeat.

        :param subscribed: true if the heartbeat has changed the group's topics.
        """
        connection = channel.connection
        before = group.channels.get(connection)
        group.channels[connection] = channel
        self._beats.enter(channel, before)
        if before is None:
            self._members += 1
            self._names_of.add(connection, group.name)
            _notify_listeners(self.on_move, group.name, channel, True)
        if subscribed or before is None:
            self._changed(group)

    def _subscribe(self, group: ConsumerGroup, data: ConsumerData) -> bool:
        """Apply the subscriptions in a heartbeat; return whether the set of the group's topics changed."""
        subscribed = group.subscribe(data.subscription_data_set)
        self._chars -= group.subscription_chars
        group.subscription_chars = sum(map(subscription_chars, group.subscriptions.values()))
        self._chars += group.subscription_chars
        return subscribed

    def renew(self, group_name: str, before: ClientChannel, after: ClientChannel) -> None:
        """Replace a member's heartbeat by one that differs only in its time."""
        self._groups[group_name].channels[after.connection] = after
        self._beats.enter(after, before)

    def unregister(self, group_name: str, connection: ServerConnection) -> None:
        """Remove a group's member on ``connection``."""
        group = self._groups.get(group_name)
        if group is None or (channel := group.channels.pop(connection, None)) is None:
            return
        self._members -= 1
        self.gone += 1
        self._beats.leave(channel)
        self._names_of.remove(connection, group_name)
        _notify_listeners(self.on_move, group_name, channel, False)
        if not group.channels:
            del self._groups[group_name]
            self._chars -= group.subscription_chars
        self._changed(group)

    def groups_on(self, connection: ServerConnection) -> list[str]:
        """Return the groups that have a member on ``connection``."""
        return self._names_of.of(connection)

    def channel(self, group_name: str, connection: ServerConnection) -> ClientChannel | None:
        """Return a group's member on ``connection``."""
        group = self._groups.get(group_name)
        return None if group is None else group.channels.get(connection)

    @property
    def members(self) -> int:
        """The number of members of all groups."""
        return self._members

    def channels(self) -> list[ClientChannel]:
        """Return every live channel, once for each of its groups."""
        return [channel for group in self._groups.values() for channel in group.channels.values()]

    def _changed(self, group: ConsumerGroup) -> None:
        for listener in self.on_change:
            listener(group)


def _notify_listeners(listeners: Iterable[MemberMoved], group: str, channel: ClientChannel, here: bool) -> None:
    for listener in listeners:
        listener(group, channel, here)


def _warn_of_contradiction(group: ConsumerGroup, data: ConsumerData) -> None:
    contradiction = contradiction_of(group, data)
    if contradiction and contradiction != group.contradiction:
        group.contradiction = contradiction
        _log.warning(
            "members of group %s have different subscriptions and lose messages: %s (all members must have the same "
            "subscriptions; cometmq group describe %s shows them)",
            group.name,
            contradiction,
            group.name,
        )


class ProducerManager:
    """The live producers by group."""

    def __init__(self, beats: Heartbeats) -> None:
        self._beats = beats
        self._groups: dict[str, dict[ServerConnection, ClientChannel]] = {}
        self._names_of: MultiMap[ServerConnection, str] = MultiMap()
        self._client_of: dict[ServerConnection, str] = {}
        self._connections_of: MultiMap[str, ServerConnection] = MultiMap()
        """The connections by client ID, so that the requester of a reply is found immediately."""
        self._members = 0
        self.gone = 0
        """Number of producers that have left since the broker started."""
        self.on_move: list[MemberMoved] = []

    @property
    def groups(self) -> Mapping[str, Mapping[ServerConnection, ClientChannel]]:
        """Return all groups with live producers; callers must not modify the result."""
        return self._groups

    def has_room(self, groups: Iterable[str], connection: ServerConnection) -> bool:
        """Return whether the limits allow a producer in each of these groups."""
        joined = set(groups).difference(self._names_of.get(connection, ()))
        new = joined.difference(self._groups)
        return (not new or len(self._groups) + len(new) <= MAX_GROUPS) and (
            not joined or self._members + len(joined) <= MAX_GROUP_MEMBERS
        )

    def register(self, group: str, channel: ClientChannel) -> None:
        """Add or update a producer from its heartbeat."""
        connection = channel.connection
        channels = self._groups.setdefault(group, {})
        before = channels.get(connection)
        self._beats.enter(channel, before)
        if before is None:
            self._members += 1
            _notify_listeners(self.on_move, group, channel, True)
        channels[connection] = channel
        self._names_of.add(connection, group)
        if self._client_of.get(connection) != channel.client_id:
            self._forget_client(connection)
            self._client_of[connection] = channel.client_id
            self._connections_of.add(channel.client_id, connection)

    def knows(self, connection: ServerConnection) -> bool:
        """Return whether a producer uses the connection."""
        return connection in self._names_of

    def connection_of(self, client_id: str) -> ServerConnection | None:
        """Return a client's newest connection with a producer, or ``None``."""
        return next(reversed(self._connections_of.get(client_id, {})), None)

    def _forget_client(self, connection: ServerConnection) -> None:
        client_id = self._client_of.pop(connection, None)
        if client_id is not None:
            self._connections_of.remove(client_id, connection)

    def renew(self, group: str, before: ClientChannel, after: ClientChannel) -> None:
        """Replace a producer's heartbeat by one that differs only in its time."""
        self._groups[group][after.connection] = after
        self._beats.enter(after, before)

    def unregister(self, group: str, connection: ServerConnection) -> None:
        """Remove a group's producer on ``connection``."""
        channels = self._groups.get(group)
        if channels is not None and (channel := channels.pop(connection, None)) is not None:
            self._members -= 1
            self.gone += 1
            self._beats.leave(channel)
            _notify_listeners(self.on_move, group, channel, False)
            self._names_of.remove(connection, group)
            if connection not in self._names_of:
                self._forget_client(connection)
            if not channels:
                del self._groups[group]

    def groups_on(self, connection: ServerConnection) -> list[str]:
        """Return the groups that have a producer on ``connection``."""
        return self._names_of.of(connection)

    def channel(self, group_name: str, connection: ServerConnection) -> ClientChannel | None:
        """Return a group's producer on ``connection``."""
        return self._groups.get(group_name, {}).get(connection)

    @property
    def members(self) -> int:
        """The number of producers of all groups."""
        return self._members

    def channels(self) -> list[ClientChannel]:
        """Return every live channel, once for each of its groups."""
        return [channel for channels in self._groups.values() for channel in channels.values()]


class ClientRegistry:
    """Connected producers and consumers, and their expiry (``ClientHousekeepingService``).

    :param do: runs a generator in slices, between which the event loop runs other work.
    """

    def __init__(self, *, clock: Clock, do: Callable[[Generator[None, None, None]], None] = finish) -> None:
        self._clock = clock
        self._do = do
        self._watched: set[ServerConnection] = set()
        self._closed: deque[ServerConnection] = deque()
        """Closed connections whose clients have not been removed yet."""
        self._removes_closed = False
        self._beats = Heartbeats()
        self.producers = ProducerManager(self._beats)
        self.consumers = ConsumerManager(self._beats)

    def channel(self, connection: ServerConnection, client_id: str, language: str, version: int) -> ClientChannel:
        """Return the channel of a client that sent a heartbeat, and watch its connection."""
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_close.append(self.connection_closed)
        return ClientChannel(connection, client_id, language, version, self._clock.monotonic(), self._clock.now_ms())

    def renew(self, connection: ServerConnection) -> bool:
        """Repeat the last heartbeat on a connection; return False if the connection has no clients.

        Nothing changes but the time, so this is much faster than a heartbeat.
        """
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        renewed: dict[ClientChannel, ClientChannel] = {}
        for manager in (self.producers, self.consumers):
            for name in manager.groups_on(connection):
                before = manager.channel(name, connection)
                assert before is not None
                after = renewed.get(before)
                if after is None:
                    client = before.client_id, before.language, before.version
                    after = renewed[before] = ClientChannel(connection, *client, now, now_ms)
                manager.renew(name, before, after)
        return bool(renewed)

    def has_room(self, data: HeartbeatData, known: Iterable[bool], connection: ServerConnection) -> bool:
        """Return whether the limits allow all clients in a heartbeat; see :meth:`ConsumerManager.has_room`."""
        producers, consumers = data.producer_data_set, data.consumer_data_set
        return (
            not producers or self.producers.has_room((producer.group_name for producer in producers), connection)
        ) and (not consumers or self.consumers.has_room(consumers, known, connection))

    def is_stranger(self, connection: ServerConnection, group_name: str, client_id: str) -> bool:
        """Return whether a connection has sent heartbeats, but none for this member of the consumer group.

        A connection without heartbeats may belong to any client, since other requests may arrive first after a broker
        starts.
        """
        if not self.consumers.knows(connection) and not self.producers.knows(connection):
            return False
        group = self.consumers.get(group_name)
        channel = None if group is None else group.channels.get(connection)
        return channel is None or channel.client_id != client_id

    def connection_closed(self, connection: ServerConnection) -> None:
        """Remove all clients on a closed connection, together with those on other connections that close at the same
        time.
        """
        self._watched.discard(connection)
        if self.producers.knows(connection) or self.consumers.knows(connection):
            self._closed.append(connection)
            if not self._removes_closed:
                self._removes_closed = True
                self._do(self._remove_clients((closed, None) for closed in self._take_closed()))

    def _take_closed(self) -> Iterator[ServerConnection]:
        try:
            while self._closed:
                yield self._closed.popleft()
        finally:
            self._removes_closed = False

    def expire(self) -> None:
        """Remove clients whose last heartbeat has expired, slice by slice."""
        silent = self._beats.before(self._clock.monotonic() - CLIENT_EXPIRY_SECONDS)
        if silent:
            self._do(self._remove_clients([(beat.connection, beat) for beat in silent]))

    def _remove_clients(
        self, leaving: Iterable[tuple[ServerConnection, ClientChannel | None]]
    ) -> Generator[None, None, None]:
        """Remove the clients on the connections from their groups, except from groups that got a newer heartbeat."""
        members = (
            (manager, name, connection)
            for connection, beat in leaving
            for manager in (self.producers, self.consumers)
            for name in manager.groups_on(connection)
            if beat is None or manager.channel(name, connection) is beat
        )
        while some := list(itertools.islice(members, CLIENTS_PER_SLICE)):
            for manager, name, connection in some:
                manager.unregister(name, connection)
            if len(some) == CLIENTS_PER_SLICE:
                yield  # no pause after the last few groups: most clients have few groups and are done in one slice
