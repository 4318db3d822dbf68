"""Entries in the POP log, which record events of popped messages.

A record in queue 0 of the topic :data:`~cometmq.message.names.POP_LOG_TOPIC` contains the entries of one turn. Its body
is a MessagePack array of entries; an entry is an array that begins with its number, topic, group and queue id. Entries
with unknown numbers are skipped, so that a later version may add new kinds. ``docs/store.md`` has the layout.

Entries may be applied again: each contains a pop time, and does not change a message that now has another pop time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The topic, group and queue of an entry; the topic may be a POP retry topic."""

    topic: str
    group: str
    queue_id: int


class Popped(Entry, frozen=True, array_like=True, gc=False, tag=1):
    """Entry for messages that were handed out."""

    start: int
    """Offset of the first message."""
    steps: list[int]
    """Distance of each later message from the previous one."""
    next_offset: int
    """The group's new offset in the queue."""
    pop_time: int
    """Time of the pop in milliseconds since 1970."""
    invisible_ms: int


class Acked(Entry, frozen=True, array_like=True, gc=False, tag=2):
    """Entry for messages that were acknowledged."""

    pop_time: int
    offsets: list[int]


class Changed(Entry, frozen=True, array_like=True, gc=False, tag=3):
    """Entry for a change to a message's invisible time."""

    pop_time: int
    offset: int
    new_pop_time: int
    invisible_ms: int
    is_suspended: bool = False
    """True if it holds for all messages that were popped together from a lite topic, and this delivery of them does not
    count; missing in entries of earlier versions."""


class Revived(Entry, frozen=True, array_like=True, gc=False, tag=4):
    """Entry for a message whose invisible time has ended; its copy is stored after this entry in the log."""

    pop_time: int
    offset: int
    copy_topic: str
    """The retry or dead-letter topic; empty if the message was no longer in the log."""
    copy_offset: int
    """Offset of the copy in ``copy_queue`` of ``copy_topic``."""
    copy_queue: int = 0
    """Queue of the copy, which is missing in entries of earlier versions."""
    follower: int = -1
    """Offset of the message behind this one, popped in order, whose last delivery does not count; -1 if there is none,
    and in entries of earlier versions."""


class OffsetSet(Entry, frozen=True, array_like=True, gc=False, tag=5):
    """Entry for a group's offset that an administrator or another pop has set; the next pop starts there."""

    next_offset: int


class Forgotten(Entry, frozen=True, array_like=True, gc=False, tag=6):
    """Entry for a deleted topic or group; an empty name means all topics or all groups, and the queue ID is ignored."""

    position: int = 0
    """The end of the log at the time of the deletion; 0 in entries of earlier versions."""
    with_offsets: bool = False
    """True if the group's offsets were removed as well."""


class PoppedInOrder(Entry, frozen=True, array_like=True, gc=False, tag=7):
    """Entry for messages that were handed out in order."""

    offsets: list[int]
    counts: list[int]
    """Number of earlier deliveries of each message that count; -1 for a message that is waiting for its message
    group, and -2 for one whose last delivery does not count: one before it is handed out again without it."""
    next_offset: int
    """The offset after all messages that have been handed out or that wait for their message group."""
    pop_time: int
    invisible_ms: int
    attempt_id: str
    by_group: bool = False
    """True for a pop in message group order; missing in entries of earlier versions."""


AnyEntry = Popped | Acked | Changed | Revived | OffsetSet | Forgotten | PoppedInOrder

_encoder: Final = msgspec.msgpack.Encoder()
_all: Final = msgspec.msgpack.Decoder(list[AnyEntry])
_each: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_one: Final = msgspec.msgpack.Decoder(AnyEntry)


def joined(entries: Iterable[AnyEntry]) -> list[AnyEntry]:
    """Return the entries, but acknowledgements of one pop from a queue that no other entry separates as one entry."""
    found: list[AnyEntry] = []
    offsets: dict[tuple[str, str, int, int], list[int]] = {}
    for entry in entries:
        if not isinstance(entry, Acked):
            offsets.clear()
            found.append(entry)
            continue
        key = entry.topic, entry.group, entry.queue_id, entry.pop_time
        known = offsets.get(key)
        if known is None:
            known = offsets[key] = []
            found.append(Acked(*key, known))
        known.extend(entry.offsets)
    return found


def encode_entries(entries: Sequence[AnyEntry]) -> bytes:
    """Encode entries as the body of a POP log record."""
    return _encoder.encode(entries)


def decode_entries(body: bytes | memoryview) -> list[AnyEntry]:
    """Decode the entries in the body of a POP log record; log and skip invalid ones.

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
                _log.warning("skipped an entry in the POP log: %s", error)
    except msgspec.MsgspecError as error:
        _log.error("cannot read a record in the POP log: %s", error)
    return found


def popped(
    topic: str, group: str, queue_id: int, offsets: Sequence[int], next_offset: int, pop_time: int, invisible_ms: int
) -> Popped:
    """Return the entry for messages popped at ascending offsets."""
    steps = [after - before for before, after in pairwise(offsets)]
    return Popped(topic, group, queue_id, offsets[0], steps, next_offset, pop_time, invisible_ms)
