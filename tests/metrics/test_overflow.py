"""Families have as many series as are allowed, and one for all others, which adds up and never falls."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cometmq.metrics.family import OVERFLOW, Family, Histogram, Kind, Sample, Steps
from cometmq.metrics.overflow import SeriesLimit

DEPTH = Family("depth", Kind.GAUGE, "Depth.", ("pond",))
FISH = Family("fish_total", Kind.COUNTER, "Fish.", ("pond",))
LENGTH = Family("length", Kind.HISTOGRAM, "Length.", ("pond",), (1, 10))
ALL = Family("all_total", Kind.COUNTER, "All.")


def told(series: SeriesLimit, *samples: Sample) -> dict[Any, Any]:
    steps: Steps = iter([list(samples)])
    return {(family, labels): value for some in series.limit_series(steps) for family, labels, value in some}


def test_the_first_keep_their_series_and_the_others_are_added_up() -> None:
    series = SeriesLimit(lambda: 2)
    ponds = [(DEPTH, (name,), value) for name, value in (("a", 1), ("b", 2), ("c", 4), ("d", 8))]
    assert told(series, *ponds) == {(DEPTH, ("a",)): 1, (DEPTH, ("b",)): 2, (DEPTH, OVERFLOW): 12}
    assert told(series, *reversed(ponds)) == {(DEPTH, ("a",)): 1, (DEPTH, ("b",)): 2, (DEPTH, OVERFLOW): 12}


def test_the_place_of_one_that_is_gone_is_free() -> None:
    series = SeriesLimit(lambda: 2)
    told(series, *((DEPTH, (name,), 1) for name in "abc"))
    told(series, *((DEPTH, (name,), 1) for name in "bc"))
    assert told(series, *((DEPTH, (name,), 1) for name in "bc")).keys() == {(DEPTH, ("b",)), (DEPTH, ("c",))}


def test_families_without_labels_have_their_sample() -> None:
    series = SeriesLimit(lambda: 1)
    found = told(series, (ALL, (), 5), (DEPTH, ("a",), 1), (DEPTH, ("b",), 2))
    assert found == {(ALL, ()): 5, (DEPTH, ("a",)): 1, (DEPTH, OVERFLOW): 2}


def test_histograms_of_the_others_are_added_bucket_by_bucket() -> None:
    series = SeriesLimit(lambda: 1)
    samples: list[Sample] = []
    for name in "abc":
        lengths = Histogram(LENGTH.bounds)
        lengths.observe(1)
        lengths.observe(20, 2)
        samples.append((LENGTH, (name,), lengths))
    rest = told(series, *samples)[LENGTH, OVERFLOW]
    assert (rest.counts, rest.sum) == ([2, 0, 4], 82)


@given(
    st.integers(1, 3),
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5), max_size=6), min_size=1, max_size=6),
)
def test_a_counter_of_the_others_never_falls(limit: int, growths: list[dict[str, int]]) -> None:
    """Each answer has some ponds, with what each has grown by; ponds come and go."""
    series = SeriesLimit(lambda: limit)
    counts = dict.fromkeys("abcdef", 0)
    before = 0.0
    for growth in growths:
        for name, fish in growth.items():
            counts[name] += fish
        found = told(series, *((FISH, (name,), counts[name]) for name in growth))
        assert sum(1 for _, labels in found if labels) <= limit
        now = found.get((FISH, OVERFLOW), before)
        assert now >= before
        before = now
