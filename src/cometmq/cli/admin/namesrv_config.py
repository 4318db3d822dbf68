"""``cometmq namesrv config``: show and change the configuration of running nameservers."""

from __future__ import annotations

from typing import Final

import click

from cometmq.cli.admin.changes import confirm_changes, key_rows, parse_settings, yes_option
from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.dry_run import dry_run_option
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import changes_of
from cometmq.client.admin.configurations import namesrv_configurations
from cometmq.client.route import namesrv_addresses

_VALUES: Final = (
    Column("nameserver", "Nameserver"),
    Column("key", "Key"),
    Column("value", "Value", prose=True),
)


@click.group("config")
def command() -> None:
    """Show and change the configuration of the nameservers given by -n."""


@command.command("get")
@click.argument("keys", nargs=-1, metavar="[KEY]…")
@namesrv_option
@output_option
def get(keys: tuple[str, ...], namesrv: str, output: str) -> None:
    """Show all or some keys of each nameserver. Secrets are hidden."""
    tables = administer(namesrv, lambda admin: namesrv_configurations(admin, namesrv_addresses(namesrv)))
    show(key_rows(tables, keys, "nameserver"), _VALUES, output, title="Configuration")


@command.command("set")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE…")
@yes_option
@dry_run_option
@namesrv_option
def set_keys(settings: tuple[str, ...], yes: bool, namesrv: str) -> None:
    """Change keys of running nameservers after showing the changes.

    Only keys marked in docs/operations.md can be changed at run time. If a nameserver has a configuration file, it also
    writes the new values to this file.
    """
    wanted = parse_settings(settings)

    async def work(admin: Admin) -> None:
        changes = changes_of(await namesrv_configurations(admin, namesrv_addresses(namesrv)), wanted)
        if not confirm_changes("the configuration", changes, yes=yes, server="nameserver"):
            return
        for address in sorted({change.broker for change in changes}):
            remark = await admin.update_namesrv_config(address, wanted)
            notify(f"Changed the configuration of {address}." + (f" {remark}" if remark else ""))

    administer(namesrv, work)
