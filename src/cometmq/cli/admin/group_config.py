"""``cometmq group create`` and ``alter``: create groups, and change them after showing the changes."""

from __future__ import annotations

from typing import Final

import click
import msgspec

from cometmq.cli.admin.changes import attribute_option, confirm_changes, parse_settings, yes_option
from cometmq.cli.connection import administer, demand_group_name, namesrv_option
from cometmq.cli.dry_run import dry_run_option, show_only
from cometmq.cli.failures import WrongUseError
from cometmq.cli.names import GROUP
from cometmq.cli.output import notify
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.group_settings import (
    as_change,
    attributes_of,
    differences,
    groups_of_brokers,
    settings_text,
    with_attributes,
)
from cometmq.client.admin.several import chosen_masters
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import SubscriptionGroupConfig

_retries: Final = click.IntRange(-1, 1000)
_retry_queues: Final = click.IntRange(0, 64)
_cluster_option = click.option("--cluster", help="Use only the brokers in this cluster.")


class GroupExistsError(CometMQError):
    """A group already exists with different settings."""


@click.command("create")
@click.argument("group")
@click.option(
    "--max-retries",
    type=_retries,
    default=16,
    show_default=True,
    help="Number of redeliveries before a message becomes a dead letter.",
)
@click.option(
    "--retry-queues",
    type=_retry_queues,
    default=1,
    show_default=True,
    help="Number of queues in the group's retry topic.",
)
@attribute_option
@_cluster_option
@dry_run_option
@namesrv_option
def create(
    group: str, max_retries: int, retry_queues: int, attributes: tuple[str, ...], cluster: str | None, namesrv: str
) -> None:
    """Create a group on every broker.

    Brokers on which the group already exists with these settings are not changed. If it exists on a broker with
    different settings, the command fails and changes nothing.
    """
    demand_group_name(group)
    given = parse_settings(attributes)
    wanted = with_attributes(
        SubscriptionGroupConfig(group_name=group, retry_max_times=max_retries, retry_queue_nums=retry_queues), given
    )

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, cluster, None)
        existing = await groups_of_brokers(admin, group, masters)
        for name, config in existing.items():
            if differences(name, config, with_attributes(wanted, attributes_of(config) | given)):
                raise GroupExistsError(
                    f"group {group} exists on {name} with {settings_text(config)}; nothing was created",
                    next_step=f"change it with cometmq group alter {group}",
                )
        missing = [name for name in masters if name not in existing]
        changes = [Change(name, group, None, settings_text(wanted)) for name in missing]
        if show_only(f"group {group}", changes):
            return
        for name in missing:
            await admin.create_group(as_change(None, wanted), broker_address=masters[name])
        if missing:
            notify(f"Created group {group} on {', '.join(missing)}.")
        if existing:
            notify(f"Group {group} already exists with these settings on {', '.join(existing)}.")

    administer(namesrv, work)


@click.command("alter")
@click.argument("group", type=GROUP)
@click.option("--max-retries", type=_retries, help="Number of redeliveries before a message becomes a dead letter.")
@click.option("--retry-queues", type=_retry_queues, help="Number of queues in the group's retry topic.")
@click.option(
    "--consume/--no-consume", default=None, help="Allow the group to consume messages, or prevent it from doing so."
)
@attribute_option
@_cluster_option
@yes_option
@dry_run_option
@namesrv_option
def alter(
    group: str,
    max_retries: int | None,
    retry_queues: int | None,
    consume: bool | None,
    attributes: tuple[str, ...],
    cluster: str | None,
    yes: bool,
    namesrv: str,
) -> None:
    """Change a group after showing the old and new settings.

    Other settings remain unchanged. --attribute NAME= removes an attribute.
    """
    demand_group_name(group)
    given = {"retry_max_times": max_retries, "retry_queue_nums": retry_queues, "consume_enable": consume}
    settings = {name: value for name, value in given.items() if value is not None}
    given_attributes = parse_settings(attributes)
    if not settings and not given_attributes:
        raise WrongUseError(
            "give a setting to change: --max-retries, --retry-queues, --consume, --no-consume, --attribute"
        )

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, cluster, None)
        existing = await groups_of_brokers(admin, group, masters)
        if not existing:
            raise CometMQError(
                f"group {group} does not exist", next_step=f"create it with cometmq group create {group}"
            )
        wanted = {
            name: with_attributes(msgspec.structs.replace(config, **settings), given_attributes)
            for name, config in existing.items()
        }
        changes = [change for name in existing for change in differences(name, existing[name], wanted[name])]
        if confirm_changes(f"group {group}", changes, yes=yes):
            changed = sorted({change.broker for change in changes})
            for name in changed:
                await admin.create_group(as_change(existing[name], wanted[name]), broker_address=masters[name])
            notify(f"Changed group {group} on {', '.join(changed)}.")

    administer(namesrv, work)
