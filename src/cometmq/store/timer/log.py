"""TimerLog: stores delayed messages by due day (``TimerLog`` and ``TimerWheel``).

Theory of operation. A delayed message is first a record in the log, in the topic ``rmq_sys_wheel_timer``; its queue
offset there is its *serial*. It is copied once from the log into the files of its day (:mod:`cometmq.store.timer.day`),
and then no longer needs the log. Shortly before it is due, its unit (but not its record) is loaded into memory,
together with the other units of a time window. ``position.json`` (:mod:`cometmq.store.timer.position`) contains the
serial up to which messages are in the files, and which of them are delivered. Later messages are in the log, whose
files are kept as long as these messages are only there.

Invariants. A record is written before its unit, so that a unit points to a complete record. Every message below the
saved serial is in the files of its day. A message counts as delivered only if the position or the log says so, and is
deleted only together with its day, once all messages due on that day are delivered.

Fault model: as for the store (:mod:`cometmq.store.message_store`). Bytes after the position may be torn; they are
written again from the log. Units with a wrong CRC are skipped, and the entire log is read again to find their messages.
A record with a wrong CRC is read from the log if the log still contains it. Appending, loading and saving block; one
worker thread does them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.durable import make_directory
from cometmq.limits import MAX_OPEN_TIMER_DAYS
from cometmq.store.boot import boot_id
from cometmq.store.disk import Disk, replace_whole
from cometmq.store.errors import StoreError
from cometmq.store.timer.day import DAY_MS, READ_UNITS, OpenFiles, TimerDay, appended, day_number_of
from cometmq.store.timer.position import (
    Delivered,
    LogEnd,
    Seen,
    SetBack,
    TimerPosition,
    position_after_loss,
    read_position,
)
from cometmq.store.timer.unit import UNIT_DTYPE, Chosen, TimerEntry, Units, without_recalled

FOREVER_MS: Final = 1 << 62
"""A time that is later than every due time."""
_LARGE_DAY: Final = 4 * READ_UNITS
"""Number of units in a day above which its windows are longer, since each window reads the day's whole index."""
_WINDOWS_OF_LARGE_DAY: Final = 64
"""Number of windows in which such a day is read."""


class Loaded(msgspec.Struct, frozen=True):
    """The delayed messages of a time window."""

    units: Units
    """Units of the delayed messages that were not recalled, in the order of their due times."""
    until_ms: int
    """Time before which all due messages are included. It may be earlier or later than requested."""
    next_ms: int
    """No message other than those in ``units`` is due before this time."""


