"""Counts in sentences."""

from __future__ import annotations


def quantity(count: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``; for nouns whose plural ends in ``s`` alone."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def are(count: int) -> str:
    """``is`` for 1, ``are`` for other counts."""
    return "is" if count == 1 else "are"


def size_text(count: int) -> str:
    """Return a number of bytes in the largest unit below it: ``3.0 kB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return quantity(count, "byte")


def duration_text(seconds: float) -> str:
    """Return a duration in its largest unit that gives 2 or more: ``40 s``, ``12 min``, ``5 h`` or ``3 days``."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
