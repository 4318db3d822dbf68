"""How many of something there are, as people say it."""

from __future__ import annotations


def quantity(count: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``; for nouns whose plural ends in ``s`` alone."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def are(count: int) -> str:
    """``is`` of one, ``are`` of more."""
    return "is" if count == 1 else "are"
