"""TimerPosition: the progress of saving and delivering delayed messages, in ``comet/timer/position.json``.

The file is written after the log, the records and the units were flushed, so that it is correct after a crash. Later
deliveries are in the log itself: a delivered record has the serial of its delayed record in its prepared transaction
offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cometmq.store.timer.unit import END_OF_TIME_MS, Units

_VERSION: Final = 1


RENUMBERED: Final = 1 << 48
"""Lowest serial of messages that the log has lost. Their queue offsets are assigned to new messages."""


class LogEnd(msgspec.Struct, frozen=True):
    """The end of a store's log when the store is opened."""

    offset: int
    serial: int
    """Queue offset of the next delayed message."""
    stored_ms: int
    """Store timestamp of the log's last record, or −1 if the log is empty."""


Seen = tuple[int, int, int]
"""Inode, size and modification time in nanoseconds of a file."""


class Lost(msgspec.Struct, frozen=True):
    """Messages that exist only in the timer log, because the CommitLog has lost its end."""

    serial: int
    """The lowest lost serial."""
    days: dict[int, int]
    """Number of each day's first units that may belong to lost messages, by day number."""
    added: int
    """Difference between the serials of the lost messages and the serials in their units."""


class SetBack(msgspec.Struct, frozen=True):
    """The deliveries before the clock was set back. They are needed until the clock has reached that time again."""

    serial: int
    """Serial below which the other fields apply."""
    until_ms: int
    """Messages due until this time were delivered, except those in ``late``."""
    late: list[int]
    """Messages that were due until ``until_ms`` but not delivered."""


class TimerPosition(msgspec.Struct, frozen=True):
    """The state of the timer log and of its deliveries at one point in time."""

    serial: int = 0
    """Serial below which every message is in the files of its day."""
    log_offset: int = 0
    """Log offset below which ``until_ms`` and ``late`` describe all deliveries."""
    until_ms: int = -1
    """Messages with serials below ``serial`` that were due until this time are delivered, except those in ``late``."""
    late: list[int] = []
    """Messages that were due until ``until_ms`` but not delivered."""
    days: dict[int, int] = {}
    """Number of units in each day's index, by day number since 1970."""
    lost: list[Lost] = []
    """An entry for each time the log lost messages below ``serial``, oldest first."""
    set_back: list[SetBack] = []
    """An entry for each time the clock was set back: what had been delivered before."""
    seen: dict[int, Seen] = {}
    """The index of each day when the position was saved, by day number."""
    boot: str = ""
    """Boot ID of the machine at that time, since a power cut can lose the time of a change and keep the change."""
    version: int = _VERSION


def position_after_loss(position: TimerPosition, serial: int) -> TimerPosition:
    """Return the position for a log that has lost the messages from serial ``serial`` and will assign these serials
    again.

    Deliveries saved for later times do not apply to new messages.
    """
    added = RENUMBERED + (position.lost[-1].added if position.lost else 0)
    return msgspec.structs.replace(
        position,
        serial=min(position.serial, serial),
        late=[late + added if serial <= late < RENUMBERED else late for late in position.late],
        lost=[*position.lost, Lost(serial, position.days, added)],
        set_back=[],
    )


def read_position(path: Path) -> TimerPosition | None:
    """Read a position file. Return ``None`` if it is unreadable."""
    try:
        position = msgspec.json.decode(path.read_bytes(), type=TimerPosition)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    numbers = (position.serial, position.log_offset, *position.days.values(), *position.days)
    can_be = all(0 <= number < 1 << 62 for number in numbers) and -1 <= position.until_ms < END_OF_TIME_MS
    return position if position.version == _VERSION and can_be else None


class Delivered:
    """Knows which messages were delivered before the store was opened, or before the clock was set back.

    :param found: due times, by serial, of messages whose delivery is in the log after the position.
    """

    def __init__(self, position: TimerPosition, found: Mapping[int, int]) -> None:
        self._position = position
        self._late = frozenset(position.late)
        moments = [SetBack(position.serial, position.until_ms, position.late), *position.set_back]
        self._moments = [(one.serial, one.until_ms, np.array(one.late, np.int64)) for one in moments]
        self._found: npt.NDArray[np.int64] = np.array(sorted(found), np.int64)
        self._serials = frozenset(found)
        self.until_ms = max(position.until_ms, *found.values(), -1)
        """Latest due time of any message delivered since the clock was last set back."""

    def has(self, serial: int, due_ms: int) -> bool:
        """Return whether a message was delivered."""
        position = self._position
        before = serial < position.serial and due_ms <= position.until_ms and serial not in self._late
        return before or serial in self._serials

    def left(self, units: Units) -> Units:
        """Return the units of messages that were not delivered."""
        return units[~self.are_delivered(units)]

    def are_delivered(self, units: Units) -> npt.NDArray[np.bool_]:
        """Return a mask of the units of messages that were delivered."""
        serial, due = units["serial"], units["due"]
        gone: npt.NDArray[np.bool_] = np.isin(serial, self._found)
        for written, until_ms, late in self._moments:
            gone |= ((serial < written) | (serial >= RENUMBERED)) & (due <= until_ms) & ~np.isin(serial, late)
        return gone
