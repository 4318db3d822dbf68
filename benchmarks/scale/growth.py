"""The growth of a figure over steps: the exponent of the power of the size that fits best, and what is more than work.

A figure that is y = c · n^k over sizes n is a line in logarithms, with the slope k; least squares find it. A constant
part (a start of half a second) hides growth at small sizes, so the slope between the last two steps is shown, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Final

from benchmarks.rounds import Figures

FLAT: Final = ("wait", "hold", "route of one", "one more", "lookup", "expiry", "descriptors", "sends, %", "/s", "per")
"""Parts of the names of figures that do not grow with the size; all others may grow as fast as it."""
TOLERANCE: Final = 0.15
"""A slope above that of the work by more than this is more than the work, on a machine that is not quite quiet."""
TOLERANCE_FLAT: Final = 0.35
"""The same for figures of single operations, which have fewer samples."""
NOISE: Final = {"s": 0.3, "ms": 5.0, "MB": 20.0, "%": 3.0}
"""Figures below this, by unit, are too small to tell growth from noise."""


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the line through the logarithms of (size, figure) by least squares; ``None`` without two points."""
    logs = [(log(size), log(figure)) for size, figure in points if size > 0 and figure > 0]
    if len({at for at, _ in logs}) < 2:
        return None
    middle = sum(at for at, _ in logs) / len(logs)
    mean = sum(value for _, value in logs) / len(logs)
    return sum((at - middle) * (value - mean) for at, value in logs) / sum((at - middle) ** 2 for at, _ in logs)


def is_flat(name: str) -> bool:
    """Return True for a figure of a single operation, or a share, which the size does not change."""
    return any(part in name for part in FLAT)


def slopes(steps: Mapping[int, Figures], name: str) -> tuple[float | None, float | None]:
    """The exponent of one figure over all steps, and that between the last two."""
    points = [(float(count), found[name]) for count, found in sorted(steps.items()) if name in found]
    return exponent(points), exponent(points[-2:])


def more_than_work(steps: Mapping[int, Figures]) -> list[str]:
    """A line for each figure that grows faster than the work, and is no noise."""
    lines: list[str] = []
    if not steps:
        return lines
    largest = steps[max(steps)]
    for name, last in largest.items():
        fitted, at_end = slopes(steps, name)
        if fitted is None or at_end is None or last < NOISE.get(name.rpartition(", ")[2], 0.0) or "/s" in name:
            continue
        limit = TOLERANCE_FLAT if is_flat(name) else 1 + TOLERANCE
        if max(fitted, at_end) > limit:
            lines.append(f"{name}: n^{fitted:.2f} over all steps, n^{at_end:.2f} over the last")
    return lines