class TimerLog:
    """A store's timer log: its days and its position. ``findings`` contains a line for each problem found on opening
    it.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._days: dict[int, TimerDay] = {}
        self._files = OpenFiles(MAX_OPEN_TIMER_DAYS)
        self.findings: list[str] = []
        self.position = TimerPosition()
        """Last saved position."""
        self.delivered = Delivered(self.position, {})
        self.read_from = 0
        """Serial at which reading the log starts: the position's serial, or that of the first damaged unit."""
        self._kept: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """Sorted serials of the sound units, if some units are damaged."""
        self._set_back: list[SetBack] = []

    @property
    def exists(self) -> bool:
        """True if this store has ever had a delayed message."""
        return self._directory.exists()

    @property
    def _position_path(self) -> Path:
        return self._directory / "position.json"

    # --- opening --------------------------------------------------------------------------------
    def open(self, end: LogEnd) -> None:
        """Open the files, and use their sound parts.

        The log may end earlier than recorded in the timer log, because it was restored from a backup or its last files
        were damaged. The timer log then keeps the messages that the log has lost, and messages delivered after the
        log's end are delivered again.

        :raises StoreError: the log has lost its end, and this fact cannot be saved.
        """
        if not self.exists:
            return
        position = read_position(self._position_path)
        is_cut_back = is_damaged = False
        numbers = {number for path in self._directory.iterdir() if (number := day_number_of(path)) is not None}
        if position is None:
            if numbers:
                self.findings.append("comet/timer/position.json: missing or damaged; the entire log is read instead")
        elif position.log_offset > end.offset:
            self.findings.append(
                f"comet/timer: its position is at log offset {position.log_offset}, but the log ends at {end.offset}; "
                "messages that fell due after that end are delivered again"
            )
            is_cut_back = True
            until_ms = min(position.until_ms, end.stored_ms)
            position = msgspec.structs.replace(position, log_offset=end.offset, until_ms=until_ms, set_back=[])
        for number in sorted(numbers | (position.days.keys() if position is not None else set())):
            day = TimerDay(self._directory, number, self._disk, self._files)
            wrong = day.recover(
                position.days.get(number, 0) if position is not None else None, is_unchanged=_is_seen(day, position)
            )
            if wrong is not None:
                self.findings.append(wrong)
                is_damaged = True
            if day.count:
                self._days[number] = day
            elif position is not None and number not in position.days and _is_over(number, position):
                day.delete()  # a crash happened between the save of the position and the deletion
        known = position.serial if position is not None else 1 + self._last_serial()
        self.position = position or TimerPosition()
        if known > end.serial:
            self._record_loss(end.serial)
        elif is_cut_back:
            self._save_loss("lost messages would be treated as delivered once the log has grown to its old length")
        self._renumber_lost()
        self._set_back = self.position.set_back
        self.delivered = Delivered(self.position, {})
        self.read_from = 0 if is_damaged else self.position.serial
        if is_damaged:
            self._kept = np.sort(
                np.concatenate([np.empty(0, np.int64), *(day.serials() for day in self._days.values())])
            )

    def needs(self, serial: int, due_ms: int) -> bool:
        """Return whether a message from the log is neither delivered nor already in the files."""
        if len(self._kept):
            place = int(np.searchsorted(self._kept, serial))
            if place < len(self._kept) and self._kept[place] == serial:
                return False
        return not self.delivered.has(serial, due_ms)

    def _last_serial(self) -> int:
        return max((day.last_serial() for day in self._days.values()), default=-1)

    def _record_loss(self, serial: int) -> None:
        """Record durably that the log has lost all messages from serial ``serial`` on, before the serials are used
        again.
        """
        days = {day.number: day.count for day in self._days.values()}
        self.position = position_after_loss(msgspec.structs.replace(self.position, days=days), serial)
        self.findings.append(
            f"comet/timer: delayed messages from number {serial} on are no longer in the log; they are kept"
        )
        self._save_loss("new delayed messages would be mistaken for messages that the log has lost")

    def _save_loss(self, otherwise: str) -> None:
        try:
            replace_whole(self._position_path, msgspec.json.encode(self.position), self._disk)
        except OSError as error:
            raise StoreError(
                f"comet/timer/position.json cannot be written: {error.strerror}",
                next_step="free some disk space or make the disk writable; the broker does not start until then, "
                f"because {otherwise}",
            ) from error

    def _renumber_lost(self) -> None:
        counts = {day.number: day.count for day in self._days.values()}
        lost = []
        for one in self.position.lost:  # units appended after a damaged end are not among them
            days = {number: min(count, counts.get(number, 0)) for number, count in one.days.items()}
            lost.append(msgspec.structs.replace(one, days=days))
        self.position = msgspec.structs.replace(self.position, lost=lost)
        for day in self._days.values():
            day.lost = [
                (lost.days[day.number], lost.serial, lost.added)
                for lost in self.position.lost
                if day.number in lost.days
            ]

    # --- writing (worker thread) ------------------------------------------------------------------
    def append(self, entries: Sequence[TimerEntry]) -> None:
        """Write entries to the files of their days. Their serials follow the last serial written.

        :raises OSError: no entry counts as written.
        """
        make_directory(self._directory)
        by_day: dict[int, list[TimerEntry]] = {}
        for entry in entries:
            by_day.setdefault(entry.due_ms // DAY_MS, []).append(entry)
        marks: list[tuple[TimerDay, tuple[int, int]]] = []
        try:
            for number, of_day in by_day.items():
                day = self._days.get(number)
                if day is None:
                    day = self._days[number] = TimerDay(self._directory, number, self._disk, self._files)
                marks.append((day, day.mark()))
                day.append(of_day)
        except OSError:
            for day, mark in marks:
                day.undo(*mark)
            raise

    def save(self, position: TimerPosition) -> None:
        """Flush the appended records, save the position, and delete the days that have ended.

        The caller must have flushed the log up to ``position.log_offset``.

        :raises OSError: the new position may not be on disk, but the previous one is still valid.
        """
        if not self.exists:
            return
        for day in self._days.values():
            if day.dirty:
                day.flush()
        over = [number for number in self._days if _is_over(number, position)]
        days = {number: day.count for number, day in self._days.items() if number not in over}
        lost = [
            msgspec.structs.replace(one, days={number: one.days[number] for number in one.days if number in days})
            for one in self.position.lost
        ]
        set_back = [one for one in self._set_back if one.until_ms > position.until_ms]
        position = msgspec.structs.replace(
            position, days=days, lost=lost, set_back=set_back, seen=self._seen(days), boot=boot_id()
        )
        replace_whole(self._position_path, msgspec.json.encode(position), self._disk)
        self.position = position
        for number in over:
            self._days.pop(number).delete()

    def _seen(self, days: Mapping[int, int]) -> dict[int, Seen]:
        """Return the indexes of the days that have no damaged units."""
        return {
            number: seen
            for number in days
            if not self._days[number].is_damaged and (seen := self._days[number].seen()) is not None
        }

    def set_back(self, now: SetBack) -> None:
        """Remember the deliveries so far, because the clock was set back. Positions saved later may have
        earlier times.
        """
        further = [one for one in self._set_back if one.until_ms > now.until_ms]
        self._set_back = [*further, now]
        self.delivered = Delivered(TimerPosition(now.serial, 0, now.until_ms, now.late, set_back=further), {})

    # --- reading --------------------------------------------------------------------------------
    def load(self, low_ms: int, high_ms: int, before_serial: int, most: int) -> Loaded:
        """Return the delayed messages due at or after ``low_ms`` and before ``high_ms`` (worker thread).

        The result has at most ``most`` messages, unless more are due in one millisecond. It has those of a longer time
        if the day has so many messages that reading them for each short window would take long. Messages with serial
        ``before_serial`` and above are left out.
        """
        parts: list[Units] = []
        room = most
        high_ms = until_ms = self._window_end(low_ms, high_ms)
        for day in self._days_in(low_ms, high_ms):
            until_ms = _end_of_part(day, low_ms, high_ms, before_serial, room, is_first=not parts)
            units = _sorted(self._undelivered(day, low_ms, until_ms, before_serial))
            if len(units):
                parts.append(units)
                room -= len(units)
            if until_ms < high_ms:
                break
        found = np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)
        for number in np.unique(found["due"] // DAY_MS).tolist():
            self._days[number].will_need(found[found["due"] // DAY_MS == number])
        return Loaded(found, until_ms, self.next_due(until_ms, before_serial))

    def _window_end(self, low_ms: int, high_ms: int) -> int:
        """Return ``high_ms``, or a later time in the same day if that day has many messages."""
        for day in self._days_in(low_ms, high_ms):
            if day.count > _LARGE_DAY:
                wide_ms = max(low_ms, day.start_ms) + DAY_MS // _WINDOWS_OF_LARGE_DAY
                high_ms = max(high_ms, min(wide_ms, day.start_ms + DAY_MS))
        return high_ms

    def next_due(self, from_ms: int, before_serial: int) -> int:
        """Return the earliest possible due time of a message at or after ``from_ms`` (worker thread)."""
        for number in sorted(self._days):
            day = self._days[number]
            if day.start_ms >= from_ms:
                return day.start_ms
            if day.start_ms + DAY_MS > from_ms:
                due = day.first_due(from_ms, before_serial)
                if due is not None:
                    return due
        return FOREVER_MS

    def count_when_opened(self) -> int:
        """Return the number of delayed messages when the log was opened. Must be called before the first save (worker
        thread).
        """
        return sum(self._count(day, self.position.serial) for day in self._days.values())

    def _count(self, day: TimerDay, before_serial: int) -> int:
        def waits(units: Units) -> npt.NDArray[np.bool_]:
            return appended(units, before_serial) & ~self.delivered.are_delivered(units)

        count = day.count_without_recalls(waits)
        return len(self._undelivered(day, -FOREVER_MS, FOREVER_MS, before_serial)) if count is None else count

    def window_end(self, low_ms: int, high_ms: int, most: int, chosen: Chosen) -> tuple[int, int]:
        """Return the end of a window that starts at ``low_ms``, ends at ``high_ms`` at the latest, and contains about
        ``most`` messages (worker thread).

        At most one day is read, since no message is due between two stored days.

        :return: the end of the window, and the number of units read to find it.
        """
        for number in sorted(self._days):
            day = self._days[number]
            end_ms = day.start_ms + DAY_MS
            if end_ms <= low_ms:
                continue
            if day.start_ms >= high_ms:
                break
            dues = day.dues(low_ms, high_ms, chosen)
            if len(dues) > most:
                end_ms = max(int(np.partition(dues, most)[most]), int(dues.min()) + 1)
            return min(end_ms, high_ms), day.count
        return high_ms, 0

    def waiting(self, low_ms: int, high_ms: int) -> Units:
        """Return the messages due at or after ``low_ms`` and before ``high_ms``, sorted by due time (worker thread).

        The result includes messages that were delivered after the store was opened.
        """
        parts = [_sorted(units) for units in self.undelivered(low_ms, high_ms, FOREVER_MS)]
        return np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)

    def undelivered(self, low_ms: int, high_ms: int, before_serial: int) -> Iterator[Units]:
        """Yield for each day the undelivered messages due at or after ``low_ms`` and before ``high_ms`` (worker
        thread).

        Messages with serial ``before_serial`` and above are left out.
        """
        for day in self._days_in(low_ms, high_ms):
            units = self._undelivered(day, low_ms, high_ms, before_serial)
            if len(units):
                yield units

    def _days_in(self, low_ms: int, high_ms: int) -> Iterator[TimerDay]:
        """Yield the days that have milliseconds at or after ``low_ms`` and before ``high_ms``."""
        for number in sorted(self._days):
            day = self._days[number]
            if low_ms < day.start_ms + DAY_MS and day.start_ms < high_ms:
                yield day

    def _undelivered(self, day: TimerDay, low_ms: int, high_ms: int, before_serial: int) -> Units:
        # Recalls first: a recall counts as delivered earlier than the late message that it recalls.
        return self.delivered.left(without_recalled(day.units(low_ms, high_ms, before_serial)))

    def record(self, due_ms: int, at: int, size: int, crc: int) -> bytes | None:
        """Return the record to which a unit points, or ``None`` if its bytes have changed or are missing."""
        day = self._days.get(due_ms // DAY_MS)
        return day.read(at, size, crc) if day is not None else None

    def close(self) -> None:
        """Close the files."""
        for day in self._days.values():
            day.close()


def _is_over(number: int, position: TimerPosition) -> bool:
    """Return whether all messages due on a day are delivered."""
    return not position.late and (number + 1) * DAY_MS <= position.until_ms + 1


def _is_seen(day: TimerDay, position: TimerPosition | None) -> bool:
    """Return whether a day's index has not changed since the position was saved, in this boot of the machine."""
    if position is None or not position.boot or position.boot != boot_id():
        return False
    seen = day.seen()
    return seen is not None and position.seen.get(day.number) == seen


def _end_of_part(day: TimerDay, low_ms: int, high_ms: int, before_serial: int, most: int, *, is_first: bool) -> int:
    """Return the time until which a day has at most ``most`` messages, delivered or not, starting at ``low_ms``.

    Only due times are read, so that a window with millions of messages takes little memory. The first part has at least
    one millisecond, however many messages are due in it.
    """
    dues = day.dues(low_ms, high_ms, lambda units: appended(units, before_serial))
    if len(dues) <= most:
        return high_ms
    end_ms = int(np.partition(dues, most)[most])
    return max(end_ms, int(dues.min()) + 1) if is_first else end_ms


def _sorted(units: Units) -> Units:
    """Sort units by due time and remove duplicates, which are written if the position is lost."""
    ordered: Units = units[np.lexsort((units["serial"], units["due"]))]
    again = (np.diff(ordered["serial"]) == 0) & (np.diff(ordered["due"]) == 0)
    once: Units = np.concatenate((ordered[:1], ordered[1:][~again]))
    return once
