"""Results of a command: a table for people, json, jsonl or csv for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from cometmq.cli.visible import json_text, visible

FORMATS: Final = ("table", "json", "jsonl", "csv")
_TO_THE_SECOND: Final = len("2026-01-31 12:00:00")

F = TypeVar("F")

output_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Form of the result."
)
"""The ``-o`` of every command that shows something."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result: the key of the rows, and the title that people see."""

    key: str
    title: str
    right: bool = False
    prose: bool = False
    """May be wrapped where the terminal is narrow."""
    time: bool = False
    """A local time; tables show it to the second, other forms in full."""


def show(rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], output: str, *, title: str = "") -> None:
    """Write rows to stdout in the form asked for."""
    if output == "jsonl":
        for row in rows:
            click.echo(json_text(_chosen(row, columns)))
    elif output == "json":
        click.echo(json_text([_chosen(row, columns) for row in rows], indent=2))
    elif output == "csv":
        click.echo(_csv([_chosen(row, columns) for row in rows], columns), nl=False, color=True)  # with escapes, whole
    else:
        _table(list(rows), columns, title)


def show_one(row: Mapping[str, Any], output: str, *, title: str = "") -> None:
    """Write one thing with its properties, one property a line."""
    if output == "json":
        click.echo(json_text(row, indent=2))
    elif output == "jsonl":
        click.echo(json_text(row))
    elif output == "csv":
        click.echo(_csv([row], [Column(key, key) for key in row]), nl=False, color=True)  # with escapes, whole
    else:
        pairs = [{"name": name, "value": value} for name, value in row.items()]
        _table(pairs, (Column("name", ""), Column("value", "", prose=True)), title, header=False)


def tell(sentence: str) -> None:
    """Say to a person what was done; on stderr, so that stdout stays data."""
    click.echo(visible(sentence), err=True)


def text_of(value: Any) -> str:
    """Write a value as people read it in a table."""
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
    from cometmq.cli.table import print_table

    cells = [[visible(_cell(row.get(column.key), column)) for column in columns] for row in rows]
    print_table(cells, columns, visible(title), header=header)


def _cell(value: Any, column: Column) -> str:
    text = text_of(value)
    return text[:_TO_THE_SECOND].replace("T", " ") if column.time and value else text
