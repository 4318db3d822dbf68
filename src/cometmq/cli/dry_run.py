"""``--dry-run``: a command shows old and new values, but does not send any changes.

Two checks ensure this: commands stop after :func:`show_only`, and with ``--dry-run``, a command's client refuses every
request that is not known to be read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import click

from cometmq.cli.output import Column, notify, show
from cometmq.client.admin.changes import Change
from cometmq.errors import CometMQError
from cometmq.remoting.client import ClientRpcHook
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand

_DRY_RUN: Final = "cometmq.dry_run"
_CHANGES: Final = (
    Column("setting", "Setting"),
    Column("old", "Old", prose=True),
    Column("new", "New", prose=True),
)
_READING: Final = ("GET_", "QUERY_", "VIEW_", "SEARCH_", "AUTH_GET_", "AUTH_LIST_", "INVOKE_BROKER_TO_GET_")
_HARMLESS: Final = frozenset(
    {RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG}
)
"""Further requests that a dry run may send: pulls, and requests in which a client reports its own state."""


class DryRunError(CometMQError):
    """A command with ``--dry-run`` sent a request that may change something. This is a bug in the command."""


def _keep(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta[_DRY_RUN] = value


dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    expose_value=False,
    callback=_keep,
    help="Show what would change, without changing anything.",
)
"""The ``--dry-run`` option of all commands that change something."""


def is_dry_run() -> bool:
    """Return True if the running command has ``--dry-run``."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_DRY_RUN))


def show_changes(what: str, changes: Sequence[Change], server: str = "broker") -> None:
    """Write changes to stdout as a table of old and new values.

    :param server: kind of server, such as broker.
    """
    columns = (Column("broker", server.capitalize()), *_CHANGES)
    show([asdict(change) for change in changes], columns, "table", title=f"Changes of {what}")


def show_only(what: str, changes: Sequence[Change], server: str = "broker") -> bool:
    """With ``--dry-run``, show the changes and return True, so that the command ends. Otherwise, return False."""
    if not is_dry_run():
        return False
    if changes:
        show_changes(what, changes, server)
    tell_dry_run()
    return True


def tell_dry_run() -> None:
    """Print that nothing was changed."""
    notify("Nothing was changed: --dry-run.")


def _refuse_changes(_: str, request: RemotingCommand) -> None:
    try:
        code = RequestCode(request.code)
    except ValueError:
        code = None
    if code is None or (code not in _HARMLESS and not code.name.startswith(_READING)):
        name = code.name if code is not None else request.code
        raise DryRunError(f"{name} was not sent: --dry-run", next_step="this is a bug in the command; report it")


READING_ONLY: Final = ClientRpcHook(before=_refuse_changes)
"""Client hook that refuses all requests that are not read-only."""
