"""Bounds the series of each family: the first ones have series of their own, all others one together.

The rule, and the label of the others, are those of OpenTelemetry, which Apache's brokers count with: a set of labels
keeps its series as long as it is there. A counter of the others never falls, also when some of them are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Sample, Steps, Value


@dataclass(slots=True)
class _Rest:
    """The samples of a counter that have no series of their own, over all answers."""

    before: Sequence[float]
    """Their sums in the last answer."""
    gone: Sequence[float]
    """The part of earlier sums that is not among those of now."""

    def never_falling(self, now: Sequence[float]) -> list[float]:
        """Sums with what is gone, to be told now."""
        self.gone = [lost + max(old - new, 0) for lost, old, new in zip(self.gone, self.before, now, strict=True)]
        self.before = now
        return [new + lost for new, lost in zip(now, self.gone, strict=True)]


class SeriesLimit:
    """Remembers, over all answers, which sets of labels have series of their own.

    :param limit: gives the greatest number of them in a family.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._own: Final[dict[Family, dict[tuple[str, ...], int]]] = {}
        """The answer that each was last in."""
        self._rest: Final[dict[Family, _Rest]] = {}
        self._answers = 0

    def bounded(self, steps: Steps) -> Steps:
        """Samples without those of too many series, and at the end the sums of these."""
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
