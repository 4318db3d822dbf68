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
