"""TimerLog: all waiting messages by the day on which they are due (``TimerLog`` and ``TimerWheel``).

Theory of operation. A waiting message is first a record in the log, in the topic ``rmq_sys_wheel_timer``;
its queue offset there identifies it as its *serial*. From the log it is copied once into the files
of its day (:mod:`cometmq.store.timer.day`), and then no longer needs the log. Nothing else happens to
it until it is nearly due: then its unit, not its record, is loaded into memory with those of its window.
``position.json`` (:mod:`cometmq.store.timer.position`) says up to which serial messages are in the files
and which of them are delivered; later messages are in the log, which is kept from there onwards.

Invariants. A record is written before its unit, so that a unit leads to a whole record. Every message below the
saved serial is in the files of its day. A message counts as delivered only where the position or the log says so, and
is deleted only with its day, when all of that day is delivered.

Fault model: as of the store (:mod:`cometmq.store.message_store`). Bytes after the position may be torn;
they are written again from the log. Units that do not match their CRC are skipped, and the whole log is read again
for what they said. A record that does not match its CRC any more is read from the log if that still has it.
Appending, loading and saving block; they belong to one worker thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.limits import MAX_OPEN_TIMER_DAYS
from cometmq.store.disk import Disk, replace_whole
from cometmq.store.errors import StoreError
from cometmq.store.timer.day import DAY_MS, OpenFiles, TimerDay, day_number_of
from cometmq.store.timer.position import Delivered, LogEnd, SetBack, TimerPosition, after_loss, read_position
from cometmq.store.timer.unit import UNIT_DTYPE, Chosen, TimerEntry, Units, without_recalled

FOREVER_MS: Final = 1 << 62
"""Later than any due time."""


class Loaded(msgspec.Struct, frozen=True):
    """The messages of a time window."""

    units: Units
    """Waiting messages in the order of their due times, recalled ones left out."""
    until_ms: int
    """All messages due before this are among them; it may be earlier than asked for."""
    next_ms: int
    """Nothing else is due before this."""


class TimerLog:
    """The days of one store, and its position. ``findings`` has a line for each finding of the opening."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._days: dict[int, TimerDay] = {}
        self._files = OpenFiles(MAX_OPEN_TIMER_DAYS)
        self.findings: list[str] = []
        self.position = TimerPosition()
        """The position that was saved last."""
        self.delivered = Delivered(self.position, {})
        self.read_from = 0
        """The serial from which on the log is read: the position's, or the first where units are damaged."""
        self._kept: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """The sorted serials of the sound units, if some are damaged."""
        self._set_back: list[SetBack] = []

    @property
    def exists(self) -> bool:
        """True once any message has waited here."""
        return self._directory.exists()

    @property
    def _position_path(self) -> Path:
        return self._directory / "position.json"

    # --- opening --------------------------------------------------------------------------------
    def open(self, end: LogEnd) -> None:
        """Find the files and their sound parts.

        When the log ends before what is known of it (it comes from a backup, or its last files were damaged), the
        messages that it has lost are kept, and those delivered after its end are given again.

        :raises StoreError: the log has lost its end, and that cannot be written down.
        """
        if not self.exists:
            return
        position = read_position(self._position_path)
        is_cut_back = is_damaged = False
        numbers = {number for path in self._directory.iterdir() if (number := day_number_of(path)) is not None}
        if position is None:
            if numbers:
                self.findings.append("comet/timer/position.json: missing or damaged; the whole log is read instead")
        elif position.log_offset > end.offset:
            self.findings.append(
                f"comet/timer: knows the log up to {position.log_offset}, but it ends at {end.offset}; "
                "what fell due after that end is delivered again"
            )
            is_cut_back = True
            until_ms = min(position.until_ms, end.stored_ms)
            position = msgspec.structs.replace(position, log_offset=end.offset, until_ms=until_ms, set_back=[])
        for number in sorted(numbers | (position.days.keys() if position is not None else set())):
            day = TimerDay(self._directory, number, self._disk, self._files)
            wrong = day.recover(position.days.get(number, 0) if position is not None else None)
            if wrong is not None:
                self.findings.append(wrong)
                is_damaged = True
            if day.count:
                self._days[number] = day
            elif position is not None and number not in position.days and _is_over(number, position):
                day.delete()  # a crash came between the position and that
        known = position.serial if position is not None else 1 + self._last_serial()
        self.position = position or TimerPosition()
        if known > end.serial:
            self._keep_lost(end.serial)
        elif is_cut_back:
            self._write_down("what the log has lost would be taken for delivered once it is as long again")
        self._number_lost()
        self._set_back = self.position.set_back
        self.delivered = Delivered(self.position, {})
        self.read_from = 0 if is_damaged else self.position.serial
        if is_damaged:
            self._kept = np.sort(
                np.concatenate([np.empty(0, np.int64), *(day.serials() for day in self._days.values())])
            )

    def needs(self, serial: int, due_ms: int) -> bool:
        """Return whether a message of the log is neither delivered nor, where it is read again, in the files
        already."""
        if len(self._kept):
            place = int(np.searchsorted(self._kept, serial))
            if place < len(self._kept) and self._kept[place] == serial:
                return False
        return not self.delivered.has(serial, due_ms)

    def _last_serial(self) -> int:
        return max((day.last_serial() for day in self._days.values()), default=-1)

    def _keep_lost(self, serial: int) -> None:
        """Write down, before a new message can get one of these serials, that the log has lost those from there
        onwards."""
        days = {day.number: day.count for day in self._days.values()}
        self.position = after_loss(msgspec.structs.replace(self.position, days=days), serial)
        self.findings.append(
            f"comet/timer: waiting messages from number {serial} on are in the log no more; they are kept"
        )
        self._write_down("new waiting messages would be taken for those that the log has lost")

    def _write_down(self, otherwise: str) -> None:
        try:
            replace_whole(self._position_path, msgspec.json.encode(self.position), self._disk)
        except OSError as error:
            raise StoreError(
                f"comet/timer/position.json cannot be written: {error.strerror}",
                next_step="see that the disk has room and can be written; until then the broker does not start, "
                f"since {otherwise}",
            ) from error

    def _number_lost(self) -> None:
        counts = {day.number: day.count for day in self._days.values()}
        lost = []
        for one in self.position.lost:  # what is appended after a damaged end is not among them
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
        """Write entries, whose serials follow those written before, to their days.

        :raises OSError: none of them counts as written.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
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
        """Flush the appended records and record that; then delete the days that are over.

        The caller has seen to it that the log is flushed up to ``position.log_offset``.

        :raises OSError: it may not be on the disk; the position saved before still holds.
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
        position = msgspec.structs.replace(position, days=days, lost=lost, set_back=set_back)
        replace_whole(self._position_path, msgspec.json.encode(position), self._disk)
        self.position = position
        for number in over:
            self._days.pop(number).delete()

    def set_back(self, now: SetBack) -> None:
        """The clock was set back: note the deliveries so far; positions saved from now on may be earlier."""
        further = [one for one in self._set_back if one.until_ms > now.until_ms]
        self._set_back = [*further, now]
        self.delivered = Delivered(TimerPosition(now.serial, 0, now.until_ms, now.late, set_back=further), {})

    # --- reading --------------------------------------------------------------------------------
    def load(self, low_ms: int, high_ms: int, before_serial: int, most: int) -> Loaded:
        """Return the messages that wait and are due from ``low_ms`` to before ``high_ms`` (worker thread).

        No more than ``most``, except where more are due in one millisecond; those that were
        appended from ``before_serial`` on are left out.
        """
        parts: list[Units] = []
        room = most
        until_ms = high_ms
        for units in self.undelivered(low_ms, high_ms, before_serial):
            units = _sorted(units)
            if len(units) > room:
                until_ms = int(units["due"][room])
                if not parts:  # at least one moment, however many are due in it
                    until_ms = max(until_ms, int(units["due"][0]) + 1)
                parts.append(units[units["due"] < until_ms])
                break
            parts.append(units)
            room -= len(units)
        found = np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)
        for number in np.unique(found["due"] // DAY_MS).tolist():
            self._days[number].will_need(found[found["due"] // DAY_MS == number])
        return Loaded(found, until_ms, self.next_due(until_ms, before_serial))

    def next_due(self, from_ms: int, before_serial: int) -> int:
        """Return the earliest time at which a message from ``from_ms`` on can be due (worker thread)."""
        for number in sorted(self._days):
            day = self._days[number]
            if day.start_ms >= from_ms:
                return day.start_ms
            if day.start_ms + DAY_MS > from_ms:
                due = day.first_due(from_ms, before_serial)
                if due is not None:
                    return due
        return FOREVER_MS

    def count_at_start(self) -> int:
        """Return the number of messages that waited at the opening; call it before anything is saved (worker
        thread)."""
        return sum(len(units) for units in self.undelivered(-FOREVER_MS, FOREVER_MS, self.position.serial))

    def window_end(self, low_ms: int, high_ms: int, most: int, chosen: Chosen) -> tuple[int, int]:
        """Return the end of a window from ``low_ms`` on, at most ``high_ms``, with about ``most`` messages (worker
        thread).

        Nothing is due between the end of one day that has any and the next, so one day at most is read.

        :return: the moment, and the number of units that were read to find it.
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
        """Return the messages due from ``low_ms`` to before ``high_ms`` in the order of due times, those included that
        were delivered since the store was opened (worker thread)."""
        parts = [_sorted(units) for units in self.undelivered(low_ms, high_ms, FOREVER_MS)]
        return np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)

    def undelivered(self, low_ms: int, high_ms: int, before_serial: int) -> Iterator[Units]:
        """Yield the messages of each day that wait and are due from ``low_ms`` to before ``high_ms`` (worker thread).

        Those that were appended from ``before_serial`` on are left out.
        """
        for number in sorted(self._days):
            day = self._days[number]
            if low_ms < day.start_ms + DAY_MS and day.start_ms < high_ms:
                # Recalls first: one counts as delivered before a message that was late is.
                units = self.delivered.left(without_recalled(day.units(low_ms, high_ms, before_serial)))
                if len(units):
                    yield units

    def record(self, due_ms: int, at: int, size: int, crc: int) -> bytes | None:
        """Return the record that a unit leads to, or ``None`` if it is not there as it was written."""
        day = self._days.get(due_ms // DAY_MS)
        return day.read(at, size, crc) if day is not None else None

    def close(self) -> None:
        """Close the files."""
        for day in self._days.values():
            day.close()


def _is_over(number: int, position: TimerPosition) -> bool:
    """Return whether all that was due on a day is delivered."""
    return not position.late and (number + 1) * DAY_MS <= position.until_ms + 1


def _sorted(units: Units) -> Units:
    """Sort units by their due times, each once: after a loss of the position messages are written again."""
    ordered: Units = units[np.lexsort((units["serial"], units["due"]))]
    again = (np.diff(ordered["serial"]) == 0) & (np.diff(ordered["due"]) == 0)
    once: Units = np.concatenate((ordered[:1], ordered[1:][~again]))
    return once
