"""Reads the log record by record for recovery and dispatch (``checkMessageAndReturnSize``).

Bytes count as a record only if the sizes add up, the magic is right and the record contains its own log offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from cometmq.checksum import crc32
from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.ids import tags_code
from cometmq.message.layout import HOSTS_V6, QUEUE_UNIT, RECORD, record_offsets
from cometmq.message.names import check_topic
from cometmq.message.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TAGS,
    UNIQ_KEY,
)
from cometmq.message.record import (
    BLANK_MAGIC,
    CRC_MASK,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    parts_of,
)
from cometmq.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from cometmq.store.log.commit_log import CommitLog, is_filler

_HEAD: Final = RECORD.struct("size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag")
_NAME_END: Final = NAME_VALUE_SEPARATOR.encode()
_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()
_KEYS, _TAGS, _UNIQ_KEY = KEYS.encode(), TAGS.encode(), UNIQ_KEY.encode()
_INT64: Final = struct.Struct(">q")
_SYS_FLAG: Final = RECORD.struct("sys_flag")
_STORE_TIMESTAMP_AT: Final = record_offsets("store_timestamp")
_PREPARED_AT: Final = record_offsets("prepared_transaction_offset")
SIZE_MAGIC: Final = RECORD.struct("size", "magic")
"""Unpacks the first fields of every record and filler."""
IDENTITY: Final = RECORD.struct("size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag")
"""Unpacks a record's size, magic, queue id, queue offset, log offset and sysFlag."""
NO_QUEUE_OFFSET: Final = TRANSACTION_PREPARED
"""Bit that is set in both PREPARED and ROLLBACK. Records with this bit have no queue unit."""
ROLLBACK: Final = TRANSACTION_ROLLBACK
MAX_QUEUE_OFFSET: Final = (1 << 63) // QUEUE_UNIT.size
"""Lowest queue offset that has no valid byte position in a file."""
MAX_STORED_TOPIC_CHARS: Final = 255
"""Maximum length of a topic name in RocketMQ 5, and of a directory name on most file systems."""


class LogRecord(NamedTuple):
    """The fields of a record from which queue units and index entries are derived."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    tags_code: int
    keys: list[str]
    """Keys for the index: UNIQ_KEY, followed by each of KEYS."""
    unique_key: str
    """The message's UNIQ_KEY, or an empty string if it has none."""


def ends_in_zeros(view: memoryview, end: int) -> bool:
    """Return whether the byte before ``end`` and all bytes after it are zero.

    If they are zero, the end of a record's properties, which no CRC covers, did not reach the disk: records written
    here never end in a zero (see :meth:`cometmq.store.write_batch.WriteBatch.put`), and zeros follow only at the end of
    the log.
    """
    return view[end - 1] == 0 and not any(view[end : end + 8])


def store_timestamp_of(view: memoryview) -> int:
    """Return the store timestamp from a record's bytes."""
    return int(_INT64.unpack_from(view, _STORE_TIMESTAMP_AT[_SYS_FLAG.unpack_from(view)[0] & HOSTS_V6])[0])


