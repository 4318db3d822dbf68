"""``cometmq group``: consumer groups, their members and how far they are."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.administration import administer, confirm_deletion, demand_group_name, gathered, namesrv_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.moments import Moment, local_time
from cometmq.cli.output import Column, output_option, show, tell
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.client.progress import ConsumeProgress
from cometmq.errors import CometMQError
from cometmq.message.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, dlq_topic, retry_topic
from cometmq.quantity import quantity
from cometmq.remoting.bodies import ConsumerConnection, SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode

EARLIEST: Final = 0
LATEST: Final = -1
"""Times that stand for the ends of a queue, as RocketMQ's tools use them."""

_LIST: Final = (
    Column("group", "Group"),
    Column("members", "Members", right=True),
    Column("topics", "Topics", prose=True),
    Column("lag", "Lag", right=True),
    Column("model", "Model"),
)
_MEMBERS: Final = (
    Column("client_id", "Client"),
    Column("address", "Address"),
    Column("language", "Language"),
    Column("version", "Version", right=True),
    Column("subscriptions", "Subscriptions", prose=True),
)
_OFFSETS: Final = (
    Column("topic", "Topic", prose=True),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("consumer_offset", "Consumed to", right=True),
    Column("broker_offset", "Stored to", right=True),
    Column("lag", "Lag", right=True),
    Column("last_consumed", "Last consumed message", time=True),
)


@click.group("group")
def command() -> None:
    """List and describe consumer groups, show and reset their offsets."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also groups that every broker has.")
@namesrv_option
@output_option
def list_groups(everything: bool, namesrv: str, output: str) -> None:
    """List groups with their members and how far behind they are."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        names = [
            name
            for name in await admin.groups()
            if everything or not (name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX))
        ]
        rows = await gathered({name: _list_row(admin, name) for name in names})
        return list(rows.values())

    show(administer(namesrv, work), _LIST, output, title="Consumer groups")


@command.command("create")
@click.argument("group")
@click.option(
    "--max-retries",
    type=click.IntRange(-1, 1000),
    default=16,
    show_default=True,
    help="Deliveries again before the dead letters.",
)
@click.option(
    "--retry-queues", type=click.IntRange(0, 64), default=1, show_default=True, help="Queues of its retry topic."
)
@click.option("--cluster", help="Only on the brokers of this cluster.")
@namesrv_option
def create(group: str, max_retries: int, retry_queues: int, cluster: str | None, namesrv: str) -> None:
    """Create a group on every broker, or change it where it exists."""
    demand_group_name(group)
    config = SubscriptionGroupConfig(group_name=group, retry_max_times=max_retries, retry_queue_nums=retry_queues)
    administer(namesrv, lambda admin: admin.create_group(config, cluster=cluster))
    tell(f"Group {group} is created.")


@command.command("delete")
@click.argument("group")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-offsets", is_flag=True, help="Keep how far the group was.")
@namesrv_option
def delete(group: str, yes: bool, keep_offsets: bool, namesrv: str) -> None:
    """Delete a group with its retry and dead-letter topics."""
    demand_group_name(group)
    if not yes:
        confirm_deletion(f"group {group}", "deletes its retried and dead messages")

    async def work(admin: Admin) -> None:
        await _demand_group(admin, group)
        await admin.delete_group(group, remove_offsets=not keep_offsets)
        for topic in (retry_topic(group), dlq_topic(group)):
            if topic in await admin.topics():
                await admin.delete_topic(topic)
        tell(f"Group {group} is deleted.")

    administer(namesrv, work)


@command.command("describe")
@click.argument("group")
@namesrv_option
@output_option
def describe(group: str, namesrv: str, output: str) -> None:
    """Show the members of a group and what they subscribe to."""

    async def work(admin: Admin) -> ConsumerConnection:
        found = await _connection(admin, group)
        if not found.connection_set:
            await _demand_group(admin, group)
        return found

    found = administer(namesrv, work)
    texts = sorted(f"{item.topic}:{item.sub_string or '*'}" for item in found.subscription_table.values())
    rows = [
        {
            "client_id": member.client_id,
            "address": member.client_addr,
            "language": member.language,
            "version": member.version,
            "subscriptions": texts,
        }
        for member in sorted(found.connection_set, key=lambda member: member.client_id)
    ]
    show(rows, _MEMBERS, output, title=f"Members of group {group}")


@command.command("offsets")
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@namesrv_option
@output_option
def offsets(group: str, topic: str | None, namesrv: str, output: str) -> None:
    """Show how far a group is in every queue."""

    async def work(admin: Admin) -> ConsumeProgress:
        progress = await _progress(admin, group, topic)
        if not progress.queues:
            await _demand_group(admin, group)
        return progress

    progress = administer(namesrv, work)
    rows = [
        {
            "topic": state.queue.topic,
            "broker": state.queue.broker_name,
            "queue_id": state.queue.queue_id,
            "consumer_offset": state.consumer_offset,
            "broker_offset": state.broker_offset,
            "lag": state.lag,
            "last_consumed": local_time(state.last_timestamp),
        }
        for state in progress.queues
    ]
    show(rows, _OFFSETS, output, title=f"Offsets of group {group}")


@command.command("reset")
@click.argument("group")
@click.option("--topic", required=True, help="The topic to reset.")
@click.option("--earliest", is_flag=True, help="To the first message kept.")
@click.option("--latest", is_flag=True, help="Past the last message.")
@click.option("--time", "moment", type=Moment(), help="To the first message stored at or after this time.")
@namesrv_option
def reset(group: str, topic: str, earliest: bool, latest: bool, moment: int | None, namesrv: str) -> None:
    """Move a group to another place in a topic.

    It works whether members of the group are consuming now or not.
    """
    demand_group_name(group)
    if earliest + latest + (moment is not None) != 1:
        raise WrongUseError("say where to reset to: one of --earliest, --latest, --time")
    timestamp = EARLIEST if earliest else LATEST if latest else moment
    assert timestamp is not None
    moved = administer(namesrv, lambda admin: admin.reset_offset(group, topic, timestamp))
    tell(f"Group {group} is reset in {quantity(len(moved), 'queue')} of topic {topic}.")


async def _list_row(admin: Admin, group: str) -> dict[str, Any]:
    found = await _connection(admin, group)
    progress = await _progress(admin, group, None)
    topics = set(found.subscription_table) | {state.queue.topic for state in progress.queues}
    return {
        "group": group,
        "members": len(found.connection_set),
        "topics": sorted(topics - {retry_topic(group)}),
        "lag": sum(state.lag for state in progress.queues if state.queue.topic != retry_topic(group)),
        "model": (found.message_model or "").lower() or None,
    }


async def _demand_group(admin: Admin, group: str) -> None:
    """Demand that a broker has the group.

    :raises CometMQError: none has.
    """
    if group not in await admin.groups():
        raise CometMQError(f"there is no group {group}", next_step="cometmq group list shows all")


async def _connection(admin: Admin, group: str) -> ConsumerConnection:
    """Who consumes as a group; nobody when no broker knows a member."""
    try:
        return await admin.consumer_connection(group)
    except BrokerError as error:
        if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return ConsumerConnection()
        raise


async def _progress(admin: Admin, group: str, topic: str | None) -> ConsumeProgress:
    """How far a group is; nowhere when it has never consumed."""
    try:
        return await admin.consume_progress(group, topic)
    except (BrokerError, RouteNotFoundError) as error:
        if topic is None and error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return ConsumeProgress(group, (), 0.0)
        raise
