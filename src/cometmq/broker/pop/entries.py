"""Entries of the POP log: what happened to popped messages, as it stands in the log.

A record of the topic :data:`~cometmq.message.names.POP_LOG_TOPIC` (queue 0) has the entries of one turn. Its body is a
MessagePack array of entries; an entry is an array that begins with its number, topic, group and queue id. Entries with
numbers that are not known are passed over, so that a later version may add some. ``docs/store.md`` has the layout.

Reading an entry again changes nothing that later entries, read again too, do not put right: each names the pop time
that it is about, and a message whose pop time is another one by now is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The queue of a group that an entry is about; the topic may be a retry topic of POP."""

    topic: str
    group: str
    queue_id: int


class Popped(Entry, frozen=True, array_like=True, gc=False, tag=1):
    """Messages were handed out."""

    start: int
    """Offset of the first one."""
    steps: list[int]
    """The distance of each further one from the one before."""
    next_offset: int
    """The offset of the group in the queue from now on."""
    pop_time: int
    """Milliseconds since 1970."""
    invisible_ms: int


class Acked(Entry, frozen=True, array_like=True, gc=False, tag=2):
    """Messages were acknowledged."""

    pop_time: int
    offsets: list[int]


class Changed(Entry, frozen=True, array_like=True, gc=False, tag=3):
    """A message is invisible for another time."""

    pop_time: int
    offset: int
    new_pop_time: int
    invisible_ms: int


class Revived(Entry, frozen=True, array_like=True, gc=False, tag=4):
    """The time of a message was over: a copy was stored, behind this entry in the log."""

    pop_time: int
    offset: int
    copy_topic: str
    """Retry topic, or dead letters; empty when the message itself was gone from the log."""
    copy_offset: int
    """Offset of the copy in queue 0."""


class Moved(Entry, frozen=True, array_like=True, gc=False, tag=5):
    """Somebody set the offset of the group back; messages from there on are handed out again."""

    next_offset: int


class Forgotten(Entry, frozen=True, array_like=True, gc=False, tag=6):
    """A topic or a group was deleted; an empty name stands for all, and the queue id is not read."""

    position: int = 0
    """The log's end then; 0 in entries of earlier versions."""
    with_offsets: bool = False
    """The offsets of a group were removed, too."""


class PoppedInOrder(Entry, frozen=True, array_like=True, gc=False, tag=7):
    """Messages were handed out in order."""

    offsets: list[int]
    counts: list[int]
    """Number of times that each was handed out before; -1 for one that only waits for its message group."""
    next_offset: int
    """The offset behind all messages that were ever handed out, or wait."""
    pop_time: int
    invisible_ms: int
    attempt_id: str


AnyEntry = Popped | Acked | Changed | Revived | Moved | Forgotten | PoppedInOrder

_encoder: Final = msgspec.msgpack.Encoder()
_all: Final = msgspec.msgpack.Decoder(list[AnyEntry])
_each: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_one: Final = msgspec.msgpack.Decoder(AnyEntry)


def encode_entries(entries: Sequence[AnyEntry]) -> bytes:
    """The body of a record."""
    return _encoder.encode(entries)


def decode_entries(body: bytes | memoryview) -> list[AnyEntry]:
    """The entries of a body; those that cannot be read are left out and logged.

    A body of zeros is that of a record which stands for a lost one (:mod:`cometmq.store.recovery.end_of_log`).
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
                _log.warning("an entry of the POP log is passed over: %s", error)
    except msgspec.MsgspecError as error:
        _log.error("a record of the POP log cannot be read: %s", error)
    return found


def popped(
    topic: str, group: str, queue_id: int, offsets: Sequence[int], next_offset: int, pop_time: int, invisible_ms: int
) -> Popped:
    """The entry for messages at ascending offsets."""
    steps = [after - before for before, after in pairwise(offsets)]
    return Popped(topic, group, queue_id, offsets[0], steps, next_offset, pop_time, invisible_ms)
