"""``cometmq topic delete``: delete topics and all their messages, after a confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Final

import click

from cometmq.cli.admin.changes import partly_done, yes_option
from cometmq.cli.connection import administer, confirm_deletion, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.failures import WrongUseError
from cometmq.cli.names import TOPIC
from cometmq.cli.output import Progress, notify
from cometmq.cli.part import match_option, matching_names
from cometmq.cli.topic_names import chosen_names, file_option
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.many import each
from cometmq.client.admin.several import gathered, users_topics
from cometmq.client.admin.topic_settings import settings_text
from cometmq.errors import CometMQError
from cometmq.quantity import quantity
from cometmq.remoting.admin_bodies import TopicStatsTable

_NAMED: Final = 10
"""Maximum number of topic names that are shown before the confirmation."""


@click.command("delete")
@click.argument("topics", metavar="TOPIC…", nargs=-1, type=TOPIC)
@file_option
@match_option
@yes_option
@click.option("--cluster", help="Use only the brokers in this cluster.")
@dry_run_option
@namesrv_option
def delete(
    topics: tuple[str, ...], file: IO[str] | None, match: str | None, yes: bool, cluster: str | None, namesrv: str
) -> None:
    """Delete topics and all their messages.

    --match never selects system, retry or dead-letter topics. --dry-run shows what would be deleted.
    """
    names = chosen_names(topics, file)
    if not names and match is None:
        raise WrongUseError("give a topic, a file with --file, or a pattern with --match")

    async def work(admin: Admin) -> None:
        found = await _existing(admin, names, match)
        what = f"topic {found[0]}" if len(found) == 1 else quantity(len(found), "topic")
        if is_dry_run():
            show_only(what, await _losses(admin, found, cluster))
            return
        if not yes:
            if len(found) > 1:
                more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
                notify(f"Topics {', '.join(found[:_NAMED])}{more}.")
            confirm_deletion(what, f"deletes {'its' if len(found) == 1 else 'their'} messages")

        async def remove(topic: str) -> None:
            await admin.delete_topic(topic, cluster=cluster)

        with partly_done(), Progress("Deleting topics", len(found) if len(found) > 1 else None) as progress:
            await each(found, remove, "deleted", progress.advance)
        notify(f"Deleted {what}.")

    administer(namesrv, work)


async def _existing(admin: Admin, names: Sequence[str], match: str | None) -> list[str]:
    """Return the existing topics among the given names, and the topics that match a pattern.

    :raises CometMQError: none of the topics exists.
    """
    if match is None and len(names) == 1:
        await admin.topic_route(names[0])
        return list(names)
    there = set(await admin.topics())
    found = dict.fromkeys(name for name in names if name in there)
    if match is not None:
        found |= dict.fromkeys(matching_names(await users_topics(admin), match))
    if not found:
        wanted = f"no topic matches {match}" if match is not None else f"none of these {len(names):,} topics exists"
        raise CometMQError(wanted, next_step="list all with cometmq topic list")
    if absent := [name for name in names if name not in there]:
        notify(f"Skipped because they do not exist: {', '.join(absent[:_NAMED])}{', …' * (len(absent) > _NAMED)}.")
    return list(found)


async def _losses(admin: Admin, topics: Sequence[str], cluster: str | None) -> list[Change]:
    """Return the settings and messages that are removed from the brokers when topics are deleted."""
    masters = await admin.masters(cluster)
    tables = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    places = [(name, topic) for topic in topics for name, table in tables.items() if topic in table]
    stats = await gathered({(name, topic): admin.topic_stats_of(topic, masters[name]) for name, topic in places})
    return [
        Change(
            name,
            topic,
            f"{settings_text(tables[name][topic])}, {quantity(_messages(stats[name, topic]), 'message')}",
            None,
        )
        for name, topic in places
    ]


def _messages(stats: TopicStatsTable) -> int:
    return sum(offsets.max_offset - offsets.min_offset for offsets in stats.offset_table.values())
