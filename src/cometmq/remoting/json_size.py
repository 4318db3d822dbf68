"""Limits the values and the nesting of JSON from outside before it is parsed.

Bytes alone are no limit: an empty list has three bytes, and costs as much time and memory as a hundred others. The
check itself takes at most 5 ms per MB.
"""

from __future__ import annotations

from typing import Final

MAX_JSON_VALUES: Final = 10_000
"""Maximum number of values; parsing and writing them takes about 10 ms."""
MAX_JSON_DEPTH: Final = 64
"""Maximum depth of nesting; indented text is at most so many times as long."""
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b"[]{},"))


def is_small_json(text: bytes) -> bool:
    """Return whether JSON in UTF-8 has at most ``MAX_JSON_VALUES`` values and at most ``MAX_JSON_DEPTH`` levels.

    Text that is no JSON may also be small; its parser refuses it.
    """
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 4 * MAX_JSON_VALUES:  # a value is at most a string with a key
        return False
    structure = b"".join(unescaped.split(b'"')[::2]).translate(None, _NOT_STRUCTURE)
    if sum(map(structure.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        return False
    brackets = structure.translate(None, b",")
    for _ in range(MAX_JSON_DEPTH):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return len(brackets) <= MAX_JSON_DEPTH
