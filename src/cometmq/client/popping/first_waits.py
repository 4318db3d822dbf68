"""The first wait for messages at a place is short.

Apache's brokers do not see a message that arrives while a pop or a notification begins to wait: it comes only when the
wait ends, or with the next message. Such messages often follow the start of a consumer, or the message before. So the
first wait after a message ends soon, and the next one begins with a look.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST_MS: Final = 1_000
"""Maximum time in milliseconds of the first wait at a place after a message."""
_MOST_PLACES: Final = 20_000
"""Maximum number of places; more begin again with first waits."""

P = TypeVar("P", bound=Hashable)


class FirstWaits(Generic[P]):
    """The number of waits at each place since its last message."""

    def __init__(self) -> None:
        self._counts: dict[P, int] = {}

    def count(self, place: P) -> int:
        """Return the number of waits at a place since its last message, up to 2."""
        return self._counts.get(place, 0)

    def limit_ms(self, place: P, longest_ms: int) -> int:
        """Return the time in milliseconds for which the next request waits at a place, at most ``longest_ms``."""
        return longest_ms if place in self._counts else min(longest_ms, FIRST_MS)

    def ended(self, place: P) -> None:
        """Count a wait that has ended without messages."""
        if len(self._counts) >= _MOST_PLACES:
            self._counts.clear()
        self._counts[place] = min(self.count(place) + 1, 2)

    def found(self, place: P) -> None:
        """Note that a place had messages."""
        self._counts.pop(place, None)

    def interrupted(self, place: P) -> None:
        """Note that the waits at many places end now."""
        if place in self._counts:
            self._counts[place] = 1
