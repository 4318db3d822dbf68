"""Divides a store's log into splits, one for each Spark task, and finds the valid records in a split.

A split is read record by record. A valid record has the magic, its own log offset, consistent lengths, a legal topic,
and a body that matches its CRC. After a damaged record, reading continues at the next position with the right magic and
log offset; the bytes in between are :class:`Damage` and are never decoded. Damaged records are written to
``badRecordsPath``, as a line of JSON with the position, the reason and the first 64 KiB.
"""

from __future__ import annotations

import base64
import mmap
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec
import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import InputPartition

from cometmq.checksum import crc32
from cometmq.message.layout import RECORD
from cometmq.message.record import (
    BLANK_MAGIC,
    CRC_MASK,
    END_FILE_MIN_BLANK_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_BYTES,
    RecordError,
    decode_record,
)
from cometmq.spark.errors import StoreReadError
from cometmq.spark.records.decode import Records
from cometmq.spark.store.files import LogFile, boundaries, log_files
from cometmq.spark.store.options import StoreOptions
from cometmq.spark.store.place import spooled
from cometmq.storage import Storage
from cometmq.store.log.commit_log import FILLER
from cometmq.store.log.log_reader import MAGIC_AT, find_magics
from cometmq.store.log.mapped_file import find_bytes, first_data
from cometmq.store.log.record_scan import is_stored_topic, read_log_record

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Default number of record bytes that are checked together. A single record may be larger."""
_CHUNK_RECORDS: Final = 64 * 1024
"""Maximum number of records that are checked together. Each record uses about 300 bytes in addition to its own size."""
_RECORD_BYTES: Final = 8 * 1024 * 1024
"""Number of bytes that are read after the end of a split, so that a record that wrongly reaches beyond it is judged as
in a local file."""
_SIZE: Final = RECORD.struct("size")
_LINK: Final = RECORD.struct("size", "magic", "physical_offset")
_PHYSICAL_OFFSET: Final = RECORD.struct("physical_offset")


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes in the log that are not a valid record."""

    log_offset: int
    size: int
    reason: str
    data: bytes
    """The damaged bytes, up to the first 64 KiB."""


KEPT_DAMAGE_BYTES: Final = 64 * 1024


def scan(file: LogFile, begin: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Records | Damage]:
    """Yield the valid records that begin at ``begin <= log offset < end`` and the damage between them, in order.

    ``begin`` is the start of the file or of a record, and ``end`` the end of the file or the start of a record. Yielded
    records remain mapped as long as they are used.
    """
    with _opened(file, begin, end) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as view:
        view.madvise(mmap.MADV_SEQUENTIAL)
        at, limit = begin - file.start, end - file.start
        stored_at = 0
        while at < limit:
            records, after = _follow(opened.fileno(), view, file.start, at, min(limit, at + chunk_bytes))
            if records is not None:
                for found in _checked(records, file.start + at):
                    if isinstance(found, Records):
                        stored_at = int(found.store_timestamps[-1])
                    yield found
            at = after
            why = _fault(opened.fileno(), view, file.start, at, stored_at) if at < limit else None
            if why is not None:
                if file.last and end == file.end and first_data(opened.fileno(), at, len(view)) >= len(view):
                    return
                after = _next_record(view, file.start, at + 1, limit)
                yield Damage(file.start + at, after - at, why, view[at : min(after, at + KEPT_DAMAGE_BYTES)])
                at = after
            elif at < limit and _is_filler(view, at):
                return


def _opened(file: LogFile, begin: int, end: int) -> AbstractContextManager[IO[bytes]]:
    """Open a log file in which at least the records of a split can be read."""
    if file.stored is None:
        return Path(file.path).open("rb")
    size = file.end - file.start
    return spooled(file.stored, size, begin - file.start, min(size, end - file.start + _RECORD_BYTES))


def _follow(fd: int, view: mmap.mmap, base: int, begin: int, limit: int) -> tuple[Records | None, int]:
    """Follow the record sizes from ``begin`` to ``limit``. Return complete records with the right log offsets, and the
    end of the last record.
    """
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
    # All records are checked together afterwards, so following the size of an invalid record does no harm.
    found = Records(_mapped(fd, view, begin, min(at, len(view))), np.array(places, np.int64) - begin)
    true = found.whole & (found.physical_offsets == found.starts + (base + begin))
    if true.all():
        return found, at
    first = int(np.argmin(true))
    return found.rows(slice(0, first)) if first else None, places[first]


def _mapped(fd: int, view: mmap.mmap, begin: int, end: int) -> memoryview:
    """Map part of the file separately, and free its pages in ``view``. The new mapping lasts until it is no longer
    used.
    """
    first = begin - begin % mmap.ALLOCATIONGRANULARITY
    view.madvise(mmap.MADV_DONTNEED, first, end - first)
    return memoryview(mmap.mmap(fd, end - first, offset=first, access=mmap.ACCESS_READ))[begin - first :]


def _fault(fd: int, view: mmap.mmap, base: int, at: int, stored_at: int) -> str | None:
    """Return the reason why no record begins at ``at``, or None if a record or the filler begins there.

    :param stored_at: store timestamp of the last valid record before ``at``.
    """
    if _is_filler(view, at):
        return "it marks the end of the file, and records follow" if _goes_on(fd, view, base, at, stored_at) else None
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
    """Return True if the rest of the file is the filler after the last record."""
    if len(view) - at < FILLER.size:
        return False
    size, magic = FILLER.unpack_from(view, at)
    return bool(magic == BLANK_MAGIC and size == len(view) - at)


