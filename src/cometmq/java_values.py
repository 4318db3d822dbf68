"""Numbers as Java reads them (``Integer.parseInt``, ``Double.parseDouble``): no blanks, no underscores."""

from __future__ import annotations

import re
from typing import Final

_INT: Final = re.compile(r"[+-]?\d+")
_FLOAT: Final = re.compile(r"(?a:[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?))")
_HEX_FLOAT: Final = re.compile(r"(?a:([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)")
TRIMMED: Final = "".join(map(chr, range(0x21)))
"""Characters that ``String.trim`` removes, with which ``Double.parseDouble`` begins; other white space stays."""


def parse_int(text: str) -> int:
    """Parse a whole number of any size; digits may be of any script.

    :raises ValueError: it is none.
    """
    if _INT.fullmatch(text) is None:
        raise ValueError(f"not a whole number: {text[:100]!r}")
    return int(text)


def parse_float(text: str) -> float:
    """Parse a number with a point, an exponent, hexadecimal digits or Java's suffix.

    :raises ValueError: it is none.
    """
    text = text.strip(TRIMMED)
    if (found := _HEX_FLOAT.fullmatch(text)) is not None:
        return float.fromhex(found[1])
    if _FLOAT.fullmatch(text) is None:
        raise ValueError(f"not a number: {text[:100]!r}")
    return float(text.rstrip("fFdD"))
