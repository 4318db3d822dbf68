"""Reads a stretch of a log record by record, checks each, and finds its way on behind damage.

A sound record has the magic, its own log offset, lengths that add up, a legal topic, and a body that matches its
CRC. Behind a damaged one reading goes on at the next place where magic and log offset are right; what lies between
is handed on as :class:`Damage` and never decoded.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.checksum import crc32
from cometmq.message.record import (
    BLANK_MAGIC,
    CRC_MASK,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    RecordError,
    decode_record,
)
from cometmq.spark.decode import Records
from cometmq.spark.store_files import LogFile
from cometmq.store.mapped_file import first_data
from cometmq.store.record_scan import is_stored_topic

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of records that are checked together, unless more are asked for; one record may be larger."""
_CHUNK_RECORDS: Final = 64 * 1024
"""Records that are checked together: what is known of each takes some 300 bytes, however small it is."""
_HEAD: Final = struct.Struct(">ii")
_SIZE: Final = struct.Struct(">i")
_LINK: Final = struct.Struct(">ii20xq")
"""Size, magic and log offset."""
_PHYSICAL_OFFSET: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are not a sound record."""

    log_offset: int
    size: int
    reason: str
    data: bytes
    """The bytes themselves, at most the first 64 KiB."""


KEPT_DAMAGE_BYTES: Final = 64 * 1024


def scan(file: LogFile, begin: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Records | Damage]:
    """Yield the sound records that begin at ``begin <= log offset < end`` and the damage between them, in order.

    ``begin`` is the start of the file or of a record. What is yielded together stays mapped for as long as it is used.
    """
    with Path(file.path).open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view:
        view.madvise(mmap.MADV_SEQUENTIAL)
        at, limit = begin - file.start, end - file.start
        while at < limit:
            records, after = _follow(opened.fileno(), view, file.start, at, min(limit, at + chunk_bytes))
            if records is not None:
                yield from _checked(records, file.start + at)
            at = after
            why = _fault(view, file.start, at) if at < limit else None
            if why is not None:
                if file.last and first_data(opened.fileno(), at, len(view)) >= len(view):
                    return
                after = _next_record(view, file.start, at + 1, limit)
                yield Damage(file.start + at, after - at, why, view[at : min(after, at + KEPT_DAMAGE_BYTES)])
                at = after
            elif at < limit and _is_filler(view, at):
                return


def _follow(fd: int, view: mmap.mmap, base: int, begin: int, limit: int) -> tuple[Records | None, int]:
    """Follow sizes from ``begin`` towards ``limit``; return the whole records that name their places, and their end."""
    places: list[int] = []
    at, stop, size_at = begin, min(limit, len(view) - MIN_RECORD_BYTES + 1), _SIZE.unpack_from
    for _ in range(_CHUNK_RECORDS):
        if at >= stop:
            break
        (size,) = size_at(view, at)
        if size < MIN_RECORD_BYTES:
            break
        places.append(at)
        at += size
    if not places:
        return None, begin
    # Whether it is a record that was followed is asked of all of them together: a leap into nowhere does no harm.
    found = Records(_mapped(fd, view, begin, min(at, len(view))), np.array(places, np.int64) - begin)
    true = found.whole & (found.physical_offsets == found.starts + (base + begin))
    if true.all():
        return found, at
    first = int(np.argmin(true))
    return found.rows(slice(0, first)) if first else None, places[first]


def _mapped(fd: int, view: mmap.mmap, begin: int, end: int) -> memoryview:
    """Bytes of the file in a mapping of their own, which ends with their last use; ``view`` lets go of them."""
    first = begin - begin % mmap.ALLOCATIONGRANULARITY
    view.madvise(mmap.MADV_DONTNEED, first, end - first)
    return memoryview(mmap.mmap(fd, end - first, offset=first, access=mmap.ACCESS_READ))[begin - first :]


def _fault(view: mmap.mmap, base: int, at: int) -> str | None:
    """Why no record begins at ``at``; None if one does, or the filler."""
    if _is_filler(view, at):
        return None
    if len(view) - at < MIN_RECORD_BYTES:
        return "the file ends within it"
    size, magic, log_offset = _LINK.unpack_from(view, at)
    if magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2:
        return "it has the magic of no record"
    if log_offset != base + at:
        return "it does not name its own place in the log"
    if not MIN_RECORD_BYTES <= size <= len(view) - at:
        return f"it claims {size} bytes"
    try:
        Records(memoryview(view)[at : at + size], np.zeros(1, np.int64)).check()
    except RecordError as error:
        return error.message
    return None


def _is_filler(view: mmap.mmap, at: int) -> bool:
    """Whether the rest of the file is what a broker puts behind the last record."""
    if len(view) - at < 8:
        return False
    size, magic = _HEAD.unpack_from(view, at)
    return bool(magic == BLANK_MAGIC and size == len(view) - at)


def _next_record(view: mmap.mmap, base: int, at: int, limit: int) -> int:
    """Where the next record or the filler seems to begin, ``limit`` when nowhere."""
    nearest = limit
    for magic, confirmed in _SIGNS:
        found = view.find(magic, at + 4, min(nearest + 8, len(view)))
        while found >= 0:
            if confirmed(view, base, found - 4):
                nearest = min(nearest, found - 4)
                break
            found = view.find(magic, found + 1, min(nearest + 8, len(view)))
    return nearest


def _names_its_place(view: mmap.mmap, base: int, at: int) -> bool:
    return bool(len(view) - at >= 36 and _PHYSICAL_OFFSET.unpack_from(view, at + 28)[0] == base + at)


_SIGNS: Final = (
    (struct.pack(">i", MESSAGE_MAGIC), _names_its_place),
    (struct.pack(">i", MESSAGE_MAGIC_V2), _names_its_place),
    (struct.pack(">i", BLANK_MAGIC), lambda view, _, at: _is_filler(view, at)),
)
"""Magics, and what else must hold where one is found: any four bytes may stand in a body."""


def _checked(records: Records, base: int) -> Iterator[Records | Damage]:
    """Split whole records into those whose body and topic are sound and those where they are not, in order."""
    first = 0
    for row in np.flatnonzero(~_sound(records)).tolist() if len(records) else ():
        if row > first:
            yield records.rows(slice(first, row))
        at, size = int(records.starts[row]), int(records.sizes[row])
        kept = bytes(records.source[at : at + min(size, KEPT_DAMAGE_BYTES)])
        yield Damage(base + at, size, _reason(records.source, at), kept)
        first = row + 1
    if first < len(records):
        yield records.rows(slice(first, None)) if first else records


def _reason(data: bytes | memoryview, at: int) -> str:
    try:
        decode_record(data, at)
    except RecordError as error:
        return error.message
    return "its topic has a name that no topic can have"


def _sound(records: Records) -> npt.NDArray[np.bool_]:
    """Which records have a body that matches its CRC and a topic that can be one."""
    names, codes = records.topic_codes
    legal = np.array([is_stored_topic(topic) for topic in names], np.bool_)
    at, lengths = records.body_slices
    view = memoryview(records.source)
    crcs = [crc32(view[a : a + n]) for a, n in zip(at.tolist(), lengths.tolist(), strict=True)]
    sound: npt.NDArray[np.bool_] = ((np.array(crcs, np.int64) & CRC_MASK) == records.number("bodyCrc")) & legal[codes]
    return sound
