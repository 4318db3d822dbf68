"""The configurations of brokers and nameservers: read from all at once, compared and changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Tables
from cometmq.client.admin.several import chosen_masters, gathered
from cometmq.remoting.errors import RemotingError

BROKER: Final = "broker"
NAMESERVER: Final = "nameserver"


async def broker_configurations(admin: Admin, broker: str | None = None) -> Tables:
    """Return the configuration of each master, or of one, by the brokers' names.

    :raises ClientError: there is none.
    """
    return await _tables(admin, await chosen_masters(admin, None, broker), admin.broker_config)


async def namesrv_configurations(admin: Admin, addresses: Sequence[str]) -> Tables:
    """Return the configuration of each nameserver by its address."""
    return await _tables(admin, {address: address for address in addresses}, admin.namesrv_config)


async def _tables(
    admin: Admin, servers: Mapping[str, str], ask: Callable[[str], Awaitable[dict[str, str]]]
) -> Mapping[str, Mapping[str, str]]:
    """Ask each server; those that do not answer are left out if the administration notes them."""

    async def one(address: str) -> dict[str, str] | None:
        try:
            return await ask(address)
        except RemotingError as error:
            if admin.unanswered is None:
                raise
            admin.unanswered[address] = error
            return None

    answers = await gathered({name: one(address) for name, address in servers.items()})
    return {name: table for name, table in answers.items() if table is not None}
