"""Plots, seen in the axes that they are drawn into."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.spark.jobs.report.drawing import NARROW, WIDE, Size, draw, title_of
from cometmq.spark.jobs.report.plots import Bars, Line


@pytest.fixture
def axes() -> Any:
    pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed (pip install cometmq[plot])")
    from matplotlib.figure import Figure

    return Figure(figsize=(10, 3.5)).add_subplot()


def names_below(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("queues", [1, 35, 41, 500])
def test_bars_of_many_queues_are_all_drawn_and_as_many_named_as_can_be_read(axes: Any, queues: int, size: Size) -> None:
    names = [f"broker-a {queue}" for queue in range(queues)]
    draw(axes, Bars("By queue", "messages", names, {"messages": list(range(queues))}), size)
    assert len(axes.patches) == queues
    assert min(queues, size.room / 40) <= len(names_below(axes)) <= size.room / 16
    shown = dict(zip(axes.get_xticks(), names_below(axes), strict=True))
    assert all(names[place] == name for place, name in shown.items())


def test_the_title_tells_of_bars_that_are_not_drawn(axes: Any) -> None:
    plot = Bars("By queue", "messages", ["q"] * 5000, {"messages": [1] * 5000})
    draw(axes, plot, WIDE)
    assert (len(axes.patches), title_of(plot)) == (500, "By queue (the first 500 of 5,000)")


def test_long_names_are_cut_and_stand_aslant_where_they_would_overlap(axes: Any) -> None:
    names = [f"{'topic' * 20}\n{group}" for group in ("a", "b", "c", "d")]
    draw(axes, Bars("By group", "ms", names, {"p50": [1] * 4}), WIDE)
    assert names_below(axes)[0] == "topictopictopictopictop…\na"
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {45}
    axes.clear()
    draw(axes, Bars("By group", "ms", ["a", "b"], {"p50": [1, 2]}), WIDE)
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}


def test_one_point_alone_is_seen(axes: Any) -> None:
    draw(axes, Line("Progress", "messages", "seconds", [1.5], {"messages": [10]}), WIDE)
    assert axes.lines[0].get_marker() == "o"
