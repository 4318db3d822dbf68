"""Entries of the POP log: the events of popped messages, as the log stores them.

A record in the topic :data:`~cometmq.message.names.POP_LOG_TOPIC` (queue 0) contains the entries of one turn. Its body
is a MessagePack array of entries; an entry is an array that begins with its number, topic, group and queue id. Entries
with unknown numbers are skipped, so that a later version may add new kinds. ``docs/store.md`` has the layout.

Entries may be replayed: each entry contains a pop time, and a message that now has another pop time is not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The group and queue that an entry is about; the topic may be a POP retry topic."""

    topic: str
    group: str
    queue_id: int


class Popped(Entry, frozen=True, array_like=True, gc=False, tag=1):
    """Messages were handed out."""

    start: int
    """Offset of the first message."""
    steps: list[int]
    """Distance of each further message from the previous one."""
    next_offset: int
    """The group's new offset in the queue."""
    pop_time: int
    """Milliseconds since 1970."""
    invisible_ms: int


class Acked(Entry, frozen=True, array_like=True, gc=False, tag=2):
    """Messages were acknowledged."""

    pop_time: int
    offsets: list[int]


class Changed(Entry, frozen=True, array_like=True, gc=False, tag=3):
    """The invisible time of a message was changed."""

    pop_time: int
    offset: int
    new_pop_time: int
    invisible_ms: int


class Revived(Entry, frozen=True, array_like=True, gc=False, tag=4):
    """The invisible time of a message ended: a copy was stored after this entry in the log."""

    pop_time: int
    offset: int
    copy_topic: str
    """The retry topic, or the dead-letter topic; empty if the message was no longer in the log."""
    copy_offset: int
    """Offset of the copy in queue 0."""


class Moved(Entry, frozen=True, array_like=True, gc=False, tag=5):
    """An administrator moved the offset of the group back; messages from the new offset on are handed out again."""

    next_offset: int


class Forgotten(Entry, frozen=True, array_like=True, gc=False, tag=6):
    """A topic or a group was deleted; an empty name means all topics or all groups, and the queue id is ignored."""

    position: int = 0
    """The end of the log at the time of the deletion; 0 in entries of earlier versions."""
    with_offsets: bool = False
    """True if the offsets of the group were also removed."""


class PoppedInOrder(Entry, frozen=True, array_like=True, gc=False, tag=7):
    """Messages were handed out in order."""

    offsets: list[int]
    counts: list[int]
    """Number of earlier deliveries of each message; -1 for a message that waits for its message group."""
    next_offset: int
    """The offset after all messages that were ever handed out or that are waiting."""
    pop_time: int
    invisible_ms: int
    attempt_id: str


AnyEntry = Popped | Acked | Changed | Revived | Moved | Forgotten | PoppedInOrder

_encoder: Final = msgspec.msgpack.Encoder()
_all: Final = msgspec.msgpack.Decoder(list[AnyEntry])
_each: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_one: Final = msgspec.msgpack.Decoder(AnyEntry)


def encode_entries(entries: Sequence[AnyEntry]) -> bytes:
    """Return the body of a record."""
    return _encoder.encode(entries)


def decode_entries(body: bytes | memoryview) -> list[AnyEntry]:
    """Return the entries of a body; invalid entries are logged and skipped.

    A body of zeros belongs to a record that replaces a lost one (:mod:`cometmq.store.recovery.end_of_log`).
    """
    if not any(body):
        return []
    try:
        return _all.decode(body)
    except msgspec.MsgspecError:
        pass
    found: list[AnyEntry] = []
    try:
        for raw in _each.decode(body):
            try:
                found.append(_one.decode(raw))
            except msgspec.MsgspecError as error:
                _log.warning("an entry of the POP log is skipped: %s", error)
    except msgspec.MsgspecError as error:
        _log.error("a record of the POP log cannot be read: %s", error)
    return found


def popped(
    topic: str, group: str, queue_id: int, offsets: Sequence[int], next_offset: int, pop_time: int, invisible_ms: int
) -> Popped:
    """Return the entry for popped messages at ascending offsets."""
    steps = [after - before for before, after in pairwise(offsets)]
    return Popped(topic, group, queue_id, offsets[0], steps, next_offset, pop_time, invisible_ms)
