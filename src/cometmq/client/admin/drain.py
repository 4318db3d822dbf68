"""Drains a broker: producers stop sending to it, and its messages are consumed or replicated.

Producers must not get errors. So all nameservers first remove the write permission from the broker's routes, while the
broker still accepts messages. Once clients have refreshed their routes, ``brokerPermission`` loses the write bit, a
change that survives registrations and restarts. Apache's brokers support all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.admin.group_progress import all_groups
from cometmq.client.admin.groups import in_flight_of
from cometmq.client.admin.members import connection_of
from cometmq.client.admin.several import users_topics
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.errors import CometMQError
from cometmq.message.names import INNER_PRODUCER, MASTER_ID, PERM_READ, PERM_WRITE, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from cometmq.remoting.codes import ResponseCode, version_name

PERMISSION_KEY: Final = "brokerPermission"
SETTLE_SECONDS: Final = 35.0
"""Seconds to wait for clients to refresh their routes, which they do every 30 seconds."""
CHECK_SECONDS: Final = 1.0
_REPEATING_LANGUAGES: Final = frozenset({"GO", "CPP"})
"""Languages whose Apache clients may repeat a failed send at the same broker, and ask for routes every 30 seconds."""
_SWITCHING_LANGUAGES: Final = frozenset({"JAVA", "PYTHON"})
_NODE: Final = ("JAVA", 121)
"""The language and version that `ali-ons` for Node reports; it behaves as the repeating languages."""
_GRPC: Final = "5 (gRPC)"
_ONLY_HERE: Final = "fail, also in a drain: this broker's endpoint serves no other broker"
_NAMED_GROUPS: Final = 5
_LEVEL_KEY: Final = "scheduleMessageOffset_"


class DrainRefusedError(CometMQError):
    """The broker cannot be drained. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class GroupLeft:
    """Messages of a topic on this broker that a group has not read, or has popped but not acknowledged."""

    group: str
    topic: str
    messages: int
    members: int


@dataclass(frozen=True, slots=True)
class Left:
    """The messages and offsets on a broker that are still needed."""

    groups: tuple[GroupLeft, ...]
    delayed: int
    """Number of delayed messages that are not due yet."""
    transactions: int
    """Number of transactions that have been neither committed nor rolled back."""
    slave_bytes: int | None
    """Number of log bytes that no slave has; ``None`` if there is no slave or the broker does not report it."""
    settled: bool
    """True if no message has been stored since clients refreshed their routes."""
    puts: int

    def ignoring(self, groups: frozenset[str], *, idle: bool) -> Left:
        """Return a copy without some groups and, if ``idle`` is true, without all groups that have no members."""
        kept = tuple(one for one in self.groups if one.group not in groups and not (idle and not one.members))
        return Left(kept, self.delayed, self.transactions, self.slave_bytes, self.settled, self.puts)

    def is_consumed(self) -> bool:
        """Return whether the groups have consumed all messages and none are pending."""
        return self.settled and not self.groups and not self.delayed and not self.transactions

    def is_copied(self) -> bool:
        """Return whether a slave has the complete log."""
        return self.settled and self.slave_bytes == 0


@dataclass(frozen=True, slots=True)
class ProducerKind:
    """The producers on a broker that have one language and version."""

    language: str
    version: str
    producers: int
    groups: str
    """The names of some of their groups, or of their topics if they use gRPC, which has no groups of producers."""
    restart: str
    """The outcome of their sends while the broker restarts without a drain."""


async def producer_kinds(admin: Admin, address: str) -> list[ProducerKind]:
    """Return the producers that are connected to a broker.

    :raises BrokerError: the broker is older than RocketMQ 4.9.3.
    """
    found: dict[tuple[str, int], list[str]] = {}
    grpc: dict[str, list[tuple[str, str]]] = {}
    for group, producers in sorted((await admin.producers(address)).data.items()):
        for one in producers if group != INNER_PRODUCER else ():
            if one.is_grpc:
                grpc.setdefault(one.language, []).append((one.client_id, group))
            else:
                found.setdefault((one.language, one.version), []).append(group)
    kinds = [
        ProducerKind(language, _version(version), len(of), _named(dict.fromkeys(of)), _in_restart(language, version))
        for (language, version), of in sorted(found.items())
    ]
    for language, topics_of in sorted(grpc.items()):
        topics = _named(dict.fromkeys(topic for _, topic in topics_of))
        kinds.append(ProducerKind(language, _GRPC, len({client for client, _ in topics_of}), topics, _ONLY_HERE))
    return kinds


def _version(ordinal: int) -> str:
    name = version_name(ordinal)
    return str(ordinal) if name == "UNKNOWN" else name


def _named(groups: Collection[str]) -> str:
    return ", ".join([*list(groups)[:_NAMED_GROUPS], *(["…"] if len(groups) > _NAMED_GROUPS else [])])


