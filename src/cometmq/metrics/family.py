"""Families of metrics, their samples, and histograms that count by additions only.

The words are Prometheus': a *family* has a name, a kind and labels; a *sample* is a value for one set of label values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """The kinds of metrics, with Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric. The name of a counter ends with ``_total``, that of a time or size with its unit."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Names of the labels that differ from sample to sample; those of the whole server come in addition."""
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, in the unit of its name."""


class Histogram:
    """Observed values by bucket."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        """Values up to each bound, and at the end those above the last one; not cumulated."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that was seen ``times`` times."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times


Value = float | Histogram
Sample = tuple[Family, tuple[str, ...], Value]
"""Family, label values in the order of its labels, and value."""
OVERFLOW: Final[tuple[str, ...]] = ()
"""In place of the values of a family's labels: the sample is the sum of those without a series of their own."""
Steps = Iterator[list[Sample]]
"""Samples in lists that each take about a millisecond to make, so that a server answers others in between."""
