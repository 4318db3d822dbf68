"""A picture of curves over two logarithmic axes, as SVG text: the same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 720
HEIGHT: Final = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 220, 30, 50
_LABEL_HEIGHT: Final = 16.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a picture."""

    values: Sequence[float]
    """All above 0."""
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    """Powers of ten from ``low`` to ``high`` over pixels from ``begin`` to ``end``."""

    low: int
    high: int
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> _Axis:
        low, high = floor(log10(min(values))), ceil(log10(max(values)))
        return cls(low, max(high, low + 1), begin, end)

    def at(self, value: float) -> str:
        place = self.begin + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.begin)
        return f"{place:.1f}"

    @property
    def powers(self) -> range:
        return range(self.low, self.high + 1)


def plot(x: Sequence[float], curves: Mapping[str, Curve], x_title: str, y_title: str) -> str:
    """Draw each curve over ``x``, as far as it goes."""
    across = _Axis.over(x, _LEFT, WIDTH - _RIGHT)
    up = _Axis.over([value for curve in curves.values() for value in curve.values], HEIGHT - _BOTTOM, _TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<g font-family="sans-serif" font-size="13">',
    ]
    for power in across.powers:
        place, name = across.at(10**power), f"{10**power:,}"
        lines.append(f'<path d="M{place} {_TOP}V{HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        lines.append(f'<text x="{place}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{name}</text>')
    for power in up.powers:
        place = up.at(10**power)
        lines.append(f'<path d="M{_LEFT} {place}H{WIDTH - _RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{place}" dy="4" text-anchor="end">{10**power:,}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    lines.append(f'<text x="8" y="16">{escape(y_title)}</text>')
    labels = _spread([float(up.at(curve.values[-1])) for curve in curves.values()])
    for label, (name, curve) in zip(labels, curves.items(), strict=True):
        points = " ".join(f"{across.at(a)},{up.at(b)}" for a, b in zip(x, curve.values, strict=False))
        stroke = f'stroke="{curve.colour}" stroke-width="2"' + (' stroke-dasharray="6 4"' if curve.dashed else "")
        lines.append(f'<polyline points="{points}" fill="none" {stroke}/>')
        end = f'x="{WIDTH - _RIGHT + 8}" y="{label:.1f}" dy="4" fill="{curve.colour}"'
        lines.append(f"<text {end}>{escape(name)}</text>")
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _spread(places: Sequence[float]) -> list[float]:
    """Move labels down that would cover each other."""
    spread = list(places)
    lowest = -_LABEL_HEIGHT
    for number in sorted(range(len(places)), key=places.__getitem__):
        spread[number] = lowest = max(places[number], lowest + _LABEL_HEIGHT)
    return spread
