"""The open half messages by queue offset, in pages of 4,096 consecutive offsets.

A single dictionary of a million offsets would hold the event loop for 40 ms whenever it grows, and would keep its size
when most offsets are removed. The dictionary of a page grows within 0.2 ms. It is copied to a smaller one when three
quarters of its offsets are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

V = TypeVar("V")

_BITS: Final = 12
_SMALL: Final = 64
"""Number of offsets up to which a page is not copied to a smaller one."""


class Transaction(msgspec.Struct, gc=False):
    """An open transaction, with the values needed for checks."""

    first_offset: int
    """Queue offset of the first half message, which identifies the transaction."""
    begun_ms: int
    """Start time in milliseconds since 1970: the earlier of the broker's and the producer's time."""
    stored_ms: int
    """Store time of the half message or its current copy, in milliseconds since 1970."""
    immunity_ms: int | None
    check_times: int
    group: str


class Pages(Generic[V]):
    """A dictionary by offset that grows in small steps."""

    def __init__(self) -> None:
        self.pages: Final[dict[int, dict[int, V]]] = {}
        """The dictionary of each page, which callers must not change."""
        self._sizes: dict[int, int] = {}
        """The largest number of offsets that the dictionary of each page has had."""

    def __contains__(self, offset: int) -> bool:
        page = self.pages.get(offset >> _BITS)
        return page is not None and offset in page

    def get(self, offset: int) -> V | None:
        """Return the value at an offset, or ``None`` if there is none."""
        page = self.pages.get(offset >> _BITS)
        return None if page is None else page.get(offset)

    def put(self, offset: int, value: V) -> None:
        """Set the value of an offset."""
        number = offset >> _BITS
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = {}
        page[offset] = value
        if len(page) > self._sizes.get(number, 0):
            self._sizes[number] = len(page)

    def update(self, values: dict[int, V]) -> None:
        """Set values, whose offsets must be in one page."""
        number = next(iter(values)) >> _BITS
        page = self.pages.setdefault(number, {})
        page.update(values)
        self._sizes[number] = max(self._sizes.get(number, 0), len(page))

    def pop(self, offset: int) -> V | None:
        """Remove an offset; return its value, or ``None`` if there is none."""
        number = offset >> _BITS
        page = self.pages.get(number)
        if page is None:
            return None
        value = page.pop(offset, None)
        if not page:
            del self.pages[number], self._sizes[number]
        elif len(page) * 4 < self._sizes[number] > _SMALL:
            self.pages[number] = dict(page)
            self._sizes[number] = len(page)
        return value

    def offsets(self, at: int = 0) -> Iterator[int]:
        """Yield the offsets from ``at`` on, in the order in which pages, and offsets in pages, were first added."""
        for number, page in self.pages.items():
            if number > at >> _BITS:
                yield from page
            elif number == at >> _BITS:
                yield from (offset for offset in page if offset >= at)

    def last(self) -> int | None:
        """Return the last offset of the last page, or ``None`` if there is none."""
        page = next(reversed(self.pages.values()), None)
        return None if page is None else next(reversed(page))


class OpenPages:
    """The open half messages by offset, each with its transaction once this is recorded.

    New offsets must be higher than all earlier ones.
    """

    def __init__(self) -> None:
        self._rows: Pages[Transaction | None] = Pages()
        self._pages = self._rows.pages
        self._count = 0
        self._unrecorded: dict[int, int] = {}
        """Number of transactions that are not recorded, by page, ascending."""
        self._oldest: dict[int, Transaction] = {}
        """The recorded transaction of each page that began first. In a page of ``_stale``, it has been removed."""
        self._stale: set[int] = set()
        self._begun_ms = self._stored_ms = -1
        """Times of the last recorded transaction, so that equal times are one object."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        page = self._pages.get(offset >> _BITS)  # hot path
        return page is not None and offset in page

    def get(self, offset: int) -> Transaction | None:
        """Return the transaction at an offset if it is recorded."""
        return self._rows.get(offset)

    def add(self, offsets: range) -> None:
        """Add half messages whose transactions are not recorded."""
        self._count += len(offsets)
        while offsets:
            number = offsets[0] >> _BITS
            part = offsets[: ((number + 1) << _BITS) - offsets[0]]
            self._rows.update(dict.fromkeys(part))
            self._unrecorded[number] = self._unrecorded.get(number, 0) + len(part)
            offsets = offsets[len(part) :]

    def record(self, offset: int, noted: Transaction) -> None:
        """Record the transaction at an offset, which may be new."""
        number = offset >> _BITS
        page = self._pages.get(number)
        if page is None or offset not in page:
            self._count += 1
        elif (earlier := page[offset]) is None:
            self._forget_unrecorded(number)
        elif self._oldest[number] is earlier:
            self._stale.add(number)
        self._begun_ms = noted.begun_ms = self._begun_ms if noted.begun_ms == self._begun_ms else noted.begun_ms
        self._stored_ms = noted.stored_ms = self._stored_ms if noted.stored_ms == self._stored_ms else noted.stored_ms
        self._rows.put(offset, noted)
        if noted.begun_ms < self._oldest.setdefault(number, noted).begun_ms:
            self._oldest[number] = noted
            self._stale.discard(number)

    def pop(self, offset: int) -> Transaction | None:
        """Remove a half message if it is open; return its transaction if this is recorded."""
        number = offset >> _BITS
        page = self._pages.get(number)
        if page is None or offset not in page:
            return None
        self._count -= 1
        noted = self._rows.pop(offset)
        if noted is None:
            self._forget_unrecorded(number)
        elif self._oldest[number] is noted:
            self._stale.add(number)
        return noted

    def _forget_unrecorded(self, number: int) -> None:
        self._unrecorded[number] -= 1
        if not self._unrecorded[number]:
            del self._unrecorded[number]

    # --- queries ------------------------------------------------------------------------------
    def offsets(self, at: int = 0) -> Iterator[int]:
        """Yield the offsets from ``at`` on, ascending."""
        return self._rows.offsets(at)

    def last(self) -> int | None:
        """Return the highest offset, or ``None`` if nothing is open."""
        return self._rows.last()

    def first_unrecorded(self) -> int | None:
        """Return the lowest offset whose transaction is not recorded, or ``None`` if there is none."""
        number = next(iter(self._unrecorded), None)
        if number is None:
            return None
        return next(offset for offset, noted in self._pages.get(number, {}).items() if noted is None)

    def oldest_recorded(self) -> Transaction | None:
        """Return the recorded transaction that began first, or ``None`` if none is recorded."""
        best: Transaction | None = None
        for number, oldest in sorted(self._oldest.items(), key=_begun_ms):
            if best is not None and oldest.begun_ms >= best.begun_ms:
                break  # transactions of a page begin no earlier than one that has been removed
            found: Transaction | None = oldest
            if number in self._stale:
                found = self._find_oldest(number)
            if found is not None and (best is None or found.begun_ms < best.begun_ms):
                best = found
        return best

    def _find_oldest(self, number: int) -> Transaction | None:
        self._stale.remove(number)
        page = self._pages.get(number, {})
        recorded = [(noted.begun_ms, offset) for offset, noted in page.items() if noted is not None]
        if not recorded:
            del self._oldest[number]
            return None
        found = self._oldest[number] = page[min(recorded)[1]]  # type: ignore[assignment]
        return found


def _begun_ms(page: tuple[int, Transaction]) -> int:
    return page[1].begun_ms
