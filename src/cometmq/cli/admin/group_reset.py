"""``cometmq group reset``: show new offsets for a group, and set them if ``--execute`` is given."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.connection import administer, demand_group_name, demand_topic_name, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run
from cometmq.cli.failures import WrongUseError
from cometmq.cli.moments import PAST
from cometmq.cli.names import BROKER, GROUP, TOPIC
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.reset import EARLIEST, LATEST, Move, NoSuchQueueError, Target, execute_moves, planned_moves
from cometmq.quantity import quantity

_MOVES: Final = (
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("from", "From", right=True),
    Column("to", "To", right=True),
    Column("skipped", "Skipped", right=True),
    Column("again", "Again", right=True),
)


@click.command("reset")
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, required=True, help="Topic to reset.")
@click.option("--earliest", is_flag=True, help="Reset to the first stored message.")
@click.option("--latest", is_flag=True, help="Reset to the end, after the last message.")
@click.option(
    "--to-time", "--time", "moment", type=PAST, help="Reset to the first message stored at or after this time."
)
@click.option(
    "--to-offset", type=click.IntRange(0), help="Reset to this offset, or to the nearest offset that is still stored."
)
@click.option("--by", type=int, help="Move forward by N messages, or back if N is negative.")
@click.option("--queue", type=click.IntRange(0), help="Reset only the queue with this number.")
@click.option("--broker", type=BROKER, help="Reset only queues on this broker.")
@click.option("--execute", is_flag=True, help="Set the new offsets instead of only showing them.")
@click.option("--force", is_flag=True, help="Reset the offsets even if members of the group are running.")
@dry_run_option
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
    """Show new offsets for a group, and set them if --execute is given.

    Stop the group's members first. With --force, running members seek to the new offsets, but only for --earliest,
    --latest, or --to-time on all queues. Other offsets are only committed, and a running member may overwrite them.
    """
    demand_group_name(group)
    demand_topic_name(topic)
    if earliest + latest + sum(given is not None for given in (moment, to_offset, by)) != 1:
        raise WrongUseError("give one of --earliest, --latest, --to-time, --to-offset, --by")
    execute = execute and not is_dry_run()
    timestamp = EARLIEST if earliest else LATEST if latest else moment
    target = Target(timestamp, to_offset, by)
    is_partial = queue is not None or broker is not None

    async def work(admin: Admin) -> list[Move]:
        try:
            moves = await planned_moves(admin, group, topic, target, queue_id=queue, broker=broker)
        except NoSuchQueueError as error:
            raise WrongUseError(error.message, next_step=error.next_step) from error
        if execute:
            told_ms = None if is_partial else timestamp
            await execute_moves(admin, group, topic, moves, force_to_ms=told_ms, force=force)
        return moves

    moves = administer(namesrv, work)
    show([_row(move) for move in moves], _MOVES, output, title=f"Offsets of group {group} in topic {topic}")
    if execute:
        notify(f"Reset group {group} in {quantity(len(moves), 'queue')} of topic {topic}.")
    else:
        notify("Nothing was changed; add --execute to move the offsets.")


def _row(move: Move) -> dict[str, Any]:
    """Return an output row with the numbers of messages that are skipped or delivered again."""
    return {
        "broker": move.queue.broker_name,
        "queue_id": move.queue.queue_id,
        "from": move.before,
        "to": move.after,
        "skipped": move.skipped,
        "again": move.again,
    }
