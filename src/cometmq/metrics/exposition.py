"""The text format of Prometheus, version 0.0.4.

Own code, since it writes a few hundred samples at a time: a server with 10,000 topics answers others in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from cometmq.limits import MAX_METRIC_SAMPLES, METRIC_SAMPLES_PER_SLICE
from cometmq.metrics.family import Family, Histogram, Kind, Sample, Steps, Value

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


LEFT_OUT: Final = Family(
    "cometmq_metrics_left_out", Kind.GAUGE, "Samples that this answer has no room for.", ("family",)
)


def limited(steps: Steps) -> Steps:
    """The samples without those of a family that has more than :data:`~cometmq.limits.MAX_METRIC_SAMPLES`."""
    counts: dict[Family, int] = {}
    for step in steps:
        kept = []
        for sample in step:
            count = counts[sample[0]] = counts.get(sample[0], 0) + 1
            if count <= MAX_METRIC_SAMPLES:
                kept.append(sample)
        yield kept
    over = {family.name: count - MAX_METRIC_SAMPLES for family, count in counts.items() if count > MAX_METRIC_SAMPLES}
    yield [(LEFT_OUT, (name,), count) for name, count in over.items()]


def in_slices(samples: Iterable[Sample]) -> Steps:
    """The samples in lists of as many as one turn makes."""
    rest = iter(samples)
    while some := list(islice(rest, METRIC_SAMPLES_PER_SLICE)):
        yield some


def exposition(steps: Steps, common: Mapping[str, str]) -> Iterator[bytes]:
    """Write samples, in pieces of about a millisecond: family by family in the order of names.

    Pieces are empty while samples are collected.

    :param common: labels that every sample has.
    """
    families: dict[Family, list[tuple[tuple[str, ...], Value]]] = {}
    for samples in limited(steps):
        for family, labels, value in samples:
            families.setdefault(family, []).append((labels, value))
        yield b""
    for family in sorted(families, key=lambda found: found.name):
        head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind.value}\n"
        found = iter(families[family])
        while some := list(islice(found, METRIC_SAMPLES_PER_SLICE)):
            lines = [_lines(family, _labels(family, values, common), value) for values, value in some]
            yield (head + "".join(lines)).encode()
            head = ""


def _labels(family: Family, values: tuple[str, ...], common: Mapping[str, str]) -> str:
    """``name="value",…`` of a sample, in the order of the names."""
    pairs = sorted((*common.items(), *zip(family.labels, values, strict=True)))
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs])


def _lines(family: Family, labels: str, value: Value) -> str:
    if not isinstance(value, Histogram):
        return f"{family.name}{{{labels}}} {float(value)}\n"
    lines = []
    below = 0
    for bound, count in zip((*family.bounds, float("inf")), value.counts, strict=True):
        below += count
        text = "+Inf" if bound == float("inf") else str(float(bound))
        lines.append(f'{family.name}_bucket{{{labels},le="{text}"}} {below}\n')
    lines.append(f"{family.name}_count{{{labels}}} {below}\n{family.name}_sum{{{labels}}} {float(value.sum)}\n")
    return "".join(lines)
