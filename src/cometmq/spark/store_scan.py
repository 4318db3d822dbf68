"""Reads a stretch of a log record by record, checks each, and finds its way on behind damage.

A sound record has the magic, its own log offset, lengths that add up, a legal topic, and a body that matches its
CRC. Behind a damaged one reading goes on at the next place where magic and log offset are right; what lies between
is handed on as :class:`Damage` and never decoded.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.message.record import BLANK_MAGIC, CRC_MASK, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, RecordError, decode_record
from cometmq.spark.decode import Records
from cometmq.spark.slices import Positions
from cometmq.spark.store_files import LogFile
from cometmq.store.mapped_file import first_data
from cometmq.store.record_scan import is_stored_topic

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of records that are checked together; one record may be larger. An archive decodes those of each queue by
themselves, so a quarter of this size took a third more time."""
_HEAD: Final = struct.Struct(">ii")
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


def scan(file: LogFile, begin: int, end: int) -> Iterator[Records | Damage]:
    """Yield the sound records that begin at ``begin <= log offset < end`` and the damage between them, in order.

    ``begin`` is the start of the file or of a record.
    """
    with Path(file.path).open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view:
        view.madvise(mmap.MADV_SEQUENTIAL)
        at, limit = begin - file.start, end - file.start
        while at < limit:
            first = at
            starts, at, why = _follow(view, file.start, at, min(limit, at + CHUNK_BYTES))
            if starts:
                yield from _checked(view[first:at], np.array(starts, np.int64), file.start + first)
            if why is not None:
                if file.last and first_data(opened.fileno(), at, len(view)) >= len(view):
                    return
                after = _next_record(view, file.start, at + 1, limit)
                yield Damage(file.start + at, after - at, why, view[at : min(after, at + KEPT_DAMAGE_BYTES)])
                at = after
            elif at < limit and _is_filler(view, at):
                return


def _follow(view: mmap.mmap, base: int, at: int, limit: int) -> tuple[list[int], int, str | None]:
    """Follow sizes from ``at`` on; return where records begin (counted from ``at``), where it ended, and why."""
    starts: list[int] = []
    first, length = at, len(view)
    link_at = _LINK.unpack_from
    while at < limit:
        if length - at < _LINK.size:
            return starts, at, None if _is_filler(view, at) else "the file ends within it"
        size, magic, log_offset = link_at(view, at)
        if magic != MESSAGE_MAGIC and magic != MESSAGE_MAGIC_V2:
            return starts, at, None if _is_filler(view, at) else "it has the magic of no record"
        if log_offset != base + at:
            return starts, at, "it does not name its own place in the log"
        if not 0 < size <= length - at:
            return starts, at, f"it claims {size} bytes"
        starts.append(at - first)
        at += size
    return starts, at, None


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


def _checked(data: bytes, starts: Positions, base: int) -> Iterator[Records | Damage]:
    """Split records that follow each other into those that are sound and those that are not, in order."""
    try:
        records = Records(data, starts, check=True)
        bad = np.flatnonzero(~_sound_bodies(records)).tolist()
    except RecordError:
        bad = [row for row, at in enumerate(starts.tolist()) if _fault(data, at) is not None]
    first = 0
    for row in bad:
        if row > first:
            yield Records(data, starts[first:row])
        at = int(starts[row])
        size = _HEAD.unpack_from(data, at)[0]
        why = _fault(data, at) or "its topic has a name that no topic can have"
        yield Damage(base + at, size, why, data[at : at + min(size, KEPT_DAMAGE_BYTES)])
        first = row + 1
    if first < len(starts):
        yield Records(data, starts[first:])


def _fault(data: bytes, at: int) -> str | None:
    try:
        record = decode_record(data, at)
    except RecordError as error:
        return error.message
    return None if is_stored_topic(record.topic) else "its topic has a name that no topic can have"


def _sound_bodies(records: Records) -> npt.NDArray[np.bool_]:
    """Which records have a body that matches its CRC and a topic that can be one."""
    crc32 = zlib.crc32
    view = memoryview(records.source)
    at, lengths = records.body_slices
    found = [crc32(view[a : a + n]) for a, n in zip(at.tolist(), lengths.tolist(), strict=True)]
    sound = (np.array(found, np.int64) & CRC_MASK) == records.body_crcs
    topics = records.topics().dictionary_encode()
    legal = np.array([is_stored_topic(topic) for topic in topics.dictionary.to_pylist()], np.bool_)
    kept: npt.NDArray[np.bool_] = sound & legal[topics.indices.to_numpy()]
    return kept
