"""Rows as a table for people: no word and no number is broken, whatever the width of the terminal.

A row that does not fit stands as a record instead, one value a line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

    from cometmq.cli.output import Column

PIPE_WIDTH: Final = 160
"""Columns of a table that goes into a pipe or a file, where no terminal says its width."""
_LEAST_PROSE: Final = 16
"""Columns below which text that may be wrapped is no pleasure to read."""
_GAP: Final = 2


def print_table(cells: Sequence[Sequence[str]], columns: Sequence[Column], title: str, *, header: bool = True) -> None:
    """Write rows, already turned into text, to stdout."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else PIPE_WIDTH, highlight=False)
    if not cells:
        _print(console, Text(f"{title}: none" if title else "none"))
        return
    least = [_least_width(column, [row[at] for row in cells]) for at, column in enumerate(columns)]
    natural = [max(map(cell_len, texts)) for texts in zip((column.title for column in columns), *cells, strict=True)]
    needed = sum(least) + _GAP * (len(least) - 1)
    if not terminal:
        console = Console(width=max(PIPE_WIDTH, needed), highlight=False)
    if title:
        _print(console, Text(title, style="bold"))
    if needed <= console.width:
        widths = _widths(least, natural, columns, console.width - needed)
        _print_rows(console, cells, columns, widths, header=header)
    else:
        _print_records(console, cells, columns)


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """Width below which the column would break a word of its title, or a value that must stay whole."""
    from rich.cells import cell_len

    words = max((cell_len(word) for word in column.title.split()), default=0)
    values = max(map(cell_len, cells))
    return max(words, min(values, _LEAST_PROSE) if column.prose else values)


def _widths(least: Sequence[int], natural: Sequence[int], columns: Sequence[Column], room: int) -> list[int]:
    """Deal the room above the least widths to the columns, prose last. (rich alone would cut columns short.)"""
    widths = list(least)
    for at in sorted(range(len(widths)), key=lambda at: columns[at].prose):
        more = min(max(0, natural[at] - least[at]), room)
        widths[at] += more
        room -= more
    return widths


def _print_rows(
    console: Console, cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int], *, header: bool
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            column.title, justify="right" if column.right else "left", overflow="fold", width=width, vertical="top"
        )
    for row in cells:
        table.add_row(*map(Text, row))
    _print(console, table)


def _print_records(console: Console, cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.table import Table
    from rich.text import Text

    titles = max(len(column.title) for column in columns)
    for number, row in enumerate(cells):
        if number:
            _print(console, "")
        record = Table.grid(padding=(0, _GAP, 0, 0))
        record.add_column(style="bold", min_width=titles, no_wrap=True)
        record.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            record.add_row(column.title, Text(cell))
        _print(console, record)


def _print(console: Console, what: object) -> None:
    """Print without the blanks that fill lines up to the width."""
    with console.capture() as captured:
        console.print(what)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
