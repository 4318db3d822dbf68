"""Changes of settings: shown with their old and new values, and confirmed before they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from cometmq.cli.connection import confirm_change
from cometmq.cli.failures import WrongUseError
from cometmq.cli.output import Column, show, tell
from cometmq.options import nearest

_CHANGES: Final = (
    Column("setting", "Setting"),
    Column("old", "Old"),
    Column("new", "New"),
)

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of one broker, before and after."""

    broker: str
    setting: str
    old: Any
    new: Any


def confirmed(what: str, changes: Sequence[Change], *, yes: bool, server: str = "broker") -> bool:
    """Show changes and ask for confirmation; return False when there is nothing to change.

    :param yes: do not ask.
    :param server: kind of the servers that have the settings.
    :raises CometMQError: the user did not confirm.
    """
    if not changes:
        tell(f"{what[0].upper()}{what[1:]} has these settings already; nothing was changed.")
        return False
    columns = (Column("broker", server.capitalize()), *_CHANGES)
    show([asdict(change) for change in changes], columns, "table", title=f"Changes of {what}")
    if not yes:
        confirm_change(what)
    return True


Tables = Mapping[str, Mapping[str, str]]
"""The configuration of each server by its name."""


def key_and_value(setting: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``.

    :raises WrongUseError: it is something else.
    """
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise WrongUseError(f"{setting}: write it as KEY=VALUE")
    return key, value


def chosen_keys(tables: Tables, keys: Sequence[str], server: str) -> list[dict[str, str]]:
    """Return a row for each server and key: all keys, or those that are named.

    :param server: kind of the servers.
    :raises WrongUseError: no server has one of these keys.
    """
    known = {name for table in tables.values() for name in table}
    for key in keys:
        if key not in known:
            near = nearest(key, known)
            raise WrongUseError(f"no {server} has a key {key}" + (f"; did you mean {near}?" if near else ""))
    return [
        {server: name, "key": key, "value": value}
        for name, table in tables.items()
        for key, value in sorted(table.items())
        if not keys or key in keys
    ]


def changes_of(tables: Tables, wanted: Mapping[str, str]) -> list[Change]:
    """Return the keys that the servers have with other values than the wanted ones."""
    return [
        Change(name, key, table.get(key), value)
        for name, table in tables.items()
        for key, value in wanted.items()
        if table.get(key) != value
    ]
