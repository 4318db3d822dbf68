"""Java properties, the form of ``namesrv.conf`` and ``broker.conf``.

``key=value``, ``key: value`` or ``key value``; ``#`` or ``!`` begins a comment; a backslash at the end of a
line continues it, and ``\\t``, ``\\n``, ``\\r``, ``\\f`` and ``\\uXXXX`` have their meaning in Java.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cometmq.durable import replace_file

_ENTRY: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)[ \t\f]*[=: \t\f]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_BLANKS: Final = " \t\f"
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line, key, value)`` of Java properties; lines count from 1."""
    lines = _lines_of(text)
    number = 0
    while number < len(lines):
        first = number + 1
        line = lines[number].lstrip(_BLANKS)
        number += 1
        if not line or line[0] in "#!":
            continue
        if _continues(line):
            pieces = []
            while _continues(line):
                pieces.append(line[:-1])
                line = lines[number].lstrip(_BLANKS) if number < len(lines) else ""
                number += 1
            line = "".join((*pieces, line))
            if not line:
                continue
        match = _ENTRY.match(line)
        if match is None:
            yield first, line, ""
        else:
            yield first, _unescape(match.group(1)), _unescape(match.group(2))


def _lines_of(text: str) -> list[str]:
    """Split into lines as Java does; values may contain the other characters that ``str.splitlines`` splits at."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _continues(line: str) -> bool:
    """Return True when the next line continues this one: it ends in an odd number of backslashes."""
    return line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(replace, text) if "\\" in text else text


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def format_pairs(values: Mapping[str, str]) -> str:
    """Return keys and values as the text of a properties file."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in values.items())


def update_file(path: Path, updates: Mapping[str, str]) -> None:
    """Set keys in a properties file, keep its other lines and comments, and replace the file at once.

    :raises OSError: the file cannot be written; the old one is still there.
    """
    left = dict(updates)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = _lines_of(text)
    if not lines[-1]:
        lines.pop()
    places = {key: line - 1 for line, key, _ in parse_properties(text)}
    for key, value in updates.items():
        at = places.get(key)
        if at is not None and not lines[at].endswith("\\"):
            lines[at] = f"{key}={_escape(value)}"
            del left[key]
    if left and lines and _continues(lines[-1]):
        lines.append("")
    replace_file(path, ("".join(line + "\n" for line in lines) + format_pairs(left)).encode())
