"""Reading the log record by record: what recovery and dispatch know of each (``checkMessageAndReturnSize``).

Nothing is taken for a record unless its sizes add up, its magic is right and it says itself that it
stands where it was found.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from cometmq.checksum import crc32
from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.ids import tags_code
from cometmq.message.names import check_topic
from cometmq.message.record import BLANK_MAGIC, CRC_MASK, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from cometmq.store.commit_log import CommitLog
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.topic_queue import TopicQueue

_HEAD: Final = struct.Struct(">iiiiiqqi")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_SIZE_MAGIC: Final = struct.Struct(">ii")
_IDENTITY: Final = struct.Struct(">ii4xi4xqqi")
NO_QUEUE_OFFSET: Final = TRANSACTION_PREPARED
"""The bit that PREPARED and ROLLBACK have in common: such records have no unit in any queue."""
ROLLBACK: Final = TRANSACTION_ROLLBACK
MAX_QUEUE_OFFSET: Final = (1 << 63) // CQ_UNIT_BYTES
"""Units from here on would have no place in a file."""
MAX_STORED_TOPIC_CHARS: Final = 255
"""Longest name of a directory on most file systems, and of a topic in RocketMQ 5."""


class LogRecord(NamedTuple):
    """What queues and index need of one record."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    tags_code: int
    keys: list[str]
    """What the index keeps it under: UNIQ_KEY, then each of KEYS."""


def matches_unit(view: memoryview, offset: int, size: int, queue: TopicQueue, queue_offset: int) -> bool:
    """Whether the ``size`` bytes ``view`` at log offset ``offset`` are the record that a unit of ``queue`` promises.

    Its identity and its lengths are compared, not the bytes of its body: that is for whoever reads it.
    """
    if len(view) < MIN_RECORD_BYTES:
        return False
    found_size, magic, queue_id, found_queue_offset, found_offset, sys_flag = _IDENTITY.unpack_from(view)
    if (
        found_size != size
        or found_offset != offset
        or found_queue_offset != queue_offset
        or queue_id != queue.queue_id
        or sys_flag & NO_QUEUE_OFFSET
        or (magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2)
    ):
        return False
    length_at = (68 if sys_flag & BORNHOST_V6 else 56) + (40 if sys_flag & STOREHOST_V6 else 28)
    if length_at + 4 > size:
        return False
    body_end = length_at + 4 + int(_INT32.unpack_from(view, length_at)[0])
    topic_at = body_end + (1 if magic == MESSAGE_MAGIC else 2)
    topic_end = topic_at + len(queue.topic_bytes)
    if body_end < length_at or topic_end + 2 > size or view[topic_at:topic_end] != queue.topic_bytes:
        return False
    return topic_end + 2 + int(_INT16.unpack_from(view, topic_end)[0]) == size


def has_properties(view: memoryview, queue: TopicQueue) -> bool:
    """Whether a record of ``queue`` that :func:`matches_unit` accepted has properties."""
    sys_flag = view[39]
    length_at = (68 if sys_flag & BORNHOST_V6 else 56) + (40 if sys_flag & STOREHOST_V6 else 28)
    topic_head = 1 if int(_INT32.unpack_from(view, 4)[0]) == MESSAGE_MAGIC else 2
    return len(view) > length_at + 6 + int(_INT32.unpack_from(view, length_at)[0]) + topic_head + len(queue.topic_bytes)


def ends_in_zeros(view: memoryview, end: int) -> bool:
    """Whether the byte before ``end`` is zero and only zeros follow.

    Then the end of a record's properties, which no CRC covers, did not get onto the disk: what is put
    here never ends in a zero (see ``MessageStore.put``), and zeros follow only at the end of the log.
    """
    return view[end - 1] == 0 and not any(view[end : end + 8])


def leads_to_record(view: memoryview, at: int, offset: int, size: int, queue: TopicQueue, queue_offset: int) -> bool:
    """Whether a unit leads to its record at byte ``at`` of ``view``, whole as far as can be seen without its CRC."""
    end = at + size
    if not matches_unit(view[at:end], offset, size, queue, queue_offset):
        return False
    return not ends_in_zeros(view, end) or not has_properties(view[at:end], queue)


def store_timestamp_of(view: memoryview) -> int:
    """The store timestamp of a record."""
    return int(_INT64.unpack_from(view, 68 if view[39] & BORNHOST_V6 else 56)[0])


