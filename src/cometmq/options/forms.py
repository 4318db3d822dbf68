"""Value forms, which define how option values are parsed and described, and which values are allowed.

Configuration files, Spark options and command lines share these forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.java_values import parse_float, parse_int
from cometmq.paths import PathError, local_text

T = TypeVar("T")
INT_MAX: Final = 2**31 - 1
_BYTE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|d|h|m|s)")


class OptionError(CometMQError):
    """An option is unknown or missing, or has an invalid value.

    ``option`` is the option's name, or empty if the error concerns several options. ``reason`` is the rest of the
    sentence, which a command puts after the name that the user wrote.
    """

    def __init__(self, reason: str, *, option: str = "", message: str = "", next_step: str | None = None) -> None:
        super().__init__(message or (f"option {option} {reason}" if option else reason), next_step=next_step)
        self.option = option
        self.reason = reason


@dataclass(frozen=True)
class Form(Generic[T]):
    """The value form of an option: the parser, description and range of its values."""

    words: str
    """The allowed values as text, for example ``true or false``."""
    read: Callable[[str], T]
    """A function that parses a text; it raises ValueError, or an OptionError or PathError with a specific reason."""
    show: Callable[[T], str] = str
    choices: tuple[str, ...] = ()
    """All allowed texts, if they can be listed."""
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    """A regular expression that the complete text must match; empty if any text is allowed."""
    keeps_blanks: bool = False
    """True if leading and trailing blanks are part of the value."""
    name: str = "text"
    """The placeholder for the value in command help."""

    def allows(self, value: Any) -> bool:
        """Return whether a value is in the allowed range."""
        return not (
            (self.pattern and not re.fullmatch(self.pattern, value))
            or (self.minimum is not None and not value >= self.minimum)
            or (self.maximum is not None and not value <= self.maximum)
        )

    @property
    def has_range(self) -> bool:
        """True if the values are numbers with limits."""
        return self.minimum is not None or self.maximum is not None

    def nearest(self, value: Any) -> Any:
        """Return the allowed number nearest to a number outside the range."""
        is_below = self.minimum is not None and not value >= self.minimum
        return self.minimum if is_below else self.maximum

    def parse(self, text: str) -> T:
        """Parse a text to a value.

        :raises OptionError: the text is not allowed; the error does not contain the option's name.
        """
        try:
            value = self.read(text if self.keeps_blanks else text.strip())
            if self.allows(value):
                return value
        except PathError as error:
            raise OptionError(f"is invalid: {error.message}", next_step=error.next_step) from error
        except (ValueError, OverflowError):
            pass
        raise OptionError(f"must be {self.words}, not {text!r}")


def whole(minimum: int | None = None, maximum: int | None = None) -> Form[int]:
    """Return the value form of an option whose value is a whole number."""
    words = f"a whole number{_range(minimum, maximum)}"
    return Form(words, parse_int, minimum=minimum, maximum=maximum, name="integer")


def number(minimum: float | None = None, maximum: float | None = None) -> Form[float]:
    """Return the value form of an option whose value is a number."""
    return Form(f"a number{_range(minimum, maximum)}", parse_float, minimum=minimum, maximum=maximum, name="number")


def _range(minimum: float | None, maximum: float | None) -> str:
    if minimum is None:
        return ""
    least, most = (f"{limit:g}" if isinstance(limit, float) else str(limit) for limit in (minimum, maximum))
    return f" of at least {least}" if maximum is None else f" from {least} to {most}"


def text(pattern: str = "", words: str = "text") -> Form[str]:
    """Return the value form of an option whose value is a text that matches a regular expression."""
    return Form(words, str, pattern=pattern)


def one_of(*choices: str) -> Form[str]:
    """Return the value form of an option whose value is one of the given texts."""
    return named({choice: choice for choice in choices})


def named(values: Mapping[str, T], *, fold: Callable[[str], str] = str) -> Form[T]:
    """Return the value form of an option whose value is chosen by name; ``fold`` turns the user's text into a name."""

    def read(text: str) -> T:
        if (name := fold(text)) not in values:
            raise ValueError
        return values[name]

    names = [name or "empty" for name in values]
    words = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    return Form(words, read, lambda wanted: next(name for name in values if values[name] == wanted), tuple(values))


