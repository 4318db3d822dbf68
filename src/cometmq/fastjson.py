"""The JSON dialect of fastjson 1.x, which RocketMQ uses in bodies and configuration files.

Two deviations from JSON occur (``RemotingSerializable``, ``ConfigManager``):

* numeric keys in maps are not quoted: ``{0:"10.0.0.1:10911"}``;
* maps whose key is an object are written with that object as the key:
  ``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``, here an :class:`ObjectKeyMap`.

The text is first decoded as strict JSON with the fast decoder. If the only deviations are unquoted keys, these keys are
then quoted, at 0.5 µs per byte; numbers that begin a line, as in configuration files, at a tenth of that. Maps with
objects as keys are parsed by this module: flat objects with Python's fast decoder, everything else at 1 µs per byte. A
caller that knows where these maps are can convert the text to strict JSON with :func:`with_pairs`, which is four times
as fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

import msgspec

_MAX_DEPTH: Final = 64
_WHITESPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_BARE_KEY: Final = re.compile(r"-?\d+|[A-Za-z_$][A-Za-z0-9_$]*")
_FLAT: Final = re.compile(r"\{[^{}]*+\}")
"""Matches an object that contains no objects; objects with braces in strings are not recognised."""
_WORDS: Final = {"true": True, "false": False, "null": None}
_WORD: Final = re.compile(r"true|false|null")
_QUOTED_OR_BARE: Final = re.compile(
    rb"""
    "((?:[^"\\]++|\\.)*+)"                                       # a string, kept
    | (?<=[{,\s])(-?[0-9]++|[A-Za-z_$][A-Za-z0-9_$]*+)(?=[\ \t\r\n]*+:)  # a key without quotes
    | (".*)                                                      # a string without an end: no JSON
    """,
    re.DOTALL | re.VERBOSE,
)
_KEY_OF_A_LINE: Final = re.compile(rb"(\n[\t ]*+)([0-9]++)(?=:)")
"""Matches a number as the key at the beginning of a line. No string of JSON contains a line break."""
_OBJECT_KEY: Final = re.compile(rb"(\{[^{}]*+\}):(\{[^{}]*+\}|[^{}\[\],]++)")
"""Matches a flat object as a key, and its value, which is a flat object or a number."""
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"{}'))
_encode_scalar = msgspec.json.Encoder().encode


class FastjsonError(ValueError):
    """The text is neither JSON nor fastjson's dialect."""


def _no_number(word: str) -> Any:
    raise FastjsonError(f"{word} is not a number")


_strict_value = json.JSONDecoder(parse_constant=_no_number).raw_decode


class ObjectKeyMap(list[tuple[Any, Any]]):
    """A map whose keys are objects, as a list of ``(key, value)`` in the original order."""


def loads(text: str | bytes, *, max_parsed_bytes: int | None = None) -> Any:
    """Parse a text in fastjson's dialect; bytes are decoded as UTF-8.

    :param max_parsed_bytes: maximum size of text that is not strict JSON.

    :raises FastjsonError: the text is invalid; the message contains the position.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    except RecursionError as error:
        raise FastjsonError("nested too deeply") from error
    if max_parsed_bytes is not None and len(text) > max_parsed_bytes:
        raise FastjsonError(f"{len(text)} bytes of non-strict JSON; at most {max_parsed_bytes} are parsed")
    try:
        data = text.encode() if isinstance(text, str) else text
        if b"\n" in data and (found := _with_keys_of_lines(data)) is not None:
            return found
        if b"{{" not in data:
            return msgspec.json.decode(quote_keys(data))
    except (msgspec.DecodeError, UnicodeEncodeError):
        pass
    except RecursionError as error:
        raise FastjsonError("nested too deeply") from error
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise FastjsonError(f"not UTF-8 at byte {error.start}") from error
    parser = _Parser(text)
    value = parser.value(0)
    if parser.skip() != len(text):
        raise FastjsonError(f"more text after the value at character {parser.at}")
    return value


def _with_keys_of_lines(data: bytes) -> Any:
    """Parse a text whose numeric keys all begin a line, as in configuration files; return ``None`` if it is another."""
    try:
        return msgspec.json.decode(_KEY_OF_A_LINE.sub(rb'\1"\2"', data))
    except msgspec.DecodeError:
        return None


def quote_keys(text: bytes) -> bytes:
    """Return the text with quotes around its bare keys; an unterminated string remains invalid."""
    return _QUOTED_OR_BARE.sub(rb'"\1\2\3"', text)


def with_pairs(text: bytes) -> bytes | None:
    """Return the text with a list of pairs instead of each map whose keys are objects: ``[[{…},5],[{…},6]]``.

    Return ``None`` if the text needs the parser because of escapes or braces in strings.
    """
    if any(byte in text for byte in (b"\\", b"\1", b"\2")):
        return None
    # A string without braces is reduced to two adjacent quotes here.
    if b'"' in text.translate(None, _NOT_STRUCTURE).replace(b'""', b""):
        return None
    marked = _OBJECT_KEY.sub(b"\1\\1,\\2\2", text)
    return marked.replace(b"{\1", b"[[").replace(b"\2,\1", b"],[").replace(b"\2}", b"]]")


class _Parser:
    """A recursive descent parser for one text, which limits the nesting depth."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self) -> int:
        match = _WHITESPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.at

    def fail(self) -> FastjsonError:
        return FastjsonError(f"not fastjson at character {self.at}: {self.text[self.at : self.at + 20]!r}")

    def take(self, char: str) -> bool:
        self.skip()
        if self.text.startswith(char, self.at):
            self.at += 1
            return True
        return False

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise FastjsonError("nested too deeply")
        self.skip()
        if self.text.startswith("{", self.at):
            if _FLAT.match(self.text, self.at):
                try:
                    value, self.at = _strict_value(self.text, self.at)
                except ValueError:
                    pass
                else:
                    return value
            self.at += 1
            return self.members(depth)
        if self.take("["):
            return self.items(depth)
        if self.text.startswith('"', self.at):
            return self.string()
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return _WORDS[match.group()]
        if match := _NUMBER.match(self.text, self.at):
            self.at = match.end()
            return float(match.group()) if match.group(1) or match.group(2) else int(match.group())
        raise self.fail()

    def string(self) -> str:
        try:
            text, self.at = scanstring(self.text, self.at + 1, True)
        except json.JSONDecodeError as error:
            raise FastjsonError(str(error)) from error
        return str(text)

    def items(self, depth: int) -> list[Any]:
        items: list[Any] = []
        if self.take("]"):
            return items
        while True:
            items.append(self.value(depth + 1))
            if self.take("]"):
                return items
            if not self.take(","):
                raise self.fail()

    def members(self, depth: int) -> Any:
        pairs = ObjectKeyMap()
        object_keys = False
        while not self.take("}"):
            if pairs and not self.take(","):
                raise self.fail()
            self.skip()
            key: Any
            if self.text.startswith("{", self.at):
                key = self.value(depth + 1)
                object_keys = True
            elif self.text.startswith('"', self.at):
                key = self.string()
            elif match := _BARE_KEY.match(self.text, self.at):
                key = match.group()
                self.at = match.end()
            else:
                raise self.fail()
            if self.text.startswith(":", self.at):
                self.at += 1
            elif not self.take(":"):
                raise self.fail()
            pairs.append((key, self.value(depth + 1)))
        return pairs if object_keys else dict(pairs)


def dumps(value: Any) -> bytes:
    """Encode a value as compact fastjson: integer keys are not quoted, and the keys of an :class:`ObjectKeyMap` are
    objects."""
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)


_SCALARS: Final = frozenset({str, int, bool, float, type(None)})
"""The types of most values, checked first because ``isinstance`` with ``Mapping`` is slow."""


def _write(value: Any, out: list[bytes]) -> None:
    if type(value) in _SCALARS:
        out.append(_encode_scalar(value))
    elif isinstance(value, ObjectKeyMap):
        _write_pairs(value, out)
    elif isinstance(value, Mapping):
        _write_pairs(value.items(), out)
    elif isinstance(value, (list, tuple, set, frozenset)):
        out.append(b"[")
        for index, item in enumerate(value):
            if index:
                out.append(b",")
            _write(item, out)
        out.append(b"]")
    else:
        out.append(_encode_scalar(value))


def _write_pairs(pairs: Iterable[tuple[Any, Any]], out: list[bytes]) -> None:
    out.append(b"{")
    first = True
    for key, item in pairs:
        if not first:
            out.append(b",")
        first = False
        _write(key, out)
        out.append(b":")
        _write(item, out)
    out.append(b"}")


def dumps_pretty(value: Any, depth: int = 0) -> bytes:
    """Encode a value in fastjson's pretty, tab-indented form, as in RocketMQ's ``config/*.json``.

    A list of integers is written on one line, as Java's ``int[]`` is.

    :param depth: the number of enclosing braces if the value is nested.
    """
    out: list[bytes] = []
    _write_pretty(value, out, depth)
    return b"".join(out)


def _write_pretty(value: Any, out: list[bytes], depth: int) -> None:
    if type(value) in _SCALARS:
        out.append(_encode_scalar(value))
        return
    if isinstance(value, ObjectKeyMap):
        pairs: list[tuple[Any, Any]] = list(value)
    elif isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple, set, frozenset)) and not all(type(item) is int for item in value):
        _write_block(b"[", b"]", [[item] for item in value], out, depth)
        return
    else:
        _write(value, out)
        return
    if pairs:
        _write_block(b"{", b"}", [[key, item] for key, item in pairs], out, depth)
    else:
        out.append(b"{}")


def _write_block(opening: bytes, closing: bytes, rows: list[list[Any]], out: list[bytes], depth: int) -> None:
    out.append(opening)
    for index, row in enumerate(rows):
        out.append(b",\n" if index else b"\n")
        out.append(b"\t" * (depth + 1))
        if len(row) == 2:
            _write(row[0], out)
            out.append(b":")
        _write_pretty(row[-1], out, depth + 1)
    out.append(b"\n" + b"\t" * depth + closing)
