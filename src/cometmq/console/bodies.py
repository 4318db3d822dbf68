"""Displays message bodies in readable form: text, JSON, hexadecimal, Avro and Protobuf."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from cometmq.errors import CometMQError
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


def decoded_avro(body: bytes, schema: str) -> str:
    """Return an Avro body as JSON.

    :raises CometMQError: the schema cannot be used, or the body does not match it.
    """
    from cometmq.spark.bodies.avro import avro_value

    return _decoded("Avro", lambda: avro_value(body, schema))


def decoded_protobuf(body: bytes, message: str, descriptor: bytes) -> str:
    """Return a Protobuf body as JSON.

    :param message: name of the message's type.
    :param descriptor: serialized ``FileDescriptorSet``.
    :raises CometMQError: the descriptor cannot be used, or the body does not match the type.
    """
    from cometmq.spark.bodies.protobuf import protobuf_value

    return _decoded("Protobuf", lambda: protobuf_value(body, message, descriptor))


def _decoded(form: str, decode: Any) -> str:
    try:
        return json.dumps(decode(), indent=2, ensure_ascii=False, default=_as_json)[:SHOWN_BYTES]
    except CometMQError:
        raise
    except Exception as error:  # the libraries may raise any exception
        raise CometMQError(
            f"the body is not {form} of this schema: {type(error).__name__}: {str(error)[:300]}",
            next_step="use the schema that the producer used",
        ) from error


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
