"""Limits the number of series in each metric family: the first label sets get their own series, all others share one.

The rule and the label of the shared series are those of OpenTelemetry, which Apache's brokers use: a set of labels
keeps its series as long as it exists. A shared counter never decreases, even when some of its members vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Sample, Steps, Value


@dataclass(slots=True)
class _SharedCounter:
    """The shared series of a counter, tracked across scrapes."""

    before: Sequence[float]
    """Sums at the last scrape."""
    vanished: Sequence[float]
    """Sums of the members that have disappeared."""

    def monotonic_sums(self, now: Sequence[float]) -> list[float]:
        """Return the sums to report, including those of members that have disappeared."""
        self.vanished = [
            lost + max(old - new, 0) for lost, old, new in zip(self.vanished, self.before, now, strict=True)
        ]
        self.before = now
        return [new + lost for new, lost in zip(now, self.vanished, strict=True)]


class SeriesLimit:
    """Tracks, across scrapes, which label sets have their own series.

    :param limit: returns the maximum number of series in a family.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._own: Final[dict[Family, dict[tuple[str, ...], int]]] = {}
        """Number of the last scrape that contained each label set."""
        self._rest: Final[dict[Family, _SharedCounter]] = {}
        self._answers = 0

    def limit_series(self, steps: Steps) -> Steps:
        """Yield the samples that have their own series, followed by the sums of all other samples."""
        self._answers += 1
        answer, limit = self._answers, self._limit()
        sums: dict[Family, list[float]] = {}
        for samples in steps:
            own_samples: list[Sample] = []
            for sample in samples:
                family, labels, value = sample
                own = self._own.setdefault(family, {})
                if labels in own or len(own) < limit:
                    own[labels] = answer
                    own_samples.append(sample)
                else:
                    before = sums.get(family) or _zeros(family)
                    sums[family] = [one + other for one, other in zip(before, _numbers(value), strict=True)]
            yield own_samples
        yield list(self._shared_samples(sums))
        for own in self._own.values():
            for labels in [labels for labels, last in own.items() if last < answer]:
                del own[labels]

    def _shared_samples(self, sums: Mapping[Family, list[float]]) -> Iterator[Sample]:
        for family in {**sums, **self._rest}:
            now = sums.get(family) or _zeros(family)
            if family.kind is not Kind.GAUGE:
                rest = self._rest.setdefault(family, _SharedCounter(_zeros(family), _zeros(family)))
                now = rest.monotonic_sums(now)
            yield family, OVERFLOW, _value(family, now)


def _zeros(family: Family) -> list[float]:
    return [0] * (len(family.bounds) + 2 if family.kind is Kind.HISTOGRAM else 1)


def _numbers(value: Value) -> list[float]:
    return [value.sum, *value.counts] if isinstance(value, Histogram) else [value]


def _value(family: Family, numbers: list[float]) -> Value:
    if family.kind is not Kind.HISTOGRAM:
        return numbers[0]
    found = Histogram(family.bounds)
    found.sum = numbers[0]
    found.counts[:] = map(int, numbers[1:])
    return found
