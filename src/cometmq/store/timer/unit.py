"""Formats of a delayed message in the timer log: a unit of 56 bytes in an index file, and a record in a data file.

A unit, little-endian::

     0 int64  due, ms since 1970          32 int64  byte of the record in the data file
     8 int64  queue offset in the topic   40 int32  bytes of the record
    16 uint64 hash of topic+UNIQ_KEY      44 int32  kind: 1 a message, 2 a recall of one
    24 uint64 hash of the real topic      48 uint32 CRC32 of the record
                                          52 uint32 CRC32 of the unit up to here
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.checksum import crc32
from cometmq.message.message import MessageExt
from cometmq.message.names import TIMER_TOPIC
from cometmq.message.properties import REAL_QID, REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY

MESSAGE: Final = 1
RECALL: Final = 2

END_OF_TIME_MS: Final = 1 << 43
"""A time in the year 2248, which is later than every due time."""


UNIT_DTYPE: Final = np.dtype(
    [
        ("due", "<i8"),
        ("serial", "<i8"),
        ("key", "<u8"),
        ("topic", "<u8"),
        ("at", "<i8"),
        ("size", "<i4"),
        ("kind", "<i4"),
        ("crc", "<u4"),
        ("check", "<u4"),
    ]
)
UNIT_BYTES: Final = UNIT_DTYPE.itemsize
_UNIT: Final = struct.Struct("<qqQQqiiI")
_CHECK: Final = struct.Struct("<I")

Units = npt.NDArray[Any]
"""Array of units, with shape ``(n,)`` and type ``UNIT_DTYPE``."""

Chosen = Callable[[Units], npt.NDArray[np.bool_]]
"""Function that is called with units and returns a mask of the selected units."""


class TimerEntry(msgspec.Struct, frozen=True, gc=False):
    """A message, or the recall of a message, which is copied from the log into the timer log."""

    due_ms: int
    serial: int
    """Queue offset in the topic of delayed messages. It is never used twice in a store."""
    key: int
    """Hash by which a recall finds the message, or 0 if the message has no UNIQ_KEY."""
    topic: int
    kind: int
    physical_offset: int
    record: bytes

    def unit(self, at: int) -> bytes:
        """Return the unit for a record at byte ``at`` of the data file."""
        raw = _UNIT.pack(
            self.due_ms,
            self.serial,
            self.key,
            self.topic,
            at,
            len(self.record),
            self.kind,
            crc32(self.record),
        )
        return raw + _CHECK.pack(crc32(raw))


def text_hash(text: str) -> int:
    """Return a 64-bit hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def recall_key(topic: str, unique_key: str) -> str:
    """Return the TIMER_DEL_UNIQKEY value that recalls a message (``TimerMessageStore.buildDeleteKey``)."""
    return f"{topic}+{unique_key}"


def entry_of(record: bytes, serial: int, physical_offset: int) -> TimerEntry:
    """Return the entry for a record in the topic ``rmq_sys_wheel_timer``.

    :raises ValueError: due time, real topic or real queue is missing or invalid.
    """
    properties = MessageExt(record, 0).properties
    try:
        due_ms = int(properties[TIMER_OUT_MS])
        if not 0 <= due_ms < END_OF_TIME_MS:
            raise ValueError(f"invalid due time {due_ms}")
        topic = properties[REAL_TOPIC]
        int(properties[REAL_QID])
    except (KeyError, ValueError) as error:
        raise ValueError(f"a record of {TIMER_TOPIC} without a usable property: {error}") from error
    recalls = properties.get(TIMER_DEL_UNIQKEY)
    unique_key = properties.get(UNIQ_KEY)
    if recalls is not None:  # brokers before 5.3.2 send only the unique key
        key = recalls if recalls.startswith(f"{topic}+") else recall_key(topic, recalls)
    else:
        key = recall_key(topic, unique_key) if unique_key else ""
    return TimerEntry(
        due_ms,
        serial,
        text_hash(key) if key else 0,
        text_hash(topic),
        MESSAGE if recalls is None else RECALL,
        physical_offset,
        record,
    )


_CRC_OF_BYTES: Final = np.array([crc32(bytes((byte ^ 0xFF,))) ^ 0xFF000000 for byte in range(256)], np.uint32)


def are_damaged(units: Units) -> npt.NDArray[np.bool_]:
    """Return a mask of the units that have a wrong CRC."""
    rows = units.view(np.uint8).reshape(-1, UNIT_BYTES)[:, : -_CHECK.size]
    crc = np.full(len(units), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = _CRC_OF_BYTES[(crc ^ column) & 0xFF] ^ (crc >> 8)
    damaged: npt.NDArray[np.bool_] = ~crc != units["check"]
    return damaged


def sound_units(data: bytes) -> int:
    """Return the number of complete units in ``data``, not counting damaged ones at the end.

    Units are only appended, so only the last ones can be torn.
    """
    count = len(data) // UNIT_BYTES
    while count:
        start = (count - 1) * UNIT_BYTES
        body_end = start + UNIT_BYTES - _CHECK.size
        if crc32(data[start:body_end]) == _CHECK.unpack_from(data, body_end)[0]:
            return count
        count -= 1
    return 0


def without_recalled(units: Units) -> Units:
    """Return the messages among ``units`` that no other unit recalls.

    A recall has the due time and the key of its message.
    """
    recalls: Units = units[units["kind"] == RECALL]
    messages: Units = units[units["kind"] == MESSAGE]
    if not len(recalls) or not len(messages):
        return messages
    gone: npt.NDArray[np.bool_] = np.isin(messages["key"], recalls["key"])
    pairs = set(zip(recalls["due"].tolist(), recalls["key"].tolist(), strict=True))
    for index in np.flatnonzero(gone).tolist():
        message = messages[index]
        gone[index] = (int(message["due"]), int(message["key"])) in pairs and bool(message["key"])
    left: Units = messages[~gone]
    return left
