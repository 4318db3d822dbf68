"""Formats numbers for use in sentences."""

from __future__ import annotations


def quantity(count: int, noun: str) -> str:
    """Format a count with a noun that has a regular plural: ``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def are(count: int) -> str:
    """Return ``is`` for 1, and ``are`` for other counts."""
    return "is" if count == 1 else "are"


def size_text(count: int) -> str:
    """Format a number of bytes in the largest suitable unit: ``3.0 kB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return quantity(count, "byte")


def duration_text(seconds: float) -> str:
    """Format a duration in the largest unit in which it is 2 or more: ``40 s``, ``12 min``, ``5 h`` or ``3 days``."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
