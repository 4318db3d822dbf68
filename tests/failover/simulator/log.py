"""The log of a simulated member."""

from __future__ import annotations

from typing import SupportsIndex

Entry = tuple[int, int]
"""A record: its epoch and its number; a marker has number 0."""


class Log(list[Entry]):
    """Records at their places. A history asks for their epochs, and compares them, thousands of times; each is read
    once for that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._right = 0
        """The number of its first records that are the truth, as far as they have been compared."""
        self._epochs: list[tuple[int, int]] = []
        self._read = 0

    def __delitem__(self, place: SupportsIndex | slice) -> None:
        """Cut the end off."""
        super().__delitem__(place)
        self.compare_again(len(self))
        self._read = min(self._read, len(self))
        while self._epochs and self._epochs[-1][1] >= len(self):
            self._epochs.pop()

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Return the epoch of each marker, and its place."""
        for at in range(self._read, len(self)):
            epoch, number = self[at]
            if number == 0:
                self._epochs.append((epoch, at))
        self._read = len(self)
        return tuple(self._epochs)

    def is_right(self, truth: list[Entry], end: int) -> bool:
        """Tell whether the log has all records of the truth below ``end``, at their places."""
        at = self._right
        if at < end:
            if self[at:end] != truth[at:end]:
                return False
            self._right = end
        return True

    def compare_again(self, at: int) -> None:
        """Compare from here on: the truth, or the log, has lost its end."""
        self._right = min(self._right, at)
