"""Reads the configurations of all brokers or all nameservers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Tables
from cometmq.client.admin.several import answered, chosen_masters

BROKER: Final = "broker"
NAMESERVER: Final = "nameserver"


async def broker_configurations(admin: Admin, broker: str | None = None) -> Tables:
    """Return the configurations of all masters, or of one master, by broker name.

    :raises ClientError: the nameserver knows no such master.
    """
    masters = await chosen_masters(admin, None, broker)
    return await answered(admin, {name: admin.broker_config(address) for name, address in masters.items()})


async def namesrv_configurations(admin: Admin, addresses: Sequence[str]) -> Tables:
    """Return each nameserver's configuration by its address."""
    return await answered(admin, {address: admin.namesrv_config(address) for address in addresses})
