"""Properties of many records at once: the map, and single properties by name.

The text of a record is ``name 0x01 value 0x02 name 0x01 value 0x02 …`` with or without the last 0x02. All texts
stand one after the other in one buffer; separators are found once for all of them. The rules are those of
:func:`cometmq.message.properties.decode_properties`: pieces without name or value are dropped, the first 0x01 ends
the name, and of two pieces with one name the later wins.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.spark.slices import Bytes, Positions, buffers_of, slices, text

_NAME_END: Final = 1
_PIECE_END: Final = 2
_BITS: Final = 62
"""Names told apart by one bit each of an int64 when looking for names that stand twice in a record."""


class PropertyTexts:
    """The properties of ``count`` records, cut into pieces when first asked for."""

    def __init__(self, raw: Any) -> None:
        """``raw``: Arrow binary array of the texts, without nulls."""
        self._raw = raw
        self._count = len(raw)
        self._bytes: Bytes
        self._bytes, self._offsets = buffers_of(raw)

    def text(self) -> Any:
        """The texts themselves."""
        return text(self._raw)

    @cached_property
    def _pieces(self) -> tuple[Positions, Positions, Positions, Positions]:
        """Start of name, its 0x01, end of value, and for each record the number of its first piece."""
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

    def values_of(self, name: str) -> Any:
        """One property of each record as strings, null where it has none."""
        starts, middles, ends, firsts = self._pieces
        wanted = np.frombuffer(name.encode(), np.uint8)
        same = np.flatnonzero(middles - starts == len(wanted))
        for at, byte in enumerate(wanted):
            same = same[self._bytes[starts[same] + at] == byte]
        begin = np.zeros(self._count, np.int64)
        length = np.zeros(self._count, np.int64)
        rows = np.searchsorted(firsts, same, side="right") - 1
        begin[rows] = middles[same] + 1  # the last of equal names stays
        length[rows] = ends[same] - middles[same] - 1
        return text(slices(self._bytes, begin, length, length == 0))

    def maps(self, kind: Any) -> Any:
        """The properties of each record as an Arrow map of type ``kind``."""
        starts, middles, ends, firsts = self._pieces
        names = slices(self._bytes, starts, middles - starts)
        keep = _without_repeats(names, firsts)
        if keep is not None:
            names = names.filter(pa.array(keep))
            firsts = np.concatenate(([0], np.cumsum(keep)))[firsts]
            middles, ends = middles[keep], ends[keep]
        values = slices(self._bytes, middles + 1, ends - middles - 1)
        return pa.MapArray.from_arrays(pa.array(firsts.astype(np.int32)), text(names), text(values), type=kind)


def _without_repeats(names: Any, firsts: Positions) -> npt.NDArray[np.bool_] | None:
    """Which pieces stay when of equal names in a record only the last does; None if all of them do."""
    if not len(names):
        return None
    encoded = names.dictionary_encode()
    ids = encoded.indices.to_numpy().astype(np.int64)
    bits = np.left_shift(np.int64(1), ids % _BITS)
    filled = firsts[:-1][firsts[1:] > firsts[:-1]]
    # Summing powers of two equals or-ing them only where none stands twice.
    if (np.add.reduceat(bits, filled) == np.bitwise_or.reduceat(bits, filled)).all():
        return None
    rows = np.repeat(np.arange(len(firsts) - 1), np.diff(firsts))
    keys = rows * len(encoded.dictionary) + ids
    _, last = np.unique(keys[::-1], return_index=True)
    keep = np.zeros(len(keys), np.bool_)
    keep[len(keys) - 1 - last] = True
    return keep
