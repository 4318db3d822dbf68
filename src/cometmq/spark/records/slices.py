"""Gathers values from any positions in a byte buffer, and slices of any length as Arrow arrays.

All functions work on many records at once and copy each byte at most twice. They do not loop over records.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_INLINE_BYTES: Final = 12
"""An Arrow view: int32 length, then 12 bytes inline, or 4 bytes prefix, int32 buffer, int32 offset. The bytes after a
shorter inline value do not matter here, since views are only read.
"""
_INLINE: Final = f"V{_INLINE_BYTES}"


def windows(buffer: Bytes, dtype: str | np.dtype[Any]) -> npt.NDArray[Any]:
    """View ``buffer`` as overlapping values of ``dtype``, one for each byte."""
    kind = np.dtype(dtype)
    return np.ndarray((max(len(buffer) - kind.itemsize + 1, 0),), kind, buffer.data, strides=(1,))


def slices(buffer: Bytes, starts: Positions, lengths: Positions, missing: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return ``buffer[start : start + length]`` for each row as a contiguous Arrow binary array.

    ``missing`` marks rows that are null; their start and length must still lie within the buffer.
    The buffer and the sum of the lengths must each be less than 2 GiB.
    """
    count = len(starts)
    if count == 0 or not len(buffer):
        return pa.array([None if missing is not None and missing[i] else b"" for i in range(count)], pa.binary())
    views = np.empty((count, 4), np.int32)
    views[:, 0] = lengths
    far = lengths > _INLINE_BYTES
    if far.all():  # the cast does not look at a prefix
        views[:, 1:3], views[:, 3] = 0, starts
    else:
        views[:, 1:] = _heads(buffer, starts).view(np.int32).reshape(count, 3)
        np.copyto(views[:, 2], 0, where=far)
        np.copyto(views[:, 3], starts, where=far, casting="same_kind")
    validity = None
    if missing is not None and missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    array = pa.Array.from_buffers(pa.binary_view(), count, [validity, pa.py_buffer(views), pa.py_buffer(buffer)])
    return array.cast(pa.binary())


def _heads(buffer: Bytes, starts: Positions) -> npt.NDArray[np.void]:
    """Return the first bytes after each start. Bytes after the buffer's end are zeros."""
    last = max(len(buffer) - _INLINE_BYTES, 0)
    early = starts < last
    if early.all():
        return windows(buffer, _INLINE)[starts]
    tail = np.zeros(2 * _INLINE_BYTES, np.uint8)
    tail[: len(buffer) - last] = buffer[last:]
    heads = windows(tail, _INLINE)[np.maximum(starts - last, 0)]
    heads[early] = windows(buffer, _INLINE)[starts[early]]
    return heads


def text(array: Any) -> Any:
    """Convert an Arrow binary array to strings. Like Java's decoder, replace invalid UTF-8 with U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in array.to_pylist()], pa.string())


def constant(value: str, count: int) -> Any:
    """Return a string array with ``count`` equal rows. ``pa.scalar`` would import Pandas, which takes half a second."""
    one = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(one))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(one * count)])


def fixed(data: Any, count: int, kind: Any) -> Any:
    """Return ``count`` numbers of a buffer, which have the width of ``kind``. ``pa.array`` would import Pandas, which
    takes half a second.
    """
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def strings(texts: tuple[Any, Any], count: int, bits: bytes | None = None) -> Any:
    """Return a string array from its offsets and its bytes. ``bits`` marks the strings that are not null."""
    offsets, data = texts
    validity = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.string(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def maps(entries: tuple[Any, Any, Any], count: int, kind: Any) -> Any:
    """Return an array of maps from the offsets of their entries, the names and the values."""
    offsets, names, values = entries
    size = int(np.frombuffer(offsets, np.int32)[count])
    firsts = fixed(offsets, count + 1, pa.int32())
    return pa.MapArray.from_arrays(firsts, strings(names, size), strings(values, size), type=kind)


def buffers_of(array: Any) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the bytes and the offsets (one more than the number of rows) of an Arrow binary or string array that is
    not a slice.
    """
    _, offsets, data = array.buffers()
    positions = np.frombuffer(offsets, np.int32)[: len(array) + 1]
    return (np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), positions
