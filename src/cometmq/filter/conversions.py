"""Java's number conversions and comparisons in selectors."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from typing import Final

from cometmq.filter.errors import EvaluationError
from cometmq.filter.expressions import Kind

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_INT32_DIGITS: Final = 10
_INT64_DIGITS: Final = 19
_LAST_CHAR: Final = "\uffff"
"""The last character that Java represents as a single char."""
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""The characters removed by ``String.trim``."""

_DOUBLE: Final = re.compile(
    r"[+-]?(?:"
    r"(?P<name>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
    r")"
)


def to_integer(text: str) -> int:
    """Convert a text like ``Integer.valueOf``.

    :raises EvaluationError: the text is not a 32-bit decimal number.
    """
    if len(text) < _INT32_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    value = _whole(text)
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise EvaluationError(f"{text!r} does not fit into 32 bits")
    return value


def to_long(text: str) -> int:
    """Convert a text like ``Long.valueOf``.

    :raises EvaluationError: the text is not a 64-bit decimal number.
    """
    value = _whole(text)
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise EvaluationError(f"{text!r} does not fit into 64 bits")
    return value


def to_double(text: str) -> float:
    """Convert a text like ``Double.valueOf``, which also accepts blanks, ``NaN``, ``Infinity``, suffixes and hex.

    :raises EvaluationError: the text is not a number.
    """
    if text.replace(".", "", 1).isdecimal() and text.isascii():
        return float(text)
    text = text.strip(_JAVA_BLANKS)
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise EvaluationError(f"{text[:40]!r} is not a number")
    sign = -1.0 if text[0] == "-" else 1.0
    hexadecimal = found["hex"]
    if hexadecimal is None:
        return math.copysign(float(found["decimal"] or found["name"]), sign)
    try:
        return math.copysign(float.fromhex(hexadecimal), sign)
    except OverflowError:
        return math.copysign(math.inf, sign)


def to_boolean(text: str) -> bool:
    """Convert a text like ``Boolean.valueOf``: "true" in any case is TRUE, everything else is FALSE."""
    return text.lower() == "true"


PARSERS: Final[dict[Kind, Callable[[str], int | float | bool]]] = {
    Kind.INTEGER: to_integer,
    Kind.LONG: to_long,
    Kind.DOUBLE: to_double,
    Kind.BOOLEAN: to_boolean,
}
"""For each Java class, the function that converts a string for comparison with a value of that class."""


def compare_doubles(left: float, right: float) -> int:
    """Compare numbers like ``Double.compareTo``, for which −0.0 is less than 0.0 and NaN is greater than all other
    numbers.
    """
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def compare_numbers(left: float, left_kind: Kind, right: float, right_kind: Kind) -> int:
    """Compare two numbers like Java, after widening them to the larger class."""
    if left_kind is Kind.DOUBLE or right_kind is Kind.DOUBLE:
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _rank(value: float) -> int:
    if value != value:
        return 2
    return 0 if value == 0 and math.copysign(1.0, value) < 0 else 1


def _whole(text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) <= _INT64_DIGITS:
        return int(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or max(digits) > _LAST_CHAR:
        raise EvaluationError(f"{text[:40]!r} is not a whole number")
    plain = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0") or "0"
    if len(plain) > _INT64_DIGITS:
        raise EvaluationError(f"{text[:40]!r} does not fit into 64 bits")
    return -int(plain) if text[0] == "-" else int(plain)
