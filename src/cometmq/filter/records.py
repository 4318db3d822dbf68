"""Reads single properties from a stored record without decoding its body or other properties.

A value cannot contain 0x02, so ``0x02 name 0x01`` is always the beginning of the property with that name. If two
properties have the same name, the last one counts. A property with an empty value counts as absent, as in all readers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from cometmq.message.layout import HOSTS_V6, PROPERTIES_LENGTH_BYTES, RECORD, TOPIC_LENGTH_BYTES
from cometmq.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, decode_properties
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, RecordError, parts_of

_HEAD: Final = RECORD.struct("magic", "sys_flag", "body_length")
_LENGTHS_BYTES: Final = TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
_END: Final = PROPERTY_SEPARATOR.encode()
REPLACEMENT: Final = "\ufffd"
"""The character to which invalid UTF-8 is decoded."""


def properties_of(record: memoryview) -> bytes:
    """Return a record's encoded properties.

    :raises RecordError: the bytes are not a record, or a length in the record is too large.
    :raises struct.error: there are too few bytes for a record.
    """
    magic, sys_flag, body_length = _HEAD.unpack_from(record)
    if magic != MESSAGE_MAGIC or sys_flag & HOSTS_V6 or body_length < 0:
        return _unusual_properties(record, magic)
    tail = record[RECORD.size + body_length :].tobytes()
    at = tail[0] + _LENGTHS_BYTES
    length = tail[at - 2] << 8 | tail[at - 1]
    if at + length != len(tail):
        raise RecordError(f"the properties length {length} does not match the record's length")
    return tail[at:]


def properties_length(record: memoryview) -> int:
    """Return the length of a record's properties, or 0 if the bytes are not a record."""
    try:
        return len(properties_of(record))
    except (RecordError, struct.error, IndexError):
        return 0


def property_reader(name: str) -> Callable[[bytes], str | None]:
    """Return a function that finds a property in the result of :func:`properties_of`."""
    first = f"{name}{NAME_VALUE_SEPARATOR}".encode()
    later = _END + first
    first_length, later_length = len(first), len(later)

    def read(text: bytes) -> str | None:
        at = text.rfind(later)
        if at >= 0:
            at += later_length
        elif text.startswith(first):
            at = first_length
        else:
            return None
        end = text.find(_END, at)
        value = text[at:end] if end >= 0 else text[at:]
        if not value:
            return decode_properties(text.decode("utf-8", "replace")).get(name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("utf-8", "replace")

    return read


def _unusual_properties(record: memoryview, magic: int) -> bytes:
    """Return the properties of a record that has IPv6 hosts or a two-byte topic length."""
    if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        raise RecordError(f"invalid magic code {magic & 0xFFFFFFFF:#010x}")
    parts = parts_of(record, 0, len(record))
    if parts is not None:
        *_, properties_at, end = parts
        if end == len(record):
            return record[properties_at:].tobytes()
    raise RecordError(f"the lengths in a record of {len(record)} bytes do not add up")
