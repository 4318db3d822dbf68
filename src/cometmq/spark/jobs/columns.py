"""Expressions of columns that several jobs use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

HOUR_MS: Final = 3_600_000
_INTERVALS: Final = 400
"""Most intervals of a history; a longer one has longer intervals."""
_ACCURACY: Final = 10_000
"""Accuracy of ``percentile_approx``: ranks are right to one in so many."""


def property_of(name: str) -> Column:
    """Return the column of a property; null for messages without it."""
    return f.try_element_at("properties", f.lit(name))


def percentiles(column: str, ranks: Sequence[float]) -> Column:
    """Return the values at some ranks, 0 to 1; null without values."""
    return f.percentile_approx(column, list(ranks), _ACCURACY)


def interval_of(first_ms: int, last_ms: int) -> int:
    """Return the length of a history's intervals in ms: an hour, or a multiple to limit their number."""
    return HOUR_MS * (1 + (last_ms - first_ms) // (HOUR_MS * _INTERVALS))


def begin_of(column: str, interval_ms: int) -> Column:
    """Return column ``begin``: the start of the interval that contains a time."""
    return (f.col(column) - f.pmod(column, f.lit(interval_ms))).alias("begin")
