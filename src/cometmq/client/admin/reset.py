"""Resets consumer groups: previews a group's new offsets, and applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.admin.members import check_group_exists, members_of
from cometmq.client.admin.several import gathered
from cometmq.client.errors import ClientError
from cometmq.quantity import quantity
from cometmq.remoting.bodies import MessageQueue

EARLIEST: Final = 0
LATEST: Final = -1
"""Timestamps that stand for the first and the last offset of a queue, as in RocketMQ's tools."""


@dataclass(frozen=True)
class Target:
    """The target of a reset. Exactly one attribute is set."""

    timestamp_ms: int | None = None
    """``EARLIEST``, ``LATEST``, or a time."""
    offset: int | None = None
    by: int | None = None


@dataclass(frozen=True)
class Move:
    """A queue's offset before and after the reset; ``before`` is None if the group has no offset."""

    queue: MessageQueue
    before: int | None
    after: int

    @property
    def skipped(self) -> int | None:
        """Return the number of messages that the group skips, or None if the group has no offset."""
        return None if self.before is None else max(0, self.after - self.before)

    @property
    def again(self) -> int | None:
        """Return the number of messages that the group receives again, or None if the group has no offset."""
        return None if self.before is None else max(0, self.before - self.after)


class NoSuchQueueError(ClientError):
    """The topic has none of the selected queues."""


class GroupConsumesError(ClientError):
    """Members of the group are consuming, so the group's offsets are not changed."""


async def planned_moves(
    admin: Admin, group: str, topic: str, target: Target, *, queue_id: int | None = None, broker: str | None = None
) -> list[Move]:
    """Return the moves for all queues of a topic, or only for one queue or broker, without applying them.

    :raises ClientError: the group does not exist, or has no offset that ``by`` could move.
    :raises NoSuchQueueError: no queue matches.
    """
    await check_group_exists(admin, group)
    chosen = [
        found
        for found in await admin.queues(topic)
        if queue_id in (None, found.queue_id) and broker in (None, found.broker_name)
    ]
    if not chosen:
        raise NoSuchQueueError(
            f"topic {topic} has no such queue", next_step=f"run cometmq topic stats {topic} to see its queues"
        )
    return list((await gathered({found: _move(admin, group, found, target) for found in chosen})).values())


async def execute_moves(
    admin: Admin, group: str, topic: str, moves: Sequence[Move], *, force_to_ms: int | None = None, force: bool = False
) -> None:
    """Apply the moves to a group's offsets.

    :param force: apply the moves even while members consume.
    :param force_to_ms: running members move to this time; if it is not given, the moves are only committed, and a
        running member may overwrite them with its own offset.
    :raises GroupConsumesError: members are consuming, and ``force`` is False.
    """
    members = await members_of(admin, group)
    if members and not force:
        raise GroupConsumesError(
            f"group {group} has {quantity(len(members), 'active member')} ({', '.join(members)}); nothing was changed",
            next_step="stop the members and repeat the command, or add --force",
        )
    if members and force_to_ms is not None:
        await admin.reset_offset(group, topic, force_to_ms)
        return
    for move in moves:
        await admin.offsets.commit(group, move.queue, move.after)


async def _move(admin: Admin, group: str, queue: MessageQueue, target: Target) -> Move:
    """Return the move of one queue; a target outside the queue's range of offsets becomes the nearest offset in it."""
    before = await admin.offsets.committed(group, queue)
    low, high = await admin.offsets.min(queue), await admin.offsets.max(queue)
    if target.by is not None:
        if before is None:
            raise ClientError(
                f"group {group} has no offset in queue {queue.queue_id} on {queue.broker_name}, so --by cannot be used",
                next_step="use --earliest, --latest, --to-time or --to-offset",
            )
        wanted = before + target.by
    elif target.offset is not None:
        wanted = target.offset
    elif target.timestamp_ms in (EARLIEST, LATEST):
        wanted = low if target.timestamp_ms == EARLIEST else high
    else:
        assert target.timestamp_ms is not None
        wanted = await admin.offsets.at_time(queue, target.timestamp_ms)
    return Move(queue, before, min(max(wanted, low), high))