def read_log_record(
    view: memoryview, at: int, offset: int, *, check_crc: bool, may_be_torn: bool = True
) -> LogRecord | None:
    """The record at byte ``at`` of ``view``, which is log offset ``offset``; ``None`` when it is not one.

    :param may_be_torn: with ``check_crc``, whether zeros behind it may mean that it was not written whole.
    """
    room = len(view) - at
    if room < MIN_RECORD_BYTES:
        return None
    size, magic, crc, queue_id, _flag, queue_offset, found_offset, sys_flag = _HEAD.unpack_from(view, at)
    if magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2:
        return None
    if size < MIN_RECORD_BYTES or size > room or found_offset != offset:
        return None
    if queue_id < 0 or not 0 <= queue_offset < MAX_QUEUE_OFFSET:
        return None
    store_at = at + (68 if sys_flag & BORNHOST_V6 else 56)
    length_at = store_at + (40 if sys_flag & STOREHOST_V6 else 28)
    end = at + size
    if length_at + 4 > end:
        return None
    body_at = length_at + 4
    body_end = body_at + _INT32.unpack_from(view, length_at)[0]
    if body_end < body_at or body_end + 3 > end:
        return None
    if magic == MESSAGE_MAGIC:
        topic_at = body_end + 1
        topic_end = topic_at + view[body_end]
    else:
        topic_at = body_end + 2
        topic_end = topic_at + _INT16.unpack_from(view, body_end)[0]
    if topic_end < topic_at or topic_end + 2 > end:
        return None
    if topic_end + 2 + _INT16.unpack_from(view, topic_end)[0] != end:
        return None
    if check_crc:
        if crc32(view[body_at:body_end]) & CRC_MASK != crc:
            return None
        if may_be_torn and end > topic_end + 2 and ends_in_zeros(view, end):
            return None  # properties, which no CRC covers, that end in zeros with zeros behind: not written whole
    try:
        topic = str(view[topic_at:topic_end], "utf-8")
        if not is_stored_topic(topic):
            return None
    except UnicodeDecodeError:
        return None
    tag, keys = _tag_and_keys(bytes(view[topic_end + 2 : end]))
    return LogRecord(
        offset,
        size,
        topic,
        queue_id,
        queue_offset,
        sys_flag,
        _INT64.unpack_from(view, store_at)[0],
        tags_code(tag),
        keys,
    )


@lru_cache(maxsize=4096)
def is_stored_topic(topic: str) -> bool:
    """Whether a name found on disk can be a topic's: RocketMQ 5 has some of up to 255 characters (magic V2)."""
    parts = (topic[at : at + MAX_TOPIC_CHARS] for at in range(0, max(len(topic), 1), MAX_TOPIC_CHARS))
    return len(topic) <= MAX_STORED_TOPIC_CHARS and all(check_topic(part) is None for part in parts)


def _tag_and_keys(properties: bytes) -> tuple[str | None, list[str]]:
    """What the index and units need of properties; bytes that are no UTF-8 are replaced, as Java does it."""
    tag: str | None = None
    unique = ""
    keys: list[str] = []
    for piece in properties.split(b"\x02"):
        if piece.startswith(b"TAGS\x01"):
            tag = piece[5:].decode(errors="replace") or tag
        elif piece.startswith(b"KEYS\x01"):
            keys = [key for key in piece[5:].decode(errors="replace").split(" ") if key] or keys
        elif piece.startswith(b"UNIQ_KEY\x01"):
            unique = piece[9:].decode(errors="replace") or unique
    return tag, [unique, *keys] if unique else keys


class LogScan:
    """An iteration over the records from one offset to where they end.

    Afterwards ``end`` is the end of the last record, or the file end that a filler marks.
    """

    def __init__(self, log: CommitLog, start: int, *, check_crc: bool, until: int | None = None) -> None:
        self._log = log
        self._check_crc = check_crc
        self._until = until
        self.end = start

    def __iter__(self) -> Iterator[LogRecord]:
        log = self._log
        while True:
            segment = log.segment_at(self.end)
            if segment is None or (self._until is not None and self.end >= self._until):
                return
            view = segment.view
            base = segment.start
            at = self.end - base
            limit = segment.size if self._until is None else min(segment.size, self._until - base)
            while at < limit:
                record = read_log_record(view, at, base + at, check_crc=self._check_crc)
                if record is None:
                    break
                at += record.size
                self.end = base + at
                yield record
            if at >= limit:
                continue
            size, magic = _SIZE_MAGIC.unpack_from(view, at) if at + 8 <= segment.size else (0, 0)
            if magic == BLANK_MAGIC and size == segment.size - at:
                self.end = segment.end
                continue
            return
