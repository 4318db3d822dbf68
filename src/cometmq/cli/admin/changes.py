"""Changes of settings: shown with their old and new values, and confirmed before they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from cometmq.cli.connection import confirm_change
from cometmq.cli.dry_run import only_shown, show_changes
from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.output import tell
from cometmq.client.admin.accounts import PartlyChangedError
from cometmq.client.admin.changes import Change, Tables
from cometmq.options import nearest

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirmed(what: str, changes: Sequence[Change], *, yes: bool, server: str = "broker") -> bool:
    """Show changes and ask for confirmation; return False when there is nothing to change.

    :param yes: do not ask.
    :param server: kind of the servers that have the settings.
    :raises CometMQError: the user did not confirm.
    """
    if not changes:
        tell(f"{what[0].upper()}{what[1:]} has these settings already; nothing was changed.")
        return False
    if only_shown(what, changes, server):
        return False
    show_changes(what, changes, server)
    if not yes:
        confirm_change(what)
    return True


def keys_and_values(settings: Sequence[str]) -> dict[str, str]:
    """Parse several ``KEY=VALUE``.

    :raises WrongUseError: one is something else, or a key has two values.
    """
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise WrongUseError(f"{setting}: write it as KEY=VALUE")
        if found.setdefault(key, value) != value:
            raise WrongUseError(f"{setting}: {key} has another value already, {found[key]}")
    return found


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


@contextmanager
def partly_done() -> Iterator[None]:
    """Turn a change that not all servers have into exit code 3.

    :raises PartlyDoneError: some servers have the change of the block, and others do not.
    """
    try:
        yield
    except PartlyChangedError as error:
        raise PartlyDoneError(error.message, next_step=error.next_step) from error
