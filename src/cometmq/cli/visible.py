"""Text of others as a terminal may show it: whoever sent a message, or named a group, gives no orders to it.

What is not printable (C0, DEL and C1, so every escape sequence; overrides of the direction and other invisible signs;
halves of surrogate pairs) is written as Python or JSON escapes it. Blanks of any width stay.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any


def visible(text: str, *, lines: bool = False) -> str:
    """Text for people, on one line unless ``lines``."""
    if text.isprintable():
        return text
    return "".join(char if _harmless(char) or (lines and char == "\n") else ascii(char)[1:-1] for char in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON for programs, which lose nothing, and which may stand on a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(char if _harmless(char) or char == "\n" else json.dumps(char)[1:-1] for char in text)


def _harmless(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"
