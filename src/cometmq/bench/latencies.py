"""A fixed-size latency histogram that is accurate to 1 % for any number of values."""

from __future__ import annotations

from typing import Final, NamedTuple

_EXACT_BITS: Final = 7
_EXACT: Final = 1 << _EXACT_BITS
"""Number of microseconds up to which each value has its own bucket; each further power of two has as many buckets."""
_BUCKETS: Final = _EXACT * 32
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)


class Bar(NamedTuple):
    """A bar of the histogram: the number of latencies between two limits."""

    from_us: int
    below_us: int
    number: int


class Latencies:
    """A histogram of latencies in microseconds. Latencies above 2^37 µs (38 hours) share one bucket."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.max_us = 0
        self._sum_us = 0

    def add(self, seconds: float) -> None:
        """Count one latency."""
        us = max(0, int(seconds * 1_000_000))
        shift = max(0, us.bit_length() - _EXACT_BITS - 1)
        self._counts[min(shift * _EXACT + (us >> shift), _BUCKETS - 1)] += 1
        self.count += 1
        self._sum_us += us
        self.max_us = max(self.max_us, us)

    def merge(self, other: Latencies) -> None:
        """Add all latencies of another histogram."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self._sum_us += other._sum_us
        self.max_us = max(self.max_us, other.max_us)

    @property
    def mean_us(self) -> float:
        """The mean latency, or 0 if no latency was counted."""
        return self._sum_us / self.count if self.count else 0.0

    def percentile_us(self, percent: float) -> int:
        """Return a percentile of the latencies, or 0 if no latency was counted."""
        wanted = self.count * percent / 100
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_limits(index)[1] - 1, self.max_us)
        return self.max_us

    def summary_ms(self) -> dict[str, float]:
        """Return mean, percentiles and maximum in milliseconds."""
        ends = {f"p{percent:g}": self.percentile_us(percent) / 1000 for percent in PERCENTILES}
        return {"mean": round(self.mean_us / 1000, 3), **ends, "max": self.max_us / 1000}

    def bars(self, most: int = 16) -> list[Bar]:
        """Return the histogram's bars in ascending order, with limits that grow by a constant factor."""
        filled = [(*_limits(index), count) for index, count in enumerate(self._counts) if count]
        if not filled:
            return []
        low, high = max(1, filled[0][0]), filled[-1][1]
        factor = max(1.1, (high / low) ** (1 / most))
        bars: list[Bar] = []
        begin, end = low if filled[0][0] else 0, low * factor
        position = 0
        while position < len(filled):
            count = 0
            while position < len(filled) and filled[position][0] < end:
                count += filled[position][2]
                position += 1
            bars.append(Bar(int(begin), max(int(begin) + 1, int(end)), count))
            begin, end = end, end * factor
        return bars


def _limits(index: int) -> tuple[int, int]:
    """Return the smallest latencies of a bucket and of the next one."""
    shift = max(0, index // _EXACT - 1)
    place = index - shift * _EXACT
    return place << shift, (place + 1) << shift
