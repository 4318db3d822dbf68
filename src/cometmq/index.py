"""Sets of values by key, in the order of entry."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Index(dict[K, dict[V, None]]):
    """Values by key; a key without values is not in it."""

    def add(self, key: K, value: V) -> None:
        """Add a value to a key; it may be there already."""
        self.setdefault(key, {})[value] = None

    def remove(self, key: K, value: V) -> None:
        """Remove a value from a key.

        :raises KeyError: it is not there.
        """
        values = self[key]
        del values[value]
        if not values:
            del self[key]

    def of(self, key: K) -> list[V]:
        """The values of a key; the caller may change the index while it goes through them."""
        return list(self.get(key, ()))
