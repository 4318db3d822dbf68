"""Frames between a broker and its archive reader.

A frame is two int32 lengths, a header in MessagePack, and a payload, which holds the records of an answer. The numbers
of requests are chosen by the broker; an answer has the number of its request.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

LENGTHS: Final = struct.Struct(">ii")


class Open(msgspec.Struct, tag=True, frozen=True):
    """The first frame: which archive to read, and for which broker."""

    url: str
    options: dict[str, str]
    """The storage options, by name."""
    broker: str


class Read(msgspec.Struct, tag=True, frozen=True):
    """Asks for the records of a queue from ``offset`` up to but not including ``before``; answered by
    :class:`Records`."""

    number: int
    topic: str
    queue_id: int
    offset: int
    before: int
    max_count: int
    max_bytes: int


class FindTime(msgspec.Struct, tag=True, frozen=True):
    """Asks for the first record before ``before`` that was stored at ``timestamp`` (ms) or later; answered by
    :class:`TimeFound`."""

    number: int
    topic: str
    queue_id: int
    timestamp: int
    before: int


class FindPosition(msgspec.Struct, tag=True, frozen=True):
    """Asks for the record at an offset of the broker's log; answered by :class:`Records`."""

    number: int
    position: int


class FindKey(msgspec.Struct, tag=True, frozen=True):
    """Asks for the newest records of a topic with a key, stored from ``begin`` to ``end`` (ms); answered by
    :class:`Records`."""

    number: int
    topic: str
    key: str
    is_unique: bool
    """Compare only the unique key."""
    begin: int
    end: int
    before: dict[int, int]
    """For each queue: the offset before which records are wanted."""
    max_count: int


Request = Open | Read | FindTime | FindPosition | FindKey
Lookup = FindPosition | FindKey
"""Questions for which many files are searched."""
Question = Read | FindTime | Lookup


class Records(msgspec.Struct, tag=True, frozen=True):
    """Records, one after another in the payload."""

    number: int
    count: int
    next_offset: int
    """The offset at which to continue to read the queue."""


class TimeFound(msgspec.Struct, tag=True, frozen=True):
    """The offsets and times (ms) of the first record at or after a time, and of the one before it; −1 if there is
    none."""

    number: int
    offset: int
    time_ms: int
    earlier_offset: int
    earlier_ms: int


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The request failed: the archive cannot be read there."""

    number: int
    reason: str


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """The archived part of a queue: offsets from ``first`` up to but not including ``end``."""

    topic: str
    queue_id: int
    first: int
    end: int
    first_ms: int
    """The store time of the first message."""


class Extents(msgspec.Struct, tag=True, frozen=True):
    """Sent without a request: the archived queues of the broker that have changed, some in each frame."""

    queues: list[Extent]
    """Queues with their new extents; an extent without offsets means that the queue is no longer archived."""
    is_whole: bool
    """The frames up to the last one contain all archived queues, and queues that they do not contain are gone."""
    is_last: bool


class Unreadable(msgspec.Struct, tag=True, frozen=True):
    """Sent without a request: the archive's commits cannot be read."""

    reason: str
    may_pass: bool
    """The storage does not answer, which may pass; false if there is no archive or it is damaged."""


Answer = Records | TimeFound | Failed
Message = Answer | Extents | Unreadable

_encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_message: Final = msgspec.msgpack.Decoder(Message).decode


def encode_frame(header: Request | Message, payload_bytes: int = 0) -> bytes:
    """Return the beginning of a frame, after which ``payload_bytes`` bytes of payload follow."""
    encoded = _encode(header)
    return LENGTHS.pack(len(encoded), payload_bytes) + encoded
