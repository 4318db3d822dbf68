"""The measured figures of docs/performance.md, by the names of their rows: that page is where they are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
OURS: Final = "CometMQ"
CPU: Final = "CPU for a million rows, yardstick / CometMQ"

Cells = Mapping[str, str]
"""One row: cells by the headings of their columns."""


class FigureError(Exception):
    """The page has no such row or column, or the cell holds no number."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and whether the page has it or it is only assumed."""

    value: float
    measured: bool = True


def tables(text: str) -> dict[str, Cells]:
    """Every row of every table of a page, by its first cell."""
    found: dict[str, Cells] = {}
    headings: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            headings = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if headings is None:
            headings = cells
        elif not set(line) <= set("|-: "):
            found[cells[0]] = dict(zip(headings, cells, strict=False))
    return found


def number(cell: str) -> float:
    """The last number of a cell: ``54,961/s``, ``467 k rows/s``, ``3.1 s / 6.6 s``.

    :raises FigureError: there is none.
    """
    numbers = re.findall(r"(\d[\d,]*(?:\.\d+)?)( k\b)?", cell)
    if not numbers:
        raise FigureError(f"{cell!r} holds no number")
    digits, thousands = numbers[-1]
    return float(digits.replace(",", "")) * (1000 if thousands else 1)


def measured(rows: Mapping[str, Cells], row: str, column: str = OURS, assumed: float | None = None) -> Figure:
    """A figure of the page; ``assumed`` where the page does not have that row.

    :raises FigureError: it is not there, and nothing is assumed.
    """
    cell = rows.get(row, {}).get(column)
    if cell is not None:
        return Figure(number(cell))
    if assumed is None:
        raise FigureError(f"docs/performance.md has no row {row!r} with a column {column!r}")
    return Figure(assumed, measured=False)
