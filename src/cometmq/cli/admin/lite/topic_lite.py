"""``cometmq topic lite``: list, describe and remove lite topics, and show who reads them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

import click

from cometmq.cli.admin.changes import partly_done, yes_option
from cometmq.cli.connection import (
    administer,
    ask_cometmq_broker,
    confirm_deletion,
    demand_topic_name,
    namesrv_option,
    survey,
)
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.failures import WrongUseError
from cometmq.cli.moments import local_time
from cometmq.cli.names import GROUP, TOPIC
from cometmq.cli.output import Column, Progress, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.many import each
from cometmq.errors import CometMQError
from cometmq.message.lite_names import check_lite_topic
from cometmq.quantity import quantity
from cometmq.remoting.lite.bodies import ExpireLiteTopicsResponseBody, GetLiteGroupInfoResponseBody, LiteTopicInfo

T = TypeVar("T")

_LIST: Final = (
    Column("broker", "Broker"),
    Column("lite_topic", "Lite topic"),
    Column("messages", "Messages", right=True),
    Column("min_offset", "Min offset", right=True),
    Column("max_offset", "Max offset", right=True),
    Column("last_message", "Last message", time=True),
    Column("subscribers", "Clients", right=True),
)
_DESCRIBE: Final = (
    Column("broker", "Broker"),
    Column("min_offset", "Min offset", right=True),
    Column("max_offset", "Max offset", right=True),
    Column("last_message", "Last message", time=True),
    Column("clients", "Clients", prose=True, items=5),
)
_PARENT: Final = (
    Column("broker", "Broker"),
    Column("lite_topics", "Lite topics", right=True),
    Column("expiration_minutes", "Expiration (min)", right=True),
    Column("groups", "Groups", prose=True, items=5),
)
_LAG: Final = (
    Column("broker", "Broker"),
    Column("lite_topic", "Lite topic"),
    Column("lag", "Lag", right=True),
    Column("unread_since", "Unread since", time=True),
)
_CLIENT: Final = (
    Column("broker", "Broker"),
    Column("lite_topic", "Lite topic"),
    Column("last_pop", "Last pop", time=True),
    Column("last_message", "Last pop with messages", time=True),
)
_NEXT_STEP: Final = "only CometMQ's brokers can; cometmq topic lite lag TOPIC GROUP works with RocketMQ 5.5, too"
_EXPIRE_NEXT_STEP: Final = "only CometMQ's brokers can; Apache's remove a lite topic after its lite.topic.expiration"
_OLD_NEXT_STEP: Final = "RocketMQ 5.5 and newer have lite topics"
_limit_option = click.option(
    "--limit", type=click.IntRange(0), default=1_000, show_default=True, help="Number of rows per page; 0 shows all."
)


@click.group("lite")
def lite() -> None:
    """List, describe and remove lite topics, and show who reads them.

    TOPIC is the parent topic, which has the type LITE.
    """


@lite.command("list")
@click.argument("topic", type=TOPIC)
@click.option("--prefix", default="", help="List only lite topics whose names begin with this text.")
@_limit_option
@click.option("--page", type=click.IntRange(1), default=1, help="Page number, starting at 1.")
@namesrv_option
@output_option
def list_lite_topics(topic: str, prefix: str, limit: int, page: int, namesrv: str, output: str) -> None:
    """List the lite topics of a parent topic.

    They are in the order of each broker, which is not alphabetical. Only CometMQ's brokers can list them.
    """
    demand_topic_name(topic)

    async def work(admin: Admin) -> dict[str, list[LiteTopicInfo]]:
        asking = admin.lite_topics(topic, prefix=prefix, skip=(page - 1) * limit, limit=limit)
        return await ask_cometmq_broker(f"of topic {topic}", asking, "list lite topics", _NEXT_STEP)

    rows = [
        {
            "broker": broker,
            "lite_topic": info.lite_topic,
            "messages": info.max_offset - info.min_offset,
            "min_offset": info.min_offset,
            "max_offset": info.max_offset,
            "last_message": local_time(info.last_update_timestamp),
            "subscribers": info.subscribers,
        }
        for broker, found in survey(namesrv, work).items()
        for info in found
    ]
    show(rows, _LIST, output, title=f"Lite topics of {topic}")
    if limit and len(rows) == limit:
        notify(f"There may be more: --page {page + 1} shows them, --prefix filters, --limit 0 shows all.")


@lite.command("describe")
@click.argument("topic", type=TOPIC)
@click.argument("lite_topic", required=False)
@namesrv_option
@output_option
def describe(topic: str, lite_topic: str | None, namesrv: str, output: str) -> None:
    """Show a lite topic's messages and clients.

    Without LITE_TOPIC, the command shows the settings and groups of the parent topic.
    """
    demand_topic_name(topic)

    async def parent(admin: Admin) -> list[dict[str, Any]]:
        found = await _ask(topic, admin.lite_parent(topic))
        return [
            {
                "broker": broker,
                "lite_topics": info.lite_topic_count,
                "expiration_minutes": info.ttl,
                "groups": sorted(info.groups),
            }
            for broker, info in found.items()
        ]

    async def one(admin: Admin, name: str) -> list[dict[str, Any]]:
        found = await _ask(topic, admin.lite_topic(topic, name))
        return [
            {
                "broker": broker,
                "min_offset": info.topic_offset.min_offset,
                "max_offset": info.topic_offset.max_offset,
                "last_message": local_time(info.topic_offset.last_update_timestamp),
                "clients": [f"{client.client_id} ({client.group})" for client in info.subscriber],
            }
            for broker, info in found.items()
            if info.topic_offset is not None and (info.topic_offset.max_offset or info.subscriber)
        ]

    if lite_topic is None:
        show(survey(namesrv, parent), _PARENT, output, title=f"Parent topic {topic}")
        return
    name = _demand_name(lite_topic)
    rows = survey(namesrv, lambda admin: one(admin, name))
    if not rows:
        raise CometMQError(
            f"no broker has messages or clients of lite topic {name} of {topic}",
            next_step=f"cometmq topic lite list {topic} shows the lite topics",
        )
    show(rows, _DESCRIBE, output, title=f"Lite topic {name} of {topic}")


@lite.command("lag")
@click.argument("topic", type=TOPIC)
@click.argument("group", type=GROUP)
@click.option("--lite", "lite_topic", metavar="LITE_TOPIC", help="Show only this lite topic.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Number of lite topics per broker."
)
@namesrv_option
@output_option
def lag(topic: str, group: str, lite_topic: str | None, limit: int, namesrv: str, output: str) -> None:
    """Show the lite topics in which a group lags most."""
    demand_topic_name(topic)
    name = None if lite_topic is None else _demand_name(lite_topic)

    async def work(admin: Admin) -> dict[str, GetLiteGroupInfoResponseBody]:
        return await _ask(topic, admin.lite_lag(topic, group, name, top=limit))

    found = survey(namesrv, work)
    rows = []
    for broker, info in found.items():
        if name is not None:
            since = info.earliest_unconsumed_timestamp
            lags = [] if info.total_lag_count < 0 else [(name, info.total_lag_count, since)]
        else:
            lags = [(one.lite_topic, one.lag_count, one.earliest_unconsumed_timestamp) for one in info.lag_count_top_k]
        rows += [
            {"broker": broker, "lite_topic": lite_topic, "lag": count, "unread_since": _time(since)}
            for lite_topic, count, since in lags
        ]
    show(rows, _LAG, output, title=f"Lag of group {group} in {topic}")
    if name is None:
        total = sum(max(info.total_lag_count, 0) for info in found.values())
        notify(f"Group {group} has not consumed {quantity(total, 'message')}.")


@lite.command("client")
@click.argument("topic", type=TOPIC)
@click.argument("group", type=GROUP)
@click.argument("client_id")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Maximum number of lite topics."
)
@namesrv_option
@output_option
def client(topic: str, group: str, client_id: str, limit: int, namesrv: str, output: str) -> None:
    """Show the lite topics of a client, and its last pops."""
    demand_topic_name(topic)
    found = survey(namesrv, lambda admin: _ask(topic, admin.lite_client(topic, group, client_id, max_names=limit)))
    if all(info.lite_topic_count < 0 for info in found.values()):
        raise CometMQError(
            f"no broker knows the client {client_id} of group {group}",
            next_step="cometmq topic lite describe TOPIC LITE_TOPIC shows the clients of a lite topic",
        )
    rows = [
        {
            "broker": broker,
            "lite_topic": name,
            "last_pop": _time(info.last_access_time),
            "last_message": _time(info.last_consume_time),
        }
        for broker, info in found.items()
        for name in sorted(info.lite_topic_set)
    ]
    show(rows, _CLIENT, output, title=f"Lite topics of client {client_id}")
    total = sum(max(info.lite_topic_count, 0) for info in found.values())
    if total > len(rows):
        notify(f"The client subscribes to {quantity(total, 'lite topic')}; --limit N shows more.")


@lite.command("expire")
@click.argument("topic", type=TOPIC)
@click.argument("lite_topics", metavar="[LITE_TOPIC]…", nargs=-1)
@click.option("--prefix", help="Remove all lite topics whose names begin with this text.")
@click.option("--with-unread", is_flag=True, help="Remove lite topics with messages that a group has not read, too.")
@yes_option
@dry_run_option
@namesrv_option
def expire(
    topic: str, lite_topics: tuple[str, ...], prefix: str | None, with_unread: bool, yes: bool, namesrv: str
) -> None:
    """Remove lite topics now, without waiting for their expiration.

    Lite topics to which a client subscribes by name, or whose messages a client holds, are kept. The messages remain
    in the parent topic. Only CometMQ's brokers can remove lite topics.
    """
    demand_topic_name(topic)
    if bool(lite_topics) == (prefix is not None):
        raise WrongUseError("give either lite topics or --prefix")
    names = [_demand_name(name) for name in lite_topics]
    what = f"lite topics of {topic}"
    if not yes and not is_dry_run():
        confirm_deletion(what, "groups of lite topics do not read their messages any more")

    async def work(admin: Admin) -> None:
        if is_dry_run():
            show_only(what, await _removable(admin, topic, names, prefix))
            return
        answers: list[ExpireLiteTopicsResponseBody] = []

        async def one(name: str | None) -> None:
            asking = admin.expire_lite_topics(topic, name, prefix=prefix, with_unread=with_unread)
            found = await ask_cometmq_broker(f"of topic {topic}", asking, "remove lite topics", _EXPIRE_NEXT_STEP)
            answers.extend(found.values())

        if prefix is not None:
            await one(None)
        else:
            with partly_done(), Progress("Removing lite topics", len(names) if len(names) > 1 else None) as progress:
                await each(names, one, "removed", progress.advance)
        removed = sum(answer.removed for answer in answers)
        notify(f"Removed {quantity(removed, 'lite topic')} of {topic}.")
        if read := sum(answer.read for answer in answers):
            notify(f"Kept {quantity(read, 'lite topic')} that a client reads.")
        if unread := sum(answer.unread for answer in answers):
            notify(f"Kept {quantity(unread, 'lite topic')} with unread messages; --with-unread removes them, too.")

    administer(namesrv, work)


async def _removable(admin: Admin, topic: str, names: list[str], prefix: str | None) -> list[Change]:
    """Return the lite topics that match, for a dry run."""
    changes: list[Change] = []
    for text in names if prefix is None else [prefix]:
        asking = admin.lite_topics(topic, prefix=text, limit=0)
        found = await ask_cometmq_broker(f"of topic {topic}", asking, "remove lite topics", _EXPIRE_NEXT_STEP)
        changes += [
            Change(broker, info.lite_topic, quantity(info.max_offset - info.min_offset, "message"), None)
            for broker, infos in found.items()
            for info in infos
            if prefix is not None or info.lite_topic == text
        ]
    return changes


async def _ask(topic: str, asking: Awaitable[T]) -> T:
    return await ask_cometmq_broker(f"of topic {topic}", asking, "answer questions about lite topics", _OLD_NEXT_STEP)


def _demand_name(name: str) -> str:
    wrong = check_lite_topic(name)
    if wrong is not None:
        raise WrongUseError(f"{name!r} is not a valid name of a lite topic: {wrong}")
    return name


def _time(milliseconds: int) -> str | None:
    return None if milliseconds < 0 else local_time(milliseconds)
