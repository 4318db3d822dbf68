"""``cometmq topic``: list, create, change, describe and delete topics."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.admin.lite.topic_lite import lite
from cometmq.cli.admin.topic_config import alter, create
from cometmq.cli.admin.topic_delete import delete
from cometmq.cli.admin.topic_transfer import export, import_settings
from cometmq.cli.connection import namesrv_option, survey
from cometmq.cli.moments import local_time
from cometmq.cli.names import TOPIC
from cometmq.cli.output import Column, Progress, output_option, show
from cometmq.cli.part import Part, part_options
from cometmq.client.admin import Admin
from cometmq.client.admin.several import users_topics
from cometmq.client.admin.topic_settings import MESSAGE_TYPES, other_attributes, permission_text
from cometmq.message.names import MESSAGE_TYPE
from cometmq.message.queue_names import own_spelling
from cometmq.remoting.bodies import TopicRouteData

_FEW_TOPICS: Final = 5_000
"""The routes of that many topics are read without a progress bar."""
_LIST: Final = (
    Column("topic", "Topic", topics=True),
    Column("brokers", "Brokers", prose=True),
    Column("read_queues", "Read queues", right=True),
    Column("write_queues", "Write queues", right=True),
    Column("permission", "Permission"),
)
_DESCRIBE: Final = (
    Column("broker", "Broker"),
    Column("cluster", "Cluster"),
    Column("read_queues", "Read queues", right=True),
    Column("write_queues", "Write queues", right=True),
    Column("permission", "Permission"),
    Column("type", "Type"),
    Column("messages", "Messages", right=True),
    Column("last_message", "Last message", time=True),
    Column("attributes", "Attributes", prose=True),
)
_STATS: Final = (
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("min_offset", "Min offset", right=True),
    Column("max_offset", "Max offset", right=True),
    Column("messages", "Messages", right=True),
    Column("last_message", "Last message", time=True),
)
_ROUTE: Final = (
    Column("broker", "Broker"),
    Column("cluster", "Cluster"),
    Column("broker_id", "Id", right=True),
    Column("address", "Address"),
)


@click.group("topic")
def command() -> None:
    """List, create, change, describe and delete topics."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Include system, retry and dead-letter topics.")
@part_options(1_000)
@namesrv_option
@output_option
def list_topics(everything: bool, part: Part, namesrv: str, output: str) -> None:
    """List topics with their queues."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        names = await admin.topics() if everything else await users_topics(admin)
        shown = part.of(names)
        with Progress("Reading routes", len(shown) if len(shown) > _FEW_TOPICS else None) as progress:
            routes = await admin.topic_routes(shown, progress.advance)
        return [_list_row(name, routes.get(name, TopicRouteData())) for name in shown]

    show(survey(namesrv, work), _LIST, output, title="Topics")


command.add_command(create)
command.add_command(alter)
command.add_command(export)
command.add_command(import_settings)
command.add_command(lite)


command.add_command(delete)


@command.command("describe")
@click.argument("topic", type=TOPIC)
@namesrv_option
@output_option
def describe(topic: str, namesrv: str, output: str) -> None:
    """Show a topic's queues and messages on each broker."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        route = await admin.topic_route(topic)
        stats = await _stats(admin, topic)
        attributes = await admin.topic_attributes(topic)
        clusters = {data.broker_name: data.cluster for data in route.broker_datas}
        rows = []
        for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name):
            settings = attributes.get(queues.broker_name)
            mine = [row for row in stats if row["broker"] == queues.broker_name]
            rows.append(
                {
                    "broker": queues.broker_name,
                    "cluster": clusters.get(queues.broker_name),
                    "read_queues": queues.read_queue_nums,
                    "write_queues": queues.write_queue_nums,
                    "permission": permission_text(queues.perm),
                    "type": None if settings is None else settings.get(MESSAGE_TYPE, MESSAGE_TYPES[0]),
                    "attributes": other_attributes(settings),
                    "messages": sum(row["messages"] for row in mine),
                    "last_message": max((row["last_message"] or "" for row in mine), default="") or None,
                }
            )
        return rows

    rows = survey(namesrv, work)
    columns = _DESCRIBE if output != "table" or any(row["attributes"] for row in rows) else _DESCRIBE[:-1]
    show(rows, columns, output, title=f"Topic {own_spelling(topic)}")


@command.command("stats")
@click.argument("topic", type=TOPIC)
@namesrv_option
@output_option
def stats(topic: str, namesrv: str, output: str) -> None:
    """Show the minimum and maximum offset of every queue in a topic."""
    rows = survey(namesrv, lambda admin: _stats(admin, topic))
    show(rows, _STATS, output, title=f"Queues of topic {own_spelling(topic)}")


@command.command("route")
@click.argument("topic", type=TOPIC)
@namesrv_option
@output_option
def route_of(topic: str, namesrv: str, output: str) -> None:
    """Show the addresses of the brokers that have a topic."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        route = await admin.topic_route(topic)
        return [
            {"broker": data.broker_name, "cluster": data.cluster, "broker_id": broker_id, "address": address}
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
            for broker_id, address in sorted(data.broker_addrs.items())
        ]

    show(survey(namesrv, work), _ROUTE, output, title=f"Route of topic {own_spelling(topic)}")


async def _stats(admin: Admin, topic: str) -> list[dict[str, Any]]:
    table = (await admin.topic_stats(topic)).offset_table
    return [
        {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": offsets.min_offset,
            "max_offset": offsets.max_offset,
            "messages": offsets.max_offset - offsets.min_offset,
            "last_message": local_time(offsets.last_update_timestamp),
        }
        for queue, offsets in sorted(table.items())
    ]


def _list_row(name: str, route: TopicRouteData) -> dict[str, Any]:
    return {
        "topic": name,
        "brokers": sorted(queues.broker_name for queues in route.queue_datas),
        "read_queues": sum(queues.read_queue_nums for queues in route.queue_datas),
        "write_queues": sum(queues.write_queue_nums for queues in route.queue_datas),
        "permission": ", ".join(sorted({permission_text(queues.perm) for queues in route.queue_datas})),
    }
