"""Bytes in which separators (0x02) stand, and what stands at many places of them at once."""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.filter.block_numbers import Bools, Bytes, Ints, Words

SEPARATOR: Final = 2
WORD: Final = 8


class Text(NamedTuple):
    """Bytes to be compared with, as the little-endian words that they are compared by."""

    text: bytes
    words: tuple[tuple[np.uint64, np.uint64], ...]
    """Mask and value of every eight bytes; the last may be fewer."""

    @classmethod
    def of(cls, text: bytes) -> Text:
        """Make one."""
        parts = (text[at : at + WORD] for at in range(0, len(text), WORD))
        return cls(
            text, tuple((np.uint64((1 << 8 * len(one)) - 1), np.uint64(int.from_bytes(one, "little"))) for one in parts)
        )

    @classmethod
    def name(cls, name: str) -> Text:
        """A property's name, and what ends it."""
        return cls.of(name.encode() + b"\x01")


class MarkedText:
    """Some bytes; the last ones, a word at least, stand behind everything that is looked for."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.marks: Bools = data == SEPARATOR
        """Where separators are."""

    @cached_property
    def separators(self) -> Ints:
        """The places of all separators."""
        places: Ints = self.marks.nonzero()[0]
        return places

    def words(self, at: Ints) -> Words:
        """The eight bytes from each place on."""
        return copies(self.data, at, WORD).view("<u8")

    def stands_at(self, text: Text, at: Ints, words: Words | None = None) -> Bools:
        """Whether ``text`` stands at each of these places; ``words`` if they have been read."""
        mask, key = text.words[0]
        found: Bools = (self.words(at) if words is None else words) & mask == key
        for number, (mask, key) in enumerate(text.words[1:], 1):
            left = found.nonzero()[0]
            places = np.minimum(at[left] + number * WORD, len(self.data) - WORD)
            found[left] = self.words(places) & mask == key
        return found

    def behind_separators(self, text: Text) -> Ints:
        """The places of the separators behind which ``text`` stands."""
        found: Bools = self.data[1:] == text.text[0]
        found &= self.marks[:-1]
        at = found.nonzero()[0]
        return at[self.stands_at(text, at + 1)]

    def lengths(self, starts: Ints) -> Ints:
        """How many bytes there are from each place to the next separator."""
        separators = self.separators
        following = np.minimum(separators.searchsorted(starts), len(separators) - 1)
        return separators[following] - starts


def copies(data: memoryview | Bytes, at: Ints, width: int) -> npt.NDArray[np.void]:
    """``width`` bytes from each place on, one copy after the other."""
    if not len(at):
        return np.empty(0, f"V{width}")
    places = len(data) - width + 1
    return np.ndarray((places,), f"V{width}", data, strides=(1,))[at]
