"""Java properties, the format of ``namesrv.conf`` and ``broker.conf`` (``java.util.Properties``).

``key=value``, ``key: value`` or ``key value``; ``#`` or ``!`` begins a comment; a backslash at the end of a line
continues it, and ``\\t``, ``\\n``, ``\\r``, ``\\f`` and ``\\uXXXX`` have the same meaning as in Java. Blanks are space,
tab and form feed. All other characters, including blanks at the end of a value, are part of a key or value.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cometmq.durable import replace_file
from cometmq.limits import MAX_CONFIG_BYTES

_ENTRY: Final = re.compile(r"((?:[^\\=: \t\f]++|\\.)*+)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_BLANKS: Final = " \t\f"
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_TO_ESCAPE: Final = re.compile(r"[^ -~]|\\|^ ")
_TO_ESCAPE_IN_KEY: Final = re.compile(r"[^ -~]|[\\ =:]|^[#!]")


class MalformedEscapeError(ValueError):
    """A ``\\u`` escape does not have four hexadecimal digits; ``Properties`` rejects it."""


def read_properties(path: Path) -> str:
    """Return the text of a properties file, decoded as UTF-8, or else as ISO 8859-1, which Java always assumes.

    :raises OSError: the file cannot be read, or is too large for a configuration.
    """
    return _decode(_read(path))[0]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise OSError(errno.EFBIG, f"the file is larger than {MAX_CONFIG_BYTES} bytes")
    return data


def _decode(data: bytes) -> tuple[str, str]:
    """Return the text of a properties file and its encoding."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def parse_properties(text: str, *, strict: bool = False) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line, key, value)`` for each Java property; lines are counted from 1.

    :param strict: if true, refuse what ``Properties`` refuses; otherwise ``\\u`` without four digits is read as ``u``.
    :raises MalformedEscapeError: an escape is malformed and ``strict`` is set; the message names the line.
    """
    for first, line in _logical_lines(text):
        match = _ENTRY.match(line)
        assert match is not None  # the key may be empty
        try:
            key, value = (_unescape(part, strict=strict) for part in match.groups())
        except MalformedEscapeError as error:
            raise MalformedEscapeError(f"line {first}: {error}") from None
        yield first, key, value


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line number and the text of each entry, without leading blanks."""
    first, pieces = 0, list[str]()
    for number, natural in enumerate(_lines_of(text), 1):
        line = natural.lstrip(_BLANKS)
        if not pieces:
            if line.startswith(("#", "!")):
                continue  # a comment, even after a line with only a backslash
            first = number
        if _continues(line):
            if pieces or len(line) > 1:
                pieces.append(line[:-1])
            continue
        if pieces or line:
            yield first, "".join((*pieces, line))
        pieces.clear()
    if pieces:
        yield first, "".join(pieces)


def _lines_of(text: str) -> list[str]:
    """Split a text into lines as Java does; ``str.splitlines`` also splits at other characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _continues(line: str) -> bool:
    """Return whether the next line continues this one, because this line ends in an odd number of backslashes."""
    return line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, *, strict: bool) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if code == "u" and strict:
            raise MalformedEscapeError("four hexadecimal digits must follow \\u; write a literal backslash twice")
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    # Java uses UTF-16: two escapes may form one character, and a lone surrogate is written as "?".
    units = _ESCAPE.sub(replace, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "surrogatepass").encode("utf-8", "replace").decode()


def escape_value(text: str) -> str:
    """Escape a value for ``Properties``; the result is ASCII."""
    return _TO_ESCAPE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    text = match.group()
    if text in _WRITTEN:
        return _WRITTEN[text]
    if " " <= text <= "~":
        return "\\" + text
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def format_pairs(values: Mapping[str, str]) -> str:
    """Format keys and values as a properties file."""
    return "".join(f"{_TO_ESCAPE_IN_KEY.sub(_escape, key)}={escape_value(value)}\n" for key, value in values.items())


def update_file(path: Path, updates: Mapping[str, str]) -> None:
    """Set keys in a properties file, keeping its other lines, comments and encoding; replace the file atomically.

    :raises OSError: the file cannot be written; the old one is unchanged.
    """
    left = dict(updates)
    text, encoding = _decode(_read(path)) if path.exists() else ("", "utf-8")
    lines = _lines_of(text)
    if not lines[-1]:
        lines.pop()
    places = {key: line - 1 for line, key, _ in parse_properties(text)}
    for key, value in updates.items():
        at = places.get(key)
        if at is not None and not lines[at].endswith("\\"):
            lines[at] = format_pairs({key: value}).removesuffix("\n")
            del left[key]
    if left and lines and _continues(lines[-1]):
        lines.append("")
    replace_file(path, ("".join(line + "\n" for line in lines) + format_pairs(left)).encode(encoding))
