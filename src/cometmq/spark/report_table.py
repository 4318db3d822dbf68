"""Tables in the text of a report: each column is as wide as what stands in it, so that most fit into 80 characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len


def table(heads: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> list[str]:
    """The lines of a table, its heads first, each indented by two blanks.

    :param heads: one for each column, with ``<`` in front where it is flush left, ``>`` where flush right.
    :param rows: text as it is; numbers get commas, and None is a dash.
    """
    cells = [[head[1:] for head in heads], *([_text(value) for value in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(_padded, row, heads, widths)).rstrip() for row in cells]


def _text(value: str | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else value


def _padded(text: str, head: str, width: int) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if head.startswith(">") else text + gap
