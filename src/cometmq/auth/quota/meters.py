"""The meters for all subjects on a broker, and the meters that apply to each connection.

Memory is bounded: meters of idle subjects expire. If there are too many meters, or a connection has too many groups,
the oldest one is dropped. A subject whose meter was dropped starts again with full buckets, as an idle subject would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from cometmq.auth.limits import MAX_GROUPS_OF_CONNECTION, MAX_METERED_GROUPS, MAX_METERS, METER_SECONDS
from cometmq.auth.quota.meter import Meter
from cometmq.auth.quota.model import Subject, SubjectKind
from cometmq.auth.quota.over_quota import OverQuotaError
from cometmq.auth.quota.table import QuotaTable
from cometmq.clock import Clock
from cometmq.remoting.permissions import Caller
from cometmq.remoting.server_connection import ServerConnection


class ConnectionMeters:
    """The meters that apply to one connection."""

    __slots__ = ("account", "groups", "meters", "producer_group", "version")

    def __init__(self) -> None:
        self.version = -1
        """The table version at the last lookup, or -1 before the connection is counted."""
        self.account: Caller | None = None
        self.meters: tuple[Meter, ...] = ()
        self.groups: dict[str, Meter | None] = {}
        self.producer_group: str | None = None
        """The producer group of the last send accepted by Python."""


class Meters:
    """The meters for all subjects on a broker."""

    def __init__(self, table: QuotaTable, *, clock: Clock) -> None:
        self.table: Final = table
        self._clock = clock
        self.known: Final[dict[Subject, Meter]] = {}
        self.of_connection: Final[dict[ServerConnection, ConnectionMeters]] = {}
        """The meters of each counted connection."""
        self._metered_groups = 0

    def of(self, connection: ServerConnection, now: float) -> ConnectionMeters:
        """Return a connection's meters, and start counting the connection."""
        uses = self.of_connection.get(connection)
        account = connection.account
        version = self.table.version
        if uses is not None and uses.version == version and uses.account is account:
            return uses
        if uses is None:
            uses = self.of_connection[connection] = ConnectionMeters()
            connection.on_close.append(self._closed)
        self._release(uses)
        meters = tuple(self.named_by(connection, account, now))
        for meter in meters:
            self._check_connections(meter)
        for meter in meters:
            meter.connections += 1
        uses.meters, uses.account, uses.version = meters, account, version
        return uses

    def named_by(self, connection: ServerConnection, caller: Caller | None, now: float) -> Iterator[Meter]:
        """Find the meters for a connection's address and account."""
        address = self.meter(SubjectKind.ADDRESS, connection.peer_ip, now)
        if address is not None:
            yield address
        account = None if caller is None else self.meter(SubjectKind.ACCOUNT, caller.name, now)
        if account is not None:
            yield account

    def _check_connections(self, meter: Meter) -> None:
        most = meter.limits.connections
        if most is not None and meter.connections >= most:
            raise OverQuotaError(meter, "connections", math.inf)

    def with_group(self, uses: ConnectionMeters, group: str | None, now: float) -> tuple[Meter, ...]:
        """Return a connection's meters and a group's meter, and start counting the connection for the group."""
        if group is None or SubjectKind.GROUP not in self.table.kinds:
            return uses.meters
        meter = self.group(uses, group, now)
        return uses.meters if meter is None else (*uses.meters, meter)

    def counting(self, uses: ConnectionMeters, group: str | None) -> tuple[Meter, ...]:
        """Return a connection's meters, with a group's meter if the connection is already counted for the group."""
        meter = None if group is None else uses.groups.get(group)
        return uses.meters if meter is None else (*uses.meters, meter)

    def group(self, uses: ConnectionMeters, name: str, now: float) -> Meter | None:
        """Return a group's meter, and count the connection towards the group from now on."""
        if name in uses.groups:
            return uses.groups[name]
        meter = self.meter(SubjectKind.GROUP, name, now)
        if meter is not None:
            self._check_connections(meter)
        if len(uses.groups) >= MAX_GROUPS_OF_CONNECTION or self._metered_groups >= MAX_METERED_GROUPS:
            self._forget_groups(uses)
        uses.groups[name] = meter
        self._metered_groups += 1
        if meter is not None:
            meter.connections += 1
        return meter

    def meter(self, kind: SubjectKind, name: str, now: float) -> Meter | None:
        """Return a subject's meter, or ``None`` if no quota applies to the subject."""
        if kind not in self.table.kinds or not name:
            return None
        subject = Subject(kind, name)
        meter = self.known.get(subject)
        version = self.table.version
        if meter is not None and meter.version == version:
            return meter
        quota = self.table.match(kind, name)
        if quota is None:
            if meter is not None:
                self._forget(meter)
            return None
        if meter is None:
            if len(self.known) >= MAX_METERS:
                self._forget(next(iter(self.known.values())))
            meter = self.known[subject] = Meter(subject, quota, version, now)
        else:
            meter.adopt(quota, version, now)
        return meter

    def expire(self) -> None:
        """Forget idle subjects, whose buckets are full again."""
        oldest = self._clock.monotonic() - METER_SECONDS
        for meter in [meter for meter in self.known.values() if meter.used_at < oldest and not meter.connections]:
            self._forget(meter)

    def _forget(self, meter: Meter) -> None:
        meter.quota.subjects -= 1
        del self.known[meter.subject]

    def _forget_groups(self, uses: ConnectionMeters) -> None:
        for meter in uses.groups.values():
            if meter is not None:
                meter.connections -= 1
        self._metered_groups -= len(uses.groups)
        uses.groups.clear()
        uses.producer_group = None

    def _release(self, uses: ConnectionMeters) -> None:
        """Stop counting a connection."""
        if uses.version >= 0:
            uses.version = -1
            for meter in uses.meters:
                meter.connections -= 1
            uses.meters = ()
        self._forget_groups(uses)

    def _closed(self, connection: ServerConnection) -> None:
        self._release(self.of_connection.pop(connection))
