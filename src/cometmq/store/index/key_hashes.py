"""Computes the hashes of many keys at once with array operations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

_MATRIX_KEY_CHARS: Final = 128
"""Maximum length of a key in the matrix. A longer key would make all rows wider."""


def key_hashes(keys: Sequence[str]) -> npt.NDArray[np.int32]:
    """Compute ``index_hash(java_hash(key))`` for many keys, as int32 of shape ``(len(keys),)``."""
    width = max(map(len, keys), default=0)
    if not width:
        return np.zeros(len(keys), np.int32)
    text = "".join([key.rjust(width, "\0") for key in keys]) if width <= _MATRIX_KEY_CHARS else ""
    if text and text.isascii():
        # Zeros on the left add nothing to Σ s[i]·31^(n−1−i): one matrix product serves all lengths.
        units = np.frombuffer(text.encode(), np.uint8).reshape(-1, width)
        sums = units.astype(np.uint32) @ _powers_of_31(width)[width - 1 :: -1]
    else:
        sums = _sums_of_any(keys)
    codes = sums.view(np.int32)
    absolute: npt.NDArray[np.int32] = np.where(codes == -0x80000000, 0, np.abs(codes.astype(np.int64))).astype(np.int32)
    return absolute


def _sums_of_any(keys: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Return the Java hashes of keys of any length and script, as uint32."""
    encoded = [key.encode("utf-16-le", "surrogatepass") for key in keys]
    units = np.frombuffer(b"".join(encoded), "<u2")
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) // 2
    ends = np.cumsum(lengths)
    # Unit i of key k weighs 31^(end_k - 1 - i); sums wrap in uint32 as Java's ints do.
    weights = _powers_of_31(int(lengths.max()))[np.repeat(ends - 1, lengths) - np.arange(len(units))]
    sums = np.zeros(len(keys), np.uint32)
    filled = lengths > 0
    if len(units):
        sums[filled] = np.add.reduceat(units.astype(np.uint32) * weights, (ends - lengths)[filled], dtype=np.uint32)
    return sums


@lru_cache(maxsize=8)
def _powers_table(size: int) -> npt.NDArray[np.uint32]:
    powers = np.ones(size, np.uint32)
    np.multiply.accumulate(np.full(size - 1, 31, np.uint32), out=powers[1:], dtype=np.uint32)
    return powers


def _powers_of_31(longest: int) -> npt.NDArray[np.uint32]:
    """Return the powers of 31, modulo 2^32, for at least ``longest`` positions."""
    return _powers_table(max(256, 1 << (longest - 1).bit_length() if longest > 1 else 2))
