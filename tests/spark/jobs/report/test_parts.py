"""The parts of a report in its text and in its JSON."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cometmq.spark.jobs.report.parts import Notes, Table, bar_rows
from cometmq.spark.jobs.report.report import Report

VALUES = st.one_of(st.none(), st.integers(), st.text("ab 键", max_size=12))


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    assert Table(("<tag", ">messages"), [("paid", 1_200), (None, 7), ("已付款", None)], "Tags").lines() == [
        "",
        "  tag     messages",
        "  paid       1,200",
        "  –              7",
        "  已付款         –",
    ]


def test_a_table_without_rows_has_its_heads() -> None:
    assert Table(("<topic", ">messages"), [], "Topics").lines() == ["", "  topic  messages"]


@given(st.lists(st.tuples(VALUES, VALUES, st.integers()), max_size=8))
def test_all_lines_end_in_one_column(rows: list[tuple[str | int | None, str | int | None, int]]) -> None:
    assert len({cell_len(line) for line in Table(("<one", ">two", ">three"), rows, "Rows").lines()[1:]}) == 1


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    rows = [(str(number), number) for number in range(5)]
    assert Table(("<hour", ">files"), rows, "Hours", most=3, what="hours").lines()[-2:] == [
        "  2         2",
        "  … and 2 more hours (-o json has all)",
    ]


def test_the_longest_bar_has_all_characters_and_the_shortest_is_seen() -> None:
    lines = Table(("<at", ">n", "<"), bar_rows([("a", 1_000), ("b", 1), ("c", 500)], 10), "Bars").lines()
    assert [line.count("█") for line in lines] == [0, 0, 10, 1, 5]


def test_notes_are_indented_and_a_next_step_stands_below_its_note() -> None:
    assert Notes(["lost"], "what is wrong:", ["look"]).lines() == ["", "what is wrong:", "  lost", "    → look"]


def test_json_has_title_verdict_fields_and_computed_properties() -> None:
    @dataclass(frozen=True)
    class Counted(Report):
        TITLE = "Counted up to {0.total}"
        COMPUTED = ("total",)
        counts: tuple[int, ...]

        @property
        def verdict(self) -> str:
            return "all there"

        @property
        def total(self) -> int:
            return sum(self.counts)

    assert Counted((1, 2)).to_dict() == {
        "title": "Counted up to 3",
        "verdict": "all there",
        "counts": (1, 2),
        "total": 3,
    }
