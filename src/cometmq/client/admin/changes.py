"""Changes to settings on several servers, which can be shown before they are applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tables = Mapping[str, Mapping[str, str]]
"""Each server's configuration, by server name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A broker's setting before and after a change."""

    broker: str
    setting: str
    old: Any
    new: Any


def changes_of(tables: Tables, wanted: Mapping[str, str]) -> list[Change]:
    """Return the keys whose values on the servers differ from the desired values."""
    return [
        Change(name, key, table.get(key), value)
        for name, table in tables.items()
        for key, value in wanted.items()
        if table.get(key) != value
    ]
