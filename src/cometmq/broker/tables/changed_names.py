"""The names of changed rows in a table, so that slaves with an older copy request only these rows.

A slave receives a *mark* with each copy and sends it with its next request. Names are recorded starting with the first
request. Each request closes a *part* with the names recorded since the previous request; a mark says which parts a
slave has. Each name is only in its newest part, so there are never more names than current and removed rows.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection
from typing import Final

from cometmq.broker.limits import MAX_CHANGED_NAMES, MAX_CHANGED_PARTS


class ChangedNames:
    """The names of changed rows in one table."""

    def __init__(self) -> None:
        self._process: Final = secrets.token_hex(8)
        """Random part of each mark, so that marks from an earlier process are invalid."""
        self._open: set[str] | None = None
        """Names recorded since the last request, or ``None`` before the first request."""
        self._parts: deque[tuple[int, set[str]]] = deque()
        self._first = self._last = 0
        """The first and the last valid mark; all changes after the first one are known."""

    def note(self, name: str) -> None:
        """Record that a row was added, replaced or removed."""
        if self._open is not None:
            self._open.add(name)
            if len(self._open) > MAX_CHANGED_NAMES:
                self.forget()

    def note_all(self, names: Collection[str]) -> None:
        """Record that many rows were added, replaced or removed."""
        if self._open is None:
            return
        if len(self._open) + len(names) > MAX_CHANGED_NAMES:
            self.forget()
        else:
            self._open.update(names)

    def forget(self) -> None:
        """Make every mark invalid, so that slaves copy the complete table."""
        self._open = None
        self._parts.clear()
        self._first = self._last + 1

    def since(self, mark: str) -> tuple[str, set[str] | None]:
        """Return a new mark, and the names that changed since an earlier mark, or ``None`` if they are unknown."""
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
