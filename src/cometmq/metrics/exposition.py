"""Prometheus' text format, version 0.0.4.

The text is produced in pieces of a few hundred samples, so that a server with 10,000 topics can answer other requests
in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Final

from cometmq.limits import METRIC_SAMPLES_PER_SLICE
from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Sample, Steps, Value

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

OVERFLOW_LABEL: Final = "otel_metric_overflow"
"""Label of the series that sums all samples with no series of their own, named as in OpenTelemetry."""


def in_slices(samples: Iterable[Sample]) -> Steps:
    """Split the samples into lists that each take about a millisecond to collect."""
    rest = iter(samples)
    while some := list(islice(rest, METRIC_SAMPLES_PER_SLICE)):
        yield some


def exposition(steps: Steps, common: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the exposition text in pieces that each take about a millisecond, sorted by family name.

    Pieces are empty while samples are collected.

    :param common: labels that every sample has.
    """
    families: dict[Family, list[tuple[tuple[str, ...], Value]]] = {}
    for samples in steps:
        for family, labels, value in samples:
            found = families.get(family)
            if found is None:
                found = families[family] = []
            found.append((labels, value))
        yield b""
    for family in sorted(families, key=lambda found: found.name):
        head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind.value}\n"
        lines = _histogram_lines if family.kind is Kind.HISTOGRAM else _line
        template, order = _template(family.labels, common)
        overflow, _ = _template((), {**common, OVERFLOW_LABEL: "true"})
        rest = iter(families[family])
        while some := list(islice(rest, METRIC_SAMPLES_PER_SLICE)):
            parts = [
                lines(
                    family,
                    overflow % ()
                    if labels == OVERFLOW and family.labels
                    else template % tuple([_escaped(labels[at]) for at in order]),
                    value,
                )
                for labels, value in some
            ]
            yield (head + "".join(parts)).encode()
            head = ""


def _template(differing: Sequence[str], common: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    """Return a label template with ``%s`` for the values that differ, and these values' positions in a sample."""
    fixed = {name: _escaped(value).replace("%", "%%") for name, value in common.items()}
    names = sorted({*fixed, *differing})
    text = ",".join([f'{name}="{"%s" if name in differing else fixed[name]}"' for name in names])
    return text, tuple(differing.index(name) for name in names if name in differing)


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES) if '"' in value or "\\" in value or "\n" in value else value


def _line(family: Family, labels: str, value: Value) -> str:
    return f"{family.name}{{{labels}}} {value}\n"


def _histogram_lines(family: Family, labels: str, value: Value) -> str:
    assert isinstance(value, Histogram)
    name = family.name
    lines = []
    below = 0
    for bound, count in zip(_bounds(family), value.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}\n')
    lines.append(f"{name}_count{{{labels}}} {below}\n{name}_sum{{{labels}}} {value.sum}\n")
    return "".join(lines)


@cache
def _bounds(family: Family) -> tuple[str, ...]:
    """Return a histogram's bounds as text."""
    return (*(str(float(bound)) for bound in family.bounds), "+Inf")
