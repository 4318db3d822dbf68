"""The stored record: one message, the same bytes on disk, in answers to pulls and in replication.

Layout, big-endian (``CommitLog.MessageExtEncoder``, ``MessageDecoder``)::

     0 int32 total size            36 int32 sysFlag
     4 int32 magic                 40 int64 born timestamp, ms
     8 int32 CRC32(body)&0x7fffffff 48 born host, 8 or 20 bytes (sysFlag 0x10)
    12 int32 queue id               . int64 store timestamp, ms
    16 int32 flag                   . store host, 8 or 20 bytes (sysFlag 0x20)
    20 int64 queue offset           . int32 reconsume times
    28 int64 physical offset        . int64 prepared transaction offset
                                    . int32 body length, body
                                    . int8 topic length (int16 with magic V2), topic
                                    . int16 properties length, properties
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import msgspec

from cometmq.checksum import crc32
from cometmq.errors import CometMQError
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.ids import offset_msg_id
from cometmq.message.properties import decode_properties
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6

MESSAGE_MAGIC: Final = 0xDAA320A7 - (1 << 32)
MESSAGE_MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
"""RocketMQ 5 writes it for topics longer than 127 bytes only; it is read here, never written."""
BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
"""Magic of the filler at the end of a log file: ``int32 size of the rest, int32 magic``."""

END_FILE_MIN_BLANK_BYTES: Final = 8
MIN_RECORD_BYTES: Final = 91

QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
BORN_HOST_AT: Final = 48

CRC_MASK: Final = 0x7FFFFFFF

_HEAD: Final = struct.Struct(">iiiiiqqiq")
_MIDDLE: Final = struct.Struct(">q")
_BODY_HEAD: Final = struct.Struct(">iqi")
_SHORT: Final = struct.Struct(">h")

Buffer = bytes | bytearray | memoryview


class RecordError(CometMQError):
    """The bytes are not a whole, undamaged record."""


class StoredRecord(msgspec.Struct, frozen=True, dict=True):
    """One stored record; ``body`` is compressed if the sysFlag has a compression."""

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
        """The properties, parsed when first asked for."""
        return decode_properties(self.properties_text)

    @property
    def msg_id(self) -> str:
        """The offset id."""
        return offset_msg_id(self.store_host, self.physical_offset)


def body_crc(body: Buffer) -> int:
    """CRC32 of a body, as in records: 31 bits."""
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

    :raises ValueError: the topic is longer than 127 bytes or the properties than 32,767.
    """
    topic_bytes = topic.encode()
    properties = properties_text.encode()
    if len(topic_bytes) > 127 or len(properties) > 32_767:
        raise ValueError("a topic has at most 127 bytes and properties 32,767")
    if len(born_host) == IPV6_HOST_BYTES:
        sys_flag |= BORNHOST_V6
    if len(store_host) == IPV6_HOST_BYTES:
        sys_flag |= STOREHOST_V6
    size = 75 + len(born_host) + len(store_host) + len(body) + len(topic_bytes) + len(properties)
    return b"".join(
        (
            _HEAD.pack(
                size,
                MESSAGE_MAGIC,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp,
            ),
            born_host,
            _MIDDLE.pack(store_timestamp),
            store_host,
            _BODY_HEAD.pack(reconsume_times, prepared_transaction_offset, len(body)),
            body,
            bytes((len(topic_bytes),)),
            topic_bytes,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def decode_record(buffer: Buffer, at: int = 0, *, check_crc: bool = True) -> StoredRecord:
    """Decode the record that begins at byte ``at`` of ``buffer``.

    :raises RecordError: fewer bytes than the record claims, a wrong magic, lengths that do not add
        up to the size, a topic that is not UTF-8, or (with ``check_crc``) a damaged body. In properties, bytes
        that are not UTF-8 become U+FFFD, as in Java.
    """
    room = len(buffer) - at
    if room < MIN_RECORD_BYTES:
        raise RecordError(f"{max(room, 0)} bytes are too few for a record")
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = _HEAD.unpack_from(buffer, at)
    if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        raise RecordError(f"{magic & 0xFFFFFFFF:#010x} is not the magic of a record")
    if not MIN_RECORD_BYTES <= size <= room:
        raise RecordError(f"a record of {size} bytes does not fit into {room}")
    end = at + size
    store_at = at + BORN_HOST_AT + (IPV6_HOST_BYTES if sys_flag & BORNHOST_V6 else IPV4_HOST_BYTES)
    fixed_at = store_at + 8 + (IPV6_HOST_BYTES if sys_flag & STOREHOST_V6 else IPV4_HOST_BYTES)
    body_at = fixed_at + 16
    if body_at > end:
        raise RecordError(f"a record of {size} bytes is too short for its hosts")
    reconsume_times, prepared_offset, body_length = _BODY_HEAD.unpack_from(buffer, fixed_at)
    topic_head = 1 if magic == MESSAGE_MAGIC else 2
    topic_at = body_at + body_length + topic_head
    if body_length < 0 or topic_at > end:
        raise RecordError(f"a body of {body_length} bytes does not fit into the record")
    topic_length = buffer[topic_at - 1] if topic_head == 1 else _SHORT.unpack_from(buffer, topic_at - 2)[0]
    properties_at = topic_at + topic_length + 2
    if topic_length < 0 or properties_at > end:
        raise RecordError(f"a topic of {topic_length} bytes does not fit into the record")
    if properties_at + _SHORT.unpack_from(buffer, properties_at - 2)[0] != end:
        raise RecordError(f"the lengths inside a record of {size} bytes do not add up")
    body = bytes(buffer[body_at : body_at + body_length])
    if check_crc and body_crc(body) != crc:
        raise RecordError("the body does not match its CRC")
    try:
        topic = str(buffer[topic_at : topic_at + topic_length], "utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"the topic is not UTF-8: {error.reason}") from error
    return StoredRecord(
        size=size,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=bytes(buffer[at + BORN_HOST_AT : store_at]),
        store_timestamp=_MIDDLE.unpack_from(buffer, store_at)[0],
        store_host=bytes(buffer[store_at + 8 : fixed_at]),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_offset,
        body=body,
        topic=topic,
        properties_text=str(buffer[properties_at:end], "utf-8", "replace"),
    )


def iter_records(buffer: Buffer, *, check_crc: bool = False) -> Iterator[StoredRecord]:
    """Yield the records of a pull's body.

    :raises RecordError: as :func:`decode_record`, also for bytes left over at the end.
    """
    view = memoryview(buffer)
    at = 0
    while at < len(view):
        record = decode_record(view, at, check_crc=check_crc)
        yield record
        at += record.size
