"""CommitLog: the files that hold all records in order (``CommitLog``, ``AllocateMappedFileService``).

All files have the same size and follow each other without gaps. A record never spans two files. If a record does not
fit, a filler (``int32 remaining size, int32 BLANK_MAGIC``) ends the file. A thread allocates the next file in advance,
so that appends rarely wait for a file and a full disk is detected before anything is written.

The first file of a log is allocated in steps of :data:`RESERVE_BYTES`, each before the write that needs it, so that a
store with few messages does not use a GiB. The same is true for a file that recovery has truncated.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from cometmq.durable import flush_directory
from cometmq.message.layout import RECORD
from cometmq.message.record import BLANK_MAGIC, END_FILE_MIN_BLANK_BYTES, MIN_RECORD_BYTES
from cometmq.store.disk import Disk, delete_large_file
from cometmq.store.errors import StoreError, StoreFailedError, StoreFullError
from cometmq.store.log.mapped_file import MappedFile, create_file, file_name, first_data

_log = logging.getLogger(__name__)
FILLER: Final = RECORD.struct("size", "magic")
_SIZE: Final = RECORD.struct("size")
_ERASE_BYTES: Final = 1 << 18
RESERVE_BYTES: Final = 16 * 1024 * 1024
"""Allocation step, in bytes, for a log file whose space is not fully allocated."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def store_error(error: OSError, doing: str) -> StoreError:
    """Convert a failed system call to a :class:`StoreFullError` or a :class:`StoreError`."""
    if error.errno in _NO_ROOM:
        return StoreFullError(
            f"no space on the disk for {doing}", next_step="free some space; sending then works again"
        )
    return StoreFailedError(f"cannot write {doing}: {error.strerror or error}", next_step="check the disk")


