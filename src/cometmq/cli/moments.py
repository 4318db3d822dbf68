"""Points in time and durations as people write and read them on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

EPOCH: Final = datetime.fromtimestamp(0, UTC)
"""Midnight of 1970-01-01, from which milliseconds are counted."""

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
_PART: Final = re.compile(r"(\d{1,7}(?:\.\d{1,9})?)(ms|d|h|m|s)")


def local_time(timestamp_ms: int | None) -> str | None:
    """Write milliseconds since 1970 in local time, ISO 8601 with offset; None for no time.

    What no calendar has stays a number: producers may claim any time.
    """
    if timestamp_ms is None or timestamp_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


class Moment(click.ParamType[int]):
    """A time as ISO 8601 (local unless it names an offset) or in milliseconds since 1970; becomes milliseconds."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse one value."""
        if isinstance(value, int):
            return value
        if value.isdigit():
            return int(value)
        try:
            moment_ms = int(datetime.fromisoformat(value).timestamp() * 1000)
        except ValueError:
            self.fail(f"{value} is no time; write 2026-01-31T12:00 or milliseconds since 1970", param, ctx)
        if moment_ms < 0:
            self.fail(f"{value} is before 1970", param, ctx)
        return moment_ms


class Duration(click.ParamType[timedelta]):
    """A length of time such as 90s, 1h30m, 2d or 500ms."""

    name = "duration"

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse one value."""
        if isinstance(value, timedelta):
            return value
        parts = _PART.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value} is no duration; write 90s, 1h30m, 2d or 500ms", param, ctx)
        return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta())
