"""Column expressions that several jobs use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column

HOUR_MS: Final = 3_600_000
_INTERVALS: Final = 400
"""Maximum number of intervals in a history. A longer history has longer intervals."""
_ACCURACY: Final = 10_000
"""Accuracy of ``percentile_approx``: a rank's maximum error is one divided by this number."""


def property_of(name: str) -> Column:
    """Return a column with a property's value, or null for messages without the property."""
    return f.try_element_at("properties", f.lit(name))


def percentiles(column: str, ranks: Sequence[float]) -> Column:
    """Return the values at the given ranks from 0 to 1, or null if the column has no values."""
    return f.percentile_approx(column, list(ranks), _ACCURACY)


def interval_of(first_ms: int, last_ms: int) -> int:
    """Return the length of a history's intervals in ms: an hour, or several hours if there would be too many
    intervals.
    """
    return HOUR_MS * (1 + (last_ms - first_ms) // (HOUR_MS * _INTERVALS))


def begin_of(column: str, interval_ms: int) -> Column:
    """Return column ``begin``: the start of the interval that contains a time."""
    return (f.col(column) - f.pmod(column, f.lit(interval_ms))).alias("begin")
