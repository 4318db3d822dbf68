"""The encoded properties of many records, one row per record, for searches with array operations.

All rows have the same width, with zeros before the text::

    0 … 0x02 name 0x01 value 0x02 name 0x01 value … 0x02 | arbitrary bytes, ignored

so that a property begins at each 0x02 before the row's end, and its value ends at the next one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.filter.block_numbers import Bools, Bytes, Ints, Words, doubles, short_numbers, whole_numbers
from cometmq.message.properties import property_mark

SEPARATOR: Final = 2
WORD: Final = 8


class Text(NamedTuple):
    """A text prepared for comparisons, as masked little-endian words."""

    text: bytes
    words: tuple[tuple[np.uint64, np.uint64], ...]
    """A mask and a value for each eight-byte word of the text."""

    @classmethod
    def of(cls, text: bytes) -> Text:
        """Convert a text to its words."""
        parts = (text[at : at + WORD] for at in range(0, len(text), WORD))
        return cls(
            text, tuple((np.uint64((1 << 8 * len(one)) - 1), np.uint64(int.from_bytes(one, "little"))) for one in parts)
        )

    @classmethod
    def name(cls, name: str) -> Text:
        """Convert a property name and the separator after it."""
        return cls.of(property_mark(name).encode())


class MarkedText:
    """The bytes of the rows; the last word is padding."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.marks: Bools = data == SEPARATOR
        """The mask of bytes that are separators."""

    @cached_property
    def separators(self) -> Ints:
        """The positions of all separators."""
        places: Ints = self.marks.nonzero()[0]
        return places

    def words(self, at: Ints) -> Words:
        """Return the eight bytes at each of the given positions."""
        return copies(self.data, at, WORD).view("<u8")

    def stands_at(self, text: Text, at: Ints, words: Words | None = None) -> Bools:
        """Return for each position whether ``text`` is there."""
        mask, key = text.words[0]
        found: Bools = (self.words(at) if words is None else words) & mask == key
        for number, (mask, key) in enumerate(text.words[1:], 1):
            left = found.nonzero()[0]
            places = np.minimum(at[left] + number * WORD, len(self.data) - WORD)
            found[left] = self.words(places) & mask == key
        return found

    def behind_separators(self, text: Text) -> Ints:
        """Return the separators that are directly followed by ``text``."""
        found: Bools = self.data[1:] == text.text[0]
        found &= self.marks[:-1]
        at = found.nonzero()[0]
        return at[self.stands_at(text, at + 1)]

    def lengths(self, starts: Ints) -> Ints:
        """Return the number of bytes from each position to the next separator."""
        separators = self.separators
        following = np.minimum(separators.searchsorted(starts), len(separators) - 1)
        return separators[following] - starts


def copies(data: memoryview | Bytes, at: Ints, width: int) -> npt.NDArray[np.void]:
    """Copy ``width`` bytes from each position, one after another."""
    if not len(at):
        return np.empty(0, f"V{width}")
    places = len(data) - width + 1
    return np.ndarray((places,), f"V{width}", data, strides=(1,))[at]


MARGIN: Final = 24
"""Number of padding bytes after a row's text."""
BYTES_AS_A_PROPERTY: Final = 40
"""Cost ratio between comparing a property with a name and comparing a byte with a separator."""
_LOW_BYTE: Final = np.uint64(0xFF)
_END: Final = np.uint64(SEPARATOR)