def read_log_record(
    view: memoryview, at: int, offset: int, *, check_crc: bool, may_be_torn: bool = True
) -> LogRecord | None:
    """Return the record at byte ``at`` of ``view`` if it has log offset ``offset``, or ``None`` if there is no such
    record.

    :param may_be_torn: if this and ``check_crc`` are true, zeros after the record may mean that it was not written
        completely.
    """
    room = len(view) - at
    if room < MIN_RECORD_BYTES:
        return None
    size, magic, crc, queue_id, queue_offset, found_offset, sys_flag = _HEAD.unpack_from(view, at)
    if magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2:
        return None
    if size < MIN_RECORD_BYTES or size > room or found_offset != offset:
        return None
    if queue_id < 0 or not 0 <= queue_offset < MAX_QUEUE_OFFSET:
        return None
    end = at + size
    parts = parts_of(view, at, end)
    if parts is None:
        return None
    body_at, body_end, topic_at, topic_end, properties_at, properties_end = parts
    if properties_end != end:
        return None
    if check_crc:
        if crc32(view[body_at:body_end]) & CRC_MASK != crc:
            return None
        if may_be_torn and end > properties_at and ends_in_zeros(view, end):
            return None  # no CRC covers the properties: zeros at their end and after them mean an incomplete write
    try:
        topic = str(view[topic_at:topic_end], "utf-8")
        if not is_stored_topic(topic):
            return None
    except UnicodeDecodeError:
        return None
    tag, unique_key, keys = _tag_and_keys(bytes(view[properties_at:end]))
    return LogRecord(
        offset,
        size,
        topic,
        queue_id,
        queue_offset,
        sys_flag,
        _INT64.unpack_from(view, at + _STORE_TIMESTAMP_AT[sys_flag & HOSTS_V6])[0],
        tags_code(tag),
        [unique_key, *keys] if unique_key else keys,
        unique_key,
    )


@lru_cache(maxsize=4096)
def is_stored_topic(topic: str) -> bool:
    """Return whether a name found on disk is a valid topic name. RocketMQ 5 allows up to 255 characters (magic V2)."""
    parts = (topic[at : at + MAX_TOPIC_CHARS] for at in range(0, max(len(topic), 1), MAX_TOPIC_CHARS))
    return len(topic) <= MAX_STORED_TOPIC_CHARS and all(check_topic(part) is None for part in parts)


def _tag_and_keys(properties: bytes) -> tuple[str | None, str, list[str]]:
    """Return the tag, the UNIQ_KEY and all keys in a record's properties. Invalid UTF-8 is replaced, as in Java."""
    tag: str | None = None
    unique = ""
    keys: list[str] = []
    for piece in properties.split(_SEPARATOR):
        name, _, value = piece.partition(_NAME_END)
        if name == _UNIQ_KEY:
            unique = value.decode(errors="replace") or unique
        elif name == _TAGS:
            tag = value.decode(errors="replace") or tag
        elif name == _KEYS:
            keys = [key for key in value.decode(errors="replace").split(KEY_SEPARATOR) if key] or keys
    return tag, unique, keys


def record_at(log: CommitLog, offset: int) -> LogRecord | None:
    """Return the record at log offset ``offset``, or ``None`` if there is none. Its CRC is not checked."""
    segment = log.segment_at(offset)
    return read_log_record(segment.view, offset - segment.start, offset, check_crc=False) if segment else None


def first_record(log: CommitLog, offset: int) -> LogRecord | None:
    """Return the record at ``offset``, or the first record in the next file if there is a filler at ``offset``."""
    while (segment := log.segment_at(offset)) is not None and is_filler(segment, offset - segment.start):
        offset = segment.end
    return record_at(log, offset)


def walk(log: CommitLog, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the log offset and the bytes of each record from ``start`` to before ``end``. The records are not checked.

    The views remain valid. The function may run in any thread.
    """
    at = start
    while at < end and (segment := log.segment_at(at)) is not None and segment.start <= at:
        view = segment.view
        limit = min(segment.end, end) - segment.start
        byte = at - segment.start
        while byte + MIN_RECORD_BYTES <= limit:
            size, magic = SIZE_MAGIC.unpack_from(view, byte)
            if magic == BLANK_MAGIC or not MIN_RECORD_BYTES <= size <= limit - byte:
                break
            yield segment.start + byte, view[byte : byte + size]
            byte += size
        at = segment.end


def prepared_offsets(log: CommitLog, start: int) -> Iterator[tuple[int, int]]:
    """Yield the log offset and PREPAREDTRANSACTIONOFFSET of each committed message, starting at ``start``.

    Used after a crash, when op messages may be missing.
    """
    for offset, view in walk(log, start, log.position):
        sys_flag = _SYS_FLAG.unpack_from(view)[0]
        if sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            yield offset, _INT64.unpack_from(view, _PREPARED_AT[sys_flag & HOSTS_V6])[0]