def _goes_on(fd: int, view: mmap.mmap, base: int, at: int, stored_at: int) -> bool:
    """Return True if a valid record, stored at ``stored_at`` or later, follows the filler at ``at``.

    Older records were truncated by Apache, which does not erase them.
    """
    with memoryview(view) as bytes_of_file:
        return any(
            (record := read_log_record(bytes_of_file, place, base + place, check_crc=True)) is not None
            and record.store_timestamp >= stored_at
            for place in find_magics(fd, bytes_of_file, at + END_FILE_MIN_BLANK_BYTES, len(view))
        )


def _next_record(view: mmap.mmap, base: int, at: int, limit: int) -> int:
    """Return the position at which the next record or the filler seems to begin, or ``limit`` if there is none."""
    nearest = limit
    for magic, confirmed in _SIGNS:
        found = find_bytes(view, magic, at + MAGIC_AT, nearest + FILLER.size)
        while found >= 0:
            if confirmed(view, base, found - MAGIC_AT):
                nearest = min(nearest, found - MAGIC_AT)
                break
            found = find_bytes(view, magic, found + 1, nearest + FILLER.size)
    return nearest


def _names_its_place(view: mmap.mmap, base: int, at: int) -> bool:
    return bool(len(view) - at >= _PHYSICAL_OFFSET.size and _PHYSICAL_OFFSET.unpack_from(view, at)[0] == base + at)


_SIGNS: Final = (
    (struct.pack(">i", MESSAGE_MAGIC), _names_its_place),
    (struct.pack(">i", MESSAGE_MAGIC_V2), _names_its_place),
    (struct.pack(">i", BLANK_MAGIC), lambda view, _, at: _is_filler(view, at)),
)
"""Magic numbers with a second check each, since a body may contain any four bytes."""


def _checked(records: Records, base: int) -> Iterator[Records | Damage]:
    """Separate complete records into valid records and damage, in order."""
    first = 0
    for row in np.flatnonzero(~_sound(records)).tolist() if len(records) else ():
        if row > first:
            yield records.rows(slice(first, row))
        at, size = int(records.starts[row]), int(records.sizes[row])
        data = bytes(records.source[at : at + min(size, KEPT_DAMAGE_BYTES)])
        yield Damage(base + at, size, _reason(records.source, at), data)
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
    """Mark records that have a legal topic and a body that matches its CRC."""
    names, codes = records.topic_codes
    legal = np.array([is_stored_topic(topic) for topic in names], np.bool_)
    at, lengths = records.body_slices
    view = memoryview(records.source)
    crcs = [crc32(view[a : a + n]) for a, n in zip(at.tolist(), lengths.tolist(), strict=True)]
    sound: npt.NDArray[np.bool_] = ((np.array(crcs, np.int64) & CRC_MASK) == records.number("body_crc")) & legal[codes]
    return sound


SPLIT_BYTES: Final = 128 * 1024 * 1024
"""Number of log bytes in a split, if the consume queues show a record at which to cut."""
_QUEUES_ASKED: Final = 16
"""Maximum number of consume queues that are searched for the start of a record. One queue with messages in that part of
the log is enough.
"""


@dataclass
class LogSplit(InputPartition):
    """A split: the records that begin in one part of a log file."""

    file: LogFile
    begin: int
    end: int


class BadRecord(msgspec.Struct, frozen=True, rename="camel"):
    """One line in the file of damaged records: log bytes that are not a valid record, and the reason."""

    file: str
    log_offset: int
    size: int
    reason: str
    data: str
    """The bytes in base64, up to the first 64 KiB."""


def splits(options: StoreOptions) -> list[LogSplit]:
    """Cut the log into splits.

    :raises StoreReadError: the log is missing.
    """
    place = options.open_place()
    files = log_files(place)
    queues = options.open_queues().largest(_QUEUES_ASKED) if options.use_consume_queue else []
    size = min(SPLIT_BYTES, sum(file.end - file.start for file in files) // options.min_partitions + 1)
    found: list[LogSplit] = []
    for file in files:
        begin = file.start
        for end in boundaries(place, file, -(-(file.end - file.start) // size), queues):
            found.append(LogSplit(file, begin, end))
            begin = end
    return found


def sound_records(split: LogSplit, bad_records: Storage | None, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Records]:
    """Yield the valid records of a split in log order. Damaged records are written to ``bad_records``.

    :param chunk_bytes: number of log bytes that are yielded together.
    :raises StoreReadError: a record is damaged and ``bad_records`` is not set.
    """
    lines: list[bytes] = []
    for found in scan(split.file, split.begin, split.end, chunk_bytes):
        if isinstance(found, Records):
            yield found
        elif bad_records is None:
            raise StoreReadError(
                f"{split.file.path}: the record at log offset {found.log_offset} is damaged: {found.reason}",
                next_step="set option badRecordsPath to a directory for damaged records; all others are then read",
            )
        else:
            lines.append(_line(split.file, found))
    if lines and bad_records is not None:
        bad_records.put(f"bad-{split.begin:020d}-{split.end:020d}.json", b"".join(lines))


def _line(file: LogFile, damage: Damage) -> bytes:
    data = base64.b64encode(damage.data).decode("ascii")
    return msgspec.json.encode(BadRecord(file.path, damage.log_offset, damage.size, damage.reason, data)) + b"\n"
