"""Changes of settings: shown with their old and new values, and confirmed before they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from cometmq.cli.connection import confirm_change
from cometmq.cli.output import Column, show, tell

_CHANGES: Final = (
    Column("broker", "Broker"),
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


def confirmed(what: str, changes: Sequence[Change], *, yes: bool) -> bool:
    """Show changes and ask for confirmation; return False when there is nothing to change.

    :param yes: do not ask.
    :raises CometMQError: the user did not confirm.
    """
    if not changes:
        tell(f"{what[0].upper()}{what[1:]} has these settings already; nothing was changed.")
        return False
    show([asdict(change) for change in changes], _CHANGES, "table", title=f"Changes of {what}")
    if not yes:
        confirm_change(what)
    return True
