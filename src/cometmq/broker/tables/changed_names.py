"""The names of rows that changed in a table, so that a slave that copied it before gets those rows only.

A slave gets a *mark* with each copy and gives it back with its next question. Names are noted from the first question
on. Each question closes a *part* with the names noted since the one before; a mark says which parts a slave has. A name
is in its newest part only, so that all parts together are no longer than the table and the rows that are gone.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Final

from cometmq.broker.limits import MAX_CHANGED_NAMES, MAX_CHANGED_PARTS


class ChangedNames:
    """The names of one table."""

    def __init__(self) -> None:
        self._process: Final = secrets.token_hex(8)
        """Marks of an earlier process mean nothing."""
        self._open: set[str] | None = None
        """The names since the last question; ``None`` while nobody has a mark."""
        self._parts: deque[tuple[int, set[str]]] = deque()
        self._first = self._last = 0
        """Marks from the first to the last have all that changed since."""

    def note(self, name: str) -> None:
        """A row was added, replaced or removed."""
        if self._open is not None:
            self._open.add(name)
            if len(self._open) > MAX_CHANGED_NAMES:
                self.forget()

    def forget(self) -> None:
        """Make every mark worthless: who asks copies the table as a whole."""
        self._open = None
        self._parts.clear()
        self._first = self._last + 1

    def since(self, mark: str) -> tuple[str, set[str] | None]:
        """Return a new mark, and the names that changed since another one; ``None`` if that cannot be told."""
        known = self._number(mark)
        self._last += 1
        if self._open:
            for _, names in self._parts:
                names -= self._open
            self._parts.append((self._last, self._open))
        if self._open is None:
            self._first = self._last
        self._open = set()
        while len(self._parts) > MAX_CHANGED_PARTS or sum(len(part) for _, part in self._parts) > MAX_CHANGED_NAMES:
            self._first = self._parts.popleft()[0]
        new = f"{self._process}.{self._last}"
        if known is None or known < self._first:
            return new, None
        return new, set().union(*(names for number, names in self._parts if number > known))

    def _number(self, mark: str) -> int | None:
        process, _, number = mark.partition(".")
        if process != self._process or not number.isdecimal() or not self._first <= int(number) <= self._last:
            return None
        return None if self._open is None else int(number)
