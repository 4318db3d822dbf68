"""Metric families, their samples, and histograms that count by addition only.

The terms are Prometheus': a *family* has a name, a kind and labels; a *sample* is a value for one set of label values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """The kinds of metrics, under Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A metric family. A counter's name ends with ``_total``; the name of a duration or size ends with its unit."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Names of the labels that differ between samples; the server-wide labels are not included."""
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, in the unit of its name."""


class Histogram:
    """Observed values by bucket."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        """Number of values in each bucket, not cumulative; the last bucket counts the values above all bounds."""
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that was observed ``times`` times."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def observe_all(self, values: Iterable[float]) -> None:
        """Count many values, in less time than one call for each of them takes."""
        ordered = sorted(values)
        below = 0
        for bucket, bound in enumerate(self._bounds):
            if below == len(ordered):
                break
            end = bisect_right(ordered, bound, below)
            self.counts[bucket] += end - below
            below = end
        self.counts[-1] += len(ordered) - below
        self.sum += sum(ordered)


Value = float | Histogram
Sample = tuple[Family, tuple[str, ...], Value]
"""A sample: its family, the label values in the order of the family's labels, and the value."""
OVERFLOW: Final[tuple[str, ...]] = ()
"""Replaces the label values of the sample that sums all samples with no series of their own."""
Steps = Iterator[list[Sample]]
"""Lists of samples that each take about a millisecond to collect; the server handles other requests in between."""
