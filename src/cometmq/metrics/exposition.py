"""The text format of Prometheus, version 0.0.4.

Own code, since it writes a few hundred samples at a time: a server with 10,000 topics answers others in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Final

from cometmq.limits import MAX_METRIC_SAMPLES, METRIC_SAMPLES_PER_SLICE
from cometmq.metrics.family import Family, Histogram, Kind, Sample, Steps, Value

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


LEFT_OUT: Final = Family(
    "cometmq_metrics_left_out", Kind.GAUGE, "Samples that this answer has no room for.", ("family",)
)


def in_slices(samples: Iterable[Sample]) -> Steps:
    """The samples in lists of as many as one turn makes."""
    rest = iter(samples)
    while some := list(islice(rest, METRIC_SAMPLES_PER_SLICE)):
        yield some


def exposition(steps: Steps, common: Mapping[str, str]) -> Iterator[bytes]:
    """Write samples, in pieces of about a millisecond: family by family in the order of names.

    Pieces are empty while samples are collected. A family has at most
    :data:`~cometmq.limits.MAX_METRIC_SAMPLES`; another one tells of the rest.

    :param common: labels that every sample has.
    """
    families: dict[Family, list[tuple[tuple[str, ...], Value]]] = {}
    left_out: dict[Family, int] = {}
    for samples in steps:
        for family, labels, value in samples:
            found = families.get(family)
            if found is None:
                found = families[family] = []
            if len(found) < MAX_METRIC_SAMPLES:
                found.append((labels, value))
            else:
                left_out[family] = left_out.get(family, 0) + 1
        yield b""
    if left_out:
        families[LEFT_OUT] = [((family.name,), count) for family, count in left_out.items()]
    for family in sorted(families, key=lambda found: found.name):
        head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind.value}\n"
        lines = _histogram_lines if family.kind is Kind.HISTOGRAM else _line
        template, order = _template(family, common)
        rest = iter(families[family])
        while some := list(islice(rest, METRIC_SAMPLES_PER_SLICE)):
            parts = [
                lines(family, template % tuple([_escaped(labels[at]) for at in order]), value) for labels, value in some
            ]
            yield (head + "".join(parts)).encode()
            head = ""


def _template(family: Family, common: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    """The labels of a family's samples, in the order of their names, with ``%s`` for the values that differ.

    Returns with it the places of these values among the sample's.
    """
    fixed = {name: _escaped(value).replace("%", "%%") for name, value in common.items()}
    names = sorted({*fixed, *family.labels})
    text = ",".join([f'{name}="{"%s" if name in family.labels else fixed[name]}"' for name in names])
    return text, tuple(family.labels.index(name) for name in names if name in family.labels)


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
    """The bounds of a histogram as text."""
    return (*(str(float(bound)) for bound in family.bounds), "+Inf")
