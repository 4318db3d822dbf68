"""``cometmq topic create`` and ``alter``: create topics, and change them after showing the changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Final

import click
import msgspec

from cometmq.cli.admin.changes import attribute_option, confirm_changes, parse_settings, partly_done, yes_option
from cometmq.cli.connection import administer, demand_topic_name, namesrv_option
from cometmq.cli.dry_run import dry_run_option, show_only
from cometmq.cli.failures import WrongUseError
from cometmq.cli.names import BROKER, TOPIC
from cometmq.cli.output import Progress, notify
from cometmq.cli.topic_names import chosen_names, file_option
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.many import each
from cometmq.client.admin.several import chosen_masters, gathered
from cometmq.client.admin.topic_settings import (
    DEFAULT_QUEUES,
    EXPIRED,
    EXPIRED_MESSAGES,
    MAX_QUEUES,
    MESSAGE_TYPES,
    PERMISSIONS,
    Settings,
    differences,
    hidden_messages,
    put_topic_on,
    removed_queues,
    settings_text,
    topics_of_brokers,
    with_attributes,
)
from cometmq.errors import CometMQError
from cometmq.message.names import MESSAGE_TYPE
from cometmq.quantity import quantity
from cometmq.remoting.bodies import TopicConfig

_queue_count: Final = click.IntRange(1, MAX_QUEUES)
_permission: Final = click.Choice(list(PERMISSIONS))
_type: Final = click.Choice(MESSAGE_TYPES, case_sensitive=False)
_cluster_option = click.option("--cluster", help="Use only the brokers in this cluster.")
_broker_option = click.option("--broker", type=BROKER, help="Use only this broker.")


class TopicExistsError(CometMQError):
    """A topic already exists with different settings."""


@click.command("create")
@click.argument("topics", metavar="TOPIC…", nargs=-1)
@file_option
@click.option(
    "--queues", type=_queue_count, default=DEFAULT_QUEUES, show_default=True, help="Number of queues on each broker."
)
@click.option(
    "--permission",
    type=_permission,
    default="rw",
    show_default=True,
    help="Permission: r to read, w to write, or rw for both.",
)
@click.option("--order", is_flag=True, help="Mark the topics as ordered.")
@click.option("--type", "message_type", type=_type, help="Type of the messages, which RocketMQ 5 clients must send.")
@attribute_option
@_cluster_option
@_broker_option
@dry_run_option
@namesrv_option
def create(
    topics: tuple[str, ...],
    file: IO[str] | None,
    queues: int,
    permission: str,
    order: bool,
    message_type: str | None,
    attributes: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
    namesrv: str,
) -> None:
    """Create topics on every broker.

    'orders-{01..20}' stands for twenty names. Brokers on which a topic already exists with these settings are not
    changed. If it exists on a broker with different settings, the command fails and changes nothing.
    """
    names = chosen_names(topics, file)
    if not names:
        raise WrongUseError("give a topic, or a file with --file")
    settings = TopicConfig(
        topic_name="",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=PERMISSIONS[permission],
        order=order,
        attributes=with_attributes(None, _attributes(attributes, {MESSAGE_TYPE: message_type})),
    )
    wanted = {name: msgspec.structs.replace(settings, topic_name=name) for name in names}

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, cluster, broker)
        missing = await _missing(admin, wanted, masters)
        changes = [
            Change(name, topic, None, settings_text(config))
            for topic, configs in missing.items()
            for name, config in configs.items()
        ]
        what = f"topic {names[0]}" if len(names) == 1 else quantity(len(names), "topic")
        if show_only(what, changes):
            return

        async def create_one(topic: str) -> None:
            await put_topic_on(admin, missing[topic], masters, "created")
            await admin.until_routed(topic, [masters[name] for name in missing[topic]])

        with partly_done(), Progress("Creating topics", len(missing) if len(missing) > 1 else None) as progress:
            await each(list(missing), create_one, "created", progress.advance)
        _notify_created(what, len(names), wanted[names[0]].read_queue_nums, missing, masters)

    administer(namesrv, work)


async def _missing(
    admin: Admin, wanted: Mapping[str, TopicConfig], masters: Mapping[str, str]
) -> dict[str, dict[str, TopicConfig]]:
    """Return a mapping topic → broker → configuration for the brokers that lack a topic.

    :raises TopicExistsError: a topic already exists with different settings.
    """
    tables = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    missing: dict[str, dict[str, TopicConfig]] = {}
    for topic, config in wanted.items():
        for name, table in tables.items():
            if topic not in table:
                missing.setdefault(topic, {})[name] = config
            elif differences(name, table[topic], _kept(table[topic], config)):
                raise TopicExistsError(
                    f"topic {topic} exists on {name} with {settings_text(table[topic])}; nothing was created",
                    next_step=f"change it with cometmq topic alter {topic}",
                )
    return missing


def _kept(existing: TopicConfig, wanted: TopicConfig) -> TopicConfig:
    """Return the wanted configuration with the attributes of an existing one that it does not set."""
    if wanted.attributes is None:
        return wanted
    return msgspec.structs.replace(wanted, attributes=with_attributes(existing.attributes, wanted.attributes))


def _attributes(texts: tuple[str, ...], options: Mapping[str, str | None]) -> dict[str, str]:
    """Return attributes from ``--attribute``, and from options for single attributes.

    :raises WrongUseError: a text has no equals sign, or an attribute is given twice with different values.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return parse_settings([*texts, *(f"{name}={value}" for name, value in given.items())])


