"""Position: the log offset up to which all derived data was on disk, recorded in ``comet/position.json``.

Apache's ``checkpoint`` contains only times, so recovery with it reads entire log files. This file contains the exact
log offset and the end of every queue, so that a store of any size opens quickly. It can be rebuilt from the log. If it
is missing, damaged or does not belong to the log, recovery follows Apache's rules.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cometmq.checksum import crc32
from cometmq.message.layout import RECORD
from cometmq.message.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_BYTES
from cometmq.store.disk import Disk, replace_whole
from cometmq.store.log.commit_log import CommitLog, is_filler
from cometmq.store.log.mapped_file import MappedFile
from cometmq.store.queue.consume_queue_table import Extents

_VERSION: Final = 1
_MAGIC: Final = RECORD.struct("magic")
_MARKS: Final = RECORD.struct("size", "magic", "physical_offset")
_TOPICS_AT_ONCE: Final = 256
"""Number of topics that are formatted before other threads may run."""
_ROW: Final = msgspec.json.Decoder(dict[int, tuple[int, int]])


class Position(msgspec.Struct, frozen=True):
    """A state in which the log, queues and index were consistent and flushed."""

    offset: int
    """Log offset below which every record is flushed, and is in its queue and in the index."""
    last_offset: int
    """Log offset of the last record below ``offset``, or -1 if there is none."""
    last_size: int
    last_crc: int
    """CRC of the last record's bytes, which shows whether this file belongs to the log."""
    queues: Extents
    """The first offset in the files and the maxOffset of each queue, by topic."""
    index_files: list[tuple[str, int, int, int]] = []
    """Name, next entry, last log offset and last store timestamp of each index file, oldest file first."""
    marks: dict[int, int] = {}
    """The checksums (:func:`checksums_of_files`) of some log files, by the offset of the file's first byte."""
    made_anew: bool | msgspec.UnsetType = msgspec.UNSET
    """True if a job has rebuilt queues and index since then. In this case only the ends of queues are used, and
    everything else is checked.
    """
    version: int = _VERSION
    crc: int = 0
    """Checksum of this file, computed with 0 in this field. It is 0 in files written by older versions."""

    def belongs_to(self, log: CommitLog) -> bool:
        """Return whether the log contains the last record before this position."""
        if self.version != _VERSION or not log.min_offset <= self.offset:
            return False
        if log.segments and self.offset > log.segments[-1].end:
            return False
        if self.last_offset < 0:
            return self._only_fillers_follow(log, log.min_offset)
        segment = log.segment_at(self.last_offset)
        end = self.last_offset + self.last_size
        if segment is None or self.last_size <= 0 or end > segment.end or not self._only_fillers_follow(log, end):
            return False
        at = self.last_offset - segment.start
        return crc32(segment.view[at : at + self.last_size]) == self.last_crc

    def _only_fillers_follow(self, log: CommitLog, at: int) -> bool:
        """Return whether there are only fillers between ``at`` and the position's offset."""
        while at < self.offset:
            segment = log.segment_at(at)
            if segment is None or not is_filler(segment, at - segment.start):
                return False
            at = segment.end
        return at == self.offset

    def is_of(self, log: CommitLog) -> bool:
        """Return whether the position was written for this log, which may have lost its end since then.

        This is the case if a log file still starts with the same bytes, or if no file starts with a record. Only an
        undamaged position file proves this, since positions after the end of the log cannot be verified.
        """
        if self.version != _VERSION or self.crc != crc_of(self) or self.offset < log.min_offset:
            return False
        marks = {segment.start: mark for segment in log.segments if (mark := _checksum_of_start(segment)) is not None}
        return not marks or any(self.marks.get(start) == mark for start, mark in marks.items())

    def proven_end(self, log: CommitLog) -> int:
        """Return the end that this file proves for a log to which it does not belong, or 0.

        An end is proven only if at least two of the last record's size, magic and offset are still right.
        """
        segment = log.segment_at(self.last_offset) if self.last_offset >= 0 else None
        if self.version != _VERSION or segment is None or not log.min_offset <= self.offset <= log.segments[-1].end:
            return 0
        if self.last_size < MIN_RECORD_BYTES or self.last_offset + self.last_size > min(self.offset, segment.end):
            return 0
        size, magic, offset = _MARKS.unpack_from(segment.view, self.last_offset - segment.start)
        marks = (size == self.last_size, magic == MESSAGE_MAGIC, offset == self.last_offset)
        return self.offset if sum(marks) >= 2 else 0


