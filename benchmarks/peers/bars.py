"""A picture of horizontal bars in groups and two panels, as SVG text: the same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 920
_NAMES, _PANEL, _VALUES, _GAP = 155, 265, 85, 20
_ROW, _TITLE, _TOP = 17, 28, 34
_TITLE_SIZE = 13
OURS, OTHERS = "#d55e00", "#0072b2"
"""Told apart by colour-blind people too (Okabe and Ito)."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One column of bars; the longest bar of each group has the whole width."""

    title: str
    groups: Mapping[str, Mapping[str, float]]
    """Of each group the value of each name; a name without a value has no bar."""
    digits: int = 0


def bars(panels: Sequence[Panel], names: Sequence[str], ours: str) -> str:
    """Draw panels beside each other, which have the same groups; the bars of ``ours`` have another colour."""
    groups = list(panels[0].groups)
    height = _TOP + len(groups) * (_TITLE + len(names) * _ROW) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<g font-family="sans-serif" font-size="12">',
    ]
    for number, panel in enumerate(panels):
        left = _NAMES + number * (_PANEL + _VALUES + _GAP)
        place = f'x="{left}" y="20" font-size="{_TITLE_SIZE}"'
        lines.append(f'<text {place} font-weight="bold">{escape(panel.title)}</text>')
        for at, group in enumerate(groups):
            top = _TOP + at * (_TITLE + len(names) * _ROW)
            if number == 0:
                lines.append(f'<text x="10" y="{top + 16}" font-weight="bold">{escape(group)}</text>')
                lines += _names(names, ours, top + _TITLE)
            lines += _group(panel, group, names, ours, (left, top + _TITLE))
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _names(names: Sequence[str], ours: str, top: int) -> list[str]:
    lines = []
    for row, name in enumerate(names):
        weight = "bold" if name == ours else "normal"
        place = f'x="{_NAMES - 8}" y="{top + row * _ROW + 11}" text-anchor="end"'
        lines.append(f'<text {place} font-weight="{weight}">{escape(name)}</text>')
    return lines


def _group(panel: Panel, group: str, names: Sequence[str], ours: str, place: tuple[int, int]) -> list[str]:
    values, (left, top) = panel.groups[group], place
    longest = max(values.values(), default=0.0)
    lines = []
    for row, name in enumerate(names):
        if (value := values.get(name)) is not None:
            width, y = max(value / longest * _PANEL, 1.0) if longest else 1.0, top + row * _ROW
            colour = OURS if name == ours else OTHERS
            lines.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" fill="{colour}"/>')
            lines.append(f'<text x="{left + width + 5:.1f}" y="{y + 11}">{value:,.{panel.digits}f}</text>')
    return lines
