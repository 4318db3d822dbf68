"""Consumer group settings: finds a group's brokers and the effect of a change."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.several import gathered
from cometmq.quantity import quantity
from cometmq.remoting.bodies import SubscriptionGroupConfig


async def groups_of_brokers(admin: Admin, group: str, masters: dict[str, str]) -> dict[str, SubscriptionGroupConfig]:
    """Return a group's configuration on each broker that has the group."""
    tables = await gathered({name: admin.groups(address) for name, address in masters.items()})
    return {name: table[group] for name, table in tables.items() if group in table}


def differences(broker: str, old: SubscriptionGroupConfig, new: SubscriptionGroupConfig) -> list[Change]:
    """Return the settings that differ between two configurations of a group."""
    pairs = (
        ("max retries", old.retry_max_times, new.retry_max_times),
        ("retry queues", old.retry_queue_nums, new.retry_queue_nums),
        ("consume", old.consume_enable, new.consume_enable),
    )
    changes = [Change(broker, setting, before, after) for setting, before, after in pairs if before != after]
    olds, news = attributes_of(old), attributes_of(new)
    changes += [
        Change(broker, name, olds.get(name), news.get(name))
        for name in sorted(olds.keys() | news.keys())
        if olds.get(name) != news.get(name)
    ]
    return changes


def attributes_of(config: SubscriptionGroupConfig) -> dict[str, str]:
    """Return the attributes of RocketMQ 5 of a group."""
    return {} if config.attributes is UNSET else dict(config.attributes)


def with_attributes(config: SubscriptionGroupConfig, given: dict[str, str]) -> SubscriptionGroupConfig:
    """Return a configuration with attributes set; an empty value removes one."""
    if not given:
        return config
    after = {name: value for name, value in (attributes_of(config) | given).items() if value}
    return msgspec.structs.replace(config, attributes=after)


def as_change(old: SubscriptionGroupConfig | None, new: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Return a configuration whose attributes are changes, ``+name`` and ``-name``, as brokers read them."""
    if new.attributes is UNSET:
        return new
    before, after = {} if old is None else attributes_of(old), attributes_of(new)
    changes = {f"+{name}": value for name, value in after.items() if before.get(name) != value}
    changes |= {f"-{name}": "" for name in before if name not in after}
    return msgspec.structs.replace(new, attributes=changes)


def settings_text(config: SubscriptionGroupConfig) -> str:
    """Return a group's settings in words."""
    attributes = "".join(f", {name} {value}" for name, value in sorted(attributes_of(config).items()))
    return f"max retries {config.retry_max_times}, {quantity(config.retry_queue_nums, 'retry queue')}{attributes}"
