"""Limits the series of each family: the first ones have their own series, all others share one.

The rule and the label of the shared series are those of OpenTelemetry, which Apache's brokers use: a set of labels
keeps its series as long as it exists. A shared counter never decreases, even when some of its members vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Sample, Steps, Value


@dataclass(slots=True)
class _Rest:
    """The shared part of a counter, over all scrapes."""

    before: Sequence[float]
    """Sums in the last scrape."""
    gone: Sequence[float]
    """Sums of the members that have vanished."""

    def never_falling(self, now: Sequence[float]) -> list[float]:
        """Return the sums to report, including those of vanished members."""
        self.gone = [lost + max(old - new, 0) for lost, old, new in zip(self.gone, self.before, now, strict=True)]
        self.before = now
        return [new + lost for new, lost in zip(now, self.gone, strict=True)]


class SeriesLimit:
    """Remembers, over all scrapes, which sets of labels have their own series.

    :param limit: returns the maximum number of series in a family.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._own: Final[dict[Family, dict[tuple[str, ...], int]]] = {}
        """Number of the last scrape with each set of labels."""
        self._rest: Final[dict[Family, _Rest]] = {}
        self._answers = 0

    def bounded(self, steps: Steps) -> Steps:
        """Yield the samples with a series of their own, then the sums of all others."""
        self._answers += 1
        answer, limit = self._answers, self._limit()
        sums: dict[Family, list[float]] = {}
        for samples in steps:
            kept: list[Sample] = []
            for sample in samples:
                family, labels, value = sample
                own = self._own.setdefault(family, {})
                if labels in own or len(own) < limit:
                    own[labels] = answer
                    kept.append(sample)
                else:
                    before = sums.get(family) or _nothing(family)
                    sums[family] = [one + other for one, other in zip(before, _numbers(value), strict=True)]
            yield kept
        yield list(self._rests(sums))
        for own in self._own.values():
            for labels in [labels for labels, last in own.items() if last < answer]:
                del own[labels]

    def _rests(self, sums: Mapping[Family, list[float]]) -> Iterator[Sample]:
        for family in {**sums, **self._rest}:
            now = sums.get(family) or _nothing(family)
            if family.kind is not Kind.GAUGE:
                rest = self._rest.setdefault(family, _Rest(_nothing(family), _nothing(family)))
                now = rest.never_falling(now)
            yield family, OVERFLOW, _value(family, now)


def _nothing(family: Family) -> list[float]:
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
