"""Times and durations as people write them on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from cometmq.clock import SYSTEM_CLOCK

EPOCH: Final = datetime.fromtimestamp(0, UTC)
"""Midnight of 1970-01-01, from which milliseconds are counted."""

_SINCE: Final = "--since"
_UNTIL: Final = "--until"
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
_PART: Final = re.compile(r"(\d{1,7}(?:\.\d{1,9})?)(ms|d|h|m|s)")


def local_time(timestamp_ms: int | None) -> str | None:
    """Return milliseconds since 1970 as local time in ISO 8601 with offset; None for no time.

    A time beyond any calendar stays a number: producers may claim any.
    """
    if timestamp_ms is None or timestamp_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


class Moment(click.ParamType[int]):
    """A time; the value is milliseconds since 1970.

    It is ISO 8601 (local unless it has an offset) or milliseconds since 1970. An ``--until`` before the ``--since`` of
    the same command is refused.

    :param ago: a duration is a time too: 90s and 1h30m are so long ago.
    """

    name = "time"

    def __init__(self, *, ago: bool = False) -> None:
        self._ago = ago

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse one value."""
        moment_ms = value if isinstance(value, int) else self._parsed(value, param, ctx)
        self._demand_forward(moment_ms, param, ctx)
        return moment_ms

    def _demand_forward(self, moment_ms: int, param: click.Parameter | None, ctx: click.Context | None) -> None:
        known = (
            {} if ctx is None else {opt: ctx.params.get(of.name or "") for of in ctx.command.params for opt in of.opts}
        )
        for option in () if param is None else param.opts:
            since, until = (
                known.get(_SINCE) if option == _UNTIL else None,
                known.get(_UNTIL) if option == _SINCE else None,
            )
            if (since is not None and since > moment_ms) or (until is not None and until < moment_ms):
                self.fail(f"{_UNTIL} is before {_SINCE}", param, ctx)

    def _parsed(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value.isdigit():
            return int(value)
        if self._ago and (length := parsed_duration(value)) is not None:
            return max(0, SYSTEM_CLOCK.now_ms() - length // timedelta(milliseconds=1))
        try:
            moment_ms = int(datetime.fromisoformat(value).timestamp() * 1000)
        except ValueError:
            forms = "2026-01-31T12:00, 1h for an hour ago" if self._ago else "2026-01-31T12:00"
            self.fail(f"{value} is no time; write {forms} or milliseconds since 1970", param, ctx)
        if moment_ms < 0:
            self.fail(f"{value} is before 1970", param, ctx)
        return moment_ms


PAST: Final = Moment(ago=True)
"""A time of an option that looks back."""


class Duration(click.ParamType[timedelta]):
    """A length of time such as 90s, 1h30m, 2d or 500ms."""

    name = "duration"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse one value."""
        if isinstance(value, timedelta):
            return value
        length = parsed_duration(value)
        if length is None:
            self.fail(f"{value} is no duration; write 90s, 1h30m, 2d or 500ms", param, ctx)
        return length


def parsed_duration(value: str) -> timedelta | None:
    """Return the length of time that a text names; None when it names none."""
    parts = _PART.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta())
