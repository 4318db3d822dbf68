"""ConsumeQueue: one queue of a topic, with a 20-byte unit for each message.

A unit is ``int64 log offset, int32 size, int64 tags code``; unit n is at byte n x 20 in a sequence of files of the same
size. The units of the current batch and other unwritten units are in ``pending``. They are readable immediately and are
written to the files in blocks; after a crash, recovery rebuilds them.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.layout import QUEUE_UNIT
from cometmq.message.record_arrays import dtype_of
from cometmq.store.config import CQ_UNIT_BYTES
from cometmq.store.disk import Disk, open_file, replace_whole
from cometmq.store.log.mapped_file import clear_from, file_name, first_data
from cometmq.store.log.record_scan import LogRecord

UNIT: Final = QUEUE_UNIT.struct()
UNIT_DTYPE: Final = dtype_of(QUEUE_UNIT)
BLANK_UNIT: Final = UNIT.pack(0, 0x7FFFFFFF, 0)
"""Content of the units before a queue's first message if the queue does not start at 0."""
BLANK_SIZE: Final = 0x7FFFFFFF
MAX_QUEUE_ID: Final = 0x7FFFFFFF
_BLANK_UNITS: Final = 4_096
"""Number of blank units that are skipped in one step."""


def unit_before(log_begin: int) -> bytes:
    """Return the last unit for a queue whose messages are all older than the log, which begins at ``log_begin``.

    Like the units of these messages, it points below the log. If the last unit were blank, Apache would regard the log
    as dispatched up to 2 GiB, and would not create units for new messages. If the log still begins at 0, no offset is
    below it, and the unit is blank.
    """
    return UNIT.pack(log_begin - 1, 1, 0) if log_begin else BLANK_UNIT


_NONE: Final[set[int]] = set()
"""Set shared by all queues that have no damage. It is never changed."""
_UNMAPPED: Final[dict[int, memoryview]] = {}
"""Dict shared by all queues that have no mapped files. It is never changed."""


class QueueFiles:
    """The queue files of a store: their mappings, and which of them were written since their last flush.

    If there are too many mappings, the oldest one is closed, since each of them holds a file descriptor. Existing
    slices remain readable, and a file that is needed again is mapped again.
    """

    def __init__(self, root: str, most: int) -> None:
        self.root = root
        """The directory of all queues."""
        self.unsynced: dict[ConsumeQueue, set[int]] = {}
        """Start offsets of the files written since their last flush, by queue."""
        self._most = most
        self._made: deque[tuple[dict[int, memoryview], int]] = deque()

    def mapped(self, views: dict[int, memoryview], start: int) -> None:
        """Register a mapping that was added to ``views`` at ``start``. If there are too many mappings, close the oldest
        one.
        """
        self._made.append((views, start))
        if len(self._made) > self._most:
            views, start = self._made.popleft()
            views.pop(start, None)

    def close(self) -> None:
        """Close all mappings. Existing slices remain readable."""
        while self._made:
            views, start = self._made.popleft()
            views.pop(start, None)

    def written(self, queue: ConsumeQueue, start: int) -> None:
        """Remember that a file was written and must be flushed."""
        starts = self.unsynced.get(queue)
        if starts is None:
            self.unsynced[queue] = {start}
        else:
            starts.add(start)