class PropertyRows:
    """The encoded properties of some records, one row per record.

    :param data: the rows, one after another; each text begins and ends with a separator.
    :param width: the number of bytes in each row, with at least :data:`MARGIN` after its text.
    :param ends: the position in ``data`` at which each text ends.
    """

    def __init__(self, data: Bytes, width: int, ends: Ints) -> None:
        self.data = data
        self.width = width
        self.count = len(ends)
        """The number of rows."""
        self._ends = ends
        if self.count:
            data[-MARGIN + 1 :] = 0  # a word can be read after the last separator
        self._text = MarkedText(data)
        self._columns: dict[bytes, Column] = {}

    @cached_property
    def text(self) -> bytes:
        """The bytes of the rows, ready for comparisons."""
        return self.data.tobytes()

    @property
    def work(self) -> int:
        """The cost of finding a property in all rows, in property comparisons."""
        return int(np.count_nonzero(self._text.marks)) + len(self.data) // BYTES_AS_A_PROPERTY

    def narrowed(self, rows: Ints) -> PropertyRows:
        """Return the selected rows only."""
        data = self.data.reshape(self.count, self.width)[rows].reshape(-1)
        return PropertyRows(data, self.width, self._ends[rows] + (np.arange(len(rows)) - rows) * self.width)

    def has_columns(self, names: frozenset[bytes]) -> bool:
        """Return whether all these properties have already been found."""
        return self._columns.keys() >= names

    def column(self, name: Text) -> Column:
        """Find the last value of a property in each row."""
        column = self._columns.get(name.text)
        if column is None:
            column = self._columns[name.text] = self._find(name)
        return column

    def _find(self, name: Text) -> Column:
        at = self._text.behind_separators(name)
        row = at // self.width
        inside = at < self._ends[row]
        if not inside.all():
            at, row = at[inside], row[inside]
        starts = at + (1 + len(name.text))
        if len(row) == self.count and (row[1:] > row[:-1]).all():
            return Column(self._text, starts, None)
        all_starts = np.full(self.count, len(self.data) - WORD)
        all_starts[row] = starts
        there = np.zeros(self.count, np.bool_)
        there[row] = True
        return Column(self._text, all_starts, there)


class Column:
    """A property's values in all rows.

    :param text: the rows.
    :param starts: the position of each value, or of eight zero bytes if a row has none.
    :param there: for each row, whether it has the property; ``None`` if all rows have it.
    """

    def __init__(self, text: MarkedText, starts: Ints, there: Bools | None) -> None:
        self._text = text
        self.starts = starts
        self.there = there
        self._words = text.words(starts)
        self._numbers: dict[int, tuple[npt.NDArray[np.int64 | np.float64], Bools | None]] = {}

    @cached_property
    def valueless(self) -> Bools | None:
        """The rows that must be evaluated one by one because the property's value is empty."""
        empty: Bools = self._words & _LOW_BYTE == _END
        return empty if empty.any() else None

    def valued(self, rows: Bools) -> Bools:
        """Return the selected rows that have a value."""
        if self.there is not None:
            rows = rows & self.there
        return rows if self.valueless is None else rows & ~self.valueless

    @cached_property
    def lengths(self) -> Ints:
        """The lengths of the values, which are 0 for rows without a value."""
        lengths = self._text.lengths(self.starts)
        return lengths if self.there is None else np.where(self.there, lengths, 0)

    def is_text(self, text: Text) -> Bools:
        """Return which rows have the value ``text``, including the final separator."""
        return self._text.stands_at(text, self.starts, self._words)

    def whole_numbers(self, digits: int) -> tuple[npt.NDArray[np.int64 | np.float64], Bools | None]:
        """Parse the values as numbers with up to ``digits`` digits; also return a mask of values in another form."""
        found = self._numbers.get(digits)
        if found is None:
            values, odd = self._short_numbers
            left = odd.nonzero()[0]
            if len(left):
                values, odd = values.copy(), odd.copy()
                starts = self.starts[left]
                lengths = self._text.lengths(starts)
                values[left], odd[left] = whole_numbers(self._text.data, starts, lengths, digits)
            found = self._numbers[digits] = values, odd if odd.any() else None
        return found

    def doubles(self) -> tuple[npt.NDArray[np.int64 | np.float64], Bools | None]:
        """Parse the values as numbers with a decimal point; also return a mask of values in another form."""
        found = self._numbers.get(0)
        if found is None:
            whole, odd = self._short_numbers
            values = whole.astype(np.float64)
            left = odd.nonzero()[0]
            if len(left):
                odd = odd.copy()
                starts = self.starts[left]
                values[left], odd[left] = doubles(self._text.data, starts, self._text.lengths(starts))
            found = self._numbers[0] = values, odd if odd.any() else None
        return found

    @cached_property
    def _short_numbers(self) -> tuple[Ints, Bools]:
        values, odd = short_numbers(self._words)
        return values, odd if self.there is None else odd & self.there
