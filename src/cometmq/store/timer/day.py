"""TimerDay: the delayed messages that are due on one UTC day, stored in two append-only files of units and records.

The files are named like ``2031-05-01.index`` and ``2031-05-01.data``, in ``comet/timer``. A record is written before
its unit, so that every unit points to a record. Bytes that a crash left after the last unit are overwritten.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.checksum import crc32
from cometmq.store.disk import Disk, delete_large_file, open_file
from cometmq.store.timer.position import RENUMBERED
from cometmq.store.timer.unit import RECALL, UNIT_BYTES, UNIT_DTYPE, Chosen, TimerEntry, Units, are_damaged, sound_units

DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime.date(1970, 1, 1)
READ_UNITS: Final = 65_536
"""Number of units per read (3.5 MB). It limits the memory needed to read a day with millions of messages."""
_LAST_UNITS: Final = 64
"""Number of units read at once to find the last sound one, since a start does this for each of a thousand days."""


class OpenFiles:
    """Files that are open for reading. If there are too many, the least recently used file is closed. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, at: int, size: int) -> bytes:
        """Return up to ``size`` bytes of a file at position ``at``.

        :raises OSError: the file cannot be opened or read.
        """
        with self._lock:
            return os.pread(self._descriptor(path), size, at)

    def will_need(self, path: Path, places: Iterable[tuple[int, int]]) -> None:
        """Tell the kernel which parts of a file (position and size) will be read soon."""
        for at, size in places:
            with self._lock:
                os.posix_fadvise(self._descriptor(path), at, size, os.POSIX_FADV_WILLNEED)

    def close(self, path: Path) -> None:
        """Close a file if it is open."""
        with self._lock:
            fd = self._open.pop(path, -1)
            if fd >= 0:
                os.close(fd)

    def __len__(self) -> int:
        return len(self._open)

    def _descriptor(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > self._most:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return fd


class TimerDay:
    """The two files of one day. ``number`` is the number of days since 1970."""

    def __init__(self, directory: Path, number: int, disk: Disk, files: OpenFiles) -> None:
        self.number = number
        name = (_EPOCH + datetime.timedelta(days=number)).isoformat()
        self.index_path = directory / f"{name}.index"
        self.data_path = directory / f"{name}.data"
        self.count = 0
        """Number of units written."""
        self.dirty = False
        """True if anything was written since the last flush."""
        self.lost: list[tuple[int, int, int]] = []
        """Corrections ``(count, serial, added)``: among the first ``count`` units, serials from ``serial`` on are
        increased by ``added``.
        """
        self._damaged: frozenset[int] = frozenset()
        """Numbers of the damaged units before the last unit."""
        self._data_size = 0
        self._disk = disk
        self._files = files

    @property
    def start_ms(self) -> int:
        """Start of the day, in milliseconds since 1970."""
        return self.number * DAY_MS

    @property
    def is_damaged(self) -> bool:
        """True if units before the last one are damaged."""
        return bool(self._damaged)

    # --- opening --------------------------------------------------------------------------------
    def seen(self) -> tuple[int, int, int] | None:
        """Return what shows whether the index has changed, or ``None`` if there is no index."""
        try:
            stat = self.index_path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def recover(self, count: int | None, *, is_unchanged: bool = False) -> str | None:
        """Open the files with ``count`` units, or with all complete units if ``count`` is ``None``. Return a
        description of the fault found, if any.

        :param is_unchanged: the index has not changed since its units were written or checked, so only the last one is
            checked.

        Bytes after the units are not deleted but overwritten later; the log still contains these messages.
        """
        index_bytes = self.index_path.stat().st_size if self.index_path.exists() else 0
        data_bytes = self.data_path.stat().st_size if self.data_path.exists() else 0
        left = index_bytes // UNIT_BYTES if count is None else min(count, index_bytes // UNIT_BYTES)
        while left:
            start = max(0, left - _LAST_UNITS)
            with self.index_path.open("rb") as file:
                file.seek(start * UNIT_BYTES)
                raw = file.read((left - start) * UNIT_BYTES)
            left = start + sound_units(raw)
            if left > start:
                last = np.frombuffer(raw, UNIT_DTYPE, left - start)[-1]
                data_end = int(last["at"]) + int(last["size"])
                if data_end <= data_bytes:
                    self._data_size = data_end
                    break
                left -= 1
        self.count = left
        self._damaged = frozenset() if is_unchanged and left == count else frozenset(self._find_damaged())
        missing = len(self._damaged) + (max(0, count - left) if count is not None else 0)
        if not missing:
            return None
        return (
            f"comet/timer/{self.index_path.name}: {missing} of {left if count is None else count} waiting messages "
            "cannot be read; they are read from the log again, and are lost if it has them no more"
        )

    def _find_damaged(self) -> Iterator[int]:
        first = 0
        for units in self._blocks():
            yield from (first + np.flatnonzero(are_damaged(units))).tolist()
            first += len(units)

    # --- writing --------------------------------------------------------------------------------
    def append(self, entries: Sequence[TimerEntry]) -> None:
        """Write records and their units.

        :raises OSError: nothing counts as written, and the next attempt overwrites the bytes.
        """
        units = []
        at = self._data_size
        for entry in entries:
            units.append(entry.unit(at))
            at += len(entry.record)
        self.dirty = True
        self._write(self.data_path, b"".join([entry.record for entry in entries]), self._data_size)
        self._write(self.index_path, b"".join(units), self.count * UNIT_BYTES)
        self._data_size = at
        self.count += len(entries)

    def mark(self) -> tuple[int, int]:
        """Return the current end of both files, for :meth:`undo`."""
        return self.count, self._data_size

    def undo(self, count: int, data_size: int) -> None:
        """Discard everything appended since :meth:`mark`."""
        self.count = count
        self._data_size = data_size

    def _write(self, path: Path, data: bytes, at: int) -> None:
        with open_file(path, os.O_WRONLY | os.O_CREAT) as fd:
            self._disk.write(fd, data, at)

    def flush(self) -> None:
        """Flush both files.

        :raises OSError: the written data may not survive a power failure.
        """
        for path in (self.data_path, self.index_path):
            with open_file(path) as fd:
                self._disk.flush(fd)
        self.dirty = False

    # --- reading --------------------------------------------------------------------------------
    def units(self, low_ms: int, high_ms: int, before_serial: int) -> Units:
        """Return the units with serials below ``before_serial`` that are due at or after ``low_ms`` and before
        ``high_ms``."""
        found = []
        for units in self._blocks():
            due = units["due"]
            found.append(units[(due >= low_ms) & (due < high_ms) & appended(units, before_serial)])
        return np.concatenate(found) if found else np.empty(0, UNIT_DTYPE)

    def dues(self, low_ms: int, high_ms: int, chosen: Chosen) -> npt.NDArray[np.int64]:
        """Return the due times of all selected units due at or after ``low_ms`` and before ``high_ms``, unsorted, 8
        bytes each.
        """
        found = [np.empty(0, np.int64)]
        for units in self._blocks():
            due = units["due"]
            found.append(due[(due >= low_ms) & (due < high_ms) & chosen(units)])
        return np.concatenate(found)

    def count_without_recalls(self, chosen: Chosen) -> int | None:
        """Return the number of selected units, or ``None`` if any unit is a recall, whose message must be found."""
        count = 0
        for units in self._blocks():
            if (units["kind"] == RECALL).any():
                return None
            count += int(np.count_nonzero(chosen(units)))
        return count

    def first_due(self, from_ms: int, before_serial: int) -> int | None:
        """Return the earliest due time at or after ``from_ms`` of any unit, or ``None`` if there is none."""
        earliest = None
        for units in self._blocks():
            due = units["due"][(units["due"] >= from_ms) & appended(units, before_serial)]
            if len(due):
                first = int(due.min())
                earliest = first if earliest is None else min(earliest, first)
        return earliest

    def _blocks(self) -> Iterator[Units]:
        left = self.count
        if not left:
            return
        with self.index_path.open("rb") as file:
            while left:
                units = np.frombuffer(file.read(min(left, READ_UNITS) * UNIT_BYTES), UNIT_DTYPE)
                if not len(units):
                    return
                yield self._sound(self._renumbered(units, self.count - left), self.count - left)
                left -= len(units)

    def _sound(self, units: Units, first: int) -> Units:
        within = [place - first for place in self._damaged if first <= place < first + len(units)]
        return np.delete(units, within) if within else units

    def _renumbered(self, units: Units, first: int) -> Units:
        if not self.lost:
            return units
        units = units.copy()
        for count, serial, added in self.lost:
            serials = units["serial"][: max(count - first, 0)]
            serials[(serials >= serial) & (serials < RENUMBERED)] += added
        return units

    def serials(self) -> npt.NDArray[np.int64]:
        """Return the serials of all units, unsorted."""
        return np.concatenate([np.empty(0, np.int64), *(units["serial"] for units in self._blocks())])

    def last_serial(self) -> int:
        """Return the largest serial of any unit, or −1 if there are no units."""
        return max((int(units["serial"].max()) for units in self._blocks()), default=-1)

    def will_need(self, units: Units) -> None:
        """Tell the kernel that the records of ``units`` will be read soon, so that reading them does not block."""
        self._files.will_need(self.data_path, zip(units["at"].tolist(), units["size"].tolist(), strict=True))

    def read(self, at: int, size: int, crc: int) -> bytes | None:
        """Return the record of a unit, or ``None`` if its bytes have changed since they were written."""
        try:
            record = self._files.read(self.data_path, at, size)
        except OSError:
            return None
        return record if len(record) == size and crc32(record) == crc else None

    def delete(self) -> None:
        """Remove both files."""
        self.close()
        delete_large_file(self.index_path)
        delete_large_file(self.data_path)

    def close(self) -> None:
        """Close both files."""
        self._files.close(self.data_path)


def appended(units: Units, before_serial: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the units with serials below ``before_serial``; units of messages that the log has lost are
    always included."""
    appended: npt.NDArray[np.bool_] = (units["serial"] < before_serial) | (units["serial"] >= RENUMBERED)
    return appended


def day_number_of(path: Path) -> int | None:
    """Return the day number of a file in the timer log, or ``None`` for any other file."""
    if path.suffix not in (".index", ".data"):
        return None
    try:
        return (datetime.date.fromisoformat(path.stem) - _EPOCH).days
    except ValueError:
        return None
