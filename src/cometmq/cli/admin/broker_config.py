"""``cometmq broker config``: show, change and compare the configuration of running brokers."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.admin.changes import confirm_changes, key_rows, parse_settings, yes_option
from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.names import BROKER
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import changes_of
from cometmq.client.admin.configurations import broker_configurations
from cometmq.client.admin.several import chosen_masters
from cometmq.errors import CometMQError
from cometmq.options import default_texts

_VALUES: Final = (
    Column("broker", "Broker"),
    Column("key", "Key"),
    Column("value", "Value", prose=True),
)


@click.group("config")
def command() -> None:
    """Show, change and compare the configuration of running brokers."""


@command.command("get")
@click.argument("keys", nargs=-1, metavar="[KEY]…")
@click.option("--broker", type=BROKER, help="Show only this broker.")
@namesrv_option
@output_option
def get(keys: tuple[str, ...], broker: str | None, namesrv: str, output: str) -> None:
    """Show all or some keys of each broker. Secrets are hidden."""
    tables = administer(namesrv, lambda admin: broker_configurations(admin, broker))
    show(key_rows(tables, keys, "broker"), _VALUES, output, title="Configuration")


@command.command("set")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option("--broker", type=BROKER, help="Show only this broker.")
@yes_option
@dry_run_option
@namesrv_option
def set_keys(settings: tuple[str, ...], broker: str | None, yes: bool, namesrv: str) -> None:
    """Change keys of running brokers after showing the changes.

    Only keys marked in docs/operations.md can be changed at run time. If a broker has a configuration file, it also
    writes the new values to this file. In a set with failover, the keys go over to all members.
    """
    wanted = parse_settings(settings)

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, None, broker)
        tables = await broker_configurations(admin, broker)
        changes = changes_of(tables, wanted)
        if not confirm_changes("the configuration", changes, yes=yes):
            return
        for name in sorted({change.broker for change in changes}):
            remark = await admin.update_broker_config(masters[name], wanted)
            notify(f"Changed the configuration of {name}." + (f" {remark}" if remark else ""))

    administer(namesrv, work)


@command.command("diff")
@click.option("--defaults", is_flag=True, help="Compare with CometMQ's defaults.")
@click.option("--broker", type=BROKER, help="Compare only this broker (with --defaults).")
@namesrv_option
@output_option
def diff(defaults: bool, broker: str | None, namesrv: str, output: str) -> None:
    """Show the keys whose values differ between brokers.

    With --defaults, show the keys that differ from CometMQ's defaults.
    """
    if broker is not None and not defaults:
        raise WrongUseError("--broker requires --defaults, since all brokers are otherwise compared with each other")
    tables = administer(namesrv, lambda admin: broker_configurations(admin, broker))
    if defaults:
        tables = {"default": _defaults(), **tables}
    elif len(tables) < 2:
        raise CometMQError("there is only one broker", next_step="compare it with CometMQ's defaults: add --defaults")
    keys = sorted(set.intersection(*(set(table) for table in tables.values())))
    different = [key for key in keys if len({table[key] for table in tables.values()}) > 1]
    rows: list[dict[str, Any]] = [{"key": key, **{name: tables[name][key] for name in tables}} for key in different]
    columns = (Column("key", "Key"), *(Column(name, name, prose=True) for name in tables))
    show(rows, columns, output, title="Different keys")


def _defaults() -> dict[str, str]:
    from cometmq.broker.config import BrokerConfig

    return default_texts(BrokerConfig)
