"""Divides long lists into pages: a search, and fifty rows per page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cometmq.console.limits import PAGE_ROWS
from cometmq.message.queue_names import own_spelling


@dataclass(frozen=True)
class Listing:
    """One page of search results."""

    names: Sequence[str]
    """Names on this page."""
    found: int
    """Total number of names on all pages."""
    total: int
    """Total number of names if there were no search."""
    number: int
    """Number of this page, starting at 1."""

    @property
    def first(self) -> int:
        """Return the position of this page's first name, or 0 if the page is empty."""
        return (self.number - 1) * PAGE_ROWS + 1 if self.names else 0

    @property
    def last(self) -> int:
        """Return the position of this page's last name."""
        return self.first + len(self.names) - 1 if self.names else 0

    @property
    def pages(self) -> int:
        """Return the number of pages, which is at least 1."""
        return max(1, -(-self.found // PAGE_ROWS))


def listing(names: Sequence[str], search: str, number: int | None) -> Listing:
    """Return a page of the names that contain a text, also in their own spelling, ignoring case.

    If ``number`` is too large, return the last page.
    """
    wanted = search.casefold()
    found = names
    if wanted:
        found = [name for name in names if any(wanted in text.casefold() for text in (name, own_spelling(name)))]
    number = min(max(1, number or 1), max(1, -(-len(found) // PAGE_ROWS)))
    start = (number - 1) * PAGE_ROWS
    return Listing(found[start : start + PAGE_ROWS], len(found), len(names), number)
