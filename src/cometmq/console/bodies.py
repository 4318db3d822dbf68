"""Displays message bodies in readable form: text, JSON and hexadecimal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from cometmq.remoting.json_size import is_small_json

SHOWN_BYTES: Final = 256 * 1024
"""Maximum length of the part of a body that a page shows. The complete body can be downloaded."""
FORMS: Final = ("json", "text", "hex")
_HEX_BYTES: Final = 16 * 1024
_ROW: Final = 16


@dataclass(frozen=True)
class Shown:
    """A message body in one form."""

    form: str
    text: str
    is_whole: bool


def best_form(body: bytes) -> str:
    """Return the most readable form of a body."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "hex"
    return "text" if text.strip()[:1] not in ("{", "[") or _json(body, text) is None else "json"


def body_as(body: bytes, form: str) -> Shown:
    """Return a body in one form, or as text if the body does not have that form."""
    if form == "hex":
        return Shown("hex", hexadecimal(body[:_HEX_BYTES]), len(body) <= _HEX_BYTES)
    text = body[:SHOWN_BYTES].decode(errors="replace")
    parsed = _json(body, text) if form == "json" else None
    if parsed is not None:
        return Shown("json", json.dumps(parsed[0], indent=2, ensure_ascii=False), is_whole=True)
    return Shown("text", text, len(body) <= SHOWN_BYTES)


def _json(body: bytes, text: str) -> tuple[Any] | None:
    """Return the parsed body, or ``None`` if it is too large or no JSON."""
    if len(body) > SHOWN_BYTES or not is_small_json(body):
        return None
    try:
        return (json.loads(text),)
    except ValueError:
        return None


def hexadecimal(body: bytes) -> str:
    """Return rows for each sixteen bytes of a body: offset, bytes and characters."""
    rows = []
    for start in range(0, len(body), _ROW):
        part = body[start : start + _ROW]
        pairs = " ".join(f"{byte:02x}" for byte in part)
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{start:08x}  {pairs:<{3 * _ROW - 1}}  {characters}")
    return "\n".join(rows)
