"""The tables in the reports of jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cometmq.spark.report_table import table

VALUES = st.one_of(st.none(), st.integers(), st.text("ab 键", max_size=12))


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    assert table(("<tag", ">messages"), [("paid", 1_200), (None, 7), ("已付款", None)]) == [
        "  tag     messages",
        "  paid       1,200",
        "  –              7",
        "  已付款         –",
    ]


def test_a_table_without_rows_has_its_heads() -> None:
    assert table(("<topic", ">messages"), []) == ["  topic  messages"]


@given(st.lists(st.tuples(VALUES, VALUES, st.integers()), max_size=8))
def test_all_lines_end_in_one_column(rows: list[tuple[str | int | None, str | int | None, int]]) -> None:
    assert len({cell_len(line) for line in table(("<one", ">two", ">three"), rows)}) == 1
