"""Position: up to where everything derived from the log was on the disk, in ``comet/position.json``.

Apache's ``checkpoint`` knows times only, so that a recovery by it reads whole log files. This file
says it to the byte, with the end of every queue, and lets a store of any size open at once. It can be
rebuilt from the log; when it is gone, damaged, or does not fit the log, recovery follows Apache's rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cometmq.checksum import crc32
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES, PHYSICAL_OFFSET_AT
from cometmq.store.disk import Disk, replace_whole
from cometmq.store.log.commit_log import CommitLog, is_filler
from cometmq.store.log.mapped_file import MappedFile

_VERSION: Final = 1


class Position(msgspec.Struct, frozen=True):
    """A moment at which log, queues and index agreed and were flushed."""

    offset: int
    """Every record below is flushed, in its queue, and in the index."""
    last_offset: int
    """The last record below ``offset``, -1 when there is none …"""
    last_size: int
    last_crc: int
    """… and the CRC of its bytes: whether this file belongs to this log."""
    queues: dict[str, dict[int, tuple[int, int]]]
    """The first offset in the files and the maxOffset of each queue, by topic."""
    index_files: list[tuple[str, int, int, int]] = []
    """Name, next entry, last log offset and last store timestamp of each index file, oldest first."""
    marks: dict[int, int] = {}
    """The mark (:func:`marks_of`) of some of the log's files, by the offset of their first byte."""
    made_anew: bool | msgspec.UnsetType = msgspec.UNSET
    """True when a job has made queues and index anew since: the ends of queues hold, all else is to be checked."""
    version: int = _VERSION
    crc: int = 0
    """The checksum of this file with 0 here; 0 in files of older versions."""

    def belongs_to(self, log: CommitLog) -> bool:
        """True when the log holds the record that this position ends with."""
        if self.version != _VERSION or not log.min_offset <= self.offset:
            return False
        if log.segments and self.offset > log.segments[-1].end:
            return False
        if self.last_offset < 0:
            return self._ends_behind(log, log.min_offset)
        segment = log.segment_at(self.last_offset)
        end = self.last_offset + self.last_size
        if segment is None or self.last_size <= 0 or end > segment.end or not self._ends_behind(log, end):
            return False
        at = self.last_offset - segment.start
        return crc32(segment.view[at : at + self.last_size]) == self.last_crc

    def _ends_behind(self, log: CommitLog, at: int) -> bool:
        """True when nothing but fillers stands between ``at`` and the end."""
        while at < self.offset:
            segment = log.segment_at(at)
            if segment is None or not is_filler(segment, at - segment.start):
                return False
            at = segment.end
        return at == self.offset

    def is_of(self, log: CommitLog) -> bool:
        """True when it was written for this log, which may have lost its end since.

        A file of the log begins as it did then, or no file begins with a record any more. Only a position file that
        is whole proves it: places behind the end of the log cannot be compared with anything.
        """
        if self.version != _VERSION or self.crc != _crc_of(self) or self.offset < log.min_offset:
            return False
        marks = {segment.start: mark for segment in log.segments if (mark := _mark_of(segment)) is not None}
        return not marks or any(self.marks.get(start) == mark for start, mark in marks.items())

    def proves(self, log: CommitLog) -> int:
        """The offset up to which a log is known to go although this file does not belong to it; 0 for none.

        That is so when only its last record is damaged, and still has its own offset and size.
        """
        segment = log.segment_at(self.last_offset) if self.last_offset >= 0 else None
        if self.version != _VERSION or segment is None or not log.min_offset <= self.offset <= log.segments[-1].end:
            return 0
        if self.last_size < MIN_RECORD_BYTES or self.last_offset + self.last_size > min(self.offset, segment.end):
            return 0
        head = segment.view[self.last_offset - segment.start :]
        marks = (
            int.from_bytes(head[:4], "big") == self.last_size,
            int.from_bytes(head[4:8], "big", signed=True) == MESSAGE_MAGIC,
            int.from_bytes(head[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big") == self.last_offset,
        )
        return self.offset if sum(marks) >= 2 else 0


def marks_of(log: CommitLog, known: dict[int, int]) -> dict[int, int]:
    """``known`` for the files that are kept, and the marks of the first and the last one: the CRC of their first bytes.

    A file whose first record is not whole yet, or that begins with none, has no mark.
    """
    marks = {start: mark for start, mark in known.items() if start >= log.min_offset}
    for segment in (*log.segments[:1], *log.segments[-1:]):
        if segment.start not in marks and segment.start + MIN_RECORD_BYTES <= log.position:
            mark = _mark_of(segment)
            if mark is not None:
                marks[segment.start] = mark
    return marks


def _mark_of(segment: MappedFile) -> int | None:
    head = segment.view[:MIN_RECORD_BYTES]
    magic = int.from_bytes(head[4:8], "big", signed=True)
    return crc32(head) if magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) else None


def _crc_of(position: Position) -> int:
    return crc32(msgspec.json.encode(msgspec.structs.replace(position, crc=0)))


def load_position(path: Path) -> Position | None:
    """Read the file; ``None`` when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Position)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def note_made_anew(path: Path) -> None:
    """Let the next start check queues and index, which were made anew; a file that cannot be read goes.

    :raises OSError: it could not be written; the old one is then still there.
    """
    position = load_position(path)
    if position is None:
        path.unlink(missing_ok=True)
    else:
        save_position(path, msgspec.structs.replace(position, made_anew=True), Disk())


def save_position(path: Path, position: Position, disk: Disk) -> None:
    """Replace the file; the new one survives a power cut.

    :raises OSError: it could not be written; the old one is then still there.
    """
    sealed = msgspec.structs.replace(position, crc=_crc_of(position))
    replace_whole(path, msgspec.json.encode(sealed), disk)
