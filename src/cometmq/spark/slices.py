"""Gathers out of one byte buffer: numbers at any position, and slices of any length as Arrow arrays.

Everything here works on many records at once and copies each byte at most twice; there is no loop per record.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

_VIEW_BYTES: Final = 16
"""An Arrow view: int32 length, then 12 bytes inline, or 4 bytes prefix, int32 buffer, int32 offset."""
_INLINE_BYTES: Final = 12
_ZEROED: Final = np.array(
    [[0xFF] * length + [0] * (_INLINE_BYTES - length) for length in range(_INLINE_BYTES + 1)], np.uint8
)
"""Row ``n`` keeps the first ``n`` of 12 bytes."""


def windows(buffer: Bytes, dtype: str) -> npt.NDArray[Any]:
    """A view of ``buffer`` as overlapping values of ``dtype``, one beginning at each byte."""
    kind = np.dtype(dtype)
    return np.ndarray((max(len(buffer) - kind.itemsize + 1, 0),), kind, buffer.data, strides=(1,))


def numbers(buffer: Bytes, at: Positions, dtype: str) -> npt.NDArray[Any]:
    """The big-endian numbers of ``dtype`` (as ``">i4"``) that begin at ``at``, in native order."""
    found = windows(buffer, dtype)[at]
    return found.astype(found.dtype.newbyteorder("="))


def slices(buffer: Bytes, starts: Positions, lengths: Positions, missing: npt.NDArray[np.bool_] | None = None) -> Any:
    """``buffer[start : start + length]`` for each row, as a contiguous Arrow binary array.

    ``missing`` marks rows that are null; their start and length must still lie within the buffer.
    The buffer must be shorter than 2 GiB, and so must be the sum of the lengths.
    """
    count = len(starts)
    if count == 0 or not len(buffer):
        return pa.array([None if missing is not None and missing[i] else b"" for i in range(count)], pa.binary())
    views = np.zeros((count, _VIEW_BYTES), np.uint8)
    words = views.view(np.int32)
    words[:, 0] = lengths
    padded = buffer
    if int(starts.max()) + _INLINE_BYTES > len(buffer):
        padded = np.concatenate((buffer, np.zeros(_INLINE_BYTES, np.uint8)))
    heads = windows(padded, f"V{_INLINE_BYTES}")[starts].view(np.uint8).reshape(count, _INLINE_BYTES)
    short = lengths <= _INLINE_BYTES
    if short.all():
        np.bitwise_and(heads, _ZEROED[lengths], out=views[:, 4:])
    else:
        views[:, 4:8] = heads[:, :4]
        words[:, 3] = starts
        if short.any():
            views[short, 4:] = heads[short] & _ZEROED[lengths[short]]
    validity = None
    if missing is not None and missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    array = pa.Array.from_buffers(pa.binary_view(), count, [validity, pa.py_buffer(views), pa.py_buffer(buffer)])
    return array.cast(pa.binary())


def text(array: Any) -> Any:
    """An Arrow binary array as strings; bytes that are not UTF-8 become U+FFFD, as Java's decoder does."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in array.to_pylist()], pa.string())


def constant(value: str, count: int) -> Any:
    """A string array of ``count`` equal rows."""
    return pa.repeat(pa.scalar(value, pa.string()), count)


def buffers_of(array: Any) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Bytes and offsets (one more than rows) of an Arrow binary or string array that is not a slice."""
    _, offsets, data = array.buffers()
    positions = np.frombuffer(offsets, np.int32)[: len(array) + 1]
    return (np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), positions
