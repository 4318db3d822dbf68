"""Long lists in pages: a search, and fifty rows per page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cometmq.console.limits import PAGE_ROWS


@dataclass(frozen=True)
class Listing:
    """One page of search results."""

    names: Sequence[str]
    """The names on this page."""
    found: int
    """The number of names on all pages."""
    total: int
    """The number of names without a search."""
    number: int
    """The number of this page, starting from 1."""

    @property
    def first(self) -> int:
        """The number of the first name on this page; 0 if the page is empty."""
        return (self.number - 1) * PAGE_ROWS + 1 if self.names else 0

    @property
    def last(self) -> int:
        """The number of the last name on this page."""
        return self.first + len(self.names) - 1 if self.names else 0

    @property
    def pages(self) -> int:
        """The number of pages; at least 1."""
        return max(1, -(-self.found // PAGE_ROWS))


def listing(names: Sequence[str], search: str, number: int | None) -> Listing:
    """Return a page of the names that contain a text, ignoring case; the last page if ``number`` is too large."""
    wanted = search.casefold()
    found = [name for name in names if wanted in name.casefold()] if wanted else names
    number = min(max(1, number or 1), max(1, -(-len(found) // PAGE_ROWS)))
    start = (number - 1) * PAGE_ROWS
    return Listing(found[start : start + PAGE_ROWS], len(found), len(names), number)
