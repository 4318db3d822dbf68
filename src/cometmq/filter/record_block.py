"""The properties of many stored records at once: found where they stand, by array operations.

Records of one log file are looked at together. Of each that is regular (lengths that add up, not unusually
many properties) the text of the properties is copied into a row of a matrix::

    0x02 name 0x01 value 0x02 name 0x01 value … 0x02 | whatever follows in the log, never looked at

so that a property begins at each 0x02 before the row's end, and its value ends at the next one. Bodies are
not read. Records that are not regular are left to who can read them one by one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.record import MESSAGE_MAGIC
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_HEAD: Final = np.dtype(
    {"names": ["magic", "offset", "flags"], "formats": [">i4", ">i8", ">i4"], "offsets": [4, 28, 36], "itemsize": 40}
)
_LENGTH_AT: Final = 84
"""Where the length of the body stands in a record with IPv4 hosts."""
_V6_BYTES: Final = IPV6_HOST_BYTES - IPV4_HOST_BYTES
_SEPARATOR: Final = 2
WORD: Final = 8
_MARGIN: Final = 24
"""Bytes of a row behind the end of its properties: a number or a name may be read past a short value."""
_SAMPLE: Final = 20
WIDEST_PROPERTIES: Final = 4_096
"""Properties that take more bytes are left to be read one by one."""


class Column:
    """One property in all rows: where its value starts, and how long it is, −1 where there is none.

    A length of 0 means that the row is to be read on its own: a property without a value counts as absent.
    """

    __slots__ = ("lengths", "starts")

    def __init__(self, starts: Ints, lengths: Ints) -> None:
        self.starts = starts
        self.lengths = lengths


class RecordBlock:
    """The properties of the regular records among some.

    :param view: a log file.
    :param base: the log offset of its first byte.
    :param at: where each record begins in it.
    :param sizes: how long each is; all of it is in ``view``.
    :param topic_bytes: how long the name of their topic is.
    """

    def __init__(self, view: memoryview, base: int, at: Ints, sizes: Ints, topic_bytes: int) -> None:
        room = len(view)
        data = np.frombuffer(view, np.uint8)
        heads = _words(view, at, _HEAD.itemsize).view(_HEAD)
        flags = heads["flags"]
        ends = at + sizes
        regular = (heads["magic"] == MESSAGE_MAGIC) & (heads["offset"] == at + base)
        length_at = at + _LENGTH_AT
        for v6 in (BORNHOST_V6, STOREHOST_V6):
            longer = flags & v6 != 0
            if longer.any():
                length_at = np.minimum(length_at + _V6_BYTES * longer, room - 4)
        # A body of less than nothing is one that is too long.
        begin = length_at + _words(view, length_at, 4).view(">u4") + (4 + 3 + topic_bytes)
        regular &= begin <= ends
        begin = np.minimum(begin, ends)  # a place to read at, whatever the record says
        regular &= data[begin - (3 + topic_bytes)] == topic_bytes
        lengths = _words(view, begin - 2, 2).view(">u2").astype(np.int64)
        regular &= begin + lengths == ends
        kept = lengths[regular]
        # A few records with very many properties do not make all rows wide.
        widest = min(int(kept.max()), 2 * _usual(kept) + 64, WIDEST_PROPERTIES) if len(kept) else 0
        self.width = widest + _MARGIN
        regular &= (lengths <= widest) & (begin - 1 + self.width <= room)
        self.regular: Bools = regular
        """Which of the records are rows."""
        lengths = lengths[regular]
        self.rows = len(lengths)
        self.data: Bytes = _words(view, begin[regular] - 1, self.width).view(np.uint8)
        """The rows, one after the other."""
        self._ends = np.arange(1, self.rows * self.width + 1, self.width) + lengths
        if self.rows:
            self.data[:: self.width] = _SEPARATOR
            self.data[self._ends] = _SEPARATOR
            self.data[-1] = 0  # behind the last separator there is always a byte
        self._columns: dict[bytes, Column] = {}

    @cached_property
    def text(self) -> bytes:
        """The rows as bytes."""
        return self.data.tobytes()

    @cached_property
    def _separators(self) -> Ints:
        places: Ints = (self.data == _SEPARATOR).nonzero()[0]
        return places

    @property
    def properties(self) -> int:
        """How many properties all rows have, and what follows them in the log."""
        return len(self._separators)

    @cached_property
    def _initials(self) -> Bytes:
        """The byte behind each separator."""
        initials: Bytes = self.data[self._separators + 1]
        return initials

    def words(self, at: Ints) -> npt.NDArray[np.uint64]:
        """The eight bytes from each place on; whatever is there for places behind the last row."""
        return _words(self.data, np.minimum(at, len(self.data) - WORD), WORD).view("<u8")

    def stands_at(self, text: bytes, at: Ints) -> Bools:
        """Whether ``text`` stands at each of these places."""
        mask, key = word_key(text)
        found: Bools = (self.words(at) & mask) == key
        for start in range(WORD, len(text), WORD):
            mask, key = word_key(text[start:])
            left = found.nonzero()[0]
            found[left] = (self.words(at[left] + start) & mask) == key
        return found

    def column(self, name: bytes) -> Column:
        """The values of one property; of several in one record the last."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = self._find(name)
        return column

    def _find(self, name: bytes) -> Column:
        first = name + b"\x01"
        separators = self._separators
        found = (self._initials == first[0]).nonzero()[0]
        found = found[self.stands_at(first[1:], separators[found] + 2)]
        at = separators[found]
        row = at // self.width
        inside = at < self._ends[row]
        if not inside.all():
            found, at, row = found[inside], at[inside], row[inside]
        starts = at + (1 + len(first))
        ends = separators[found + 1]
        if len(row) == self.rows and (row[1:] > row[:-1]).all():
            return Column(starts, ends - starts)
        all_starts = np.zeros(self.rows, np.int64)
        all_lengths = np.full(self.rows, -1, np.int64)
        all_starts[row] = starts
        all_lengths[row] = ends - starts
        return Column(all_starts, all_lengths)


def _usual(lengths: Ints) -> int:
    """About the median, of some of them."""
    some = sorted(lengths[:: len(lengths) // _SAMPLE + 1].tolist())
    return int(some[len(some) // 2])


def _words(data: memoryview | Bytes, at: Ints, width: int) -> npt.NDArray[np.void]:
    """``width`` bytes from each place on, one copy after the other."""
    if not len(at):
        return np.empty(0, f"V{width}")
    places = len(data) - width + 1
    return np.ndarray((places,), f"V{width}", data, strides=(1,))[at]


def word_key(text: bytes) -> tuple[np.uint64, np.uint64]:
    """Mask and value that the first eight bytes of ``text``, or fewer, have as a little-endian word."""
    text = text[:WORD]
    return np.uint64((1 << 8 * len(text)) - 1), np.uint64(int.from_bytes(text, "little"))
