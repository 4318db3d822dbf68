"""``cometmq topic create`` and ``alter``: no topic that exists is changed without being shown first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click
import msgspec

from cometmq.cli.admin.changes import Change, confirmed, yes_option
from cometmq.cli.connection import administer, chosen_masters, demand_topic_name, gathered, namesrv_option
from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.names import BROKER, TOPIC
from cometmq.cli.output import tell
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.errors import CometMQError
from cometmq.message.names import PERM_INHERIT, PERM_READ, PERM_WRITE
from cometmq.quantity import quantity
from cometmq.remoting.bodies import TopicConfig

PERMISSIONS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}
MAX_QUEUES: Final = 65_535
DEFAULT_QUEUES: Final = 8

_queue_count: Final = click.IntRange(1, MAX_QUEUES)
_permission: Final = click.Choice(list(PERMISSIONS))
_cluster_option = click.option("--cluster", help="Only on the brokers of this cluster.")
_broker_option = click.option("--broker", type=BROKER, help="Only on this broker.")


class TopicExistsError(CometMQError):
    """The topic exists with other settings."""


@click.command("create")
@click.argument("topic")
@click.option("--queues", type=_queue_count, default=DEFAULT_QUEUES, show_default=True, help="Queues on each broker.")
@click.option(
    "--permission", type=_permission, default="rw", show_default=True, help="r: may be read; w: may be written."
)
@click.option("--order", is_flag=True, help="Mark as an ordered topic.")
@_cluster_option
@_broker_option
@namesrv_option
def create(
    topic: str, queues: int, permission: str, order: bool, cluster: str | None, broker: str | None, namesrv: str
) -> None:
    """Create a topic on every broker.

    A broker that has it with the same settings is left alone. If one has it with other settings, nothing is done.
    """
    demand_topic_name(topic)
    wanted = TopicConfig(
        topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=PERMISSIONS[permission], order=order
    )

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, cluster, broker)
        existing = await _existing(admin, topic, masters)
        for name, config in existing.items():
            if _differences(name, config, wanted):
                raise TopicExistsError(
                    f"topic {topic} exists on {name} with {_settings(config)}; nothing was created",
                    next_step=f"cometmq topic alter {topic} changes it",
                )
        missing = {name: address for name, address in masters.items() if name not in existing}
        await _put(admin, dict.fromkeys(missing, wanted), masters, "created")
        if missing:
            await admin.until_routed(topic, missing.values())
            tell(f"Topic {topic} with {quantity(queues, 'queue')} on {', '.join(missing)}.")
        if existing:
            tell(f"Topic {topic} exists already with these settings on {', '.join(existing)}.")

    administer(namesrv, work)


@dataclass(frozen=True)
class Settings:
    """The settings that ``topic alter`` changes; None keeps one."""

    read_queues: int | None
    write_queues: int | None
    permission: str | None
    order: bool | None

    def changed(self, config: TopicConfig) -> TopicConfig:
        """Return a configuration with these settings."""
        perm = config.perm
        if self.permission is not None:
            perm = perm & ~PERMISSIONS["rw"] | PERMISSIONS[self.permission]
        return msgspec.structs.replace(
            config,
            read_queue_nums=config.read_queue_nums if self.read_queues is None else self.read_queues,
            write_queue_nums=config.write_queue_nums if self.write_queues is None else self.write_queues,
            perm=perm,
            order=config.order if self.order is None else self.order,
        )


@click.command("alter")
@click.argument("topic", type=TOPIC)
@click.option("--queues", type=_queue_count, help="Queues to read and to write on each broker.")
@click.option("--read-queues", type=_queue_count, help="Queues to read on each broker.")
@click.option("--write-queues", type=_queue_count, help="Queues to write on each broker.")
@click.option("--permission", type=_permission, help="r: may be read; w: may be written.")
@click.option("--order/--no-order", default=None, help="Mark as an ordered topic, or not.")
@click.option("--hide-messages", is_flag=True, help="Also when messages are in queues that are not read any more.")
@_cluster_option
@_broker_option
@yes_option
@namesrv_option
def alter(
    topic: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    order: bool | None,
    hide_messages: bool,
    cluster: str | None,
    broker: str | None,
    yes: bool,
    namesrv: str,
) -> None:
    """Change a topic: old and new settings are shown first.

    Settings that you do not name stay. Fewer read queues hide the messages of the others: lower --write-queues first,
    let the consumers finish, then lower --read-queues.
    """
    demand_topic_name(topic)
    if queues is not None and (read_queues, write_queues) != (None, None):
        raise WrongUseError("--queues sets both --read-queues and --write-queues; give it alone")
    settings = Settings(read_queues or queues, write_queues or queues, permission, order)
    if settings == Settings(None, None, None, None):
        raise WrongUseError("name a setting to change: --queues, --permission, --order, --no-order")

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, cluster, broker)
        existing = await _existing(admin, topic, masters)
        if not existing:
            raise CometMQError(f"there is no topic {topic}", next_step=f"cometmq topic create {topic} creates it")
        wanted = {name: settings.changed(config) for name, config in existing.items()}
        changes = [change for name in existing for change in _differences(name, existing[name], wanted[name])]
        if not hide_messages:
            await _demand_messages_stay(admin, existing, wanted)
        if confirmed(f"topic {topic}", changes, yes=yes):
            changed = {change.broker: wanted[change.broker] for change in changes}
            await _put(admin, changed, masters, "changed")
            tell(f"Topic {topic} is changed on {', '.join(changed)}.")

    administer(namesrv, work)


async def _existing(admin: Admin, topic: str, masters: dict[str, str]) -> dict[str, TopicConfig]:
    """Return the configuration of a topic on each of the brokers that have it."""
    tables = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    return {name: table[topic] for name, table in tables.items() if topic in table}


async def _put(admin: Admin, configs: dict[str, TopicConfig], masters: dict[str, str], done_word: str) -> None:
    """Give each broker its configuration of the topic.

    :raises PartlyDoneError: some brokers have it, and one failed.
    """
    done: list[str] = []
    for name, config in configs.items():
        try:
            await admin.put_topic(config, masters[name])
        except (BrokerError, RemotingError) as error:
            if not done:
                raise
            raise PartlyDoneError(
                f"topic {config.topic_name} was {done_word} on {', '.join(done)}, not on {name}: {error.message}",
                next_step="repeat the command once that broker is well; what exists stays as it is",
            ) from error
        done.append(name)


async def _demand_messages_stay(admin: Admin, existing: dict[str, TopicConfig], wanted: dict[str, TopicConfig]) -> None:
    """Check that no queue with messages loses its readers.

    :raises WrongUseError: one does.
    """
    fewer = {name for name in existing if wanted[name].read_queue_nums < existing[name].read_queue_nums}
    if not fewer:
        return
    topic = next(iter(existing.values())).topic_name
    table = (await admin.topic_stats(topic)).offset_table
    hidden = [
        (queue, offsets.max_offset - offsets.min_offset)
        for queue, offsets in sorted(table.items())
        if queue.broker_name in fewer
        and queue.queue_id >= wanted[queue.broker_name].read_queue_nums
        and offsets.max_offset > offsets.min_offset
    ]
    if hidden:
        count = sum(messages for _, messages in hidden)
        queues = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue, _ in hidden)
        raise WrongUseError(
            f"{quantity(count, 'message')} in {quantity(len(hidden), 'queue')} ({queues}) could not be read any more",
            next_step="lower --write-queues first and let consumers finish, or add --hide-messages",
        )


def _differences(broker: str, old: TopicConfig, new: TopicConfig) -> list[Change]:
    pairs = (
        ("read queues", old.read_queue_nums, new.read_queue_nums),
        ("write queues", old.write_queue_nums, new.write_queue_nums),
        ("permission", permission_text(old.perm), permission_text(new.perm)),
        ("order", old.order, new.order),
    )
    return [Change(broker, setting, before, after) for setting, before, after in pairs if before != after]


def _settings(config: TopicConfig) -> str:
    """Describe the settings of a topic, for a sentence."""
    queues = quantity(config.read_queue_nums, "queue")
    if config.write_queue_nums != config.read_queue_nums:
        queues = (
            f"{quantity(config.read_queue_nums, 'read queue')} and {quantity(config.write_queue_nums, 'write queue')}"
        )
    ordered = ", ordered" if config.order else ""
    return f"{queues}, permission {permission_text(config.perm)}{ordered}"


def permission_text(bits: int) -> str:
    """Return the permission of a topic as letters: r, w, and i for one that others are made from."""
    letters = ((PERM_READ, "r"), (PERM_WRITE, "w"), (PERM_INHERIT, "i"))
    return "".join(letter for bit, letter in letters if bits & bit)
