"""Finds the end of a log that a broker is writing: the end of the last complete record."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from cometmq.message.record import BLANK_MAGIC, MIN_RECORD_BYTES
from cometmq.store.log.record_scan import SIZE_MAGIC, read_log_record

_NAME_CHARS: Final = 20


def segments_of(directory: Path) -> list[tuple[int, Path]]:
    """Return a log's or queue's files with their start offsets, in order."""
    try:
        files = [path for path in directory.iterdir() if len(path.name) == _NAME_CHARS and path.name.isdecimal()]
    except FileNotFoundError:
        return []
    return [(int(path.name), path) for path in sorted(files)]


def is_begun(path: Path) -> bool:
    """Return True if a log file begins with a record. Brokers create log files in advance, without records."""
    with path.open("rb") as file:
        return any(file.read(SIZE_MAGIC.size))


def end_of_records(path: Path, start: int) -> int:
    """Return the total length of the complete records in a log file, including the filler if the file is full. The
    records' CRCs are checked.

    A record that the broker is still writing counts if it is already complete.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 0
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            at = 0
            while at + SIZE_MAGIC.size <= size:
                length, magic = SIZE_MAGIC.unpack_from(view, at)
                if magic == BLANK_MAGIC and length == size - at:
                    return size
                if at + MIN_RECORD_BYTES > size or read_log_record(view, at, start + at, check_crc=True) is None:
                    break
                at += length
            return at
