"""Every row of benchmarks/scale runs at a small step, and its table and picture show what was measured."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from benchmarks.scale.__main__ import measure, picture, step_table
from benchmarks.scale.bench import Times, worst_each_second
from benchmarks.scale.growth import exponent, more_than_work
from benchmarks.scale.rows import ROWS
from tests.interop.systems import System

QUICK = Times(warm=0.05, after=0.1, steady=0.2, idle=0.1)
STEPS = (3, 60)
"""60 clients are two groups."""


@pytest.mark.parametrize("row", ROWS)
def test_a_row_measures_each_step(row: str) -> None:
    measured, beside = measure(row, {System.COMETMQ: STEPS[:1]}, QUICK, holds=True)
    figures = measured[System.COMETMQ][STEPS[0]]
    assert figures["anonymous memory, MB"] > 1
    assert figures["longest wait per second, maximum, ms"] >= figures["longest wait per second, median, ms"] > 0
    assert ("ready after SIGKILL, s" in figures) == (row != "clients")
    assert figures["longest hold of the loop, ms"] >= 0
    assert len(beside) == 2
    assert f"|  | CometMQ {STEPS[0]} |" in step_table(measured)


def test_a_client_that_comes_has_a_connection_until_it_leaves() -> None:
    measured, _ = measure("clients", {System.COMETMQ: STEPS}, QUICK)
    few, many = (measured[System.COMETMQ][step]["descriptors"] for step in STEPS)
    assert many - few == STEPS[1] - STEPS[0]


def test_a_send_that_waits_for_seconds_counts_in_each_of_them() -> None:
    assert worst_each_second([(0.1, 2.0), (0.5, 2_600.0), (3.2, 1.0), (4.0, 3.0)]) == [2_600.0] * 4 + [3.0]


def test_a_picture_has_a_curve_for_each_system_as_far_as_it_was_measured() -> None:
    figures = {"longest wait per second, median, ms": 2.0, "ready after SIGKILL, s": 1.5}
    measured = {System.APACHE: {100: figures}, System.COMETMQ: {100: figures, 1_000: figures}}
    drawn = picture("topics", measured)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    lengths = [len(one.get("points", "").split()) for one in ElementTree.fromstring(drawn).iterfind(".//{*}polyline")]
    assert sorted(lengths) == [1, 1, 2, 2]
    assert drawn.count("stroke-dasharray") == 2  # the starts
    assert "–" in step_table(measured | {System.APACHE: {100: {"ready after SIGKILL, s": 1.5}}})


def test_growth_is_the_slope_of_logarithms() -> None:
    square = [(float(size), 3.0 * size**2) for size in (10, 100, 1_000)]
    assert exponent(square) == pytest.approx(2)
    assert exponent(square[:1]) is None


def test_what_grows_faster_than_the_work_is_named() -> None:
    def steps(at_ten: float, at_hundred: float, name: str) -> list[str]:
        return more_than_work({10: {name: at_ten}, 100: {name: at_hundred}})

    assert steps(1, 10, "ready after a stop, s") == []
    assert steps(1, 30, "ready after a stop, s") == [
        "ready after a stop, s: n^1.48 over all steps, n^1.48 over the last"
    ]
    assert steps(1, 10, "longest wait while clients connect, ms") != []
    assert steps(0.01, 0.2, "ready after a stop, s") == []  # too small to tell from noise
    assert steps(1, 100, "sends/s") == []
