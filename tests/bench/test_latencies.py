"""The histogram of latencies: every percentile is within 1 % of the exact one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cometmq.bench.latencies import PERCENTILES, Latencies

MICROSECONDS = st.lists(st.integers(0, 10**10), min_size=1, max_size=300)


@given(MICROSECONDS)
def test_percentiles_are_exact_to_one_percent(values: list[int]) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value / 1_000_000 + 1e-7)
    ordered = sorted(values)
    for percent in PERCENTILES:
        exact = next(value for rank, value in enumerate(ordered, 1) if rank >= len(ordered) * percent / 100)
        found = latencies.percentile_us(percent)
        assert exact <= found <= exact * 1.01 + 1
    assert (latencies.count, latencies.max_us) == (len(values), ordered[-1])


@given(MICROSECONDS, MICROSECONDS)
def test_a_merge_is_the_same_as_all_in_one_and_bars_have_every_latency(ours: list[int], theirs: list[int]) -> None:
    one, other, all_of_them = Latencies(), Latencies(), Latencies()
    for values, kept in ((ours, one), (theirs, other), (ours + theirs, all_of_them)):
        for value in values:
            kept.add(value / 1_000_000)
    one.merge(other)
    assert one.summary_ms() == all_of_them.summary_ms()
    bars = one.bars()
    assert sum(bar.number for bar in bars) == len(ours) + len(theirs)
    assert all(before.from_us <= after.from_us for before, after in pairwise(bars))


def test_no_latencies_are_zero() -> None:
    assert Latencies().bars() == []
    assert set(Latencies().summary_ms().values()) == {0.0}
