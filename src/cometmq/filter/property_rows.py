"""Rows of property texts, one record each, looked through together by array operations.

A row has the same width as all others; what stands before its text is zero::

    0 … 0x02 name 0x01 value 0x02 name 0x01 value … 0x02 | whatever follows, never looked at

so that a property begins at each 0x02 before the row's end, and its value ends at the next one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.filter.block_numbers import Bools, Bytes, Ints, doubles, short_numbers, whole_numbers
from cometmq.filter.marked_text import SEPARATOR, WORD, MarkedText, Text

MARGIN: Final = 24
"""Bytes of a row behind the end of its text: a number or a name may be read past a short value."""
BYTES_AS_A_PROPERTY: Final = 40
"""So many bytes are compared with a separator and a letter while a property is compared with a name."""
_LOW_BYTE: Final = np.uint64(0xFF)
_END: Final = np.uint64(SEPARATOR)


class PropertyRows:
    """Some rows.

    :param data: the rows, one behind the other; separators stand where each text begins and ends.
    :param width: bytes of each, at least :data:`MARGIN` behind the end of its text.
    :param ends: where in ``data`` each text ends.
    """

    def __init__(self, data: Bytes, width: int, ends: Ints) -> None:
        self.data = data
        self.width = width
        self.count = len(ends)
        """How many there are."""
        self._ends = ends
        if self.count:
            data[-MARGIN + 1 :] = 0  # behind the last separator a word can be read, of nothing
        self._text = MarkedText(data)
        self._columns: dict[bytes, Column] = {}

    @cached_property
    def text(self) -> bytes:
        """The rows as bytes."""
        return self.data.tobytes()

    @property
    def work(self) -> int:
        """What finding one property in all rows costs, in properties that are looked at."""
        return int(np.count_nonzero(self._text.marks)) + len(self.data) // BYTES_AS_A_PROPERTY

    def narrowed(self, rows: Ints) -> PropertyRows:
        """Some of these rows."""
        data = self.data.reshape(self.count, self.width)[rows].reshape(-1)
        return PropertyRows(data, self.width, self._ends[rows] + (np.arange(len(rows)) - rows) * self.width)

    def has_columns(self, names: frozenset[bytes]) -> bool:
        """Whether the values of all these properties have been found."""
        return self._columns.keys() >= names

    def column(self, name: Text) -> Column:
        """The values of one property; of several in one row the last."""
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
    """One property in all rows.

    :param text: the rows.
    :param starts: where its value begins; where there is none, eight bytes of nothing.
    :param there: which rows have it, ``None`` when all do.
    """

    def __init__(self, text: MarkedText, starts: Ints, there: Bools | None) -> None:
        self._text = text
        self.starts = starts
        self.there = there
        self._words = text.words(starts)
        self._numbers: dict[int, tuple[npt.NDArray[np.int64 | np.float64], Bools | None]] = {}

    @cached_property
    def valueless(self) -> Bools | None:
        """Rows to be read on their own: a property without a value counts as absent."""
        empty: Bools = self._words & _LOW_BYTE == _END
        return empty if empty.any() else None

    def valued(self, rows: Bools) -> Bools:
        """Those of some rows that have the property, with a value."""
        if self.there is not None:
            rows = rows & self.there
        return rows if self.valueless is None else rows & ~self.valueless

    @cached_property
    def lengths(self) -> Ints:
        """How long the values are; 0 where there is none."""
        lengths = self._text.lengths(self.starts)
        return lengths if self.there is None else np.where(self.there, lengths, 0)

    def is_text(self, text: Text) -> Bools:
        """Where the value is ``text``, which ends with a separator."""
        return self._text.stands_at(text, self.starts, self._words)

    def whole_numbers(self, digits: int) -> tuple[npt.NDArray[np.int64 | np.float64], Bools | None]:
        """The values as numbers of up to so many digits, and which rows have one that is written otherwise."""
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
        """The same for numbers with a point."""
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