def _in_restart(language: str, version: int) -> str:
    if language in _REPEATING_LANGUAGES or (language, version) == _NODE:
        return "may fail: repeated at the same broker"
    return "go to another broker" if language in _SWITCHING_LANGUAGES else "unknown"


class Drain:
    """Drains a broker: call :meth:`begin`, then repeat :meth:`check` until no work is left."""

    def __init__(self, admin: Admin, broker: str, address: str, *, settle_s: float = SETTLE_SECONDS) -> None:
        self._admin = admin
        self._broker = broker
        self._address = address
        self._settle_s = settle_s
        self._clock = admin.instance.clock
        self._puts = -1
        self._quiet_since = self._clock.monotonic()

    async def topics_only_here(self) -> list[str]:
        """Return the topics that are writable only on this broker."""
        mine = await self._admin.topic_configs(self._address)
        found: list[str] = []
        for topic in await users_topics(self._admin):
            if topic not in mine or not mine[topic].perm & PERM_WRITE:
                continue
            try:
                route = await self._admin.topic_route(topic)
            except RouteNotFoundError:
                continue
            masters = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
            if not any(
                queues.broker_name != self._broker
                and queues.broker_name in masters
                and queues.perm & PERM_WRITE
                and queues.write_queue_nums
                for queues in route.queue_datas
            ):
                found.append(topic)
        return found

    async def permission(self) -> int:
        """Return the broker's permission as a sum of 4 (read) and 2 (write)."""
        return int((await self._admin.broker_config(self._address)).get(PERMISSION_KEY, PERM_READ | PERM_WRITE))

    async def begin(self, waiting: Callable[[float], None] = lambda _: None) -> None:
        """Move producers off the broker; return when the broker rejects new messages.

        :param waiting: called with the seconds left for clients to refresh their routes.
        """
        until = self._clock.monotonic() + self._settle_s
        while (left_s := until - self._clock.monotonic()) > 0:
            await self._wipe()
            waiting(left_s)
            await self._clock.sleep(min(CHECK_SECONDS, left_s))
        permission = await self.permission()
        if permission & PERM_WRITE:
            await self._set_permission(permission & ~PERM_WRITE)

    async def undo(self) -> None:
        """Let producers use the broker again."""
        permission = await self.permission()
        # nameservers may lack the permission; only a change makes the broker register again
        if permission & PERM_WRITE:
            await self._set_permission(permission & ~PERM_WRITE)
        await self._set_permission(permission | PERM_WRITE)

    async def check(self) -> Left:
        """Return the messages and offsets that are still needed."""
        table = await self._admin.runtime_info(self._address)
        puts = int(table.get("msgPutTotalTodayNow", "0"))
        now = self._clock.monotonic()
        if puts != self._puts:
            self._puts, self._quiet_since = puts, now
        return Left(
            tuple(await self._groups()),
            self._delayed(table) + await self._timers(),
            await self._transactions(),
            await self._slave_bytes(),
            now - self._quiet_since >= min(self._settle_s, 5.0),
            puts,
        )

    async def _wipe(self) -> None:
        for address in self._admin.instance.routes.namesrv:
            await self._admin.wipe_write_perm(address, self._broker)

    async def _set_permission(self, permission: int) -> None:
        await self._admin.update_broker_config(self._address, {PERMISSION_KEY: str(permission)})

    async def _groups(self) -> list[GroupLeft]:
        found: list[GroupLeft] = []
        members: dict[str, int] = {}
        async for group, per_topic in all_groups(self._admin, self._address):
            if group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX):
                continue
            lags: dict[str, int] = {}
            for stats in per_topic:
                for queue, offsets in stats.offset_table.items():
                    lag = max(0, offsets.broker_offset - offsets.consumer_offset, in_flight_of(offsets))
                    lags[queue.topic] = lags.get(queue.topic, 0) + lag
            for topic, lag in lags.items():
                if lag:
                    if group not in members:
                        connection = await connection_of(self._admin, group, self._address)
                        members[group] = len(connection.connection_set)
                    found.append(GroupLeft(group, topic, lag, members[group]))
        return sorted(found, key=lambda left: -left.messages)

    @staticmethod
    def _delayed(table: dict[str, str]) -> int:
        """Return the number of messages with a delay level that are not due yet."""
        total = 0
        for key, value in table.items():
            if key.startswith(_LEVEL_KEY):
                at, _, end = value.partition(",")
                total += max(0, int(end or 0) - int(at or 0))
        return total

    async def _timers(self) -> int:
        try:
            return sum(metric.count for metric in (await self._admin.waiting(self._address)).values())
        except BrokerError as error:
            if error.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR):
                return 0
            raise

    async def _transactions(self) -> int:
        try:
            return len(await self._admin.open_transactions(self._address))
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return 0
            raise

    async def _slave_bytes(self) -> int | None:
        try:
            status = await self._admin.ha_status(self._address)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        return min((max(0, slave.diff) for slave in status.ha_connection_info), default=None)
