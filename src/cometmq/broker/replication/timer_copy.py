"""TimerCopy: a slave's copy of the master's timer log (:mod:`cometmq.store.timer.log`).

Retention may have deleted delayed messages from the slave's log. Therefore the slave copies the daily files, to which
the master only appends, and then the position. The position is valid once the slave's log has been flushed up to the
position's log offset; retention deletes nothing at or after that offset. The log contains the later arrivals and
deliveries, so that this broker continues exactly there when it becomes a master.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
import numpy as np

from cometmq.broker.limits import MAX_TIMER_COPY_BYTES
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.store_files import FilePart, MasterFiles
from cometmq.checksum import crc32
from cometmq.durable import make_directory
from cometmq.message.names import TIMER_TOPIC
from cometmq.store.disk import replace_whole
from cometmq.store.message_store import MessageStore
from cometmq.store.retention import LogPin
from cometmq.store.timer.day import OpenFiles, TimerDay, day_number_of
from cometmq.store.timer.position import TimerPosition, read_position
from cometmq.store.timer.unit import UNIT_BYTES, UNIT_DTYPE, TimerEntry, Units, sound_units
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_POSITION: Final = "timer/position.json"
_FRESH: Final = "timer.new"


class TimerCopy:
    """The copy of the timer log in a slave's store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._directory: Final = store.config.root / "comet" / "timer"
        self._fresh: Final = self._directory.with_name(_FRESH)
        self._days: dict[int, TimerDay] = {}
        """Days whose units are known to be a prefix of the master's."""
        self._held: tuple[TimerPosition, FilePart] | None = None
        self._version = ""
        self._position = read_position(self._directory / "position.json") or TimerPosition()
        self._log_pin = LogPin("delayed messages")
        if self._directory.exists():
            self._log_pin.offset = self._position.log_offset
        store.hold_log(self._log_pin)

    async def copy(self, master: MasterFiles) -> None:
        """Copy the messages that have arrived since the last copy.

        :raises ReplicationError: the master's files are malformed, or cannot be read.
        :raises RemotingError: the master does not answer.
        :raises OSError: the copies cannot be written.
        """
        if self._held is None:
            found = await master.whole(_POSITION, self._version)
            if found is None:
                return
            try:
                position = msgspec.json.decode(found.data, type=TimerPosition)
            except msgspec.MsgspecError as error:
                raise ReplicationError(f"malformed {_POSITION} on the master: {error}") from error
            for number, count in sorted(position.days.items()):
                await self._copy_day(master, number, count)
            self._held = (position, found)
        await self.put_in_place()

    def begin_with_master(self) -> None:
        """Forget what was copied from an earlier master, but not installed."""
        self._held, self._version = None, ""
        self._days.clear()

    async def put_in_place(self) -> None:
        """Install the copied position if the slave's log has reached its offset.

        :raises OSError: the position cannot be written.
        """
        if self._held is None:
            return
        position, found = self._held
        store = self._store
        if 0 < position.log_offset < store.min_physical_offset:
            self._held, self._version = None, ""  # this log begins later: a newer position is needed
        elif store.readable_end >= position.log_offset and self._has(position.serial):
            await in_thread(self._install_files, position, found.data)
            self._held = None
            self._version = found.version
            self._position = position
            self._log_pin.offset = position.log_offset

    def _has(self, serial: int) -> bool:
        """Return whether this slave's log contains, durably, every delayed message with a number below ``serial``."""
        unit = self._store.queue(TIMER_TOPIC, 0).unit(serial - 1) if serial else None
        if unit is None:
            return self._store.stored_end(TIMER_TOPIC, 0) >= serial or not serial
        return unit[0] + unit[1] <= self._store.kept_end

    # --- one day ------------------------------------------------------------------------------
    async def _copy_day(self, master: MasterFiles, number: int, count: int) -> None:
        day = self._days.get(number)
        if day is None:
            day = TimerDay(self._directory, number, self._store.disk, OpenFiles(1))
            day.recover(self._position.days.get(number, 0))
        if not await self._is_prefix(master, day, count):
            _log.warning("comet/timer: %s differs from the master's, copying it again", day.index_path.name)
            day = TimerDay(self._fresh, number, self._store.disk, OpenFiles(1))
        self._days[number] = day
        while day.count < count:
            await self._copy_units(master, day, count)

    async def _is_prefix(self, master: MasterFiles, day: TimerDay, count: int) -> bool:
        """Return whether this day's last unit is the same on the master."""
        if day.count > count:
            return False
        if not day.count:
            return True
        at = (day.count - 1) * UNIT_BYTES
        with day.index_path.open("rb") as file:
            file.seek(at)
            ours = file.read(UNIT_BYTES)
        return await master.range(f"timer/{day.index_path.name}", at, at + UNIT_BYTES) == ours

    async def _copy_units(self, master: MasterFiles, day: TimerDay, count: int) -> None:
        """Copy the next units and their records, up to a few MB in total."""
        name = day.index_path.stem
        most = min(count - day.count, MAX_TIMER_COPY_BYTES // UNIT_BYTES)
        start = day.count * UNIT_BYTES
        raw = await master.range(f"timer/{name}.index", start, start + most * UNIT_BYTES)
        units = np.frombuffer(raw, UNIT_DTYPE)
        if any(sound_units(raw[at : at + UNIT_BYTES]) != 1 for at in range(0, len(raw), UNIT_BYTES)):
            raise ReplicationError(f"the master's timer/{name}.index is damaged, starting at unit {day.count}")
        ends = units["at"] + units["size"]
        begin = int(units["at"][0])
        few = max(1, int(np.searchsorted(ends, begin + MAX_TIMER_COPY_BYTES, side="right")))
        units, end = units[:few], int(ends[few - 1])
        most_bytes = MAX_TIMER_COPY_BYTES if few > 1 else self._store.config.mapped_file_size_commit_log
        if not 0 <= begin < end <= begin + most_bytes:
            raise ReplicationError(f"the master's timer/{name}.index has invalid offsets, starting at unit {day.count}")
        records = await master.range(f"timer/{name}.data", begin, end)
        entries = [_entry(unit, records, begin, name) for unit in units]
        await in_thread(_append, day, entries)

    # --- installing ---------------------------------------------------------------------------
    def _install_files(self, position: TimerPosition, content: bytes) -> None:
        make_directory(self._directory)
        for number, day in self._days.items():
            if day.dirty:
                day.flush()
            if day.index_path.parent == self._fresh:
                for path in (day.data_path, day.index_path):
                    path.replace(self._directory / path.name)
                self._days[number] = TimerDay(self._directory, number, self._store.disk, OpenFiles(1))
                self._days[number].recover(day.count)
        replace_whole(self._directory / "position.json", content, self._store.disk)
        for path in list(self._directory.iterdir()):
            number_of_file = day_number_of(path)
            if number_of_file is not None and number_of_file not in position.days:
                self._days.pop(number_of_file, None)
                path.unlink()


def _append(day: TimerDay, entries: list[TimerEntry]) -> None:
    day.index_path.parent.mkdir(parents=True, exist_ok=True)
    day.append(entries)


def _entry(unit: Units, records: bytes, begin: int, name: str) -> TimerEntry:
    """Return the entry of a unit.

    :raises ReplicationError: the record is damaged.
    """
    at = int(unit["at"]) - begin
    record = records[at : at + int(unit["size"])] if at >= 0 else b""
    if len(record) != int(unit["size"]) or crc32(record) != int(unit["crc"]):
        raise ReplicationError(f"the master's timer/{name}.data is damaged at byte {int(unit['at'])}")
    return TimerEntry(
        int(unit["due"]), int(unit["serial"]), int(unit["key"]), int(unit["topic"]), int(unit["kind"]), 0, record
    )
