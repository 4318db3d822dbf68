"""Bounds requests that wait for a client's answer, by number and by size."""

from __future__ import annotations


class InFlight:
    """Counts what is in flight."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._count = 0
        self._bytes = 0

    def enter(self, count: int, size: int) -> bool:
        """Count requests in, ``size`` bytes in all, when there is room for them; each is counted out later."""
        if self._count + count > self._most or self._bytes + size > self._most_bytes:
            return False
        self._count += count
        self._bytes += size
        return True

    def leave(self, count: int, size: int) -> None:
        """Count requests out."""
        self._count -= count
        self._bytes -= size
