"""Position: up to where everything derived from the log was on the disk, in ``comet/position.json``.

Apache's ``checkpoint`` knows times only, so that a recovery by it reads whole log files. This file
says it to the byte, with the end of every queue, and lets a store of any size open at once. It can be
rebuilt from the log; when it is gone, damaged, or does not fit the log, recovery goes by Apache's rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from cometmq.checksum import crc32
from cometmq.message.record import MESSAGE_MAGIC, MIN_RECORD_BYTES, PHYSICAL_OFFSET_AT
from cometmq.store.commit_log import CommitLog, is_filler
from cometmq.store.disk import Disk, replace_whole

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
    version: int = _VERSION

    def belongs_to(self, log: CommitLog) -> bool:
        """Whether the log holds the record that this position ends with."""
        if self.version != _VERSION or not log.min_offset <= self.offset:
            return False
        if log.segments and self.offset > log.segments[-1].end:
            return False
        if self.last_offset < 0:
            return self.offset == log.min_offset
        segment = log.segment_at(self.last_offset)
        end = self.last_offset + self.last_size
        if segment is None or self.last_size <= 0 or end > segment.end:
            return False
        if self.offset != end and (self.offset != segment.end or not is_filler(segment, end - segment.start)):
            return False
        at = self.last_offset - segment.start
        return crc32(segment.view[at : at + self.last_size]) == self.last_crc

    def proves(self, log: CommitLog) -> int:
        """Up to where a log to which it does not belong is known to go all the same; 0 for nowhere.

        It speaks of this log, and its last record is damaged, when that still says where it stands and how long it is.
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


def load_position(path: Path) -> Position | None:
    """Read the file; ``None`` when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Position)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def save_position(path: Path, position: Position, disk: Disk) -> None:
    """Replace the file; the new one survives a power cut.

    :raises OSError: it could not be written; the old one is then still there.
    """
    replace_whole(path, msgspec.json.encode(position), disk)