def checksums_of_files(log: CommitLog, known: dict[int, int]) -> dict[int, int]:
    """Return the marks of the log files in ``known`` that still exist, and of the first and the last file.

    A mark is the CRC of the first bytes of a file. A file whose first record is incomplete or missing has no mark.
    """
    marks = {start: mark for start, mark in known.items() if start >= log.min_offset}
    for segment in (*log.segments[:1], *log.segments[-1:]):
        if segment.start not in marks and segment.start + MIN_RECORD_BYTES <= log.position:
            mark = _checksum_of_start(segment)
            if mark is not None:
                marks[segment.start] = mark
    return marks


def _checksum_of_start(segment: MappedFile) -> int | None:
    head = segment.view[:MIN_RECORD_BYTES]
    return crc32(head) if _MAGIC.unpack_from(head)[0] in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) else None


def crc_of(sealed: msgspec.Struct) -> int:
    """Return the checksum of a small file with a field ``crc``: the CRC of its JSON while this field is 0."""
    return crc32(msgspec.json.encode(msgspec.structs.replace(sealed, crc=0)))


def load_position(path: Path) -> Position | None:
    """Read the position file. Return ``None`` if it is unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Position)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def mark_as_rebuilt(path: Path) -> None:
    """Make the next start check the rebuilt queues and index. An unreadable position file is deleted.

    :raises OSError: the file cannot be written; the old one is unchanged.
    """
    position = load_position(path)
    if position is None:
        path.unlink(missing_ok=True)
    else:
        PositionFile(path, Disk(), position.queues).save(msgspec.structs.replace(position, made_anew=True), ())


class Extent(NamedTuple):
    """First offset of a queue in its files, and its maxOffset, which is 0 if the queue has no messages."""

    topic: str
    queue_id: int
    first: int
    end: int


class ExtentRows(Mapping[str, Mapping[int, tuple[int, int]]]):
    """The extents of all queues by topic, in the format of the position file.

    This uses a quarter of the memory of dictionaries, and a save formats only the topics that changed.
    """

    def __init__(self, extents: Extents) -> None:
        self._rows = {topic: msgspec.json.encode(queues) for topic, queues in extents.items()}

    def __getitem__(self, topic: str) -> Mapping[int, tuple[int, int]]:
        return _ROW.decode(self._rows[topic])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def change(self, changed: Iterable[Extent]) -> None:
        """Update the extents of some queues."""
        by_topic: dict[str, list[Extent]] = {}
        for extent in changed:
            by_topic.setdefault(extent.topic, []).append(extent)
        for topic, extents in by_topic.items():
            row = self._rows.pop(topic, None)
            queues = {} if row is None else _ROW.decode(row)
            for _, queue_id, first, end in extents:
                if end:
                    queues[queue_id] = (first, end)
                else:
                    queues.pop(queue_id, None)
            if queues:
                self._rows[topic] = msgspec.json.encode(queues)

    def pieces(self) -> Iterator[bytes]:
        """Yield the members of the JSON object that contains the topics, several at a time."""
        rows = iter(self._rows.items())
        while part := list(itertools.islice(rows, _TOPICS_AT_ONCE)):
            yield b",".join([msgspec.json.encode(topic) + b":" + row for topic, row in part])


class PositionFile:
    """Writes the position file of a store. It keeps the extents of all queues, so that callers pass only changes.

    Only one thread at a time may use it.
    """

    def __init__(self, path: Path, disk: Disk, extents: Extents) -> None:
        self._path = path
        self._disk = disk
        self.extents = ExtentRows(extents)
        """Extents that are in the file or will be written by the next call."""

    def save(self, position: Position, changed: Iterable[Extent]) -> None:
        """Replace the file with ``position`` and the extents of all queues, and flush it.

        :raises OSError: the file cannot be written; the old one is unchanged.
        """
        self.extents.change(changed)
        replace_whole(self._path, b"".join(self._sealed(position)), self._disk)

    def _sealed(self, position: Position) -> list[bytes]:
        """Return the bytes of the file, with its checksum, as chunks."""
        whole = msgspec.json.encode(msgspec.structs.replace(position, queues={}, crc=0))
        head, _, tail = whole.partition(b'"queues":{}')
        pieces = [head + b'"queues":{']
        for piece in self.extents.pieces():
            pieces += (piece, b",")
            time.sleep(0)  # lets the event loop's thread run
        if len(pieces) > 1:
            pieces.pop()
        pieces.append(b"}" + tail)
        crc = 0
        for piece in pieces:
            crc = crc32(piece, crc)
        pieces[-1] = pieces[-1].removesuffix(b"0}") + b"%d}" % crc
        return pieces