class CommitLog:
    """The log's segments, the end of their records, and the segment that was created in advance."""

    def __init__(self, directory: Path, segment_size: int, disk: Disk) -> None:
        self.directory = directory
        self.segment_size = segment_size
        self.segments: list[MappedFile] = []
        self.position = 0
        """Log offset after the last written record. Everything before it is readable."""
        self.last_record = (-1, 0)
        """Log offset and size of the last record, or ``(-1, 0)`` if there is none."""
        self.last_timestamp = 0
        """Store timestamp (ms) of the last record, or 0 if there is none."""
        self._disk = disk
        self._ahead: Future[MappedFile] | None = None
        self._reported_no_room = False
        self._owed: Callable[[], None] | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-allocate")

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that still exists."""
        return self.segments[0].start if self.segments else self.position

    @property
    def max_record_bytes(self) -> int:
        """The size of the largest record that fits into one file."""
        return self.segment_size - END_FILE_MIN_BLANK_BYTES

    def segment_at(self, offset: int) -> MappedFile | None:
        """Return the segment that contains the byte at ``offset``, or ``None`` if the log does not contain it."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].start) // self.segment_size
        return segments[index] if 0 <= index < len(segments) else None

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes at ``offset``, or ``None`` unless all of them are written, still in the log and in one
        file.
        """
        if size < 0 or offset + size > self.position:
            return None
        segment = self.segment_at(offset)
        if segment is None or offset + size > segment.end:
            return None
        at = offset - segment.start
        return segment.view[at : at + size]

    def record(self, offset: int) -> memoryview | None:
        """Return the bytes of the record at ``offset``. Their length is read from the record's size field."""
        segment = self.segment_at(offset)
        if segment is None:
            return None
        at = offset - segment.start
        readable = min(self.position, segment.end) - offset
        if readable < MIN_RECORD_BYTES:
            return None
        size: int = _SIZE.unpack_from(segment.view, at)[0]
        return segment.view[at : at + size] if MIN_RECORD_BYTES <= size <= readable else None

    # --- growing ------------------------------------------------------------------------------
    def start_next_segment(self) -> None:
        """Start creating the next segment in a thread, unless this is already in progress."""
        if self._ahead is None:
            self._ahead = self._worker.submit(self._create, self._next_start())
            self._ahead.add_done_callback(self._warn_of_full_disk)

    def _next_start(self) -> int:
        return self.segments[-1].end if self.segments else self.position

    def _warn_of_full_disk(self, made: Future[MappedFile]) -> None:
        """Log that the next segment could not be created. Further failures are logged only after a success."""
        error = made.exception()
        if isinstance(error, OSError) and not self._reported_no_room:
            _log.warning("%s", store_error(error, f"the next log file of {self.segment_size:,} bytes"))
        self._reported_no_room = error is not None

    def next_segment(self) -> MappedFile:
        """Append the next segment to the log. Wait for it if it is not ready.

        :raises StoreError: the segment cannot be created.
        """
        self.start_next_segment()
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        try:
            segment = ahead.result() if ahead.exception() is None else self._create(self._next_start())
        except OSError as error:
            raise store_error(error, f"the next log file of {self.segment_size:,} bytes") from error
        self.segments.append(segment)
        return segment

    def undo_segment(self, segment: MappedFile) -> None:
        """Remove an appended segment that contains no records yet. It becomes the next segment again."""
        assert self.segments[-1] is segment
        self.remove_next_segment()
        self.segments.pop()
        ready: Future[MappedFile] = Future()
        ready.set_result(segment)
        self._ahead = ready

    def begin_at(self, offset: int) -> None:
        """Start an empty log at ``offset``, which is the first byte of a file."""
        self.remove_next_segment()
        while self.segments:
            self.remove_first()
        self.position = offset

    def _create(self, start: int) -> MappedFile:
        path = self.directory / file_name(start)
        if path.exists():
            path.unlink()  # created in advance by this broker and never used: recovery quarantines other files
        is_first = start == 0
        create_file(path, self.segment_size, self._disk, min(self.segment_size, RESERVE_BYTES) if is_first else None)
        flush_directory(self.directory)
        return MappedFile(path, start, self.segment_size)

    def remove_next_segment(self) -> None:
        """Remove the segment that was created in advance."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        try:
            segment = ahead.result()
        except OSError:
            return
        segment.close()
        segment.path.unlink(missing_ok=True)

    # --- writing ------------------------------------------------------------------------------
    def write(self, segment: MappedFile, offset: int, data: bytes | memoryview) -> None:
        """Write ``data``, which fits into ``segment``, at log offset ``offset``.

        :raises StoreError: the data was not written completely.
        """
        try:
            if self._owed is not None:
                self._owed()
                self._owed = None
            at = offset - segment.start
            if at + len(data) > segment.reserved:
                self._reserve(segment, at, len(data))
            self._disk.write(segment.fd, data, at)
        except OSError as error:
            raise store_error(error, "new messages") from error

    def _reserve(self, segment: MappedFile, at: int, size: int) -> None:
        """Allocate space for a write of ``size`` bytes at byte ``at`` of a segment, and some more for later writes."""
        size = min(max(size, RESERVE_BYTES), segment.size - at)
        self._disk.allocate(segment.fd, at, size)
        segment.reserved = at + size

    def run_before_writes(self, work: Callable[[], None]) -> None:
        """Run ``work`` before the next write to the log. Writes fail as long as ``work`` raises ``OSError``."""
        self._owed = work

    def erase(self, start: int, end: int) -> None:
        """Zero the bytes from ``start`` to ``end`` after a write that failed half-way.

        All of them must be zeroed, because after a damaged part a later start would accept every complete record.
        Nothing else is written until this succeeds.
        """
        if self._owed is not None:
            return  # nothing was written: the pending work runs first
        try:
            self._erase(start, end)
        except OSError as error:
            _log.warning(
                "an incomplete write at %d could not be erased, so messages are refused until this succeeds: %s",
                start,
                error,
            )
            self.run_before_writes(lambda: self._erase(start, end))

    def _erase(self, start: int, end: int) -> None:
        for segment in (*self.segments, *self._ready()):
            at = max(start, segment.start) - segment.start
            limit = min(end, segment.end) - segment.start
            while at < limit and (at := first_data(segment.fd, at, limit)) < limit:
                part = min(_ERASE_BYTES, limit - at)
                self._disk.write(segment.fd, bytes(part), at)
                at += part

    def _ready(self) -> list[MappedFile]:
        """Return the segment that was created in advance, if it is ready. If it was used before, it may contain bytes
        to erase.
        """
        ahead = self._ahead
        return [ahead.result()] if ahead is not None and ahead.done() and ahead.exception() is None else []

    def flush(self, start: int, end: int) -> None:
        """Flush the bytes from ``start`` to ``end`` (called in a thread).

        :raises OSError: a file could not be flushed.
        """
        for segment in list(self.segments):
            if segment.start < end and segment.end > start and (fd := segment.fd) >= 0:
                self._disk.flush(fd)

    def rest(self, flushed: int) -> None:
        """Close the descriptors of all files but the last that are flushed up to their end; no flush may be running.

        A descriptor that was open during a failed flush is the only one that certainly learns of it.
        """
        for segment in self.segments[:-1]:
            if segment.end <= flushed:
                segment.rest()

    def remove_first(self) -> MappedFile:
        """Remove the oldest segment and its file. Existing slices of it remain readable."""
        segment = self.segments.pop(0)
        delete_large_file(segment.path, segment.view.obj)
        segment.close()
        return segment

    def close(self) -> None:
        """Close the files and remove the segment that was created in advance."""
        self.remove_next_segment()
        self._worker.shutdown()
        for segment in self.segments:
            segment.close()


def filler(rest: int) -> bytes:
    """Return the filler for a log file with ``rest`` remaining bytes."""
    return FILLER.pack(rest, BLANK_MAGIC)


def is_filler(segment: MappedFile, at: int) -> bool:
    """Return whether a filler starts at byte ``at``."""
    if at + FILLER.size > segment.size:
        return False
    rest, magic = FILLER.unpack_from(segment.view, at)
    return bool(magic == BLANK_MAGIC and rest == segment.size - at)
