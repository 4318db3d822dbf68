"""Consumer group settings: finds a group's brokers and the effect of a change."""

from __future__ import annotations

from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.several import gathered
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
    return [Change(broker, setting, before, after) for setting, before, after in pairs if before != after]
