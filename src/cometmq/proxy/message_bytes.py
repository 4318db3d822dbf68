"""Encodes stored messages as protobuf messages, without an object for each of them (hot path).

A stored message becomes the bytes of a ``v2.Message``. Fields are in the order of their numbers and properties in the
order in which they are stored, so the compiled core writes the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final

from cometmq.java_values import parse_long
from cometmq.limits import MAX_DECOMPRESSED_BYTES
from cometmq.message import properties as names
from cometmq.message.compression import decompress
from cometmq.message.hosts import decode_host, format_address
from cometmq.message.layout import HOSTS_V6, RECORD, RECORDS
from cometmq.message.message import MessageExt
from cometmq.message.sysflag import COMPRESSED
from cometmq.proxy.converter import (
    BORN_HOST,
    DLQ_MESSAGE_ID,
    DLQ_TOPIC,
    FIRST_MS,
    LAST_MS,
    RESERVED,
    TRACE_CONTEXT,
    resource_of,
    type_of,
)
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import DigestType, Encoding

_INT32_MAX: Final = 2**31 - 1
_UINT64: Final = 2**64 - 1
_GZIP_MAGIC: Final = b"\x1f\x8b"
_HOSTS_CACHED: Final = 1_024
_MS_OF_A_SECOND: Final = 1_000
_NANOS_OF_A_MILLISECOND: Final = 1_000_000

_FIXED: Final = {
    bits: layout.struct(
        *("queue_id", "queue_offset", "physical_offset", "sys_flag", "born_timestamp", "born_host"),
        *("store_timestamp", "store_host", "reconsume_times"),
    ).unpack_from
    for bits, layout in RECORDS.items()
}
_SYS_FLAG: Final = RECORD.struct("sys_flag").unpack_from
_LENGTHS: Final = [struct.pack("B", length) for length in range(0x80)]
"""The varints of one byte."""


# --- protobuf -------------------------------------------------------------------------------------
def varint(number: int) -> bytes:
    """Encode an integer; a negative one has ten bytes."""
    if 0 <= number < 0x80:
        return _LENGTHS[number]
    rest = number & _UINT64
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def field(head: bytes, value: bytes) -> bytes:
    """Encode a text, bytes or a message; ``head`` is the field's number and type."""
    length = len(value)
    return head + (_LENGTHS[length] if length < 0x80 else varint(length)) + value


def optional(head: bytes, value: bytes) -> bytes:
    """Encode a value that is left out if it is empty."""
    return field(head, value) if value else b""


def timestamp_bytes(ms: int) -> bytes:
    """Encode milliseconds since 1970 as a ``Timestamp``, limited to the range that protobuf supports."""
    seconds, rest = divmod(min(max(ms, FIRST_MS), LAST_MS), _MS_OF_A_SECOND)
    encoded = b"\x08" + varint(seconds) if seconds else b""
    return encoded + b"\x10" + varint(rest * _NANOS_OF_A_MILLISECOND) if rest else encoded


# --- messages -------------------------------------------------------------------------------------
def message_bytes(
    message: MessageExt,
    topic: bytes,
    *,
    handle: str | None = None,
    attempt: int | None = None,
    offset: int | None = None,
) -> bytes:
    """Encode a stored message as a ``Message``.

    :param topic: the topic of the message as the client knows it, as an encoded ``Resource``.
    :param handle: the receipt handle, if the message is delivered by a pop.
    :param attempt: the delivery attempt; by default computed from the stored retries.
    :param offset: the offset in the lite topic; by default the message's offset in its queue.
    """
    data, at = message.place
    properties = message.properties
    fixed = _FIXED[_SYS_FLAG(data, at)[0] & HOSTS_V6](data, at)
    queue_id, queue_offset, _, sys_flag, born_ms, born_host, store_ms, store_host, retries = fixed
    body = message.stored_body
    encoding = Encoding.IDENTITY
    if sys_flag & COMPRESSED:
        if body.startswith(_GZIP_MAGIC):
            encoding = Encoding.GZIP
        else:  # gRPC clients support only gzip
            body = decompress(body, sys_flag, MAX_DECOMPRESSED_BYTES)
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
    tag = properties.get(names.TAGS)
    due = _number(properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS))
    host = properties.get(BORN_HOST)
    parts = [
        b"" if tag is None else field(b"\x0a", tag.encode()),
        _keys(properties.get(names.KEYS)),
        field(b"\x1a", message.msg_id.encode()),
        field(b"\x22", b"\x08%c" % DigestType.MD5 + field(b"\x12", digest)),
        b"\x28%c\x30%c" % (encoding, type_of(properties)),
        field(b"\x3a", timestamp_bytes(born_ms)),
        field(b"\x42", host.encode() if host else _host(born_host)),
        field(b"\x4a", timestamp_bytes(store_ms)),
        field(b"\x52", _host(store_host)),
        b"" if due is None else field(b"\x5a", timestamp_bytes(due)),
        b"" if handle is None else field(b"\x62", handle.encode()),
        b"\x68" + varint(queue_id) if queue_id else b"",
        b"\x70" + varint(queue_offset if offset is None else offset),
        b"\x80\x01" + varint(min(retries + 1 if attempt is None else attempt, _INT32_MAX)),
    ]
    parts += _rare_fields(properties)
    user = [
        field(b"\x12", field(b"\x0a", name.encode()) + field(b"\x12", value.encode()))
        for name, value in properties.items()
        if name not in RESERVED
    ]
    return b"".join((field(b"\x0a", topic), *user, field(b"\x1a", b"".join(parts)), optional(b"\x22", body)))


def to_proto(message: MessageExt, *, topic: str) -> v2.Message:
    """Convert a stored message to protobuf for a client.

    :param topic: the topic of the message as the client knows it.
    """
    found: v2.Message = v2.Message.FromString(message_bytes(message, resource_of(topic).SerializeToString()))
    return found


def _keys(text: str | None) -> bytes:
    keys = (text or "").rstrip(names.KEY_SEPARATOR)
    if not keys:  # like Java's split, drop empty parts at the end, and only there
        return b""
    return b"".join([field(b"\x12", key.encode()) for key in keys.split(names.KEY_SEPARATOR)])


def _rare_fields(properties: Mapping[str, str]) -> list[bytes]:
    """Return the encoded system properties that few messages have."""
    parts = []
    group = properties.get(names.SHARDING_KEY)
    if group is not None:
        parts.append(field(b"\x8a\x01", group.encode()))
    trace = properties.get(TRACE_CONTEXT)
    if trace is not None:
        parts.append(field(b"\x92\x01", trace.encode()))
    dead = properties.get(DLQ_TOPIC)
    if dead is not None:
        origin = optional(b"\x12", properties.get(DLQ_MESSAGE_ID, "").encode())
        parts.append(field(b"\xa2\x01", optional(b"\x0a", dead.encode()) + origin))
    lite = properties.get(names.LITE_TOPIC)
    if lite is not None:
        parts.append(field(b"\xaa\x01", lite.encode()))
    priority = names.read_priority(properties.get(names.PRIORITY))
    if priority >= 0:
        parts.append(b"\xb0\x01" + varint(priority))
    return parts


@lru_cache(_HOSTS_CACHED)
def _host(stored: bytes) -> bytes:
    return format_address(*decode_host(stored)).encode()


def _number(text: str | None) -> int | None:
    """Return the number in a property, or ``None`` if a producer set it to a text that is not a number."""
    with suppress(ValueError):
        return None if text is None else parse_long(text)
    return None
