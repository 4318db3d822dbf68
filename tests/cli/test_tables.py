"""Tables as people see them: readable in a terminal of 80 columns, one row a line in a pipe."""

from __future__ import annotations

import sys

import click
import pytest

from cometmq.cli import output
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, show

COLUMNS = (
    Column("broker", "Broker"),
    Column("queues", "Read queues", right=True),
    Column("last", "Last message", time=True),
    Column("note", "Note", prose=True),
)
ROW = {"broker": "broker-a", "queues": 1024, "last": "2026-01-31T12:00:00.123+00:00", "note": "all is well"}


def shown(
    rows: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    width: int | None = None,
    columns: tuple[Column, ...] = COLUMNS,
) -> list[str]:
    """The lines of a table; ``width`` of the terminal, None for a pipe."""
    if width is not None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
    show(rows, columns, "table", title="Things")
    return click.unstyle(capsys.readouterr().out).splitlines()


def test_a_row_is_a_line_without_blanks_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown([ROW, ROW | {"note": None}], monkeypatch, capsys)
    assert lines[0] == "Things"
    assert lines[1].split() == ["Broker", "Read", "queues", "Last", "message", "Note"]
    assert lines[3] == "broker-a         1024  2026-01-31 12:00:00  all is well"
    assert lines[4] == "broker-a         1024  2026-01-31 12:00:00  –"
    assert len(lines) == 5


def test_titles_and_prose_give_way_first_numbers_and_names_never_break(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown([ROW | {"note": "a long note that goes on and on"}], monkeypatch, capsys, width=56)
    assert all(len(line) <= 56 for line in lines)
    text = "\n".join(lines)
    for whole in ("broker-a", "1024", "2026-01-31 12:00:00"):
        assert whole in text


def test_rows_look_alike_whether_one_of_their_cells_is_wrapped_or_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain rows are not made by rich, which would need seconds for twenty thousand."""
    rows: list[dict[str, object]] = [ROW | {"broker": name} for name in ("broker-a", "池塘", "e\u0301te", "")]
    rows.insert(2, ROW | {"note": "a note that is far too long for its column " * 3})
    lines = shown(rows, monkeypatch, capsys, width=60)
    monkeypatch.setattr(output, "_line", lambda row, columns, widths: None)
    monkeypatch.setattr(output, "groupby", lambda rows, key: [(False, rows)])
    assert shown(rows, monkeypatch, capsys, width=60) == lines


def test_twenty_thousand_rows_are_a_table_within_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[object] = []

    def header(_: object, rows: object, *__: object, **___: object) -> list[str]:
        made.append(rows)
        return ["header"]

    monkeypatch.setattr(output, "_rich_rows", header)
    assert len(shown([ROW] * 20_000, monkeypatch, capsys)) == 20_002
    assert made == [()]


def test_a_table_names_the_first_items_of_a_long_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = (Column("topics", "Topics", items=2),)
    rows: list[dict[str, object]] = [{"topics": list("abc"[:size] + "def" * (size > 3))} for size in (1, 2, 3, 4)]
    assert shown(rows, monkeypatch, capsys, columns=columns)[3:] == ["a", "a, b", "a, b, c", "a, b, 4 more"]


@pytest.mark.parametrize("width", range(30, 100))
def test_no_width_cuts_a_title_or_a_value(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = (*COLUMNS, Column("behind", "Dispatch behind", right=True))
    lines = shown([ROW | {"behind": 777}], monkeypatch, capsys, width=width, columns=columns)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for whole in ("Broker", "Read", "queues", "message", "Note", "Dispatch", "behind", "broker-a", "1024", "777"):
        assert whole in text, whole


def test_what_does_not_fit_stands_as_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown([ROW, ROW], monkeypatch, capsys, width=40)
    record = [
        "Broker        broker-a",
        "Read queues   1024",
        "Last message  2026-01-31 12:00:00",
        "Note          all is well",
    ]
    assert lines == ["Things", *record, "", *record]


def test_a_pipe_never_breaks_a_value(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    columns = tuple(Column(name, name) for name in "abcdefgh")
    lines = shown([{name: name * 40 for name in "abcdefgh"}], monkeypatch, capsys, columns=columns)
    assert lines[-1] == "  ".join(name * 40 for name in "abcdefgh")


def test_brackets_are_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[bold]" in shown([ROW | {"note": "[bold]"}], monkeypatch, capsys)[3]


@pytest.mark.parametrize("claimed_ms", [253_402_387_200_000, 10**18, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_shown_as_its_number(claimed_ms: int) -> None:
    """The born time of a message is what its producer says."""
    assert local_time(claimed_ms) == str(claimed_ms)
