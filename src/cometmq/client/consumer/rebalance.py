"""Strategies for allocating queues to a group's members (``AllocateMessageQueueStrategy``).

Every member computes the same result from the same two sorted lists, so all members of one group must use the same
strategy. A strategy is a callable; :class:`MachineRoomNearby`, :class:`ByConfig` and other strategies with settings are
small frozen objects with ``__call__``.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cometmq.remoting.bodies import MessageQueue


class AllocateStrategy(Protocol):
    """Chooses the queues for ``client_id``. Both lists are sorted and the same for every member."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return the queues for ``client_id``, or none if this client is not a member."""


def averagely(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
) -> list[MessageQueue]:
    """Give each member adjacent queues; the first members may get one more (``AllocateMessageQueueAveragely``)."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, more = divmod(len(queues), len(client_ids))
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])


def averagely_by_circle(
    group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
) -> list[MessageQueue]:
    """Deal queues out to members one by one (``AllocateMessageQueueAveragelyByCircle``)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True)
class ByConfig:
    """Always allocates the same queues (``AllocateMessageQueueByConfig``)."""

    fixed: tuple[MessageQueue, ...]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return the configured queues."""
        return list(self.fixed)


@dataclass(frozen=True)
class ByMachineRoom:
    """Allocates queues on brokers named ``room@name`` in given rooms (``AllocateMessageQueueByMachineRoom``)."""

    rooms: frozenset[str]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return an equal share of the rooms' queues, plus one of the remaining queues."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        mine = [queue for queue in queues if self._allowed(queue.broker_name)]
        share, more = divmod(len(mine), len(client_ids))
        chosen = mine[index * share : (index + 1) * share]
        if index < more:
            chosen.append(mine[share * len(client_ids) + index])
        return chosen

    def _allowed(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True)
class MachineRoomNearby:
    """Allocates queues within their machine room if the room has a consumer (``AllocateMachineRoomNearby``).

    All members share the queues of rooms that have no consumer. ``inner`` allocates within a room.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]
    inner: AllocateStrategy = averagely

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return the client's share of its own room's queues, and of the queues in rooms with no consumer."""
        if client_id not in client_ids:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(self._room(self.room_of_queue(queue), queue), []).append(queue)
        clients_by_room: dict[str, list[str]] = {}
        for member in client_ids:
            clients_by_room.setdefault(self._room(self.room_of_client(member), member), []).append(member)
        room = self.room_of_client(client_id)
        own = queues_by_room.pop(room, [])
        chosen = self.inner(group, client_id, own, clients_by_room[room]) if own else []
        for name in sorted(queues_by_room):
            if name not in clients_by_room:
                chosen += self.inner(group, client_id, queues_by_room[name], client_ids)
        return chosen

    @staticmethod
    def _room(room: str, of: object) -> str:
        if not room:
            raise ValueError(f"the machine room of {of} is unknown")
        return room


VIRTUAL_NODES: Final = 10
"""Number of points per consumer on the hash ring, the same as in Java."""


def ring_hash(key: str) -> int:
    """Return the first four bytes of the MD5 of ``key`` as an unsigned integer (``ConsistentHashRouter.MD5Hash``)."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


@dataclass(frozen=True)
class ConsistentHash:
    """Allocates queues on a hash ring, so that few queues move (``AllocateMessageQueueConsistentHash``).

    The ring equals Java's: ``<clientId>-<k>`` for each virtual node, and a queue belongs
    to the first point at or after the hash of its Java ``toString``.
    """

    virtual_nodes: int = VIRTUAL_NODES
    hash_function: Callable[[str], int] = field(default=ring_hash)

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return the queues whose next point on the ring belongs to ``client_id``."""
        if client_id not in client_ids:
            return []
        owners: dict[int, str] = {}
        for member in client_ids:
            for number in range(self.virtual_nodes):
                owners[self.hash_function(f"{member}-{number}")] = member
        points = sorted(owners)

        def owner(queue: MessageQueue) -> str:
            key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect.bisect_left(points, self.hash_function(key))
            return owners[points[at % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]
