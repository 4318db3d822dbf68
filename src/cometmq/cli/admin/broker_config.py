"""``cometmq broker config``: show, change and compare the configuration of running brokers."""

from __future__ import annotations

from typing import Any, Final

import click

from cometmq.cli.admin.changes import chosen_keys, confirmed, keys_and_values, yes_option
from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.names import BROKER
from cometmq.cli.output import Column, output_option, show, tell
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
@click.option("--broker", type=BROKER, help="Only this broker.")
@namesrv_option
@output_option
def get(keys: tuple[str, ...], broker: str | None, namesrv: str, output: str) -> None:
    """Show all keys, or some, of each broker; without secrets."""
    tables = administer(namesrv, lambda admin: broker_configurations(admin, broker))
    show(chosen_keys(tables, keys, "broker"), _VALUES, output, title="Configuration")


@command.command("set")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE…")
@click.option("--broker", type=BROKER, help="Only this broker.")
@yes_option
@dry_run_option
@namesrv_option
def put(settings: tuple[str, ...], broker: str | None, yes: bool, namesrv: str) -> None:
    """Change keys of running brokers; old and new are shown first.

    Only keys that may change at run time can: docs/operations.md marks them. A broker with a configuration file writes
    them there.
    """
    wanted = keys_and_values(settings)

    async def work(admin: Admin) -> None:
        masters = await chosen_masters(admin, None, broker)
        tables = await broker_configurations(admin, broker)
        changes = changes_of(tables, wanted)
        if not confirmed("the configuration", changes, yes=yes):
            return
        for name in sorted({change.broker for change in changes}):
            remark = await admin.update_broker_config(masters[name], wanted)
            tell(f"The configuration of {name} is changed." + (f" {remark}" if remark else ""))

    administer(namesrv, work)


@command.command("diff")
@click.option("--defaults", is_flag=True, help="Compare with CometMQ's defaults.")
@click.option("--broker", type=BROKER, help="With --defaults: only this broker.")
@namesrv_option
@output_option
def diff(defaults: bool, broker: str | None, namesrv: str, output: str) -> None:
    """Show the keys in which brokers differ from each other.

    With --defaults: from the defaults of CometMQ.
    """
    if broker is not None and not defaults:
        raise WrongUseError("--broker goes with --defaults; without it all brokers are compared")
    tables = administer(namesrv, lambda admin: broker_configurations(admin, broker))
    if defaults:
        tables = {"default": _defaults(), **tables}
    elif len(tables) < 2:
        raise CometMQError("there is only one broker", next_step="--defaults compares it with CometMQ's defaults")
    keys = sorted(set.intersection(*(set(table) for table in tables.values())))
    different = [key for key in keys if len({table[key] for table in tables.values()}) > 1]
    rows: list[dict[str, Any]] = [{"key": key, **{name: tables[name][key] for name in tables}} for key in different]
    columns = (Column("key", "Key"), *(Column(name, name, prose=True) for name in tables))
    show(rows, columns, output, title="Different keys")


def _defaults() -> dict[str, str]:
    from cometmq.broker.config import BrokerConfig

    return default_texts(BrokerConfig)
