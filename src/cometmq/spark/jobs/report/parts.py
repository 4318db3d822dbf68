"""The parts of a report. Paragraphs are strings; this module defines classes for tables and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from rich.cells import cell_len

_BAR_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a table cell."""

    share: float
    """Length, from 0 to 1."""
    chars: int = _BAR_CHARS
    """Length of the longest bar in the text, in characters."""

    def __str__(self) -> str:
        return "█" * max(1, int(self.share * self.chars))


Cell = str | int | Bar | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table. In the text, each column is as wide as its widest cell, so most tables fit into 80 characters."""

    heads: Sequence[str]
    """One heading for each column, with the prefix ``<`` if aligned left, ``>`` if aligned right."""
    rows: Sequence[Sequence[Cell]]
    """Rows of cells. Texts are shown unchanged, numbers with commas, and None as a dash."""
    caption: str
    """Title on the page."""
    most: int | None = None
    """Maximum number of rows that the text shows, or ``None`` for all. The JSON contains all rows."""
    what: str = "rows"
    """Plural noun for the rows, for the line that counts the rows left out."""

    def lines(self) -> list[str]:
        """Return the table, including its headings, as lines that are indented by two blanks."""
        shown = self.rows[: self.most]
        cells = [[head[1:] for head in self.heads], *([cell_text(value) for value in row] for row in shown)]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        lines = ["", *("  " + "  ".join(map(_padded, row, self.heads, widths)).rstrip() for row in cells)]
        if len(shown) < len(self.rows):
            lines.append(f"  … and {len(self.rows) - len(shown):,} more {self.what} (-o json has all)")
        return lines


@dataclass(frozen=True, slots=True)
class Notes:
    """A list of sentences."""

    items: Sequence[str]
    title: str = ""
    next_steps: Sequence[str] = ()
    """Next step for each item, or empty if no step is known."""
    urgent: bool = False
    """True to show the list at the top of the page, next to the verdict."""

    def lines(self) -> list[str]:
        """Return the title and the indented items, after an empty line."""
        lines = ["", self.title] if self.title else [""]
        for at, item in enumerate(self.items):
            lines.append(f"  {item}")
            lines += [f"    → {step}" for step in self.next_steps[at : at + 1]]
        return lines


@dataclass(frozen=True, slots=True)
class TextOnly:
    """A line that appears only in the text report, since the page shows the same fact in its verdict or in a
    caption.
    """

    text: str

    def lines(self) -> list[str]:
        """Return the line, preceded by an empty line."""
        return ["", self.text]


Part = str | Table | Notes | TextOnly


def bar_rows(counts: Iterable[tuple[str, int]], chars: int = _BAR_CHARS) -> list[tuple[str, int, Bar]]:
    """Return a table's rows with a bar after each count."""
    found = list(counts)
    most = max((count for _, count in found), default=0)
    return [(name, count, Bar(count / most, chars)) for name, count in found]


def cell_text(value: Cell) -> str:
    """Format the value in a table cell."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else str(value)


def moment(at_ms: int, unit: Literal["s", "m"] = "s") -> str:
    """Format a time in UTC, with or without seconds. Years after 9999 are possible."""
    return str(np.datetime64(at_ms // (1000 if unit == "s" else 60_000), unit)).replace("T", " ")


def per_second(count: float, seconds: float) -> float:
    """Return a rate, or 0 if there is no duration."""
    return count / seconds if seconds else 0.0


def _padded(text: str, head: str, width: int) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if head.startswith(">") else text + gap