def _notify_created(
    what: str, count: int, queues: int, missing: Mapping[str, Mapping[str, TopicConfig]], masters: Mapping[str, str]
) -> None:
    new = sorted({name for configs in missing.values() for name in configs})
    created = what if len(missing) == count else quantity(len(missing), "topic")
    if new:
        notify(
            f"Created {created} with {quantity(queues, 'queue')}{'' if count == 1 else ' each'} on {', '.join(new)}."
        )
    if count == 1:
        had = [name for name in masters if name not in new]
        if had:
            notify(f"{what[0].upper()}{what[1:]} already exists with these settings on {', '.join(had)}.")
    elif len(missing) < count:
        notify(f"{quantity(count - len(missing), 'topic')} already existed with these settings.")


@click.command("alter")
@click.argument("topic", type=TOPIC)
@click.option("--queues", type=_queue_count, help="Number of read and write queues on each broker.")
@click.option("--read-queues", type=_queue_count, help="Number of read queues on each broker.")
@click.option("--write-queues", type=_queue_count, help="Number of write queues on each broker.")
@click.option("--permission", type=_permission, help="Permission: r to read, w to write, or rw for both.")
@click.option("--order/--no-order", default=None, help="Mark the topic as ordered or not ordered.")
@click.option("--expired", type=click.Choice(EXPIRED), help="What becomes of messages whose life times have ended.")
@click.option("--type", "message_type", type=_type, help="Type of the messages, which RocketMQ 5 clients must send.")
@attribute_option
@click.option("--hide-messages", is_flag=True, help="Remove read queues even if they contain messages.")
@_cluster_option
@_broker_option
@yes_option
@dry_run_option
@namesrv_option
def alter(
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    order: bool | None,
    expired: str | None,
    message_type: str | None,
    attributes: tuple[str, ...],
    hide_messages: bool,
    cluster: str | None,
    broker: str | None,
    yes: bool,
    namesrv: str,
) -> None:
    """Change a topic after showing the old and new settings.

    Other settings remain unchanged. If read queues are removed, their messages become unreadable: lower --write-queues
    first, let consumers finish, and then lower --read-queues. --attribute NAME= removes an attribute.
    """
    demand_topic_name(topic)
    if queues is not None and (read_queues, write_queues) != (None, None):
        raise WrongUseError("--queues sets both --read-queues and --write-queues; do not combine them")
    settings = Settings(
        *(read_queues or queues, write_queues or queues, permission, order),
        attributes=_attributes(attributes, {MESSAGE_TYPE: message_type, EXPIRED_MESSAGES: expired}),
    )
    if settings == Settings(None, None, None, None):
        raise WrongUseError(
            "give a setting to change: --queues, --permission, --order, --no-order, --type, --expired, --attribute"
        )

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, cluster, broker)
        existing = await topics_of_brokers(admin, topic, masters)
        if not existing:
            raise CometMQError(
                f"topic {topic} does not exist", next_step=f"create it with cometmq topic create {topic}"
            )
        wanted = {name: settings.changed(config) for name, config in existing.items()}
        changes = [change for name in existing for change in differences(name, existing[name], wanted[name])]
        hidden = {} if hide_messages else await hidden_messages(admin, existing, wanted)
        if hidden:
            raise WrongUseError(
                f"{quantity(sum(hidden.values()), 'message')} in {quantity(len(hidden), 'queue')} "
                f"({', '.join(hidden)}) would become unreadable",
                next_step="lower --write-queues first and let consumers finish, or add --hide-messages",
            )
        if gone := removed_queues(existing, wanted):
            notify(f"Waiting messages (delays, retries, open transactions) of {', '.join(gone)} go to other queues.")
        if confirm_changes(f"topic {topic}", changes, yes=yes):
            changed = {change.broker: wanted[change.broker] for change in changes}
            with partly_done():
                await put_topic_on(admin, changed, masters, "changed", existing=existing)
            notify(f"Changed topic {topic} on {', '.join(changed)}.")

    administer(namesrv, work)
