"""Topic settings: finds a topic's brokers and the effect of a change, and applies the change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from cometmq.client.admin import Admin
from cometmq.client.admin.accounts import PartlyChangedError
from cometmq.client.admin.changes import Change
from cometmq.client.admin.several import gathered
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.message.names import MESSAGE_TYPE, PERM_INHERIT, PERM_READ, PERM_WRITE
from cometmq.quantity import quantity
from cometmq.remoting.bodies import TopicConfig

PERMISSIONS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}
EXPIRED: Final = ("skip", "dead-letter")
"""The values of the attribute ``expired.messages``; the first one is the default."""
EXPIRED_MESSAGES: Final = "expired.messages"
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
"""The types of topics that can be chosen; a topic without a type is NORMAL."""
MAX_QUEUES: Final = 65_535
DEFAULT_QUEUES: Final = 8


@dataclass(frozen=True)
class Settings:
    """The settings changed by ``topic alter``; None leaves a setting unchanged."""

    read_queues: int | None
    write_queues: int | None
    permission: str | None
    order: bool | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attributes to set, by name; an empty value removes one."""

    def changed(self, config: TopicConfig) -> TopicConfig:
        """Return a copy of a configuration with these settings applied."""
        perm = config.perm
        if self.permission is not None:
            perm = perm & ~PERMISSIONS["rw"] | PERMISSIONS[self.permission]
        return msgspec.structs.replace(
            config,
            read_queue_nums=config.read_queue_nums if self.read_queues is None else self.read_queues,
            write_queue_nums=config.write_queue_nums if self.write_queues is None else self.write_queues,
            perm=perm,
            order=config.order if self.order is None else self.order,
            attributes=with_attributes(config.attributes, self.attributes),
        )


async def topics_of_brokers(admin: Admin, topic: str, masters: dict[str, str]) -> dict[str, TopicConfig]:
    """Return a topic's configuration on each broker that has the topic."""
    tables = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    return {name: table[topic] for name, table in tables.items() if topic in table}


async def put_topic_on(
    admin: Admin,
    configs: dict[str, TopicConfig],
    masters: dict[str, str],
    done_word: str,
    *,
    existing: Mapping[str, TopicConfig] | None = None,
) -> None:
    """Write the topic's configuration to each broker.

    :param existing: the configurations before, whose attributes are changed to the new ones.
    :raises PartlyChangedError: one broker failed after others succeeded.
    """
    done: list[str] = []
    for name, config in configs.items():
        try:
            old = (existing or {}).get(name)
            change = attribute_change((old.attributes if old is not None else None) or {}, config.attributes or {})
            await admin.put_topic(config, masters[name], attribute_change=change)
        except (BrokerError, RemotingError) as error:
            if not done:
                raise
            raise PartlyChangedError(
                f"topic {config.topic_name} was {done_word} on {', '.join(done)}, not on {name}: {error.message}",
                next_step="repeat the command when that broker works again; existing topics remain unchanged",
            ) from error
        done.append(name)


async def hidden_messages(
    admin: Admin, existing: Mapping[str, TopicConfig], wanted: Mapping[str, TopicConfig]
) -> dict[str, int]:
    """Return the queues whose messages would become unreadable, as ``broker/queue``, with their number of messages."""
    fewer = {name for name in existing if wanted[name].read_queue_nums < existing[name].read_queue_nums}
    if not fewer:
        return {}
    topic = next(iter(existing.values())).topic_name
    table = (await admin.topic_stats(topic)).offset_table
    return {
        f"{queue.broker_name}/{queue.queue_id}": offsets.max_offset - offsets.min_offset
        for queue, offsets in sorted(table.items())
        if queue.broker_name in fewer
        and queue.queue_id >= wanted[queue.broker_name].read_queue_nums
        and offsets.max_offset > offsets.min_offset
    }


def removed_queues(existing: Mapping[str, TopicConfig], wanted: Mapping[str, TopicConfig]) -> list[str]:
    """Return the queues that are removed from the topic, as ``broker/first-last``.

    Delayed messages for a removed queue are delivered to another queue.
    """
    return [
        f"{name}/{left}" if left == gone - 1 else f"{name}/{left}-{gone - 1}"
        for name, config in existing.items()
        if (left := _queues(wanted[name])) < (gone := _queues(config))
    ]


def _queues(config: TopicConfig) -> int:
    return max(config.read_queue_nums, config.write_queue_nums)


def differences(broker: str, old: TopicConfig, new: TopicConfig) -> list[Change]:
    """Return the settings that differ between two configurations of a topic.

    A new configuration without attributes keeps those of the old one.
    """
    pairs: tuple[tuple[str, object, object], ...] = (
        ("read queues", old.read_queue_nums, new.read_queue_nums),
        ("write queues", old.write_queue_nums, new.write_queue_nums),
        ("permission", permission_text(old.perm), permission_text(new.perm)),
        ("order", old.order, new.order),
    )
    if new.attributes is not None:
        pairs += (
            ("message type", type_of(old), type_of(new)),
            ("expired messages", _expired(old), _expired(new)),
        )
        olds = old.attributes or {}
        others = sorted((olds.keys() | new.attributes.keys()) - {MESSAGE_TYPE, EXPIRED_MESSAGES})
        pairs += tuple((name, olds.get(name), new.attributes.get(name)) for name in others)
    return [Change(broker, setting, before, after) for setting, before, after in pairs if before != after]


def _expired(config: TopicConfig) -> str:
    return (config.attributes or {}).get(EXPIRED_MESSAGES, EXPIRED[0])


def settings_text(config: TopicConfig) -> str:
    """Describe a topic's settings as part of a sentence."""
    queues = quantity(config.read_queue_nums, "queue")
    if config.write_queue_nums != config.read_queue_nums:
        queues = (
            f"{quantity(config.read_queue_nums, 'read queue')} and {quantity(config.write_queue_nums, 'write queue')}"
        )
    ordered = ", ordered" if config.order else ""
    message_type = type_of(config)
    typed = "" if message_type == MESSAGE_TYPES[0] else f", type {message_type}"
    others = "".join(f", {name} {value}" for name, value in other_attributes(config.attributes).items())
    return f"{queues}, permission {permission_text(config.perm)}{ordered}{typed}{others}"


def type_of(config: TopicConfig) -> str:
    """Return the type of a topic's messages."""
    return (config.attributes or {}).get(MESSAGE_TYPE, MESSAGE_TYPES[0])


def other_attributes(attributes: Mapping[str, str] | None) -> dict[str, str]:
    """Return a topic's attributes by name, without its type."""
    return {name: value for name, value in sorted((attributes or {}).items()) if name != MESSAGE_TYPE}


def with_attributes(had: Mapping[str, str] | None, given: Mapping[str, str]) -> dict[str, str] | None:
    """Return attributes after others are set; an empty value removes one. ``None`` if there are none at all."""
    if not had and not given:
        return None
    return {name: value for name, value in {**(had or {}), **given}.items() if value}


def attribute_change(had: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return a change to attributes as brokers read it: ``+name=value`` and ``-name``, separated by commas."""
    parts = [f"+{name}={value}" for name, value in wanted.items() if had.get(name) != value]
    return ",".join(parts + [f"-{name}" for name in had if name not in wanted])


def permission_text(bits: int) -> str:
    """Return a topic's permission as letters: r, w, and i if new topics inherit its settings."""
    letters = ((PERM_READ, "r"), (PERM_WRITE, "w"), (PERM_INHERIT, "i"))
    return "".join(letter for bit, letter in letters if bits & bit)
