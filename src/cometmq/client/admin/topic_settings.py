"""Topic settings: finds a topic's brokers and the effect of a change, and applies the change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
_EXPIRED_MESSAGES: Final = "expired.messages"
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
    expired: str | None = None
    """The attribute ``expired.messages``: what becomes of messages whose life times have ended."""
    message_type: str | None = None
    """The attribute ``message.type``."""

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
            attributes={**(config.attributes or {}), **self._attributes} or None,
        )

    @property
    def attribute_change(self) -> str:
        """The change of attributes to send to brokers."""
        return added(self._attributes)

    @property
    def _attributes(self) -> dict[str, str]:
        chosen = {_EXPIRED_MESSAGES: self.expired, MESSAGE_TYPE: self.message_type}
        return {name: value for name, value in chosen.items() if value is not None}


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
    attribute_change: str = "",
) -> None:
    """Write the topic's configuration to each broker.

    :param attribute_change: see :meth:`Admin.put_topic`.
    :raises PartlyChangedError: one broker failed after others succeeded.
    """
    done: list[str] = []
    for name, config in configs.items():
        try:
            await admin.put_topic(config, masters[name], attribute_change=attribute_change)
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
    return [Change(broker, setting, before, after) for setting, before, after in pairs if before != after]


def _expired(config: TopicConfig) -> str:
    return (config.attributes or {}).get(_EXPIRED_MESSAGES, EXPIRED[0])


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
    return f"{queues}, permission {permission_text(config.perm)}{ordered}{typed}"


def type_of(config: TopicConfig) -> str:
    """Return the type of a topic's messages."""
    return (config.attributes or {}).get(MESSAGE_TYPE, MESSAGE_TYPES[0])


def added(attributes: Mapping[str, str]) -> str:
    """Return the change that sets attributes, as brokers read it."""
    return ",".join(f"+{name}={value}" for name, value in attributes.items())


def permission_text(bits: int) -> str:
    """Return a topic's permission as letters: r, w, and i if new topics inherit its settings."""
    letters = ((PERM_READ, "r"), (PERM_WRITE, "w"), (PERM_INHERIT, "i"))
    return "".join(letter for bit, letter in letters if bits & bit)
