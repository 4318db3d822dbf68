"""Writes a command's results as a table, json, jsonl or csv. Also contains the progress bar."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

from cometmq.message.queue_names import own_spelling
from cometmq.visible import json_text, visible

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console


# --- results -------------------------------------------------------------------------------------
FORMATS: Final = ("table", "json", "jsonl", "csv")
_TO_THE_SECOND: Final = len("2026-01-31 12:00:00")
PIPE_WIDTH: Final = 160
"""Width of a table that is written to a pipe or a file, in columns."""
_LEAST_PROSE: Final = 16
"""Minimum width of a column with wrapped text."""
_GAP: Final = 2

DEFAULT_FORM: Final = "cometmq.output"
"""Key in click's ``context.meta`` for the output format that is used if there is no ``-o``."""


def _default_form() -> str:
    ctx = click.get_current_context(silent=True)
    return (ctx.meta.get(DEFAULT_FORM) if ctx is not None else None) or "table"


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default=_default_form,
    show_default="table, or the context's",
    help="Output format.",
)
"""The ``-o`` option of all commands that show a result."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column in a result: its key in the rows, and its title in tables."""

    key: str
    title: str
    right: bool = False
    prose: bool = False
    """True if the column may be wrapped on a narrow terminal."""
    time: bool = False
    """True for a column of local times. Tables show them with a precision of seconds, other formats in full."""
    state: bool = False
    """True to colour the column's values on a terminal as good, notable or bad."""
    topics: bool = False
    """True for a column of topics. Tables show those of other tools' queues in the queues' own spelling."""
    items: int = 0
    """Maximum number of list items that a table shows, or 0 for all items. Other formats always contain all items."""


_GOOD: Final = frozenset({"ok", "in sync"})
_OF_NOTE: Final = frozenset({"advice"})


def show(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], output: str, *, title: str = "") -> None:
    """Write rows to stdout in the format ``output``."""
    if output == "jsonl":
        for row in rows:
            click.echo(json_text(_chosen(row, columns)))
    elif output == "json":
        click.echo(json_text([_chosen(row, columns) for row in rows], indent=2))
    elif output == "csv":
        # keep control characters escaped
        click.echo(_csv([_chosen(row, columns) for row in rows], columns), nl=False, color=True)
    else:
        _table(list(rows), columns, title)


def show_one(row: Mapping[str, Any], output: str, *, title: str = "") -> None:
    """Write one item, with one property per line."""
    if output == "json":
        click.echo(json_text(row, indent=2))
    elif output == "jsonl":
        click.echo(json_text(row))
    elif output == "csv":
        # keep control characters escaped
        click.echo(_csv([row], [Column(key, key) for key in row]), nl=False, color=True)
    else:
        pairs = [{"name": name, "value": value} for name, value in row.items()]
        _table(pairs, (Column("name", ""), Column("value", "", prose=True)), title, header=False)


def notify(sentence: str) -> None:
    """Write a message for people to stderr, since stdout is for data."""
    click.echo(visible(sentence), err=True)


def say(text: str) -> None:
    """Write text to stderr unchanged. Errors such as a full disk or a closed pipe are ignored."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def text_of(value: Any) -> str:
    """Format a value as text for a table."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(item) for item in value) or "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text_of(item)}" for name, item in value.items()) or "–"
    return str(value)


def _chosen(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    return {column.key: row.get(column.key) for column in columns}


def _csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        values = (row.get(column.key) for column in columns)
        writer.writerow(
            [json.dumps(v, ensure_ascii=False) if isinstance(v, (list, tuple, dict)) else v for v in values]
        )
    return text.getvalue()


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], title: str, *, header: bool = True) -> None:
    cells = [[visible(_cell(row.get(column.key), column)) for column in columns] for row in rows]
    print_table(cells, columns, visible(title), header=header)


def _cell(value: Any, column: Column) -> str:
    if column.items and isinstance(value, list) and len(value) > column.items + 1:
        value = [*value[: column.items], f"{len(value) - column.items:,} more"]
    if column.topics and value:
        value = own_spelling(value) if isinstance(value, str) else [own_spelling(topic) for topic in value]
    text = text_of(value)
    return text[:_TO_THE_SECOND].replace("T", " ") if column.time and value else text


