"""What the plots of a report look like: seen in the axes that they are drawn into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.job_report import Bars, Line, _draw_series, _title, write_page

pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed (pip install cometmq[plot])")


@pytest.fixture
def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(10, 3.5)).add_subplot()


def names_below(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize("queues", [1, 40, 41, 500])
def test_bars_of_many_queues_are_all_drawn_and_as_many_named_as_can_be_read(axes: Any, queues: int) -> None:
    names = [f"broker-a {queue}" for queue in range(queues)]
    _draw_series(axes, Bars("By queue", "messages", names, {"messages": list(range(queues))}))
    assert len(axes.patches) == queues
    assert queues / 26 <= len(names_below(axes)) <= 40
    shown = dict(zip(axes.get_xticks(), names_below(axes), strict=True))
    assert all(names[place] == name for place, name in shown.items())


def test_the_title_tells_of_bars_that_are_not_drawn(axes: Any) -> None:
    plot = Bars("By queue", "messages", ["q"] * 5000, {"messages": [1] * 5000})
    _draw_series(axes, plot)
    assert (len(axes.patches), _title(plot)) == (500, "By queue (the first 500 of 5,000)")


def test_long_names_are_cut_and_stand_aslant_where_they_would_overlap(axes: Any) -> None:
    names = [f"{'topic' * 20}\n{group}" for group in ("a", "b", "c", "d")]
    _draw_series(axes, Bars("By group", "ms", names, {"p50": [1] * 4}))
    assert names_below(axes)[0] == "topictopictopictopictop…\na"
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {45}
    axes.clear()
    _draw_series(axes, Bars("By group", "ms", ["a", "b"], {"p50": [1, 2]}))
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}


def test_one_point_alone_is_seen(axes: Any) -> None:
    _draw_series(axes, Line("Progress", "messages", "seconds", [1.5], {"messages": [10]}))
    assert axes.lines[0].get_marker() == "o"


@pytest.mark.parametrize("key", ["$\\frac{$", "$a$", "订单", "a\x1b[2J", "<b>"])
def test_a_page_shows_whatever_stands_in_messages(key: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write_page(tmp_path / "page.html", key, True, key, [Bars("Hot keys", "messages", [key], {key: [1]})])
    text = (tmp_path / "page.html").read_text()
    assert (text.count("<img"), "<b>" in text) == (1, False)
    assert not recwarn.list
