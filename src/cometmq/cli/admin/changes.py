"""Shows the old and new values of settings, and asks for confirmation before changing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from cometmq.cli.connection import confirm_change
from cometmq.cli.dry_run import show_changes, show_only
from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.output import notify
from cometmq.client.admin.accounts import PartlyChangedError
from cometmq.client.admin.changes import Change, Tables
from cometmq.options import nearest

attribute_option = click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Attribute of RocketMQ 5, such as priority.factor=50 (group) or lite.topic.expiration=60 (topic). May be "
    "repeated.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm_changes(what: str, changes: Sequence[Change], *, yes: bool, server: str = "broker") -> bool:
    """Show changes and ask for confirmation. Return False if nothing would change.

    :param yes: do not ask for confirmation.
    :param server: kind of server, such as broker.
    :raises CometMQError: the user did not confirm.
    """
    if not changes:
        notify(f"{what[0].upper()}{what[1:]} already has these settings; nothing was changed.")
        return False
    if show_only(what, changes, server):
        return False
    show_changes(what, changes, server)
    if not yes:
        confirm_change(what)
    return True


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Parse settings of the form ``KEY=VALUE``.

    :raises WrongUseError: a text has a different form, or a key has two values.
    """
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise WrongUseError(f"{setting}: write it as KEY=VALUE")
        if found.setdefault(key, value) != value:
            raise WrongUseError(f"{setting}: {key} already has the value {found[key]}")
    return found


def key_rows(tables: Tables, keys: Sequence[str], server: str) -> list[dict[str, str]]:
    """Return a table row for each server and key. If keys are given, return only their rows.

    :param server: kind of server, such as broker.
    :raises WrongUseError: a key exists on no server.
    """
    known = {name for table in tables.values() for name in table}
    for key in keys:
        if key not in known:
            near = nearest(key, known)
            raise WrongUseError(f"no {server} has the key {key}" + (f"; did you mean {near}?" if near else ""))
    return [
        {server: name, "key": key, "value": value}
        for name, table in tables.items()
        for key, value in sorted(table.items())
        if not keys or key in keys
    ]


@contextmanager
def partly_done() -> Iterator[None]:
    """If only some servers made a change, raise an error with exit code 3.

    :raises PartlyDoneError: some servers made the change in the block, and other servers did not.
    """
    try:
        yield
    except PartlyChangedError as error:
        raise PartlyDoneError(error.message, next_step=error.next_step) from error
