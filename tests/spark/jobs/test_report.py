"""The reports of jobs: tables of the text, the JSON, and plots, seen in the axes that they are drawn into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cometmq.spark.jobs.report import Bars, Line, Plot, Report, Table, _draw_series, _title


@dataclass(frozen=True)
class Hot(Report):
    """The report of a job that found one key."""

    TITLE = "{0.key}"
    key: str

    def _parts(self) -> Iterator[str | Table]:
        yield self.key
        yield Table(("<key",), [(self.key,)])

    def _plots(self) -> list[Plot]:
        return [Bars("Hot keys", "messages", [self.key], {self.key: [1]})]


@pytest.fixture
def axes() -> Any:
    pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed (pip install cometmq[plot])")
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


@pytest.mark.usefixtures("axes")
@pytest.mark.parametrize("key", ["$\\frac{$", "$a$", "订单", "a\x1b[2J", "<b>"])
def test_a_page_shows_whatever_stands_in_messages(key: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    Hot(key).write_page(tmp_path / "page.html", key)
    text = (tmp_path / "page.html").read_text()
    assert (text.count("<img"), "<b>" in text) == (1, False)
    assert not recwarn.list


VALUES = st.one_of(st.none(), st.integers(), st.text("ab 键", max_size=12))


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    assert Table(("<tag", ">messages"), [("paid", 1_200), (None, 7), ("已付款", None)]).lines() == [
        "  tag     messages",
        "  paid       1,200",
        "  –              7",
        "  已付款         –",
    ]


def test_a_table_without_rows_has_its_heads() -> None:
    assert Table(("<topic", ">messages"), []).lines() == ["  topic  messages"]


@given(st.lists(st.tuples(VALUES, VALUES, st.integers()), max_size=8))
def test_all_lines_end_in_one_column(rows: list[tuple[str | int | None, str | int | None, int]]) -> None:
    assert len({cell_len(line) for line in Table(("<one", ">two", ">three"), rows).lines()}) == 1


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    rows = [(str(number), number) for number in range(5)]
    assert Table(("<hour", ">files"), rows, most=3, what="hours").lines()[-2:] == [
        "  2         2",
        "  … and 2 more hours (-o json has all)",
    ]


def test_json_has_fields_and_computed_properties() -> None:
    @dataclass(frozen=True)
    class Counted(Report):
        TITLE = "Counted"
        COMPUTED = ("total",)
        counts: tuple[int, ...]

        @property
        def total(self) -> int:
            return sum(self.counts)

    assert Counted((1, 2)).to_dict() == {"counts": (1, 2), "total": 3}
