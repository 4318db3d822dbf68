"""Parses many decimal numbers at once, except those in unusual forms."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

INT32_DIGITS: Final = 9
INT64_DIGITS: Final = 18
"""Maximum number of digits for which every number fits into 64 bits."""
_DOUBLE_CHARS: Final = 16
"""Maximum number of digits in a number with a decimal point, so that the result is exact."""
_POWERS: Final = 10.0 ** np.arange(_DOUBLE_CHARS)
_MINUS: Final = 45
_ZERO: Final = 48
_POINT: Final = (46 - _ZERO) & 0xFF


def _each(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_BYTE: Final = np.uint64(8)
_LOW_BYTE: Final = np.uint64(0xFF)
_MINUS_BYTE: Final = np.uint64(_MINUS)
_SEPARATORS: Final = _each(2)
_ONES: Final = _each(1)
_HIGHS: Final = _each(0x80)
_FIRST_HIGH: Final = np.uint64(0x80)
_ZEROS: Final = _each(_ZERO)
_ABOVE_NINE: Final = _each(0x80 - 10)
"""Addend that sets the highest bit of each byte above 9."""
_SEVEN: Final = np.uint64(7)
_TOP: Final = np.uint64(56)
_BITS_LEFT: Final = np.uint64(0x4038302820181008)
"""Multiplier that turns 1 << 8n into 64 - 8n in the highest byte."""
_PAIRS: Final = (np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(10 * 2**8 + 1), np.uint64(8))
_FOURS: Final = (np.uint64(0x00FF00FF00FF00FF), np.uint64(100 * 2**16 + 1), np.uint64(16))
_EIGHTS: Final = (np.uint64(0x0000FFFF0000FFFF), np.uint64(10_000 * 2**32 + 1), np.uint64(32))


def short_numbers(words: Words) -> tuple[Ints, Bools]:
    """Parse ``-?[0-9]+`` and a separator (0x02) in eight bytes; return the values and a mask of texts in another form.

    Eight digits are one little-endian word; neighbouring digits are combined in three steps.
    """
    negative = words & _LOW_BYTE == _MINUS_BYTE
    signed = bool(negative.any())
    if signed:
        words = np.where(negative, words >> _BYTE, words)
    marked = words ^ _SEPARATORS
    marked = (marked - _ONES) & ~marked & _HIGHS  # the position of its lowest bit is that of the first separator
    first = marked & (~marked + np.uint64(1))
    digits = (words ^ _ZEROS) << ((first >> _SEVEN) * _BITS_LEFT >> _TOP)
    odd = (first <= _FIRST_HIGH) | ((digits | digits + _ABOVE_NINE) & _HIGHS != 0)
    for mask, factor, shift in (_PAIRS, _FOURS, _EIGHTS):
        digits = (digits & mask) * factor >> shift
    values = digits.view(np.int64)
    return np.where(negative, -values, values) if signed else values, odd


def whole_numbers(data: Bytes, starts: Ints, lengths: Ints, digits: int) -> tuple[Ints, Bools]:
    """Parse ``-?[0-9]{1,digits}``; return the values and a mask of texts in another form."""
    starts, lengths, negative = _unsigned(data, starts, lengths)
    odd = (lengths < 1) | (lengths > digits)
    values = np.zeros(len(starts), np.int64)
    for place in range(_longest(lengths, digits)):
        digit = _at(data, starts, place)
        inside = place < lengths
        odd |= inside & (digit > 9)
        values = np.where(inside, values * 10 + digit, values)
    return np.where(negative, -values, values), odd


def doubles(data: Bytes, starts: Ints, lengths: Ints) -> tuple[npt.NDArray[np.float64], Bools]:
    """Parse ``-?[0-9]*.?[0-9]*`` with up to 15 digits; return the values and a mask of texts in another form."""
    starts, lengths, negative = _unsigned(data, starts, lengths)
    odd = (lengths < 1) | (lengths > _DOUBLE_CHARS)
    values = np.zeros(len(starts), np.int64)
    fraction = np.zeros(len(starts), np.int64)
    pointed = np.zeros(len(starts), np.bool_)
    for place in range(_longest(lengths, _DOUBLE_CHARS)):
        digit = _at(data, starts, place)
        inside = place < lengths
        point = inside & (digit == _POINT)
        odd |= (point & pointed) | (inside & (digit > 9) & ~point)
        is_digit = inside & ~point
        values = np.where(is_digit, values * 10 + digit, values)
        fraction += is_digit & pointed
        pointed |= point
    odd |= (lengths - pointed < 1) | (lengths - pointed > _DOUBLE_CHARS - 1)
    found = values / _POWERS[np.minimum(fraction, _DOUBLE_CHARS - 1)]
    return np.where(negative, -found, found), odd


def _unsigned(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Ints, Ints, Bools]:
    negative = data[starts] == _MINUS
    return starts + negative, lengths - negative, negative


def _longest(lengths: Ints, most: int) -> int:
    return min(int(lengths.max()), most) if len(lengths) else 0


def _at(data: Bytes, starts: Ints, place: int) -> Bytes:
    """Return the digit at a position in each number, or a value above 9 if there is no digit."""
    return data[starts + place] - np.uint8(_ZERO)
