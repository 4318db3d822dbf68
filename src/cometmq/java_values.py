"""Parses numbers, blanks and text in the same way as Java.

``Integer.parseInt``, ``Double.parseDouble``, ``StringUtils.isBlank``, ``new String(…, UTF_8)``.
"""

from __future__ import annotations

import re
from typing import Final

_DIGITS: Final = r"(?:(?![\U00010000-\U0010FFFF])\d)"
"""Matches digits of any script that are a single ``char`` in Java."""
_INTEGER: Final = re.compile(rf"([+-]?)0*({_DIGITS}+)")
_FLOAT: Final = re.compile(r"(?a:[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?))")
_HEX_FLOAT: Final = re.compile(r"(?a:([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)")
_LONG_DIGITS: Final = 19
_LONG: Final = range(-(2**63), 2**63)
TRIMMED: Final = "".join(map(chr, range(0x21)))
"""The characters that ``String.trim`` and therefore ``Double.parseDouble`` remove; other white space remains."""
_HALF_IN_BYTES: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Matches an encoded surrogate, which Java replaces with one U+FFFD, but Python replaces with one for each byte."""
_REPLACEMENT: Final = "\ufffd".encode()
_WHITE: Final = "".join(map(chr, (*range(9, 14), *range(0x1C, 0x21), 0x1680, *range(0x2000, 0x2007)))) + (
    "\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
"""Matches ``Character.isWhitespace``, which excludes no-break spaces, unlike Python."""


def parse_int(text: str) -> int:
    """Parse an integer of any size; its digits may be from any script.

    :raises ValueError: the text is not such a number.
    """
    found = _INTEGER.fullmatch(text)
    if found is None:
        raise ValueError(f"not a whole number: {text[:100]!r}")
    return int(found[1] + found[2])


def parse_long(text: str) -> int:
    """Parse a 64-bit integer (``Long.parseLong``).

    :raises ValueError: the text is not such a number.
    """
    found = _INTEGER.fullmatch(text)
    if found is not None and len(found[2]) <= _LONG_DIGITS and (number := int(found[1] + found[2])) in _LONG:
        return number
    raise ValueError(f"not a whole number of 64 bits: {text[:100]!r}")


def is_blank(text: str) -> bool:
    """Return whether a text is empty or only white space."""
    return not text.strip(_WHITE)


def parse_float(text: str) -> float:
    """Parse a floating-point number; Java's hexadecimal forms and suffixes are allowed.

    :raises ValueError: the text is not such a number.
    """
    text = text.strip(TRIMMED)
    if (found := _HEX_FLOAT.fullmatch(text)) is not None:
        return float.fromhex(found[1])
    if _FLOAT.fullmatch(text) is None:
        raise ValueError(f"not a number: {text[:100]!r}")
    return float(text.rstrip("fFdD"))


def decode_utf8(data: bytes) -> str:
    """Decode a text; invalid UTF-8 becomes U+FFFD."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _HALF_IN_BYTES.sub(_REPLACEMENT, data).decode(errors="replace")