def print_table(cells: Sequence[Sequence[str]], columns: Sequence[Column], title: str, *, header: bool = True) -> None:
    """Write rows of text to stdout as a table. Words and numbers are never broken.

    If the rows do not fit, each row is written as a record with one value per line.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PIPE_WIDTH, highlight=False)
    if not cells:
        _page(_lines(console, Text(f"{title}: none" if title else "none")), console)
        return
    least = [_least_width(column, [row[at] for row in cells]) for at, column in enumerate(columns)]
    natural = [max(map(cell_len, texts)) for texts in zip((column.title for column in columns), *cells, strict=True)]
    needed = sum(least) + _GAP * (len(least) - 1)
    if not terminal:
        console = Console(width=max(PIPE_WIDTH, needed), highlight=False)
    lines = _lines(console, Text(title, style="bold")) if title else []
    if needed <= console.width:
        widths = _widths(least, natural, columns, console.width - needed)
        lines += _rows(console, cells, columns, widths, header=header)
    else:
        lines += _records(console, cells, columns)
    _page(lines, console)


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """Return the minimum column width at which no word is broken in the title and, except for prose, in the values."""
    from rich.cells import cell_len

    words = max((cell_len(word) for word in column.title.split()), default=0)
    values = max(map(cell_len, cells))
    return max(words, min(values, _LEAST_PROSE) if column.prose else values)


def _widths(least: Sequence[int], natural: Sequence[int], columns: Sequence[Column], room: int) -> list[int]:
    """Return the columns' widths: the minimum, plus a share of the remaining width.

    Columns with prose get theirs last.
    """
    widths = list(least)
    for at in sorted(range(len(widths)), key=lambda at: columns[at].prose):
        more = min(max(0, natural[at] - least[at]), room)
        widths[at] += more
        room -= more
    return widths


def _rows(
    console: Console, cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int], *, header: bool
) -> list[str]:
    """Return the rows as lines. Only wrapped or coloured cells are formatted by Rich, since it is slow."""
    from rich.cells import cell_len

    def is_plain(row: Sequence[str]) -> bool:
        return all(cell_len(cell) <= width for cell, width in zip(row, widths, strict=True))

    colours = any(column.state for column in columns)
    lines = _rich_rows(console, (), columns, widths, header=True) if header else []
    for plain, rows in groupby(cells, key=lambda row: not colours and is_plain(row)):
        if plain:
            lines += [_line(row, columns, widths) for row in rows]
        else:
            lines += _rich_rows(console, rows, columns, widths, header=False)
    return lines


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    blanks = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
    padded = [
        blank + cell if column.right else cell + blank for cell, blank, column in zip(row, blanks, columns, strict=True)
    ]
    return (" " * _GAP).join(padded).rstrip()


def _rich_rows(
    console: Console,
    cells: Iterable[Sequence[str]],
    columns: Sequence[Column],
    widths: Sequence[int],
    *,
    header: bool,
) -> list[str]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title, justify="right" if column.right else "left", overflow="fold", width=width, vertical="top"
        )
    for row in cells:
        table.add_row(*(Text(cell, style=_style(cell, column)) for cell, column in zip(row, columns, strict=True)))
    return _lines(console, table)


def _records(console: Console, cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> list[str]:
    from rich.table import Table
    from rich.text import Text

    titles = max(len(column.title) for column in columns)
    lines: list[str] = []
    for number, row in enumerate(cells):
        if number:
            lines.append("")
        record = Table.grid(padding=(0, _GAP, 0, 0))
        record.add_column(style="bold", min_width=titles, no_wrap=True)
        record.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            record.add_row(column.title, Text(cell, style=_style(cell, column)))
        lines += _lines(console, record)
    return lines


def _style(cell: str, column: Column) -> str:
    if not column.state:
        return ""
    return "green" if cell in _GOOD else "yellow" if cell in _OF_NOTE else "red"


def _lines(console: Console, what: object) -> list[str]:
    """Return the lines that rich prints, with trailing blanks removed."""
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


def _page(lines: Sequence[str], console: Console) -> None:
    """Write lines to stdout. A pager is used if the terminal has fewer lines."""
    if sys.stdin.isatty() and sys.stdout.isatty() and len(lines) >= console.height:
        os.environ.setdefault("LESS", "FRX")  # the pager shows colours, and leaves the text on the screen
        click.echo_via_pager("\n".join(lines) + "\n", color=True)
        return
    for line in lines:
        click.echo(line)


class Progress:
    """A progress bar on stderr. It is hidden if stderr is not a terminal or ``total`` is unknown."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Self:
        if self._total is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._title, total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, steps: int) -> None:
        """Advance the progress bar by finished steps."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, steps)