class ConsumeQueue:
    """A consume queue: its topic as stored in records, its offsets and its units.

    ``next_offset`` is the offset that the next message gets, ``committed`` the offset up to which messages are stored,
    and ``readable`` the offset up to which they may be read. The messages between the first two belong to the current
    batch. The last two differ only in a failover set (:mod:`cometmq.store.queue.readable`).
    """

    __slots__ = (
        "__weakref__",
        "_shared",
        "_views",
        "_written",
        "committed",
        "delay_ms",
        "dirty",
        "file_size",
        "files",
        "known_from",
        "life",
        "lost",
        "min_logical",
        "missing",
        "next_offset",
        "pending",
        "queue_id",
        "readable",
        "record_middle",
        "records_from",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, file_size: int, shared: QueueFiles, delay_ms: int = 0) -> None:
        self.topic = topic
        self.queue_id = queue_id
        name = topic.encode()
        self.record_middle = bytes((len(name),)) + name if len(name) <= MAX_TOPIC_CHARS else b""
        """Length and bytes of the topic as stored in records. It is empty for a RocketMQ 5 topic whose name is too long
        for these records.
        """
        self.delay_ms = delay_ms
        """Delay that is added to the store timestamp to get a unit's tags code in the schedule topic."""
        self.next_offset = self.committed = self.readable = 0
        self.life = 0
        """Number of times that the queue's content was replaced, as by the deletion of its topic."""
        self.min_logical = self.records_from = 0
        """Log offset below which none of the queue's readable records are, if it is known; otherwise 0."""
        self.known_from = 0
        """Queue offset from which on all units were appended by this process, each after its record."""
        self.lost = _NONE
        """Offsets whose units point to no record, and whose records were not found."""
        self.missing = _NONE
        """Unreadable offsets that neither a start nor a job has marked as lost."""
        self.pending = bytearray()
        self.dirty = False
        """True while the queue is in the list of queues that have pending units."""
        self.file_size = file_size
        """The size of each file in bytes."""
        self._written = 0
        self.files: list[int] = []
        """The start offsets of the files, in ascending order."""
        self._views = _UNMAPPED
        self._shared = shared

    @property
    def key(self) -> tuple[str, int]:
        """The topic and the id of the queue."""
        return self.topic, self.queue_id

    @property
    def topic_bytes(self) -> bytes:
        """The topic's bytes as stored in records."""
        return self.topic.encode()

    @property
    def index_prefix(self) -> str:
        """The prefix of the queue's keys in the index."""
        return self.topic + "#"

    @property
    def directory(self) -> Path:
        """The directory of the queue's files."""
        return Path(self._shared.root, self.topic, str(self.queue_id))

    def path(self, start: int) -> str:
        """Return the path of the file that begins at byte ``start``."""
        return f"{self._shared.root}/{self.topic}/{self.queue_id}/{start:020d}"

    # --- offsets ------------------------------------------------------------------------------
    def min_offset(self) -> int:
        """Return the first readable offset."""
        return self.min_logical

    def max_offset(self) -> int:
        """Return the offset after the last readable message."""
        return self.readable

    @property
    def file_units(self) -> int:
        """Number of units per file."""
        return self.file_size // CQ_UNIT_BYTES

    @property
    def first_stored(self) -> int:
        """First queue offset that has a position in the files."""
        return self.files[0] // CQ_UNIT_BYTES if self.files else self._written

    def open_at(self, files: list[int], max_offset: int) -> None:
        """Use existing files that contain units up to ``max_offset``."""
        self.files = files
        self._views.clear()
        self.lost = self.missing = _NONE
        self.pending.clear()
        self.next_offset = self.committed = self.readable = self._written = self.known_from = max_offset
        self.life += 1
        self.min_logical = self.first_stored
        self.records_from = 0

    # --- reading ------------------------------------------------------------------------------
    def units(self, offset: int, count: int, *, stored: bool = False) -> bytes | memoryview:
        """Return the bytes of up to ``count`` units from ``offset`` on, at most to the end of its file.

        The result is empty if there is no readable unit at ``offset``.

        :param stored: also return units of messages that are stored, but may not be read yet.
        """
        count = min(count, (self.committed if stored else self.readable) - offset)
        written = self._written
        if count <= 0 or offset < 0:
            return b""
        if offset >= written:
            at = (offset - written) * CQ_UNIT_BYTES
            return bytes(self.pending[at : at + count * CQ_UNIT_BYTES])
        byte = offset * CQ_UNIT_BYTES
        start = byte - byte % self.file_size
        view = self._views.get(start)
        if view is None:
            view = self._map(start)
            if view is None:
                return b""
        at = byte - start
        if offset + count <= written:
            return view[at : at + count * CQ_UNIT_BYTES]
        in_files = view[at : at + (written - offset) * CQ_UNIT_BYTES]
        if at + count * CQ_UNIT_BYTES > self.file_size:
            return in_files
        return bytes(in_files) + self.pending[: (offset + count - written) * CQ_UNIT_BYTES]

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return ``(log offset, size, tags code)`` of one unit, also of a message that may not be read yet."""
        raw = self.units(offset, 1, stored=True)
        return UNIT.unpack(raw) if len(raw) == CQ_UNIT_BYTES else None

    def tags_code_of(self, record: LogRecord) -> int:
        """Return the tags code for a record's unit."""
        return record.store_timestamp + self.delay_ms if self.delay_ms else record.tags_code

    def _map(self, start: int) -> memoryview | None:
        if start not in self.files:
            return None
        try:
            with open_file(self.path(start), os.O_RDONLY) as fd:
                view = memoryview(mmap.mmap(fd, self.file_size, mmap.MAP_SHARED, mmap.PROT_READ))
        except FileNotFoundError:
            return None
        if self._views is _UNMAPPED:
            self._views = {}
        self._views[start] = view
        self._shared.mapped(self._views, start)
        return view

    def offset_of_log(self, log_offset: int) -> int:
        """Return the first queue offset whose record is at or after ``log_offset``. Blank units are ignored."""
        low, high = self.first_stored, self.committed
        if low < high and self._last_real(low, low)[1] >= log_offset:
            return low
        while low < high:
            middle = (low + high) // 2
            place, found = self._last_real(low, middle)
            if found < log_offset:
                low = middle + 1
            else:
                high = place
        while low > self.first_stored and self._is_junk(low - 1, log_offset):
            low -= 1
        return low

    def _is_junk(self, offset: int, log_offset: int) -> bool:
        """Return whether a unit is not blank and points to ``log_offset`` or later, so that its record may exist."""
        unit = self.unit(offset)
        return unit is not None and unit[1] != BLANK_SIZE and not (unit[1] > 0 and 0 <= unit[0] < log_offset)

    def _last_real(self, low: int, at: int) -> tuple[int, int]:
        """Return the last offset from ``low`` to ``at`` that has a plausible unit, and its log offset, or -1 if there
        is none.

        A unit is not plausible if it is blank, or if its log offset is after that of the next unit.
        """
        while True:
            first = max(low, at - at % self.file_units, at - _BLANK_UNITS)
            units = np.frombuffer(self.units(first, at + 2 - first, stored=True), UNIT_DTYPE)
            offsets = units["offset"].astype(np.int64)
            real = (units["size"] > 0) & (units["size"] != BLANK_SIZE) & (offsets >= 0)
            real[:-1] &= (offsets[:-1] < offsets[1:]) | ~real[1:]
            real[1:] &= (offsets[:-1] < offsets[1:]) | ~real[:-1]
            hits = np.flatnonzero(real[: at + 1 - first])
            if len(hits):
                return first + int(hits[-1]), int(offsets[hits[-1]])
            if first == low:
                return low, -1
            at = first - 1

    # --- writing ------------------------------------------------------------------------------
    def undo_batch(self) -> None:
        """Discard the units that were added since the last commit."""
        self.next_offset = self.committed
        del self.pending[(self.committed - self._written) * CQ_UNIT_BYTES :]

    def undo_from(self, log_offset: int) -> None:
        """Discard the units that were added since the last commit and whose records are at or after ``log_offset``."""
        while self.next_offset > self.committed and UNIT.unpack(self.pending[-CQ_UNIT_BYTES:])[0] >= log_offset:
            del self.pending[-CQ_UNIT_BYTES:]
            self.next_offset -= 1

    def write_pending(self, disk: Disk) -> None:
        """Write the committed units that are only in memory to the files.

        :raises OSError: the units cannot be written; they remain readable from memory.
        """
        offset, units = self.unwritten()
        if units:
            self.write_units(disk, offset, units)
            self.wrote(offset, len(units) // CQ_UNIT_BYTES, ())

    @property
    def has_unwritten(self) -> bool:
        """True while some of the committed units are only in memory."""
        return self.committed > self._written

    def ends_in_files_at(self, end: int) -> bool:
        """Return whether the files contain exactly the units up to ``end``."""
        return self._written == end

    def unwritten(self) -> tuple[int, bytes]:
        """Return the offset of the first committed unit that is only in memory, and the bytes of all of them."""
        count = self.committed - self._written
        return self._written, bytes(self.pending[: count * CQ_UNIT_BYTES])

    def wrote(self, offset: int, count: int, starts: Iterable[int]) -> None:
        """Record that units were written to the files that begin at ``starts``. In the meantime, more units may have
        been added, and retention may have deleted the first of these files.
        """
        for start in starts:
            if not self.files or start >= self.files[0]:
                self._written_to(start)
        fresh = offset + count - self._written
        if fresh > 0:
            del self.pending[: fresh * CQ_UNIT_BYTES]
            self._written += fresh

    def keep_pending(self, units: bytearray) -> None:
        """Keep in memory the units that recovery could not write. They follow the units in the files."""
        self.pending = units
        end = self._written + len(units) // CQ_UNIT_BYTES
        self.next_offset = self.committed = self.readable = self.known_from = end

    def write_units(self, disk: Disk, offset: int, units: bytes) -> None:
        """Write units from ``offset`` on, and create files as needed. Units before the queue's first one are blank.

        :raises OSError: the units could not be written.
        """
        starts: list[int] = []
        try:
            self.write_files(disk, offset, units, starts)
        finally:
            for start in starts:
                self._written_to(start)

    def write_files(self, disk: Disk, offset: int, units: bytes, starts: list[int]) -> None:
        """Write units without changing the queue's state, so that a thread can call this. ``starts`` collects the
        written files.

        :raises OSError: the units could not be written.
        """
        at = 0
        byte = offset * CQ_UNIT_BYTES
        if not self.files and offset % self.file_units:
            self._write(disk, byte - byte % self.file_size, 0, BLANK_UNIT * (offset % self.file_units), starts)
        while at < len(units):
            start = byte - byte % self.file_size
            part = units[at : at + start + self.file_size - byte]
            self._write(disk, start, byte - start, part, starts)
            at += len(part)
            byte += len(part)

    def begin_behind(self, disk: Disk, offset: int, last: bytes) -> None:
        """Let an empty queue that has no files start at ``offset``, and write the unit ``last`` before it.

        :raises OSError: the file cannot be written.
        """
        self.write_units(disk, offset - 1, last)
        self.open_at(self.files, offset)

    def _write(self, disk: Disk, start: int, at: int, data: bytes, starts: list[int]) -> None:
        is_new = start not in self.files and start not in starts
        path = self.path(start)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if is_new else 0), 0o644)
        except FileNotFoundError:
            if not is_new:
                raise
            self.directory.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        try:
            if is_new:
                os.ftruncate(fd, self.file_size)
            if start not in starts:
                starts.append(start)
            disk.write(fd, data, at)
        finally:
            os.close(fd)

    def _written_to(self, start: int) -> None:
        if start not in self.files:
            self.files.append(start)
            self.files.sort()
        self._shared.written(self, start)

    def replace_file(self, disk: Disk, start: int, content: bytes) -> None:
        """Replace a file of units durably. Only recovery uses this.

        :raises OSError: the file cannot be written; the old one is unchanged.
        """
        replace_whole(self.directory / file_name(start), content, disk)
        self._views.pop(start, None)

    def cut(self, offset: int) -> bool:
        """Make ``offset`` the end of the queue. Later bytes in its file are zeroed, and later files are deleted.

        Return True if anything other than zeros followed. Only recovery uses this.
        """
        byte = offset * CQ_UNIT_BYTES
        found = False
        for start in list(self.files):
            if start + self.file_size <= byte:
                continue
            path = self.directory / file_name(start)
            self._views.pop(start, None)
            keep = max(0, byte - start)
            found = _clear_if_used(path, keep, self.file_size) or found
            if keep == 0 and start != self.files[0]:
                path.unlink()
                self.files.remove(start)
            else:
                self._shared.written(self, start)
        self.open_at(self.files, offset)
        return found

    def remove_files_below(self, log_min: int) -> int:
        """Delete the files whose units all point below ``log_min``, but never the last file. Return the number of
        deleted files.
        """
        removed = 0
        while len(self.files) > 1:
            last = self.unit(self.files[1] // CQ_UNIT_BYTES - 1)
            if last is None or (last[1] != BLANK_SIZE and last[0] >= log_min):
                break
            start = self.files.pop(0)
            self._views.pop(start, None)
            Path(self.path(start)).unlink(missing_ok=True)
            removed += 1
        return removed

    def forget(self) -> None:
        """Restart the queue at offset 0, after its files were deleted with the topic."""
        self._shared.unsynced.pop(self, None)
        self.dirty = False
        self.open_at([], 0)

    def note_lost(self, offsets: Iterable[int], missing: Iterable[int]) -> None:
        """Remember which offsets are unreadable (``lost``), and which of them are unexplained (``missing``)."""
        if self.lost is _NONE:
            self.lost, self.missing = set(), set()
        self.lost.update(offsets)
        self.missing.update(missing)

    @property
    def unsynced(self) -> Set[int]:
        """Return the start offsets of the files written since their last flush."""
        return self._shared.unsynced.get(self, _NONE)

    def sync(self, disk: Disk, starts: Set[int]) -> None:
        """Flush files (called in a thread).

        :raises OSError: a file could not be flushed.
        """
        for start in starts:
            with suppress(FileNotFoundError), open_file(self.path(start)) as fd:
                disk.flush(fd)  # unless the file was deleted with its topic or by retention


def _clear_if_used(path: Path, at: int, size: int) -> bool:
    """Zero a file from byte ``at`` on. Return whether it contained anything there."""
    with open_file(path, os.O_RDONLY) as fd:
        used = first_data(fd, at, size) < size
    if used:
        clear_from(path, at, size)
    return used