FLAG: Final = named({"true": True, "false": False}, fold=str.lower)
TEXT: Final = text()
COUNT: Final = whole(1)
PATH: Final = Form("a path", local_text, pattern=r"[^\x00]*", keeps_blanks=True)
"""A path in the local file system, or a ``file:`` URL."""


def checked(words: str, check: Callable[[str], str | None]) -> Form[str]:
    """Return the value form of an option whose value is a text that a function checks."""

    def read(text: str) -> str:
        if fault := check(text):
            raise OptionError(f"is invalid: {fault}")
        return text

    return Form(words, read, keeps_blanks=True)


def _read_positive(text: str) -> float:
    if not (value := parse_float(text)) > 0:
        raise ValueError
    return value


POSITIVE: Final = Form("a number greater than 0", _read_positive, minimum=0, name="number")
SECONDS: Final = Form(
    "a number of seconds of at least 0",
    lambda text: round(parse_float(text) * 1000),
    lambda duration_ms: str(duration_ms // 1000),
    minimum=0,
    name="seconds",
)
"""The value form of a duration that users write in seconds; the value is in milliseconds."""
MEBIBYTES: Final = Form(
    "a whole number of MiB of at least 1",
    lambda text: parse_int(text) << 20,
    lambda size: str(size >> 20),
    minimum=1 << 20,
    name="integer",
)
"""The value form of a size that users write in MiB; the value is in bytes."""


def _read_size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15}) ?([kmg]?)b?", text.lower())
    if match is None:
        raise ValueError
    return int(match[1]) * _BYTE_UNITS[match[2]]


SIZE: Final = Form("a number of bytes such as 500000, 64m or 2g", _read_size, minimum=1)


def _read_duration(text: str) -> int:
    parts = list(_PART.finditer(text.lower()))
    if not parts or "".join(part[0] for part in parts) != text.lower():
        raise ValueError
    return round(sum(float(part[1]) * _UNITS_MS[part[2]] for part in parts))


def _show_duration(duration_ms: int) -> str:
    return next(f"{duration_ms // unit}{name}" for name, unit in _UNITS_MS.items() if duration_ms % unit == 0)


DURATION: Final = Form(
    "a duration such as 500ms, 90s, 1h30m or 2d",
    _read_duration,
    _show_duration,
    maximum=10_000_000 * _UNITS_MS["d"],
    name="duration",
)
"""The value form of a duration such as ``90s``; the value is in milliseconds, within the range of dates."""


def moment(*, utc: bool = False, ago: bool = False, before_1970: bool = False) -> Form[int]:
    """Return the value form of an option whose value is a time; the value is in milliseconds since 1970.

    :param utc: if true, a time that has no offset is in UTC, otherwise in local time.
    :param ago: if true, durations are also accepted: ``90s`` means 90 seconds ago.
    """

    def read(text: str) -> int:
        if re.fullmatch(r"-?\d+", text):
            time_ms = int(text)
        elif ago and _PART.match(text):
            time_ms = max(0, SYSTEM_CLOCK.now_ms() - _read_duration(text))
        else:
            time = datetime.fromisoformat(text)
            time_ms = int((time.replace(tzinfo=UTC) if utc and time.tzinfo is None else time).timestamp() * 1000)
        if time_ms < 0 and not before_1970:
            raise OptionError(f"must be in 1970 or later, not {text}")
        return time_ms

    hour_ago = ", 1h for an hour ago" if ago else ""
    return Form(f"a time such as 2026-01-31T12:00{hour_ago} or milliseconds since 1970", read, name="time")


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


TIME: Final = moment()
NAMES: Final = Form("names separated by commas", _read_names, ",".join)
