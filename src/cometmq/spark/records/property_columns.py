"""Decodes the properties of many records at once, as a map or as single properties by name.

The text of a record is ``name 0x01 value 0x02 name 0x01 value 0x02 …`` with or without the last 0x02. All texts are in
one buffer, which is searched for separators once. The rules are the same as in
:func:`cometmq.message.properties.decode_properties`: pieces without a name or value are dropped, the first 0x01 ends
the name, and if two pieces have the same name, the later one is used.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.core import CORE
from cometmq.spark.records.slices import Bytes, Positions, buffers_of, maps, slices, strings, text, windows

_NAME_END: Final = 1
_PIECE_END: Final = 2
_BITS: Final = 62
"""Maximum number of names that each get a bit in an int64. The bits reveal names that occur twice in a record."""


class PropertyTexts:
    """The properties of ``count`` records, split into pieces when first requested."""

    def __init__(self, raw: Any) -> None:
        """Use ``raw``: an Arrow binary array with the property texts, without nulls."""
        self._raw = raw
        self._count = len(raw)
        self._bytes: Bytes
        self._bytes, self._offsets = buffers_of(raw)

    def text(self) -> Any:
        """Return the property texts as stored."""
        return text(self._raw)

    @cached_property
    def _pieces(self) -> tuple[Positions, Positions, Positions, Positions]:
        """Return the start of each name, the position of its 0x01, the end of its value, and the index of each record's
        first piece.
        """
        data = self._bytes[: int(self._offsets[-1])]
        empty = np.empty(0, np.int64)
        if not len(data):
            return empty, empty, empty, np.zeros(self._count + 1, np.int64)
        begins = np.zeros(len(data) + 1, np.bool_)
        np.equal(data, _PIECE_END, out=begins[1:])
        begins[self._offsets] = True
        starts = np.flatnonzero(begins[:-1])
        ends = np.append(starts[1:], len(data))
        ends = ends - (data[ends - 1] == _PIECE_END)
        middles = np.flatnonzero(data == _NAME_END)
        if len(middles) != len(starts) or not ((starts < middles) & (middles < ends)).all():
            middles = np.append(middles, len(data))[np.searchsorted(middles, starts)]
        good = (starts < middles) & (middles + 1 < ends)
        firsts = np.searchsorted(starts, self._offsets)
        if not good.all():
            firsts = np.concatenate(([0], np.cumsum(good)))[firsts]
            starts, middles, ends = starts[good], middles[good], ends[good]
        return starts, middles, ends, firsts

    @cached_property
    def _names(self) -> tuple[list[bytes], Positions]:
        """Return the distinct names, and the index of each piece's name."""
        starts, middles, _, firsts = self._pieces
        return _as_in_the_first(self._bytes, starts, middles, firsts) or _encoded(
            slices(self._bytes, starts, middles - starts)
        )

    def values_of(self, name: str) -> Any:
        """Return one property of each record as strings, or null for records without the property."""
        found = None if CORE is None else CORE.property_values(self._bytes, self._offsets, name)
        if found is None:
            return self._values_of(name)
        texts, bits = found
        return strings(texts, self._count, bits)

    def numbers_of(self, name: str, kind: Any) -> Any:
        """Return one property as integers of an Arrow type. The value is null if the property is absent or does not
        fit.
        """
        texts = self.values_of(name)
        digits = 9 if kind == pa.int32() else 14  # this many digits are enough for milliseconds up to the year 5138
        numeric = pc.match_substring_regex(texts, rf"^-?[0-9]{{1,{digits}}}$")
        return pc.if_else(numeric, texts, pa.scalar(None, pa.string())).cast(kind)

    def maps(self, kind: Any) -> Any:
        """Return each record's properties as an Arrow map of type ``kind``."""
        found = None if CORE is None else CORE.property_maps(self._bytes, self._offsets)
        return self._maps(kind) if found is None else maps(found, self._count, kind)

    # Without the compiled core, and for texts that it does not handle ----------------------------------------

    def _values_of(self, name: str) -> Any:
        _, middles, ends, firsts = self._pieces
        names, numbers = self._names
        wanted = name.encode()
        if wanted not in names:
            return pa.nulls(self._count, pa.string())
        pieces = np.flatnonzero(numbers == names.index(wanted))
        begins, lengths = middles[pieces] + 1, ends[pieces] - middles[pieces] - 1
        rows = np.searchsorted(firsts, pieces, side="right") - 1
        if len(rows) == self._count and (rows == np.arange(self._count)).all():
            return text(slices(self._bytes, begins, lengths))
        begin, length = np.zeros(self._count, np.int64), np.zeros(self._count, np.int64)
        begin[rows], length[rows] = begins, lengths  # of pieces with the same name, the last is kept
        return text(slices(self._bytes, begin, length, length == 0))

    def _maps(self, kind: Any) -> Any:
        _, middles, ends, firsts = self._pieces
        names, numbers = self._names
        values = text(slices(self._bytes, middles + 1, ends - middles - 1))
        keep = _without_repeats(len(names), numbers, firsts)
        if keep is not None:
            firsts = np.concatenate(([0], np.cumsum(keep)))[firsts]
            numbers, values = numbers[keep], values.filter(pa.array(keep))
        keys = text(pa.array(names, pa.binary())).take(pa.array(numbers))
        return pa.MapArray.from_arrays(pa.array(firsts.astype(np.int32)), keys, values, type=kind)


def _as_in_the_first(
    data: Bytes, starts: Positions, middles: Positions, firsts: Positions
) -> tuple[list[bytes], Positions] | None:
    """Return the names if all records have the same names as the first, which is usual with one producer; otherwise
    None.
    """
    count, records = int(firsts[1]), len(firsts) - 1
    if not count or count * records != len(starts) or (np.diff(firsts) != count).any():
        return None
    lengths = (middles - starts).reshape(records, count)
    if (lengths != lengths[0]).any():
        return None
    names: list[bytes] = []
    for number, length in enumerate(lengths[0].tolist()):
        found = windows(data, f"V{length}")[starts[number::count]]
        if (found != found[0]).any():
            return None
        names.append(found[0].tobytes())
    if len(set(names)) < count:
        return None
    return names, np.tile(np.arange(count), records)


def _encoded(names: Any) -> tuple[list[bytes], Positions]:
    encoded = names.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _without_repeats(names: int, numbers: Positions, firsts: Positions) -> npt.NDArray[np.bool_] | None:
    """Mark the pieces to keep: if a record contains a name twice, only the last piece. Return None to keep all pieces.

    :param names: number of distinct names; ``numbers`` contains the index of each piece's name.
    """
    if not len(numbers):
        return None
    bits = np.left_shift(np.int64(1), numbers % _BITS)
    filled = firsts[:-1][firsts[1:] > firsts[:-1]]
    # The sum of powers of two equals their union only if no power occurs twice.
    if (np.add.reduceat(bits, filled) == np.bitwise_or.reduceat(bits, filled)).all():
        return None
    keys = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts)) * names + numbers
    _, last = np.unique(keys[::-1], return_index=True)
    keep = np.zeros(len(keys), np.bool_)
    keep[len(keys) - 1 - last] = True
    return keep
