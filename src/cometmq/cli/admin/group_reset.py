"""``cometmq group reset``: show where the offsets of a group would move, and move them with ``--execute``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import click

from cometmq.cli.admin.members import demand_group, members_of
from cometmq.cli.connection import administer, demand_group_name, demand_topic_name, gathered, namesrv_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.moments import PAST
from cometmq.cli.names import BROKER, GROUP, TOPIC
from cometmq.cli.output import Column, output_option, show, tell
from cometmq.client.admin import Admin
from cometmq.errors import CometMQError
from cometmq.quantity import quantity
from cometmq.remoting.bodies import MessageQueue

EARLIEST: Final = 0
LATEST: Final = -1
"""Timestamps that mean the ends of a queue, as in RocketMQ's tools."""

_MOVES: Final = (
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("from", "From", right=True),
    Column("to", "To", right=True),
    Column("skipped", "Skipped", right=True),
    Column("again", "Again", right=True),
)


@dataclass(frozen=True)
class Target:
    """The place to which offsets move; exactly one attribute is set."""

    timestamp_ms: int | None = None
    """EARLIEST, LATEST or a time."""
    offset: int | None = None
    by: int | None = None


@dataclass(frozen=True)
class Move:
    """The offset of one queue, before and after; ``before`` is None when the group has none."""

    queue: MessageQueue
    before: int | None
    after: int

    def row(self) -> dict[str, Any]:
        """Return the row of output; messages are skipped, or come again."""
        before = self.before
        return {
            "broker": self.queue.broker_name,
            "queue_id": self.queue.queue_id,
            "from": before,
            "to": self.after,
            "skipped": None if before is None else max(0, self.after - before),
            "again": None if before is None else max(0, before - self.after),
        }


@click.command("reset")
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, required=True, help="The topic to reset.")
@click.option("--earliest", is_flag=True, help="To the first stored message.")
@click.option("--latest", is_flag=True, help="To the end, behind the last message.")
@click.option("--to-time", "--time", "moment", type=PAST, help="To the first message stored at or after this time.")
@click.option("--to-offset", type=click.IntRange(0), help="To this offset, or the nearest that is stored.")
@click.option("--by", type=int, help="So many messages forward, or back if negative.")
@click.option("--queue", type=click.IntRange(0), help="Only the queue with this number.")
@click.option("--broker", type=BROKER, help="Only queues on this broker.")
@click.option("--execute", is_flag=True, help="Move the offsets; without it they are only shown.")
@click.option("--force", is_flag=True, help="Also while members of the group consume.")
@namesrv_option
@output_option
def reset(
    group: str,
    topic: str,
    earliest: bool,
    latest: bool,
    moment: int | None,
    to_offset: int | None,
    by: int | None,
    queue: int | None,
    broker: str | None,
    execute: bool,
    force: bool,
    namesrv: str,
    output: str,
) -> None:
    """Preview new offsets of a group; --execute moves them.

    Stop the members first. With --force running members are told to move (--earliest, --latest, --to-time on all
    queues); any other place is committed, and a running member may commit its own place after that.
    """
    demand_group_name(group)
    demand_topic_name(topic)
    if earliest + latest + sum(given is not None for given in (moment, to_offset, by)) != 1:
        raise WrongUseError("give one of --earliest, --latest, --to-time, --to-offset, --by")
    timestamp = EARLIEST if earliest else LATEST if latest else moment
    target = Target(timestamp, to_offset, by)
    is_partial = queue is not None or broker is not None

    async def work(admin: Admin) -> list[Move]:
        await demand_group(admin, group)
        chosen = [
            found
            for found in await admin.queues(topic)
            if queue in (None, found.queue_id) and broker in (None, found.broker_name)
        ]
        if not chosen:
            raise WrongUseError(f"topic {topic} has no such queue", next_step=f"cometmq topic stats {topic} shows them")
        moves = await gathered({found: _move(admin, group, found, target) for found in chosen})
        if execute:
            members = await members_of(admin, group)
            if members and not force:
                raise CometMQError(
                    f"{quantity(len(members), 'member')} of group {group} consume now ({', '.join(members)}); "
                    "nothing was changed",
                    next_step="stop the members and repeat the command, or add --force",
                )
            if members and timestamp is not None and not is_partial:
                await admin.reset_offset(group, topic, timestamp)
            else:
                for move in moves.values():
                    await admin.offsets.commit(group, move.queue, move.after)
        return list(moves.values())

    moves = administer(namesrv, work)
    show([move.row() for move in moves], _MOVES, output, title=f"Offsets of group {group} in topic {topic}")
    if execute:
        tell(f"Group {group} is reset in {quantity(len(moves), 'queue')} of topic {topic}.")
    else:
        tell("Nothing was changed; --execute moves the offsets.")


async def _move(admin: Admin, group: str, queue: MessageQueue, target: Target) -> Move:
    """Return the move of one queue; its target is always between the ends of the queue."""
    before = await admin.offsets.committed(group, queue)
    low, high = await admin.offsets.min(queue), await admin.offsets.max(queue)
    if target.by is not None:
        if before is None:
            raise CometMQError(
                f"group {group} has no offset in queue {queue.queue_id} on {queue.broker_name}, so --by has no start",
                next_step="take --earliest, --latest, --to-time or --to-offset",
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
