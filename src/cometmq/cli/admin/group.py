"""``cometmq group``: manage consumer groups, and show their members and offsets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from cometmq.cli.admin.changes import yes_option
from cometmq.cli.admin.group_config import alter, create
from cometmq.cli.admin.group_reset import reset
from cometmq.cli.connection import administer, confirm_deletion, demand_group_name, namesrv_option, survey
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.moments import local_time
from cometmq.cli.names import GROUP, TOPIC
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.cli.part import Part, part_options
from cometmq.client.admin import Admin, ConsumeProgress
from cometmq.client.admin.changes import Change
from cometmq.client.admin.group_settings import attributes_of, groups_of_brokers
from cometmq.client.admin.group_summary import (
    check_no_members,
    delete_whole_group,
    own_topics,
    progress_of,
    summaries_of,
    users_groups,
)
from cometmq.client.admin.members import (
    Member,
    check_group_exists,
    contradictions,
    subscriptions_of,
)
from cometmq.quantity import quantity
from cometmq.remoting.bodies import SubscriptionGroupConfig

_LIST: Final = (
    Column("group", "Group"),
    Column("members", "Members", right=True),
    Column("topics", "Topics", prose=True, topics=True, items=5),
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
_SETTINGS: Final = (
    Column("broker", "Broker"),
    Column("max_retries", "Max retries", right=True),
    Column("retry_queues", "Retry queues", right=True),
    Column("consume", "Consume"),
    Column("attributes", "Attributes", prose=True),
)
_OFFSETS: Final = (
    Column("topic", "Topic", prose=True, topics=True),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("consumer_offset", "Consumed to", right=True),
    Column("broker_offset", "Stored to", right=True),
    Column("lag", "Lag", right=True),
    Column("in_flight", "In flight", right=True),
    Column("last_consumed", "Last consumed message", time=True),
)


@click.group("group")
def command() -> None:
    """List, create, change and describe consumer groups, show and reset their offsets."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Include system groups.")
@part_options(50)
@namesrv_option
@output_option
def list_groups(everything: bool, part: Part, namesrv: str, output: str) -> None:
    """List groups with their members and lag."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        names = list(await admin.groups()) if everything else await users_groups(admin)
        return [asdict(row) for row in (await summaries_of(admin, part.of(names))).values()]

    show(survey(namesrv, work), _LIST, output, title="Consumer groups")


command.add_command(create)
command.add_command(alter)
command.add_command(reset)


@command.command("delete")
@click.argument("group", type=GROUP)
@yes_option
@click.option("--keep-offsets", is_flag=True, help="Keep the group's offsets.")
@dry_run_option
@namesrv_option
def delete(group: str, yes: bool, keep_offsets: bool, namesrv: str) -> None:
    """Delete a group together with its retry and dead-letter topics."""
    demand_group_name(group)
    if not yes:
        confirm_deletion(f"group {group}", "deletes its retry and dead-letter messages")

    async def work(admin: Admin) -> None:
        if is_dry_run():
            await check_no_members(admin, group)
            show_only(f"group {group}", await _losses(admin, group, keep_offsets=keep_offsets))
            return
        await delete_whole_group(admin, group, keep_offsets=keep_offsets)
        notify(f"Deleted group {group}.")

    administer(namesrv, work)


@command.command("describe")
@click.argument("group", type=GROUP)
@click.option("--settings", is_flag=True, help="Show its settings and attributes on each broker, not its members.")
@namesrv_option
@output_option
def describe(group: str, settings: bool, namesrv: str, output: str) -> None:
    """Show a group's members and subscriptions, or its settings."""

    async def work(admin: Admin) -> tuple[list[Member], dict[str, SubscriptionGroupConfig]]:
        members = [] if settings else await subscriptions_of(admin, group)
        configs = await admin.group_configs(group)
        if settings and not configs:  # RocketMQ 4 does not know that request
            configs = await groups_of_brokers(admin, group, await admin.masters())
        if not members and not configs:
            await check_group_exists(admin, group)
        return members, configs

    members, configs = survey(namesrv, work)
    if settings:
        _show_settings(group, configs, output)
        return
    rows = [
        {
            "client_id": member.connection.client_id,
            "address": member.connection.client_addr,
            "language": member.connection.language,
            "version": member.connection.version,
            "subscriptions": None
            if member.subscriptions is None
            else [f"{topic}:{expression}" for topic, expression in member.subscriptions.items()],
        }
        for member in members
    ]
    show(rows, _MEMBERS, output, title=f"Members of group {group}")
    for text, brokers in _attributes(configs).items():
        notify(f"Attributes on {', '.join(brokers)}: {text}.")
    for sentence in contradictions(members):
        notify(f"Contradiction: {sentence}. The group misses messages: all members need the same subscriptions.")


def _show_settings(group: str, configs: dict[str, SubscriptionGroupConfig], output: str) -> None:
    rows = [
        {
            "broker": name,
            "max_retries": config.retry_max_times,
            "retry_queues": config.retry_queue_nums,
            "consume": config.consume_enable,
            "attributes": dict(sorted(attributes_of(config).items())),
        }
        for name, config in sorted(configs.items())
    ]
    show(rows, _SETTINGS, output, title=f"Settings of group {group}")


def _attributes(configs: dict[str, SubscriptionGroupConfig]) -> dict[str, list[str]]:
    """Return the attributes in words, each with the brokers that have them."""
    found: dict[str, list[str]] = {}
    for broker, config in sorted(configs.items()):
        text = ", ".join(f"{name}={value}" for name, value in sorted(attributes_of(config).items()))
        if text:
            found.setdefault(text, []).append(broker)
    return found


@command.command("offsets")
@click.argument("group", type=GROUP)
@click.option("--topic", type=TOPIC, help="Show only this topic.")
@namesrv_option
@output_option
def offsets(group: str, topic: str | None, namesrv: str, output: str) -> None:
    """Show a group's offset and lag in every queue."""

    async def work(admin: Admin) -> ConsumeProgress:
        progress = await progress_of(admin, group, topic)
        if not progress.queues:
            await check_group_exists(admin, group)
        return progress

    progress = survey(namesrv, work)
    rows = [
        {
            "topic": state.queue.topic,
            "broker": state.queue.broker_name,
            "queue_id": state.queue.queue_id,
            "consumer_offset": state.consumer_offset,
            "broker_offset": state.broker_offset,
            "lag": state.lag,
            "in_flight": state.in_flight,
            "last_consumed": local_time(state.last_timestamp),
        }
        for state in progress.queues
    ]
    show(rows, _OFFSETS, output, title=f"Offsets of group {group}")


async def _losses(admin: Admin, group: str, *, keep_offsets: bool) -> list[Change]:
    """Return the settings, topics and offsets that are removed from the brokers when a group is deleted."""
    existing = await groups_of_brokers(admin, group, await admin.masters())
    changes = [Change(name, group, f"max retries {config.retry_max_times}", None) for name, config in existing.items()]
    topics = await admin.topics()
    changes += [Change("all", topic, "with its messages", None) for topic in own_topics(group) if topic in topics]
    progress = await progress_of(admin, group)
    if progress.queues and not keep_offsets:
        changes.append(Change("all", "offsets", f"in {quantity(len(progress.queues), 'queue')}", None))
    return changes
