"""Encodes and decodes stored records (``MessageDecoder``); see :mod:`cometmq.message.layout` for their fields."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import msgspec

from cometmq.checksum import crc32
from cometmq.errors import CometMQError
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.ids import offset_msg_id
from cometmq.message.layout import (
    BODY_AT,
    BODY_LENGTH_BYTES,
    HOSTS_V6,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORDS,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_V2_BYTES,
    host_flags,
)
from cometmq.message.properties import decode_properties

MESSAGE_MAGIC: Final = 0xDAA320A7 - (1 << 32)
MESSAGE_MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
"""The magic that RocketMQ 5 uses for topics longer than 127 bytes; CometMQ reads it but does not write it."""
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
"""The magic of the filler at the end of a log file: ``int32 remaining size, int32 magic``."""

END_FILE_MIN_BLANK_BYTES: Final = 8
MIN_RECORD_BYTES: Final = RECORD.size + TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
RECORD_WITHOUT_HOSTS_BYTES: Final = MIN_RECORD_BYTES - 2 * IPV4_HOST_BYTES

CRC_MASK: Final = 0x7FFFFFFF

_HOST_BYTES: Final = (IPV4_HOST_BYTES, IPV6_HOST_BYTES)
HEAD_PACKERS: Final = {
    (born, stored): RECORDS[host_flags(bytes(born), bytes(stored))].struct().pack
    for born in _HOST_BYTES
    for stored in _HOST_BYTES
}
"""Structs that pack the part of a record before the body, by the sizes of its born host and store host."""
_HEAD_READERS: Final = {bits: layout.struct().unpack_from for bits, layout in RECORDS.items()}
_MAGIC_AND_FLAG: Final = RECORD.struct("magic", "sys_flag").unpack_from
_MAGIC_FLAG_AND_BODY_LENGTH: Final = RECORD.struct("magic", "sys_flag", "body_length").unpack_from
"""Unpacks the first fields of a record. The body length is valid only if both hosts are IPv4."""
_INT: Final = struct.Struct(">i").unpack_from
_SHORT: Final = struct.Struct(">h")

Buffer = bytes | bytearray | memoryview


class RecordError(CometMQError):
    """The bytes are not a complete, undamaged record."""


class StoredRecord(msgspec.Struct, frozen=True, dict=True):
    """A stored record, with its fields in layout order; ``body`` is compressed if the sysFlag says so."""

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties_text: str

    @cached_property
    def properties(self) -> dict[str, str]:
        """The properties, parsed on first access."""
        return decode_properties(self.properties_text)

    @property
    def msg_id(self) -> str:
        """The offset id: the broker's address and the log offset in hex."""
        return offset_msg_id(self.store_host, self.physical_offset)


def body_crc(body: Buffer) -> int:
    """Return a body's CRC32 as stored in records, reduced to 31 bits."""
    return crc32(body) & CRC_MASK


def encode_record(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: bytes,
    properties_text: str,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode one record. The IPv6 bits of ``sys_flag`` are set from the hosts' lengths.

    :raises ValueError: the topic is longer than 127 bytes, or the properties are longer than 32,767.
    """
    topic_bytes = topic.encode()
    properties = properties_text.encode()
    if len(topic_bytes) > 127 or len(properties) > 32_767:
        raise ValueError("the topic is longer than 127 bytes or the properties are longer than 32,767 bytes")
    hosts = len(born_host) + len(store_host)
    size = RECORD_WITHOUT_HOSTS_BYTES + hosts + len(body) + len(topic_bytes) + len(properties)
    return b"".join(
        (
            HEAD_PACKERS[len(born_host), len(store_host)](
                size,
                MESSAGE_MAGIC,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag | host_flags(born_host, store_host),
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                len(body),
            ),
            body,
            bytes((len(topic_bytes),)),
            topic_bytes,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


Parts = tuple[int, int, int, int, int, int]
"""The start and end of a record's body, topic and properties in a buffer."""


def parts_of(buffer: Buffer, at: int, end: int) -> Parts | None:
    """Find the parts of the record at byte ``at``; return None if its lengths exceed ``end``.

    At least ``MIN_RECORD_BYTES`` bytes must follow ``at``. The caller must compare the end of the properties with the
    end of the record.
    """
    magic, sys_flag, body_length = _MAGIC_FLAG_AND_BODY_LENGTH(buffer, at)
    hosts = sys_flag & HOSTS_V6
    body = at + BODY_AT[hosts]
    if hosts:
        if body > end:
            return None
        body_length = _INT(buffer, body - BODY_LENGTH_BYTES)[0]
    body_end = body + body_length
    if magic == MESSAGE_MAGIC_V2:
        topic = body_end + TOPIC_LENGTH_V2_BYTES
        if body_end < body or topic > end:
            return None
        topic_end = topic + _SHORT.unpack_from(buffer, body_end)[0]
    else:
        topic = body_end + TOPIC_LENGTH_BYTES
        if body_end < body or topic > end:
            return None
        topic_end = topic + buffer[body_end]
    properties = topic_end + PROPERTIES_LENGTH_BYTES
    if topic_end < topic or properties > end:
        return None
    return body, body_end, topic, topic_end, properties, properties + _SHORT.unpack_from(buffer, topic_end)[0]


def decode_record(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> StoredRecord:
    """Decode the record that starts at byte ``at`` in ``buffer``.

    :raises RecordError: bytes are missing, the magic is wrong, the lengths do not add up to the size, the topic is not
        UTF-8, or (with ``check_crc``) the body is damaged. In properties, bytes that are not UTF-8 become U+FFFD, as in
        Java.
    """
    room = len(buffer) - at
    if room < MIN_RECORD_BYTES:
        raise RecordError(f"the remaining {max(room, 0)} bytes are too few for a record")
    magic, sys_flag = _MAGIC_AND_FLAG(buffer, at)
    if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        raise RecordError(f"{magic & 0xFFFFFFFF:#010x} is not the magic of a record")
    size: int = _INT(buffer, at)[0]
    if not MIN_RECORD_BYTES <= size <= room:
        raise RecordError(f"a record of {size} bytes does not fit in the remaining {room} bytes")
    parts = parts_of(buffer, at, at + size)
    if parts is None:
        raise RecordError(f"the body, the topic or another part does not fit in a record of {size} bytes")
    body_at, body_end, topic_at, topic_end, properties_at, end = parts
    if end != at + size:
        raise RecordError(f"the lengths inside a record of {size} bytes do not add up")
    head = _HEAD_READERS[sys_flag & HOSTS_V6](buffer, at)
    body = bytes(buffer[body_at:body_end])
    if check_crc and body_crc(body) != head[2]:
        raise RecordError("the record's body does not match its CRC")
    try:
        topic = str(buffer[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"the topic is not UTF-8: {error.reason}") from error
    properties = str(buffer[properties_at:end], "utf-8", "replace")
    fields: tuple[Any, ...] = (size, *head[2:-1], body, topic, properties)
    return StoredRecord(*fields)


def iter_records(buffer: Buffer, *, check_crc: bool = False) -> Iterator[StoredRecord]:
    """Yield the records in a pull response.

    :raises RecordError: see :func:`decode_record`; or bytes are left over at the end.
    """
    view = memoryview(buffer)
    at = 0
    while at < len(view):
        record = decode_record(view, at, check_crc=check_crc)
        yield record
        at += record.size
