"""Formats messages for stdout as raw bodies, templates or JSON lines, followed by a delimiter."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from cometmq.cli.failures import WrongUseError
from cometmq.cli.messages.message import MESSAGE_FIELDS, message_row
from cometmq.message.message import MessageExt
from cometmq.options import nearest
from cometmq.visible import json_text, visible

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
PROPERTIES_TEMPLATE: Final = "{properties}\\t{body}"


def unescaped(text: str) -> bytes:
    r"""Convert text to bytes, with ``\n``, ``\t``, ``\r``, ``\0``, ``\\`` and ``\xHH`` resolved.

    :raises ValueError: unknown escape.
    """

    def resolved(found: re.Match[str]) -> str:
        name = found[1]
        if len(name) == 3:
            return chr(int(name[1:], 16))
        if name not in _ESCAPES:
            raise ValueError(f"\\{name} is not a valid escape; use \\n, \\t, \\r, \\0, \\\\ and \\xHH")
        return _ESCAPES[name]

    return b"".join(
        resolved(found).encode("latin-1") if (found := _ESCAPE.fullmatch(piece)) else piece.encode()
        for piece in re.split(r"(\\(?:x[0-9a-fA-F]{2}|.))", text, flags=re.DOTALL)
    )


class Delimiter(click.ParamType[bytes]):
    r"""Click type for a delimiter: text with escapes such as ``\n`` and ``\0``, converted to bytes."""

    name = "text"

    def convert(self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Parse a value from the command line."""
        if isinstance(value, bytes):
            return value
        try:
            return unescaped(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


Piece = Callable[[MessageExt, Mapping[str, Any]], bytes]


class Template:
    r"""A template with ``{field}`` and ``{properties[name]}``. The fields are the same as in ``-o jsonl``.

    The body's bytes are not changed, except on a terminal.

    :raises WrongUseError: a field does not exist, or braces do not match.
    """

    def __init__(self, text: str, *, escape: bool) -> None:
        self._escape = escape
        self._needs_row = False
        self._pieces: list[Piece] = []
        try:
            for literal, field, spec, conversion in string.Formatter().parse(text):
                if literal:
                    self._pieces.append(_constant(unescaped(literal)))
                if field is not None:
                    if spec or conversion:
                        raise ValueError(f"{{{field}}} supports neither : nor !")
                    self._pieces.append(self._field(field))
        except ValueError as error:
            raise WrongUseError(f"--format {text}: {error}") from None

    def __call__(self, message: MessageExt) -> bytes:
        """Format one message as bytes."""
        row = message_row(message) if self._needs_row else {}
        return b"".join([piece(message, row) for piece in self._pieces])

    def _field(self, field: str) -> Piece:
        if field == "body":
            return lambda message, _: printable_body(message.body) if self._escape else message.body
        self._needs_row = True
        if field.startswith("properties[") and field.endswith("]"):
            name = field[len("properties[") : -1]
            return lambda _, row: self._text(row["properties"].get(name))
        if field not in MESSAGE_FIELDS:
            near = nearest(field, MESSAGE_FIELDS)
            hint = f"did you mean {near}?" if near else f"use {', '.join(MESSAGE_FIELDS)}"
            raise ValueError(f"unknown field {field}; {hint}")
        return lambda _, row: self._text(row.get(field))

    def _text(self, value: Any) -> bytes:
        if isinstance(value, Mapping):
            text = ",".join(f"{name}={item}" for name, item in value.items())
        elif isinstance(value, list):
            text = ",".join(map(str, value))
        else:
            text = "" if value is None else str(value)
        return (visible(text) if self._escape else text).encode()


def _constant(literal: bytes) -> Piece:
    return lambda _message, _row: literal


def printable_body(body: bytes) -> bytes:
    """Return a body, escaped if stdout is a terminal."""
    return visible(body.decode(errors="backslashreplace"), lines=True).encode()


def json_line(message: MessageExt) -> bytes:
    """Return a message as a JSON line (see :mod:`cometmq.cli.messages.json_line`)."""
    return json_text(message_row(message)).encode()


def write(messages: list[MessageExt], form: Callable[[MessageExt], bytes], delimiter: bytes) -> None:
    """Write messages to stdout, each followed by the delimiter."""
    sys.stdout.buffer.write(b"".join([form(message) + delimiter for message in messages]))
    sys.stdout.buffer.flush()
