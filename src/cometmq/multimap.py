"""MultiMap: a set of values for each key, in insertion order."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class MultiMap(dict[K, dict[V, None]]):
    """The values of each key; a key that has no values is removed."""

    def add(self, key: K, value: V) -> None:
        """Add a value to a key; do nothing if the key already has it."""
        self.setdefault(key, {})[value] = None

    def remove(self, key: K, value: V) -> None:
        """Remove a value from a key.

        :raises KeyError: the key does not have the value.
        """
        values = self[key]
        del values[value]
        if not values:
            del self[key]

    def of(self, key: K) -> list[V]:
        """Return the values of a key; the caller may change the map while iterating over them."""
        return list(self.get(key, ()))
