"""Parses times and durations from the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import click

from cometmq.options.forms import DURATION, Form, OptionError, moment

T = TypeVar("T")

EPOCH: Final = datetime.fromtimestamp(0, UTC)
"""Start of 1970 in UTC, from which milliseconds are counted."""

_SINCE: Final = "--since"
_UNTIL: Final = "--until"


def local_time(timestamp_ms: int | None) -> str | None:
    """Return milliseconds since 1970 as local time in ISO 8601 with a UTC offset, or None if there is no time.

    A time that Python cannot represent remains a number, since producers can set any number.
    """
    if timestamp_ms is None or timestamp_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


class FormType(click.ParamType[T]):
    """Click type for values of one form, for example durations."""

    def __init__(self, form: Form[T]) -> None:
        self.form = form
        self.name = form.name

    def convert(self, value: str | T, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Parse a value from the command line."""
        if not isinstance(value, str):
            return value
        try:
            return self.form.parse(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)


class Moment(FormType[int]):
    """Click type for a time. The value is in milliseconds since 1970.

    An ``--until`` that is earlier than the ``--since`` of the same command is rejected.

    :param ago: also accept a duration: 90s or 1h30m means the time that long ago.
    """

    def __init__(self, *, ago: bool = False) -> None:
        super().__init__(moment(ago=ago))

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a value from the command line."""
        moment_ms = super().convert(value, param, ctx)
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


PAST: Final = Moment(ago=True)
"""Click type for a time that may also be given as a duration before now."""


class Duration(click.ParamType[timedelta]):
    """Click type for a duration such as 90s, 1h30m, 2d or 500ms."""

    name = DURATION.name

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse a value from the command line."""
        return value if isinstance(value, timedelta) else timedelta(milliseconds=_DURATION.convert(value, param, ctx))


_DURATION: Final = FormType(DURATION)
