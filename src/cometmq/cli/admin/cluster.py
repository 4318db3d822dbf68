"""``cometmq cluster``: show clusters, their brokers and slaves, and each broker's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.failures import DONE, FAILED, PARTLY_DONE
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.broker_status import BrokerStatus
from cometmq.client.admin.several import asked_masters, gathered
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.message.names import MASTER_ID
from cometmq.quantity import duration_text
from cometmq.remoting.admin_bodies import HAClientRuntimeInfo, HAConnectionRuntimeInfo

_LIST: Final = (
    Column("cluster", "Cluster"),
    Column("broker", "Broker"),
    Column("broker_id", "Id", right=True),
    Column("address", "Address"),
)
_STATUS: Final = (
    Column("broker", "Broker"),
    Column("address", "Address"),
    Column("state", "State", prose=True, state=True),
    Column("version", "Version"),
    Column("cometmq", "CometMQ"),
    Column("in_per_s", "In/s", right=True),
    Column("out_per_s", "Out/s", right=True),
    Column("messages_today", "Messages today", right=True),
    Column("log_bytes", "Log bytes", right=True),
    Column("disk_used_percent", "Disk %", right=True),
    Column("dispatch_behind_bytes", "Dispatch behind", right=True),
)
_SLAVES: Final = (
    Column("broker", "Broker"),
    Column("slave", "Slave"),
    Column("state", "State", prose=True, state=True),
    Column("has_up_to", "Copied up to", right=True),
    Column("in_sync_at", "In sync at", time=True),
    Column("behind_bytes", "Behind", right=True),
    Column("bytes_per_s", "Bytes/s", right=True),
)


@click.group("cluster")
def command() -> None:
    """Show clusters and their brokers."""


@command.command("list")
@namesrv_option
@output_option
def list_brokers(namesrv: str, output: str) -> None:
    """List the brokers that are registered with the nameserver."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        info = await admin.cluster_info()
        return [
            {"cluster": data.cluster, "broker": name, "broker_id": broker_id, "address": address}
            for name, data in sorted(info.broker_addr_table.items())
            for broker_id, address in sorted(data.broker_addrs.items())
        ]

    show(administer(namesrv, work), _LIST, output, title="Brokers")


@command.command("status")
@namesrv_option
@output_option
def status(namesrv: str, output: str) -> int:
    """Show the state of every master, and which brokers are absent.

    The exit code is 1 if a broker has recently disappeared, or 3 if a master does not answer.
    """
    rows, away = administer(namesrv, _statuses)
    show([*rows, *away], _STATUS, output, title="Brokers")
    if away:
        return FAILED
    return DONE if all(row["state"] == "ok" for row in rows) else PARTLY_DONE


@command.command("slaves")
@namesrv_option
@output_option
def slaves(namesrv: str, output: str) -> int:
    """Show how far slaves are behind (except RocketMQ 4 slaves).

    A slave in sync has every message that its SYNC_MASTER acknowledged. A learner follows the master of a set without
    being its member: it gets what is confirmed, and never counts. If a master is absent, its slaves report how
    much of the log they have copied, and when they were last in sync. Promote the slave with the longest log, if it was
    in sync as late as the others; without an answer from a slave that was in sync later, messages may be missing.

    The exit code is 3 if a master is absent or does not answer.
    """

    async def work(admin: Admin) -> list[dict[str, Any]]:
        brokers = (await admin.cluster_info()).broker_addr_table
        rows = await gathered({name: _slaves(admin, name, brokers[name].broker_addrs) for name in sorted(brokers)})
        return [row for of_one in rows.values() for row in of_one]

    rows = administer(namesrv, work)
    show(rows, _SLAVES, output, title="Slaves")
    return DONE if all("behind_bytes" in row for row in rows) else PARTLY_DONE


async def _slaves(admin: Admin, name: str, addresses: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return a broker's slaves as reported by their master or, if it is absent, by the slaves themselves."""
    if MASTER_ID not in addresses:
        return await _without_master(admin, name, addresses)
    try:
        status = await admin.ha_status(addresses[MASTER_ID])
    except (BrokerError, RemotingError) as error:
        return [{"broker": name, "state": error.message}, *await _without_master(admin, name, addresses)]
    return [
        {
            "broker": name,
            "slave": slave.addr,
            "state": _state(slave),
            "has_up_to": slave.slave_ack_offset,
            "behind_bytes": slave.diff,
            "bytes_per_s": slave.transferred_byte_in_second,
        }
        for slave in status.ha_connection_info
    ]


def _state(slave: HAConnectionRuntimeInfo) -> str:
    if slave.learner:
        return "learner: follows, never counts"
    return "in sync" if slave.in_sync else "catching up"


async def _without_master(admin: Admin, name: str, addresses: Mapping[int, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for broker_id, address in sorted(addresses.items()):
        if broker_id == MASTER_ID:
            continue
        row: dict[str, Any] = {"broker": name, "slave": address, "state": "its master is away"}
        try:
            followed = (await admin.ha_status(address)).ha_client_runtime_info
            rows.append(row | _own_state(followed))
        except (BrokerError, RemotingError) as error:
            rows.append(row | {"state": error.message})
    return rows


def _own_state(followed: HAClientRuntimeInfo | None) -> dict[str, Any]:
    """Return what a slave without a master says of itself."""
    if followed is None:
        return {}
    return {"has_up_to": followed.max_offset, "in_sync_at": local_time(followed.in_sync_timestamp)}


async def _statuses(admin: Admin) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return each master's state, and the brokers that are absent although they are still registered."""
    rows = await asked_masters(admin, lambda name, at: _status(admin, name, at))
    gone = (await admin.cluster_info()).gone_brokers or []
    return list(rows.values()), [
        {
            "broker": broker.broker_name + (f", slave {broker.broker_id}" if broker.broker_id != MASTER_ID else ""),
            "address": broker.broker_addr,
            "state": f"away for {duration_text(broker.gone_for_ms / 1000)}: {broker.reason}",
        }
        for broker in gone
    ]


async def _status(admin: Admin, name: str, address: str) -> dict[str, Any]:
    row: dict[str, Any] = {"broker": name, "address": address}
    try:
        table = await admin.runtime_info(address)
    except (BrokerError, RemotingError) as error:
        return row | {"state": error.message}
    return row | {"state": "ok"} | asdict(BrokerStatus.of(table))
