"""Decimal numbers in many places at once. What is written in any other way is left to be read one by one."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.filter.record_block import Bools, Bytes, Ints

INT32_DIGITS: Final = 9
INT64_DIGITS: Final = 18
"""Numbers with so many digits fit, whatever they are."""
_DOUBLE_CHARS: Final = 16
"""Fifteen digits and a point: a whole number below 2**53 over a power of ten is the nearest double."""
_POWERS: Final = 10.0 ** np.arange(_DOUBLE_CHARS)
_MINUS: Final = 45
_ZERO: Final = 48
_POINT: Final = (46 - _ZERO) & 0xFF


def whole_numbers(data: Bytes, starts: Ints, lengths: Ints, digits: int) -> tuple[Ints, Bools]:
    """The values of ``-?[0-9]{1,digits}``, and which of them are written otherwise."""
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
    """The values of ``-?[0-9]*.?[0-9]*`` with up to 15 digits, and which of them are written otherwise."""
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
    """The digit at a place of each number, above 9 where there is none."""
    return data[starts + place] - np.uint8(_ZERO)
