"""Reads single properties of a stored record; neither the body nor other properties are decoded.

A value cannot contain 0x02, so ``0x02 name 0x01`` begins the property of that name and nothing else. Of
two properties of one name the last counts; one without a value counts as absent, as everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, decode_properties
from cometmq.message.record import BORN_HOST_AT, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, RecordError
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6

_HEAD: Final = struct.Struct(">4xi28xi44xi")
"""Magic, sysFlag and the body's length of a record with IPv4 hosts."""
_IPV4_BODY_AT: Final = 88
_HOSTS_V6: Final = BORNHOST_V6 | STOREHOST_V6
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_END: Final = PROPERTY_SEPARATOR.encode()
REPLACEMENT: Final = "\ufffd"
"""Bytes that are not UTF-8 are read as this character: texts with it are not compared as bytes."""


def properties_of(record: memoryview) -> bytes:
    """Return the stored text of a record's properties.

    :raises RecordError: no record, or its lengths lead outside.
    :raises struct.error: it is too short for a record.
    """
    magic, sys_flag, body_length = _HEAD.unpack_from(record)
    if magic == MESSAGE_MAGIC and not sys_flag & _HOSTS_V6 and body_length >= 0:
        tail = record[_IPV4_BODY_AT + body_length :].tobytes()
    else:
        tail = _unusual_tail(record, magic, sys_flag)
    at = tail[0] + 3
    length = tail[at - 2] << 8 | tail[at - 1]
    if at + length != len(tail):
        raise RecordError(f"properties of {length} bytes do not end with the record")
    return tail[at:]


def properties_length(record: memoryview) -> int:
    """Return the length of a record's properties; 0 if it is not a record."""
    try:
        return len(properties_of(record))
    except (RecordError, struct.error, IndexError):
        return 0


def property_reader(name: str) -> Callable[[bytes], str | None]:
    """Return the function that finds one property in the text of :func:`properties_of`."""
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


def _unusual_tail(record: memoryview, magic: int, sys_flag: int) -> bytes:
    """Return the bytes after the body of a record with IPv6 hosts or a two-byte topic length, without that topic."""
    if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        raise RecordError(f"{magic & 0xFFFFFFFF:#010x} is not the magic of a record")
    hosts = (IPV6_HOST_BYTES if sys_flag & BORNHOST_V6 else IPV4_HOST_BYTES) + (
        IPV6_HOST_BYTES if sys_flag & STOREHOST_V6 else IPV4_HOST_BYTES
    )
    body_at = BORN_HOST_AT + hosts + 24
    body_length: int = _INT.unpack_from(record, body_at - 4)[0]
    if body_length < 0:
        raise RecordError(f"a body of {body_length} bytes")
    tail = record[body_at + body_length :].tobytes()
    if magic == MESSAGE_MAGIC:
        return tail
    topic_length: int = _SHORT.unpack_from(tail)[0]
    if topic_length < 0:
        raise RecordError(f"a topic of {topic_length} bytes")
    return b"\0" + tail[2 + topic_length :]
