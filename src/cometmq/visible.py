"""Makes foreign text safe to display, so that it cannot control a terminal or the direction of text on a page."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

_WORD: Final = re.compile(r"[A-Z][a-z]{2,}|[a-z]{3,}|[A-Z]{3,}")
"""A word of three letters or more, also in camel case; hexadecimal ids have few of them."""
_MOST_WORDS: Final = 6
"""Number of words that a name has at most; more may be a sentence, whatever separates them."""


def may_be_sentence(text: str) -> bool:
    """Return whether a name has so many words that it may be a sentence, such as ``ignore-all-previous-…``."""
    return len(_WORD.findall(text)) > _MOST_WORDS


def visible(text: str, *, lines: bool = False) -> str:
    """Escape foreign text (bodies, names) so that it cannot control a terminal.

    All unprintable characters (C0, DEL, C1, and therefore every escape sequence; direction overrides, invisible
    characters, surrogates) are escaped as in Python. Blanks of any width are kept; line feeds are kept only if
    ``lines`` is true.
    """
    if text.isprintable():
        return text
    return "".join(char if _harmless(char) or (lines and char == "\n") else ascii(char)[1:-1] for char in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Encode a value as lossless JSON in which control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(char if _harmless(char) or char == "\n" else json.dumps(char)[1:-1] for char in text)


def _harmless(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"
