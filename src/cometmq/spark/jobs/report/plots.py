"""The plots of a report, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bars:
    """A plot with a bar for each name and series. A plot without names is not drawn."""

    title: str
    unit: str
    """Unit of the bars' heights."""
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


def bars(title: str, unit: str, counts: Iterable[tuple[str, float]]) -> Bars:
    """Return a plot with one series."""
    found = list(counts)
    return Bars(title, unit, [name for name, _ in found], {unit: [count for _, count in found]})


@dataclass(frozen=True, slots=True)
class Line:
    """A line plot of series over the values ``at``."""

    title: str
    unit: str
    label: str
    at: Sequence[float]
    series: Mapping[str, Sequence[float]]
    shaded: tuple[str, float, float] | None = None
    """Shaded part of the plot: its name, start and end."""


@dataclass(frozen=True, slots=True)
class Spans:
    """A waterfall plot: bars below one another, each with its start and length."""

    title: str
    label: str
    names: Sequence[str]
    begins: Sequence[float]
    lengths: Sequence[float]


Plot = Bars | Line | Spans
