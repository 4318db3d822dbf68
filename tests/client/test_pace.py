"""A rate that is reached and not passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.pace import CATCH_UP_SECONDS, WINDOW_SECONDS, Pace
from cometmq.testing import VirtualClock


def test_short_pauses_do_not_cost_the_rate() -> None:
    clock = VirtualClock()
    pace = Pace(1000, clock=clock)
    began = clock.monotonic()
    for number in range(400):
        clock.advance(pace.take(50) + (0.09 if number % 4 == 0 else 0.0))
    assert 20_000 / (clock.monotonic() - began) == pytest.approx(1000, rel=0.01)


@given(
    st.floats(0.1, 100_000),
    st.lists(st.tuples(st.booleans(), st.floats(0, 3)), min_size=1, max_size=60),
)
def test_no_second_has_more_than_a_tenth_above_the_rate(rate: float, turns: list[tuple[bool, float]]) -> None:
    """Pauses of any length, and paces that follow one another."""
    clock = VirtualClock()
    pace = Pace(rate, clock=clock)
    sent: list[tuple[float, int]] = []
    for anew, pause_s in turns:
        if anew:
            pace = Pace(rate, clock=clock)
        clock.advance(pause_s)
        messages = pace.window(1024)
        assert messages <= max(1, rate * WINDOW_SECONDS)
        clock.advance(pace.take(messages))
        sent.append((clock.monotonic(), messages))
    for begin, first in sent:
        within = sum(messages for at, messages in sent if begin <= at < begin + 1)
        assert within <= rate * (1 + CATCH_UP_SECONDS) * (1 + 1e-9) + (first if rate < 10 else 0)


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None, clock=VirtualClock())
    assert (pace.window(7), pace.take(1000)) == (7, 0.0)
