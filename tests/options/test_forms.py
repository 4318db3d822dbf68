"""Forms of values: what a text means, what is allowed in words, and the text of a value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cometmq.clock import SYSTEM_CLOCK
from cometmq.options.forms import (
    COUNT,
    DURATION,
    FLAG,
    MEBIBYTES,
    NAMES,
    PATH,
    POSITIVE,
    SECONDS,
    SIZE,
    Form,
    OptionError,
    moment,
    named,
    number,
    one_of,
    text,
    whole,
)

NOON_MS = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
UTC_TIME = moment(utc=True, before_1970=True)


@pytest.mark.parametrize(
    ("form", "written", "value"),
    [
        (FLAG, " TRUE ", True),
        (COUNT, "7", 7),
        (number(0.0, 1.0), "0.5", 0.5),
        (POSITIVE, "1e-3", 0.001),
        (SECONDS, "1.5", 1_500),
        (MEBIBYTES, "128", 128 << 20),
        (SIZE, "64m", 64 << 20),
        (SIZE, "2 GB", 2 << 30),
        (DURATION, "1h30m", 5_400_000),
        (DURATION, "500 MS", 500),
        (DURATION, "1.5s", 1_500),
        (NAMES, "a, b,,", ("a", "b")),
        (one_of("A", "B"), "B", "B"),
        (named({"zlib": 1, "none": None}, fold=str.lower), "NONE", None),
        (PATH, "file:///data/my%20lake", "/data/my lake"),
        (PATH, "lake ", "lake "),
        (UTC_TIME, "2026-01-31T12:00", NOON_MS),
        (UTC_TIME, "2026-01-31T13:00+01:00", NOON_MS),
        (UTC_TIME, "-1", -1),
    ],
)
def test_a_text_has_a_value(form: Form[Any], written: str, value: Any) -> None:
    assert form.parse(written) == value


@pytest.mark.parametrize(
    ("form", "written", "allowed"),
    [
        (FLAG, "yes", "true or false"),
        (COUNT, "0", "a whole number of at least 1"),
        (whole(1, 10), "11", "a whole number from 1 to 10"),
        (number(0.0, 1.0), "NaN", "a number from 0 to 1"),
        (POSITIVE, "0", "a number greater than 0"),
        (SECONDS, "Infinity", "a number of seconds of at least 0"),
        (SIZE, "0", "a number of bytes such as 500000, 64m or 2g"),
        (DURATION, "1s 2", "a duration such as 500ms, 90s, 1h30m or 2d"),
        (DURATION, "999999999d", "a duration such as 500ms, 90s, 1h30m or 2d"),
        (DURATION, "", "a duration such as 500ms, 90s, 1h30m or 2d"),
        (text("[a-z]+", "small letters"), "A", "small letters"),
        (one_of("", "A", "B"), "b", "empty, A or B"),
        (UTC_TIME, "yesterday", "a time such as 2026-01-31T12:00 or milliseconds since 1970"),
    ],
)
def test_an_error_names_what_is_allowed_and_the_text(form: Form[Any], written: str, allowed: str) -> None:
    with pytest.raises(OptionError) as caught:
        form.parse(written)
    assert (caught.value.reason, caught.value.option) == (f"must be {allowed}, not {written!r}", "")


@pytest.mark.parametrize("written", ["1969-07-20", "-1"])
def test_a_time_before_1970_is_refused_where_none_can_be(written: str) -> None:
    with pytest.raises(OptionError, match=f"must be in 1970 or later, not {written}"):
        moment().parse(written)


def test_a_duration_is_a_time_so_long_ago() -> None:
    before_ms = SYSTEM_CLOCK.now_ms()
    assert before_ms - 3_600_000 <= moment(ago=True).parse("1h") <= SYSTEM_CLOCK.now_ms() - 3_600_000


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        (FLAG, False, "false"),
        (DURATION, 604_800_000, "7d"),
        (DURATION, 5_400_000, "90m"),
        (SECONDS, 60_000, "60"),
        (MEBIBYTES, 128 << 20, "128"),
        (NAMES, ("a", "b"), "a,b"),
    ],
)
def test_the_text_of_a_value_is_read_as_that_value(form: Form[Any], value: Any, shown: str) -> None:
    assert form.show(value) == shown
    assert form.parse(shown) == value
